package ptx

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"math/bits"
	"runtime"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// FaultKind says what a kernel died of.
type FaultKind int

// The kinds of faults.
const (
	IllegalAddress FaultKind = iota + 1
	MisalignedAddress
	Trap
	StackOverflow
	Deadlock // every thread of a block waits for others
	BadJump  // to what is not a function, or not a label of a table
	Assert   // an assertion of the kernel's source failed
	Breakpoint
)

// String describes the kind in words.
func (k FaultKind) String() string {
	names := [...]string{"illegal address", "misaligned address", "trap", "stack overflow", "threads that wait for each other",
		"jump to nowhere", "assertion failed", "breakpoint"}
	if k < 1 || int(k) > len(names) {
		return fmt.Sprintf("FaultKind(%d)", int(k))
	}
	return names[k-1]
}

// A Fault is the error of a kernel that died, with the first thread that did.
type Fault struct {
	Kind     FaultKind
	Address  uint64 // that it accessed
	Global   bool   // Memory has nothing at Address
	Kernel   string
	Function string // in which it died
	Line     int    // of the PTX
	Block    [3]uint32
	Thread   [3]uint32
}

// Error says where it died.
func (f *Fault) Error() string {
	s := fmt.Sprintf("ptx: kernel %s, line %d, block %v, thread %v: %s", f.Kernel, f.Line, f.Block, f.Thread, f.Kind)
	if f.Kind == IllegalAddress || f.Kind == MisalignedAddress || f.Kind == BadJump {
		s += fmt.Sprintf(" %#x", f.Address)
	}
	return s
}

// A Launch says how to run a kernel.
type Launch struct {
	Grid, Block [3]uint32
	Shared      int    // bytes of dynamic shared memory
	Stack       int    // bytes of a thread's local memory for functions that call themselves; 0 is the most
	Params      []byte // as they lie in the kernel's parameter space; short ones are filled up with zeros
	Memory      Memory
	// Withdrawals counts how often Memory has taken something back: the next access
	// of each thread asks it again. nil is for memory that stays.
	Withdrawals *atomic.Uint64
	// Address returns where a variable of the module lies; nil for a module
	// without.
	Address func(name string) uint64
	// Cooperative runs all blocks at once, so that they can wait for each other.
	Cooperative bool
	// Stdout and Stderr get what the kernel prints and asserts; nil drops it.
	Stdout, Stderr io.Writer
	// Heap is the memory for the kernel's malloc; nil has none.
	Heap *Heap
	// Touch calls f, which accesses memory, and reports a fault of the host; nil
	// is for memory without faults.
	Touch func(f func()) (address uintptr, faulted bool)
}

// Limits on what runs at once, as if the device had a few multiprocessors, and
// turns: how many instructions a thread runs before others of its block take
// their turn, and a block before others of the grid.
const (
	maxThreads      = 1024 // of a block
	residentThreads = 8192
	residentBlocks  = 128
	residentMemory  = maxThreads * (maxStack + 1<<10) // bytes of all: what the largest block may take
	threadTurn      = 1024
	blockTurn       = 1 << 16
	warpTurns       = 64 // of a warp whose threads converge, before others have theirs
)

// launched is a launch under way.
type launched struct {
	Launch
	module *Module
	kernel *function
	stack  uint64 // bytes of a thread's local memory
	began  time.Time
	cores  int
	lost   atomic.Bool // a thread died, or the launch was cancelled
	says   sync.Mutex  // of Stdout and Stderr

	workspace []byte // of a cooperative grid
}

