package ptx

import "sync/atomic"

// state is what a thread waits for.
type state uint8

const (
	running    state = iota
	waiting          // at a barrier
	converging       // of its warp
	resting          // until its next turn
	done
)

// A thread runs the code of one, a while at a time.
type thread struct {
	r     []uint64 // registers of the function that runs
	fn    *function
	pc    int32
	state state
	carry uint64 // of the last instruction with .cc

	frame uint64 // where its local memory begins, in local
	extra uint64 // bytes that alloca has taken behind its frame
	local []byte
	stack []activation
	regs  []uint64 // of all that are active; r is the last of them

	block    *block
	index    int // in the block
	tid      [3]uint32
	barrier  barrierWait
	point    *convergence // that it is at, with what it brings
	inst     *inst
	mask     uint32
	patience int
	fault    *Fault

	withdrawals *atomic.Uint64 // the launch's
	withdrawn   uint64         // how many of them read and write know of
	read        cache
	write       cache
}

// An activation is a function that has called another one.
type activation struct {
	fn     *function
	pc     int32
	base   int // of its registers in regs
	frame  uint64
	extra  uint64
	result []transfer
}

// A transfer copies a parameter between two frames.
type transfer struct {
	from, to uint64
	size     int
}

// Bounds on what one thread may use, in bytes. Local memory has the GPU's.
const (
	maxLocal = 512 << 10
	maxStack = 1 << 20 // local memory, registers and calls
	callSize = 64      // of a call, whatever the function has
)

// begin makes t the n-th thread of a block, at the beginning of the kernel.
// Registers and local memory of another block's thread are used again.
func (t *thread) begin(b *block, n int, tid [3]uint32) {
	f := b.launch.kernel
	regs, memory := t.regs[:0], t.local[:0]
	*t = thread{block: b, index: n, tid: tid, read: t.read, write: t.write, withdrawn: t.withdrawn}
	t.withdrawals = b.launch.Withdrawals
	t.regs = zeros(regs, int(f.slots))
	t.local = zeros(memory, int(alignUp(uint64(f.frame), 16))) // aligned for atomics
	t.enter(f, 0)
}

// zeros returns n of them, in s if that has the room.
func zeros[T any](s []T, n int) []T {
	if cap(s) < n {
		return make([]T, n)
	}
	s = s[:n]
	clear(s)
	return s
}

// enter begins a function whose registers are the last in regs.
func (t *thread) enter(f *function, base int) {
	t.fn, t.pc = f, 0
	t.r = t.regs[base:]
	for i, s := range f.special {
		t.r[s] = f.which[i].value(t)
	}
	for _, p := range f.preset {
		v := p.value
		if p.v != nil {
			v += t.block.launch.address(p.v)
			if p.v.framed {
				v += t.frame
			}
		}
		t.r[p.slot] = v
	}
}

// turn runs t until it waits, ends, fails, or has run n instructions, and says how
// many it did.
func (t *thread) turn(n int) int {
	for ran := range n {
		if t.state != running {
			return ran
		}
		i := &t.fn.code[t.pc]
		t.pc++
		if i.guard >= 0 && (t.r[i.guard] == 0) != i.not {
			continue
		}
		i.run(t, i)
	}
	return n
}

// rest ends the thread's turn after an instruction that takes long, so that a launch that is
// cancelled ends within a turn.
func (t *thread) rest() {
	if t.state == running {
		t.state = resting
	}
}

// fail ends the thread, and with it the launch.
func (t *thread) fail(kind FaultKind, address uint64) {
	if t.fault == nil {
		t.fault = &Fault{Kind: kind, Address: address, Kernel: t.block.launch.kernel.name,
			Function: t.fn.name, Line: int(t.fn.code[t.pc-1].line), Block: t.block.id, Thread: t.tid}
	}
	t.state = done
}

func runReturn(t *thread, _ *inst) {
	if len(t.stack) == 0 {
		t.state = done
		return
	}
	a := t.stack[len(t.stack)-1]
	t.stack = t.stack[:len(t.stack)-1]
	for _, m := range a.result {
		copy(t.local[m.to:m.to+uint64(m.size)], t.local[m.from:])
	}
	t.fn, t.pc, t.frame, t.extra = a.fn, a.pc, a.frame, a.extra
	t.regs = t.regs[:a.base+int(a.fn.slots)]
	t.r = t.regs[a.base:]
}

func runExit(t *thread, _ *inst) { t.state = done }

func runTrap(t *thread, _ *inst) { t.fail(Trap, 0) }

func runBranch(t *thread, i *inst) { t.pc = i.to }

func runNothing(*thread, *inst) {}
