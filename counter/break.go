package counter

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/gpufd/gpufd/cu"
)

// A counter breaks once: when a wait for its number, or a wait before a signal of it, is
// given up, on either side.

// fail breaks the counter on this side. The streams that wait for it may go on from now on,
// so the counters that they signal behind those waits break, too.
func (c *Counter) fail(why error) {
	c.mu.Lock()
	if c.failed != nil {
		c.mu.Unlock()
		return
	}
	c.failed = fmt.Errorf("counter %d is broken: %w: %w", c.slot, cu.ErrGivenUp, why)
	waits := c.waits
	c.waits = nil
	c.mu.Unlock()
	for _, w := range waits {
		w.Distrust(c.failed)
	}
	close(c.told)
}

// giveUp breaks the counter, and then frees all streams that wait for it.
func (c *Counter) giveUp(why error) error {
	c.fail(why)
	<-c.told // another goroutine may be breaking it concurrently
	if err := c.write(c.rescue, given); !errors.Is(err, cu.ErrClosed) {
		return err
	}
	return nil // the counter was closed because the wait was met, just now
}

// fewStreamWaits is how many waits are remembered even if they are over.
const fewStreamWaits = 16

// remember notes a wait, which is told when the counter breaks.
func (c *Counter) remember(w *cu.StreamWait) {
	c.mu.Lock()
	if failed := c.failed; failed != nil {
		c.mu.Unlock()
		w.Distrust(failed)
		return
	}
	defer c.mu.Unlock()
	if len(c.waits) >= c.many {
		c.waits = slices.DeleteFunc(c.waits, func(w *cu.StreamWait) bool { return isOver(w) })
		c.many = max(fewStreamWaits, 2*len(c.waits))
	}
	c.waits = append(c.waits, w)
}

func isOver(w *cu.StreamWait) bool {
	select {
	case <-w.Done():
		return true
	default:
		return false
	}
}

// spoil breaks the counter for both sides, because its signal is queued behind a wait that
// is being given up. It returns when the slot says so, before the stream goes on.
func (c *Counter) spoil(why error) {
	c.fail(why)
	err := c.usage.give(c.rescue, func() error { return c.rescue.WriteValue64(c.word.Add(spoiledAt), spoiled, cu.WriteDefault) })
	if err != nil { // it was closed, or its context is lost
		return
	}
	limited, cancel := context.WithTimeout(context.Background(), c.limit)
	defer cancel()
	_ = c.rescue.Synchronize(limited)
}

// The second word of a slot is not 0 if nobody may rely on the number.
const (
	spoiledAt = 8
	spoiled   = 1
)