// Run runs a kernel of the module until all its threads have ended, one has died
// (a *[Fault]), or ctx ends.
func (m *Module) Run(ctx context.Context, kernel string, launch Launch) error {
	f := m.functions[kernel]
	if f == nil || !f.entry || f.declared {
		return fmt.Errorf("ptx: there is no kernel %s", kernel)
	}
	l := &launched{Launch: launch, module: m, kernel: f, stack: maxLocal, began: time.Now(), cores: runtime.GOMAXPROCS(0)}
	if err := l.check(); err != nil {
		return err
	}
	k, _ := m.Kernel(kernel)
	n := max(k.ParamBytes(), len(l.Params))
	l.Params = append(make([]byte, 0, alignUp(uint64(n), 16)), l.Params...)[:n] // aligned for atomics
	if l.Stack > 0 && f.recursive() {
		l.stack = min(l.stack, uint64(f.frame+l.Stack))
	}
	if l.Withdrawals == nil {
		l.Withdrawals = new(atomic.Uint64)
	}
	if l.Touch == nil {
		l.Touch = func(f func()) (uintptr, bool) { f(); return 0, false }
	}
	g := &grid{launch: l, total: product(l.Grid), resident: k.Resident(int(product(l.Block)), l.Shared)}
	if l.Cooperative { // all blocks at once: the caller has asked Resident
		g.resident = int(min(g.total, math.MaxInt32))
		l.workspace = make([]byte, workspaceSize)
		binary.LittleEndian.PutUint32(l.workspace, workspaceSize)
	}
	return g.run(ctx)
}

// check wants dimensions that make sense.
func (l *launched) check() error {
	if n := product(l.Block); n == 0 || n > maxThreads || product(l.Grid) == 0 || l.Shared < 0 {
		return fmt.Errorf("ptx: no kernel has a grid of %v, blocks of %v and %d bytes more", l.Grid, l.Block, l.Shared)
	}
	return nil
}

// product returns how many there are, or 0 if that is too many.
func product(d [3]uint32) uint64 {
	over, n := bits.Mul64(uint64(d[0])*uint64(d[1]), uint64(d[2]))
	if over != 0 {
		return 0
	}
	return n
}

// sharedBytes returns how much shared memory a block asks for.
func (l *launched) sharedBytes() uint64 { return uint64(l.kernel.static + l.Shared) }

// reservedSize is what lies behind that for the system: cooperative groups keep
// something there.
const reservedSize = 1024

// Resident returns how many blocks of that many threads, with dynamic bytes of
// dynamic shared memory, run at once; later ones begin when others have ended.
// Together they take a little above 1 GiB at most.
func (k Kernel) Resident(threads, dynamic int) int {
	memory := threads*k.Memory + k.Shared + reservedSize + dynamic
	return max(1, min(residentBlocks, residentThreads/threads, residentMemory/memory))
}

// address returns what to add to an offset from a variable.
func (l *launched) address(v *variable) uint64 {
	switch {
	case v.space == shared:
		return l.kernel.layout[v]
	case v.space == param || v.space == local || l.Address == nil:
		return v.at
	}
	return l.Address(v.name)
}

// A grid is the blocks of a launch.
type grid struct {
	launch   *launched
	total    uint64
	resident int

	mu      sync.Mutex
	next    uint64
	alive   int      // blocks that have begun and not ended
	paused  []*block // of those, had their turn
	free    []*block // ended: their memory is used again
	changed *sync.Cond
	fault   *Fault
}

// run runs the blocks on as many cores as there are.
func (g *grid) run(ctx context.Context) error {
	g.changed = sync.NewCond(&g.mu)
	stop := context.AfterFunc(ctx, g.stop)
	defer stop()
	workers := int(min(uint64(g.launch.cores), g.total))
	var wg sync.WaitGroup
	for core := 1; core < workers; core++ {
		wg.Go(func() { g.work(core) })
	}
	g.work(0)
	wg.Wait()
	if g.fault != nil {
		return g.fault
	}
	return context.Cause(ctx)
}

// stop ends a cancelled launch.
func (g *grid) stop() {
	g.launch.lost.Store(true)
	g.mu.Lock()
	defer g.mu.Unlock()
	g.changed.Broadcast()
}

// work runs blocks until there are none. A memory fault becomes a panic only in a
// goroutine that has asked for that.
func (g *grid) work(core int) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	for b := g.take(core); b != nil; b = g.take(core) {
		g.put(b, b.turn())
	}
}

// take returns a block to run, or nil if there will be none.
func (g *grid) take(core int) *block {
	g.mu.Lock()
	defer g.mu.Unlock()
	for !g.launch.lost.Load() {
		switch {
		case g.next < g.total && g.alive < g.resident:
			return g.begin(core)
		case len(g.paused) > 0:
			b := g.paused[0]
			g.paused = g.paused[1:]
			b.core = core
			return b
		case g.alive == 0:
			return nil
		}
		g.changed.Wait()
	}
	return nil
}

