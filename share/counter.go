package share

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/internal/wait"
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
//
// A stream that gets to a signal or wait whose memory is gone loses all contexts of the
// process. So the memory stays until all are done: Close of the buffer, or of the
// attachment, is [ErrInUse] until Close of the counter has succeeded. And so the counter
// has references of its own to the contexts of the streams that it was given
// ([cu.Context.Retain]), until it is closed.
//
// When a wait is given up, the stream goes on, does what it was given behind the wait, and
// nothing can take that back. So the counter is broken from then on: what waits for it and
// every later call fail with the reason, as do waits for other counters behind that wait in
// the same stream ([cu.Stream.Guard]). The peer is not told: a signal for it behind the wait
// is given all the same. Where that would be taken for more than it is, signal when Result
// of the wait is nil, or end the lease.
type Counter struct {
	slot   int
	word   cu.DevicePtr
	hold   *vmm.Hold     // on the buffer
	ctx    *cu.Context   // a reference of its own
	rescue *cu.Stream    // of ctx: frees streams whose peer has gone, and reads the number
	limit  time.Duration // of Close
	usage  usage         // of the word, by streams
	awaits awaits        // of the host

	signals sync.Mutex // held while a signal is queued, so that they are in order
	last    uint64     // number that was signalled

	mu      sync.Mutex
	failed  error // why nobody may rely on the number any more
	closing bool
}

// closeLimit is how long Close waits for streams, and the pauses between two looks
// double from the one to the other.
const (
	closeLimit    = time.Second
	closePause    = 20 * time.Microsecond
	maxClosePause = 2 * time.Millisecond
)

// NewCounter makes a counter of a slot of buf, which stays the caller's and cannot be
// closed before the counter ([ErrInUse]). Its device must have rights to read and
// write: without, a signal would lose the context. So buf is one of vmm.New, or of
// [Attach] with WithAccess(ReadWrite): legacy memory has no buffer, and is [ErrHandle].
// c is a context of that device, its primary one or a created one, and may be closed
// before the counter. The caller owns the counter and ends it with Close.
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
	h, err := buf.Hold(fmt.Sprintf("counter %d", slot))
	if err != nil {
		return nil, err
	}
	counter := &Counter{slot: slot, word: buf.Ptr().Add(uint64(slot) * CounterStride), hold: h, limit: closeLimit}
	if err := counter.open(c); err != nil {
		return nil, errors.Join(err, h.Close())
	}
	return counter, nil
}

func (c *Counter) open(ctx *cu.Context) error {
	a, err := ctx.Device().Driver().AccessOf(c.word, ctx.Device())
	if err != nil {
		return err
	}
	if a != cu.ReadWrite {
		return fmt.Errorf("share: a counter in memory that is %s here: offer it and attach to it with ReadWrite", a)
	}
	if c.ctx, err = ctx.Retain(); err != nil {
		return err
	}
	if c.rescue, err = c.ctx.NewStream(); err == nil {
		err = c.usage.keep(c.rescue)
	}
	if err != nil {
		return errors.Join(err, c.ctx.Close())
	}
	return nil
}

// Signal sets the number to n when the work that s has is done, and whoever sees that
// sees what the work wrote (cuStreamWriteValue64). Numbers begin with 1, only grow, and
// stay below 2⁶³ − 1: n is more than in the last Signal of this counter. Where several
// streams signal, they have to get there in the order of their numbers, which is the
// caller's to see to. A graph would set the same number at every launch, so s is not being
// captured ([cu.ErrStreamCaptureUnsupported]). With an error nothing was queued.
func (c *Counter) Signal(s *cu.Stream, n uint64) error {
	if err := c.takes(s, n); err != nil {
		return err
	}
	c.signals.Lock()
	defer c.signals.Unlock()
	switch {
	case n == 0:
		return errors.New("share: a counter counts from 1, and cannot be signalled 0")
	case n <= c.last:
		return fmt.Errorf("share: counter %d cannot be signalled %d: the last signal was %d, and numbers only grow", c.slot, n, c.last)
	}
	if err := c.write(s, n); err != nil {
		return err
	}
	c.last = n
	return nil
}

