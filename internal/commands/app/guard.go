package app

import (
	"sync"
	"time"
)

// A guard counts how long a program gives no sign of life. It counts ticks, not time:
// while the program is stopped (SIGSTOP) or suspended, only one tick passes.
type guard struct {
	mu     sync.Mutex
	silent int  // ticks
	waits  int  // waits that have bounds of their own
	ending bool // a signal came: signs of life do not count any more
}

// guardTicks is how many ticks a program may be silent. Because the silence begins between
// two ticks, n ticks last for more than n-1 periods.
const guardTicks = 20

// alive is a sign of life.
func (g *guard) alive() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.ending {
		g.silent = 0
	}
}

// wait stops the count until the function that it returns is called, once or more.
func (g *guard) wait() (over func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.waits++
	return sync.OnceFunc(func() {
		g.alive()
		g.mu.Lock()
		defer g.mu.Unlock()
		g.waits--
	})
}

// end begins to count the orderly end, and reports whether it had begun before.
func (g *guard) end() (before bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	before, g.ending = g.ending, true
	if !before {
		g.silent = 0
	}
	return before
}

// tick counts one tick, and reports whether that is too many, and whether the
// program is ending.
func (g *guard) tick() (late, ending bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.ending || g.waits == 0 {
		g.silent++
	}
	return g.silent > guardTicks, g.ending
}

// allowance returns how long a program may give no sign of life: longer than anything with
// a bound of its own. The longest of these is an orderly end. It waits --timeout for
// consumers to close the memory, a second for the farewell and, on old kernels, a second
// for the listener.
func allowance(timeout time.Duration) time.Duration {
	return max(min(timeout, maxTimeout), 0) + 3*time.Second
}

// maxTimeout keeps sums of --timeout from overflowing.
const maxTimeout = 1000 * time.Hour
