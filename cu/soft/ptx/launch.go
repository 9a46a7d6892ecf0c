package ptx

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
)

// FaultKind is what a kernel died of.
type FaultKind int

// What a kernel may die of.
const (
	IllegalAddress FaultKind = iota + 1
	MisalignedAddress
	Trap
	StackOverflow
	Deadlock // every thread of a block waits for others
)

// String says it in words.
func (k FaultKind) String() string {
	names := [...]string{"illegal address", "misaligned address", "trap", "stack overflow", "threads that wait for each other"}
	if k < 1 || int(k) > len(names) {
		return fmt.Sprintf("FaultKind(%d)", int(k))
	}
	return names[k-1]
}

// A Fault is the error of a kernel that died, with the first thread that did.
type Fault struct {
	Kind     FaultKind
	Address  uint64 // of what it accessed
	Kernel   string
	Function string // that it was in
	Line     int    // of the PTX
	Block    [3]uint32
	Thread   [3]uint32
}

// Error says where it died.
func (f *Fault) Error() string {
	s := fmt.Sprintf("ptx: kernel %s, line %d, block %v, thread %v: %s", f.Kernel, f.Line, f.Block, f.Thread, f.Kind)
	if f.Kind == IllegalAddress || f.Kind == MisalignedAddress {
		s += fmt.Sprintf(" %#x", f.Address)
	}
	return s
}

// A Launch is what a kernel is run with.
type Launch struct {
	Grid, Block [3]uint32
	Shared      int    // bytes of dynamic shared memory
	Params      []byte // as they lie in the kernel's parameter space
	Memory      Memory
	// Address is where a variable of the module lies; nil for a module without.
	Address func(name string) uint64
}

// launched is a launch under way.
type launched struct {
	Launch
	kernel *function
	began  time.Time
	cores  int
	lost   atomic.Bool // a thread died
}

// turns are how many instructions a thread runs before others of its block have
// their turn, and a block before others of the grid.
const (
	threadTurn = 4096
	blockTurn  = 1 << 20
)

// A block is its threads and what they share.
type block struct {
	launch  *launched
	id      [3]uint32
	core    int
	shared  []byte
	threads []*thread
}

// Run runs a kernel of the module until all its threads have ended, one has
// died, or ctx is done. The caller has checked that the device can.
func (m *Module) Run(ctx context.Context, kernel string, launch Launch) error {
	f := m.functions[kernel]
	if f == nil || !f.entry || f.declared {
		return fmt.Errorf("ptx: there is no kernel %s", kernel)
	}
	l := &launched{Launch: launch, kernel: f, began: time.Now(), cores: runtime.GOMAXPROCS(0)}
	if n := int(f.paramBytes()); len(l.Params) < n {
		l.Params = append(l.Params[:len(l.Params):len(l.Params)], make([]byte, n-len(l.Params))...)
	}
	g := &grid{launch: l, total: uint64(l.Grid[0]) * uint64(l.Grid[1]) * uint64(l.Grid[2])}
	return g.run(ctx)
}

// paramBytes is how long the parameters are.
func (f *function) paramBytes() uint64 {
	if len(f.params) == 0 {
		return 0
	}
	last := f.params[len(f.params)-1]
	return last.at + uint64(last.size)
}

// address is what has to be added to a variable's address within its space.
func (l *launched) address(v *variable) uint64 {
	if (v.space == global || v.space == constant) && l.Address != nil {
		return l.Address(v.name)
	}
	return v.at
}

// A grid is the blocks that are still to be run.
type grid struct {
	launch *launched
	total  uint64

	mu      sync.Mutex
	next    uint64
	paused  []*block // had their turn
	running int
	idle    *sync.Cond // running has become less, or paused more
	fault   *Fault
}

func (g *grid) run(ctx context.Context) error {
	g.idle = sync.NewCond(&g.mu)
	workers := int(min(uint64(g.launch.cores), g.total))
	var wg sync.WaitGroup
	for core := range workers {
		wg.Go(func() { g.work(ctx, core) })
	}
	wg.Wait()
	switch {
	case g.fault != nil:
		return g.fault
	case ctx.Err() != nil:
		return context.Cause(ctx)
	}
	return nil
}

