package ptx

// state is what a thread waits for.
type state uint8

const (
	running state = iota
	waiting       // at a barrier
	done
)

// A thread runs the code of one, a while at a time.
type thread struct {
	r     []uint64 // registers of the function that runs
	fn    *function
	pc    int32
	state state
	left  int // instructions until others have their turn

	frame uint64 // where its local memory begins, in local
	local []byte
	stack []activation
	regs  []uint64 // of all that are active; r is the last of them

	block   *block
	index   int // in the block
	tid     [3]uint32
	barrier barrierWait
	read    piece // where it last read global memory
	write   piece
	fault   *Fault
}

// An activation is a function that has called another one.
type activation struct {
	fn     *function
	pc     int32
	base   int // of its registers in regs
	frame  uint64
	result []transfer
}

// A transfer copies a parameter between two frames.
type transfer struct {
	from, to uint64
	size     int
}

// Bounds on what one thread may use.
const (
	maxLocal = 512 << 10 // bytes, as on the GPU
	maxDepth = 1 << 16
)

// begin makes t ready to run an entry.
func (t *thread) begin(f *function) {
	t.regs = make([]uint64, f.slots)
	t.local = make([]byte, f.frame)
	t.enter(f, 0)
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
			if p.v.inFrame(f) {
				v += t.frame
			}
		}
		t.r[p.slot] = v
	}
}

// inFrame reports whether a variable lies in the frame of f, whose it is.
func (v *variable) inFrame(f *function) bool {
	return v.space == local || v.space == param && !f.isParameter(v)
}

// isParameter reports whether v is a parameter of an entry, which no frame holds.
func (f *function) isParameter(v *variable) bool {
	if !f.entry {
		return false
	}
	for i := range f.params {
		if &f.params[i].variable == v {
			return true
		}
	}
	return false
}

// turn runs t until it waits, ends, fails, or has had its turn.
func (t *thread) turn(n int) {
	t.left = n
	for t.left > 0 && t.state == running {
		t.left--
		i := &t.fn.code[t.pc]
		t.pc++
		if i.guard >= 0 && (t.r[i.guard] == 0) != i.not {
			continue
		}
		i.run(t, i)
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
	t.fn, t.pc, t.frame = a.fn, a.pc, a.frame
	t.regs = t.regs[:a.base+int(a.fn.slots)]
	t.r = t.regs[a.base:]
}

func runExit(t *thread, _ *inst) { t.state = done }

func runTrap(t *thread, _ *inst) { t.fail(Trap, 0) }

func runBranch(t *thread, i *inst) { t.pc = i.to }

func runNothing(*thread, *inst) {}
