package counter

import (
	"context"
	"errors"
	"fmt"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/internal/plain"
)

// Value returns the number that a stream of either side signalled last, or 0. It copies 16
// bytes in a stream of the counter's own (cuMemcpyDtoHAsync), and again if the number has
// changed since the last call. It does not wait for other streams. A caller that sees a
// number sees what was written before it.
//
// Value fails with [cu.ErrGivenUp], and breaks the counter here, too, if a waiter of either
// side has given up, or if a signal of the counter was queued behind a wait that was given
// up.
func (c *Counter) Value() (uint64, error) {
	if err := c.state(); err != nil {
		return 0, err
	}
	n, broken, err := c.read()
	switch {
	case err != nil:
		return 0, err
	case broken:
		c.fail(errors.New("a signal for it was queued behind a wait that was given up"))
		return 0, c.failure()
	case n == given:
		c.fail(errors.New("its waiter waits no longer"))
		return 0, c.failure()
	case n > given:
		return 0, fmt.Errorf("counter: counter %d is %#x, which nobody signals: the memory was overwritten, or was not zeros in the beginning", c.slot, n)
	default:
		return n, nil
	}
}

// maxReads is how often a falling number is read again.
const maxReads = 8

// read returns the number, and whether the word behind it says that nobody may rely on it.
// spoil writes that word before the number, but a copy may read the two in any order. So a
// new number counts once a second copy has found the word unset and the number no smaller.
func (c *Counter) read() (number uint64, broken bool, err error) {
	words := []uint64{0, 0}
	look := func() error {
		return c.usage.give(c.rescue, func() error { return cu.CopyToHostAsync(c.rescue, words, c.word) })
	}
	if err := look(); err != nil {
		return 0, false, err
	}
	for range maxReads {
		number = words[0]
		if words[1] != 0 || number == c.seen.Load() {
			return number, words[1] != 0, nil
		}
		if err := look(); err != nil {
			return 0, false, err
		}
		if words[1] == 0 && words[0] >= number {
			c.seen.Store(number)
			return number, false, nil
		}
	}
	return 0, false, fmt.Errorf("counter: counter %d falls again and again, at last to %d: something else writes there", c.slot, words[0])
}

// Await waits on the host until the number is n or more. If ctx ends first, Await returns
// its error; the counter stays whole, because no stream waits. Await polls, less often the
// longer it takes: in the end every two milliseconds, or less often if there are hundreds
// of waits. One goroutine polls for all waits for counters of the same buffer, and copies
// their numbers at once.
//
// Await fails with [cu.ErrGivenUp] where [Counter.Value] does.
func (c *Counter) Await(ctx context.Context, n uint64) error {
	if err := plain.ContextErr(ctx); err != nil {
		return err
	}
	if err := c.counts(n); err != nil {
		return err
	}
	if number, err := c.Value(); err != nil || number >= n {
		return err
	}
	a, l := pollFor(c, n)
	select {
	case err := <-a.result:
		return err
	case <-ctx.Done():
		l.drop(a)
		return plain.ContextErr(ctx)
	}
}
