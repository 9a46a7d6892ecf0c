package share

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/vmm"
)

// CounterStride is how many bytes a slot of counters takes: words of different
// waiters do not share a line of any cache.
const CounterStride = 128

// A Counter has streams of two processes come one after the other by a number in
// memory that both have mapped: one side signals, the other waits. Unlike events
// it works between containers (D18). It is safe for concurrent use.
//
// The memory is a buffer of its own, the control chunk, offered like any other,
// for reading and writing. Each waiter has a slot in it, to which nobody else
// waits: when its peer dies, it writes a number itself that frees all its streams
// (D20b), and the slot is not to be used again. Who makes the buffer fills it with
// zeros before it is offered, whatever new memory reads as (D9): counting begins
// with 1. It is offered before streams wait, or with [WithSynchronized]: [Server.Offer]
// waits for what the device was given, and consumers for the offer.
type Counter struct {
	word   cu.DevicePtr
	buffer *vmm.Buffer // kept while its memory is used
	rescue *cu.Stream  // frees streams whose peer has gone

	mu     sync.Mutex
	failed error // why nobody may rely on the number any more
}

// NewCounter makes a counter of a slot of buf, which stays the caller's and is
// closed after it. Its device must have rights to read and write: without, a
// signal would lose the context. So buf is one of vmm.New, or of [Attach] with
// WithAccess(ReadWrite): legacy memory has no buffer, and is [ErrHandle]. c is a context
// of that device.
func NewCounter(c *cu.Context, buf *vmm.Buffer, slot int) (*Counter, error) {
	if c == nil {
		return nil, errors.New("share: no context for a counter (nil)")
	}
	if buf == nil {
		return nil, fmt.Errorf("%w: a counter is in a buffer, which legacy memory is not", ErrHandle)
	}
	if slot < 0 || uint64(slot) >= buf.Size()/CounterStride {
		return nil, fmt.Errorf("share: counter %d in a buffer of %d bytes, which has room for %d", slot, buf.Size(), buf.Size()/CounterStride)
	}
	word := buf.Ptr().Add(uint64(slot) * CounterStride)
	a, err := c.Device().Driver().AccessOf(word, c.Device())
	if err != nil {
		return nil, err
	}
	if a != cu.ReadWrite {
		return nil, fmt.Errorf("share: a counter in memory that is %s here: offer it and attach to it with ReadWrite", a)
	}
	s, err := c.NewStream()
	if err != nil {
		return nil, err
	}
	return &Counter{word: word, buffer: buf, rescue: s}, nil
}

// Signal sets the number to n when the work that s has is done, and whoever sees
// that sees what the work wrote (cuStreamWriteValue64). Numbers only grow, and stay
// below 2⁶³ − 1.
func (c *Counter) Signal(s *cu.Stream, n uint64) error {
	if err := c.takes(n); err != nil {
		return err
	}
	return s.WriteValue64(c.word, n, cu.WriteDefault)
}

// given is what a waiter writes that gives up: more than any number waited for, so
// that it frees all. The driver compares by the sign of the difference, so nothing
// larger would do.
const given uint64 = math.MaxInt64

// Wait has the work that is given to s from now on wait until the number is n or
// more, or ctx ends (cuStreamWaitValue64). Then s is freed; the counter is broken,
// other waits for it end as well, and every later call says so with the error of
// the first wait that was given up. n is below 2⁶³ − 1. See [cu.Stream.Guard].
func (c *Counter) Wait(ctx context.Context, s *cu.Stream, n uint64) (*cu.StreamWait, error) {
	if err := c.takes(n); err != nil {
		return nil, err
	}
	return s.Guard(ctx,
		func() error { return s.WaitValue64(c.word, n, cu.WaitGEQ) },
		c.state,
		func() error {
			c.fail(context.Cause(ctx))
			return c.rescue.WriteValue64(c.word, given, cu.WriteDefault)
		})
}

// takes says why n can be neither signalled nor waited for, if so.
func (c *Counter) takes(n uint64) error {
	if err := c.state(); err != nil {
		return err
	}
	if n >= given {
		return fmt.Errorf("share: a counter counts below %d, and does not get to %d", given, n)
	}
	return nil
}

func (c *Counter) state() error {
	if c == nil || c.rescue == nil {
		return ErrClosed
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.failed
}

func (c *Counter) fail(why error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.failed == nil {
		c.failed = errors.Join(cu.ErrGivenUp, why)
	}
}

// Close ends the counter here, and leaves the buffer. Waits have to be over: see
// [cu.StreamWait.Result]. Every later call is [ErrClosed], unless a wait was given up;
// a second Close does nothing.
func (c *Counter) Close() error {
	if c == nil || c.rescue == nil {
		return nil
	}
	c.mu.Lock()
	if c.failed == nil {
		c.failed = ErrClosed // nothing could free who waits from now on
	}
	c.mu.Unlock()
	return c.rescue.Close()
}