// work runs blocks until there are none.
func (g *grid) work(ctx context.Context, core int) {
	for {
		b := g.take(core)
		if b == nil {
			return
		}
		over, fault := false, (*Fault)(nil)
		if ctx.Err() != nil {
			over = true
			g.launch.lost.Store(true)
		} else {
			over, fault = b.turn(ctx)
		}
		g.put(b, over, fault)
	}
}

// take returns a block to run, or nil if there will be none.
func (g *grid) take(core int) *block {
	g.mu.Lock()
	defer g.mu.Unlock()
	for {
		switch {
		case g.launch.lost.Load():
			return nil
		case g.next < g.total:
			b := g.launch.newBlock(g.next)
			g.next++
			g.running++
			b.core = core
			return b
		case len(g.paused) > 0:
			b := g.paused[0]
			g.paused = g.paused[1:]
			g.running++
			return b
		case g.running == 0:
			return nil
		}
		g.idle.Wait()
	}
}

func (g *grid) put(b *block, over bool, fault *Fault) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.running--
	if fault != nil && g.fault == nil {
		g.fault = fault
		g.launch.lost.Store(true)
	}
	if !over {
		g.paused = append(g.paused, b)
	}
	g.idle.Broadcast()
}

// newBlock makes the n-th block of the grid.
func (l *launched) newBlock(n uint64) *block {
	x, y := uint64(l.Grid[0]), uint64(l.Grid[1])
	b := &block{launch: l, id: [3]uint32{uint32(n % x), uint32(n / x % y), uint32(n / (x * y))}}
	b.shared = make([]byte, int(alignUp(uint64(l.kernel.shared), 16))+l.Shared)
	count := int(l.Block[0] * l.Block[1] * l.Block[2])
	b.threads = make([]*thread, count)
	for i := range b.threads {
		t := &thread{block: b, index: i}
		w, h := uint32(l.Block[0]), uint32(l.Block[1])
		t.tid = [3]uint32{uint32(i) % w, uint32(i) / w % h, uint32(i) / (w * h)}
		t.begin(l.kernel)
		b.threads[i] = t
	}
	return b
}

// turn runs the block for a while. It is over when all threads have ended, or one
// has died.
func (b *block) turn(ctx context.Context) (over bool, fault *Fault) {
	for left := blockTurn; left > 0; {
		progress, alive := false, 0
		for _, t := range b.threads {
			if t.state == running {
				t.turn(threadTurn)
				left -= threadTurn - t.left
				progress = true
				if t.fault != nil {
					return true, t.fault
				}
			}
			if t.state != done {
				alive++
			}
		}
		if alive == 0 {
			return true, nil
		}
		if b.release() {
			progress = true
		}
		if !progress {
			t := b.stuck()
			t.fail(Deadlock, 0)
			return true, t.fault
		}
		if b.launch.lost.Load() || ctx.Err() != nil {
			return true, nil
		}
	}
	return false, nil
}

// stuck is a thread that waits.
func (b *block) stuck() *thread {
	for _, t := range b.threads {
		if t.state == waiting {
			return t
		}
	}
	return b.threads[0]
}

// release lets threads go on whose barrier is complete: as many have come as
// it wants, or all that are alive.
func (b *block) release() bool {
	type tally struct{ here, want uint64 }
	var at map[uint64]tally
	alive := uint64(0)
	for _, t := range b.threads {
		if t.state != done {
			alive++
		}
		if t.state == waiting {
			if at == nil {
				at = map[uint64]tally{}
			}
			at[t.barrier.id] = tally{at[t.barrier.id].here + 1, t.barrier.count}
		}
	}
	released := false
	for id, n := range at {
		want := n.want
		if want == 0 {
			want = alive
		}
		if n.here < want {
			continue
		}
		for _, t := range b.threads {
			if t.state == waiting && t.barrier.id == id {
				t.state, released = running, true
			}
		}
	}
	return released
}

// fences is written by every fence: on every processor that orders what was
// written before it for those who write it next.
var fences atomic.Uint32

func runFence(*thread, *inst) { fences.Add(1) }