// write queues the writing of the number. The event behind it costs a third of that
// (cuEventRecord, in docs/benchmarks/calls.md).
func (c *Counter) write(s *cu.Stream, n uint64) error {
	return c.usage.give(s, func() error { return s.WriteValue64(c.word, n, cu.WriteDefault) })
}

// given is what a waiter writes that gives up: more than any number waited for, so
// that it frees all. The driver compares by the sign of the difference, so nothing
// larger would do.
const given uint64 = math.MaxInt64

// Wait has the work that is given to s from now on wait until the number is n or
// more, or ctx ends (cuStreamWaitValue64). Then s is freed; the counter is broken,
// other waits for it end as well, and every later call says so with the error of
// the first wait that was given up. n is below 2⁶³ − 1, and s is not being captured. One
// goroutine looks after all waits of a stream. See [cu.Stream.Guard].
func (c *Counter) Wait(ctx context.Context, s *cu.Stream, n uint64) (*cu.StreamWait, error) {
	if err := c.takes(s, n); err != nil {
		return nil, err
	}
	return s.Guard(ctx,
		func() error {
			return c.usage.give(s, func() error { return s.WaitValue64(c.word, n, cu.WaitGEQ) })
		},
		c.failure,
		func() error {
			c.fail(cmp.Or(wait.Err(ctx), errUnmarked))
			if err := c.write(c.rescue, given); !errors.Is(err, ErrClosed) {
				return err
			}
			return nil // the counter was closed because the wait was met, just now
		})
}

// errUnmarked is why a counter is broken whose wait was queued by a stream that was closed
// meanwhile, or whose context was lost.
var errUnmarked = errors.New("the stream did not take all of the wait")

// takes says why s can neither signal n nor wait for it, if so.
func (c *Counter) takes(s *cu.Stream, n uint64) error {
	if err := c.counts(n); err != nil {
		return err
	}
	err := s.NotCaptured()
	if errors.Is(err, cu.ErrStreamCaptureUnsupported) {
		return fmt.Errorf("share: a counter takes no stream that is being captured: %w", err)
	}
	return err
}

// counts says why the number is not to be n, if so.
func (c *Counter) counts(n uint64) error {
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
	if c.failed == nil && c.closing {
		return ErrClosed
	}
	return c.failed
}

// failure is state for a wait, which may be met while the counter is being closed.
func (c *Counter) failure() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.failed
}

func (c *Counter) fail(why error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.failed == nil {
		c.failed = fmt.Errorf("share: counter %d is broken: %w: %w", c.slot, cu.ErrGivenUp, why)
	}
}

// Close ends the counter here, and lets go of the buffer and of the contexts. From its
// first call on all others are [ErrClosed], unless a wait was given up. It waits for the
// signals and waits that are queued, in whatever stream, but not longer than a second:
// then it is [ErrInUse], says how many there are, and can be tried again. When it has
// succeeded, another Close does nothing. The contexts of the streams may be closed before
// it or after; where the counter's reference is the last, Close of that waits for all work
// there ([cu.Context.Close]).
func (c *Counter) Close() error {
	if c == nil || c.rescue == nil {
		return nil
	}
	c.mu.Lock()
	c.closing = true
	c.mu.Unlock()
	if err := c.settle(); err != nil {
		return fmt.Errorf("share: counter %d at %s cannot be closed: %w; let the streams go on, and close it again", c.slot, c.word, err)
	}
	return errors.Join(c.ctx.Close(), c.hold.Close())
}

// settle waits until no stream has to do with the word any more, and ends its usage.
func (c *Counter) settle() error {
	pause := closePause
	for end := time.Now().Add(c.limit); ; pause = min(2*pause, maxClosePause) {
		err := c.usage.end()
		if err == nil || time.Now().After(end) {
			return err
		}
		time.Sleep(pause)
	}
}