// begin makes the next block of the grid.
func (g *grid) begin(core int) *block {
	b := &block{launch: g.launch}
	if n := len(g.free); n > 0 {
		b, g.free = g.free[n-1], g.free[:n-1]
	}
	n, x, y := g.next, uint64(g.launch.Grid[0]), uint64(g.launch.Grid[1])
	b.id = [3]uint32{uint32(n % x), uint32(n / x % y), uint32(n / (x * y))}
	b.core, b.fresh = core, true
	g.next++
	g.alive++
	return b
}

// put queues a block that has had its turn.
func (g *grid) put(b *block, over bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if b.fault != nil && g.fault == nil {
		g.fault = b.fault
		g.launch.lost.Store(true)
	}
	if over {
		g.alive--
		g.free = append(g.free, b)
	} else {
		g.paused = append(g.paused, b)
	}
	g.changed.Broadcast()
}

// A block is its threads and what they share.
type block struct {
	launch  *launched
	id      [3]uint32
	core    int
	fresh   bool // it has not begun
	shared  []byte
	threads []thread
	now     *thread // that runs
	fault   *Fault
	barrier [barriers]barrierState
}

// start sets the threads to the beginning of the kernel. They must not see what
// an earlier block had in shared memory.
func (b *block) start() {
	b.fresh = false
	if b.threads == nil {
		n := b.launch.sharedBytes()
		if b.launch.kernel.reserves {
			n = alignUp(n, 16) + reservedSize
		}
		b.shared = make([]byte, alignUp(n, 16))[:n] // aligned for atomics
		b.threads = make([]thread, product(b.launch.Block))
	}
	clear(b.shared)
	for id := range b.barrier {
		b.barrier[id].reset()
	}
	w, h := b.launch.Block[0], b.launch.Block[1]
	for i := range b.threads {
		n := uint32(i)
		b.threads[i].begin(b, i, [3]uint32{n % w, n / w % h, n / (w * h)})
	}
}

// turn runs the block for a while. It is over when all threads have ended, or one
// has died.
func (b *block) turn() (over bool) {
	address, faulted := b.launch.Touch(func() { over = b.run() })
	if faulted { // the host has the memory no more
		b.now.fail(IllegalAddress, uint64(address))
		b.fault = b.now.fault
		return true
	}
	return over
}

func (b *block) run() (over bool) {
	if b.fresh {
		b.start()
	}
	for left := blockTurn; left > 0 && !b.launch.lost.Load(); {
		ran, alive := b.round()
		left -= ran
		switch {
		case b.fault != nil || alive == 0:
			return true
		case !b.releaseAll() && ran == 0 && !b.launch.lost.Load():
			t := b.stuck()
			t.fail(Deadlock, 0)
			b.fault = t.fault
			return true
		}
	}
	return false
}

// round gives each thread that can run a turn, warp by warp: threads that converge go on
// at once.
func (b *block) round() (ran, alive int) {
	for first := 0; first < len(b.threads); first += warpSize {
		warp := b.threads[first:min(first+warpSize, len(b.threads))]
		for left := warpTurns; left > 0; left-- {
			n := b.turns(warp)
			if ran += n; b.fault != nil {
				return ran, alive
			}
			if went := converge(warp); !went {
				break
			}
		}
		for i := range warp {
			if warp[i].state != done {
				alive++
			}
		}
	}
	return ran, alive
}

// turns gives each thread of a warp that can run a turn.
func (b *block) turns(warp []thread) (ran int) {
	for i := range warp {
		t := &warp[i]
		if t.state != running || b.launch.lost.Load() {
			continue
		}
		b.now = t
		ran += t.turn(threadTurn)
		if t.state == resting {
			t.state = running
		}
		if t.fault != nil {
			b.fault = t.fault
			return ran
		}
	}
	return ran
}

// stuck returns a thread that waits.
func (b *block) stuck() *thread {
	i := slices.IndexFunc(b.threads, func(t thread) bool { return t.state == waiting || t.state == converging })
	return &b.threads[max(0, i)]
}

// Every fence writes fences. On every processor that orders earlier writes for
// the threads that write it next.
var fences atomic.Uint32

func runFence(*thread, *inst) {
	fences.Add(1)
	fences.Load() // arm64 without LSE: what is stored later could come before what Add stores
}
