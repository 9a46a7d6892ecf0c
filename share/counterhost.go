package share

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/internal/wait"
)

// Value returns the number: what was signalled last, by either side, and has been done, or
// 0. It is a copy of eight bytes in a stream of the counter's own (cuMemcpyDtoHAsync), and
// does not wait for other streams. Whoever sees a number sees what was written before it.
//
// A number that a waiter has given up, in whatever process, is [cu.ErrGivenUp], and breaks
// the counter here, too.
func (c *Counter) Value() (uint64, error) {
	if err := c.state(); err != nil {
		return 0, err
	}
	number := []uint64{0}
	err := c.usage.give(c.rescue, func() error { return cu.CopyToHostAsync(c.rescue, number, c.word) })
	if err != nil {
		return 0, err
	}
	switch n := number[0]; {
	case n == given:
		c.fail(errors.New("its waiter waits no longer"))
		return 0, c.failure()
	case n > given:
		return 0, fmt.Errorf("share: counter %d is %#x, which nobody signals: the memory was overwritten, or was not zeros in the beginning", c.slot, n)
	default:
		return n, nil
	}
}

// Await waits on the host until the number is n or more. It ends with ctx, and then breaks
// nothing: no stream waits. It looks again and again, less often the longer it takes, at
// most every two milliseconds; all that await the same counter share the looks.
func (c *Counter) Await(ctx context.Context, n uint64) error {
	if err := c.counts(n); err != nil {
		return err
	}
	if number, err := c.Value(); err != nil || number >= n {
		return err
	}
	a := c.awaits.add(n, c.Value)
	select {
	case err := <-a.result:
		return err
	case <-ctx.Done():
		c.awaits.drop(a)
		return wait.Err(ctx)
	}
}

// awaits are those who wait for a number on the host. A goroutine reads it for all of them,
// while there are any.
type awaits struct {
	mu      sync.Mutex
	open    []*await
	reading bool
}

type await struct {
	n      uint64
	result chan error // has room for it
}

func (a *awaits) add(n uint64, value func() (uint64, error)) *await {
	a.mu.Lock()
	defer a.mu.Unlock()
	w := &await{n, make(chan error, 1)}
	a.open = append(a.open, w)
	if !a.reading {
		a.reading = true
		go a.read(value)
	}
	return w
}

func (a *awaits) drop(w *await) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.open = slices.DeleteFunc(a.open, func(o *await) bool { return o == w })
}

// read reads the number until nobody waits for it.
func (a *awaits) read(value func() (uint64, error)) {
	for pause := readPause; ; pause = min(2*pause, maxReadPause) {
		time.Sleep(pause)
		if served, left := a.serve(value()); !left {
			return
		} else if served {
			pause = readPause
		}
	}
}

// The pauses between two looks at a number double from the one to the other.
const (
	readPause    = 20 * time.Microsecond
	maxReadPause = 2 * time.Millisecond
)

// serve tells those whose number has come, or all of an error. It reports whether there
// were any, and whether others are left; if not, the reading is over.
func (a *awaits) serve(number uint64, err error) (served, left bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	before := len(a.open)
	a.open = slices.DeleteFunc(a.open, func(w *await) bool {
		if err == nil && number < w.n {
			return false
		}
		w.result <- err
		return true
	})
	a.reading = len(a.open) > 0
	return len(a.open) < before, a.reading
}
