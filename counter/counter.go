// Package counter orders the work of streams of two processes by numbers in memory that both
// have mapped: one side signals a number, the other waits for it, in a stream or on the host.
//
//	control, err := vmm.New(dev, counter.Stride) // filled with zeros, and offered read-write
//	c, err := counter.New(ctx, control, 0)       // the other process takes what it attached
//	err = c.Signal(stream, 1)                    // in one process, behind the work
//	w, err := c.Wait(deadline, stream, 1)        // in the other, before work that needs it
//
// A wait has a deadline, after which the stream goes on. Then that wait, later ones in the
// same stream, and the counter fail with [cu.ErrGivenUp]. Close the counter before the memory.
package counter

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/internal/plain"
	"github.com/gpufd/gpufd/vmm"
)

// Stride is the size of a counter's slot in bytes: words of different waiters do not share a
// cache line.
const Stride = 128

// A Counter orders the streams of two processes by a number in memory that both have
// mapped: one side signals a number, the other waits for it. Unlike events, it works
// between containers (D18). It is safe for concurrent use.
//
// The memory is a buffer of its own, the control chunk, which is offered like any other,
// for reading and writing. Each waiter has a slot of it to itself: when its peer dies, it
// writes a number there that frees all its streams (D20b), and the slot must not be used
// again. The producer fills the buffer with zeros before it offers it, because new memory
// may hold anything (D9); counting begins with 1. Offer it before streams wait, or with
// Synchronized: else the offer waits for those streams, and its consumers wait for it.
//
// A stream that reaches a signal or wait whose memory is gone loses all contexts of the
// process. So the counter keeps the memory until all of them are done: Close of the buffer,
// or of the attachment, fails with [vmm.ErrInUse] until Close of the counter has succeeded.
// For the same reason the counter retains the contexts of its streams until it is closed
// ([cu.Context.Retain]).
//
// When a wait is given up, the stream goes on with the work behind the wait, and nothing
// can take that back. So the counter is broken from then on: every later call fails with
// the reason, and so do other waits for the counter, and waits for other counters behind
// that wait in the same stream ([cu.Stream.Guard]). A counter whose signal is queued behind
// that wait is broken as well, for both sides; so is one behind a wait for the same number
// in another stream. The slot says so before the stream goes on, so the peer's Wait, Await
// and Value fail with [cu.ErrGivenUp]. By then the peer's stream may have done the work
// behind its wait. If it has signalled a third counter there, that breaks a moment after its
// number has come: between more than two sides, signal only behind waits whose results are
// known. A peer that is older than this, or reads the number by itself, is not told.
type Counter struct {
	slot   int
	word   cu.DevicePtr
	hold   *vmm.Hold     // on the buffer
	ctx    *cu.Context   // a reference of its own
	rescue *cu.Stream    // of ctx, mostUrgent: frees streams whose peer has gone, and reads the number
	limit  time.Duration // of Close
	spoils func(error)   // spoil; a Signal does not allocate
	usage  usage         // of the word, by streams
	buf    *vmm.Buffer
	awaits []*await      // of the host; under mu of the buffer's poller
	seen   atomic.Uint64 // a number that was seen twice, with no word that breaks it

	signals sync.Mutex // held while a signal is queued, so that they are in order
	last    uint64     // number that was signalled

	mu      sync.Mutex
	failed  error // why nobody may rely on the number any more
	closing bool
	waits   []*cu.StreamWait // are told when the counter breaks
	many    int              // the length of waits at which finished ones are dropped
	told    chan struct{}    // closed when they were told
}

// closeLimit is how long Close waits for streams, and the pauses between two looks
// double from the one to the other.
const (
	closeLimit    = time.Second
	closePause    = 20 * time.Microsecond
	maxClosePause = 2 * time.Millisecond
)

// New makes a counter of a slot of buf. The caller keeps buf, which cannot be closed before
// the counter ([vmm.ErrInUse]). Its device must be able to read and write it, because a
// signal would lose the context otherwise. So take buf from [vmm.New], or attach to it with
// [cu.ReadWrite]. Legacy memory has no buffer, and nil is [vmm.ErrNil]. c is a context of
// that device, its primary one or a created one, and may be closed before the counter. The
// caller owns the counter and closes it.
func New(c *cu.Context, buf *vmm.Buffer, slot int) (*Counter, error) {
	if c == nil || buf == nil {
		return nil, fmt.Errorf("%w: a counter takes a context and a buffer, which legacy memory does not have", vmm.ErrNil)
	}
	if slot < 0 || uint64(slot) >= buf.Size()/Stride {
		return nil, fmt.Errorf("counter: counter %d in a buffer of %d bytes, which has room for %d", slot, buf.Size(), buf.Size()/Stride)
	}
	h, err := buf.Hold(fmt.Sprintf("counter %d", slot))
	if err != nil {
		return nil, err
	}
	counter := &Counter{slot: slot, buf: buf, word: buf.Ptr().Add(uint64(slot) * Stride), hold: h, limit: closeLimit, told: make(chan struct{})}
	counter.spoils = counter.spoil
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
		return fmt.Errorf("counter: a counter in memory that is %s here: offer it and attach to it with ReadWrite", a)
	}
	if c.ctx, err = ctx.Retain(); err != nil {
		return err
	}
	if c.rescue, err = c.ctx.NewStreamWith(mostUrgent); err == nil {
		err = c.usage.keep(c.rescue)
	}
	if err != nil {
		return errors.Join(err, c.ctx.Close())
	}
	return nil
}

// mostUrgent is a priority that few streams have. Streams share the device's queues with those
// of their own priority, so a stream that waits does not hold up the one that is to free it.
var mostUrgent = cu.StreamOptions{Priority: math.MinInt32}

// Signal sets the number to n once the work in s so far is done. A process that sees the
// number sees what that work wrote (cuStreamWriteValue64). Numbers begin with 1, grow with
// every Signal of this counter, and stay below 2⁶³ − 1. If several streams signal, the
// caller makes sure that they do so in the order of their numbers. If a wait of s was given
// up, Signal fails with [cu.ErrGivenUp] until its Result was asked for. s must not be captured,
// because a graph would set the same number at every launch
// ([cu.ErrStreamCaptureUnsupported]). With an error, nothing was queued.
func (c *Counter) Signal(s *cu.Stream, n uint64) error {
	if err := c.takes(s, n); err != nil {
		return err
	}
	c.signals.Lock()
	defer c.signals.Unlock()
	switch {
	case n == 0:
		return errors.New("counter: a counter counts from 1, and cannot be signalled 0")
	case n <= c.last:
		return fmt.Errorf("counter: counter %d cannot be signalled %d: the last signal was %d, and numbers only grow", c.slot, n, c.last)
	}
	if err := s.IfGivenUp(c, c.spoils); err != nil {
		return fmt.Errorf("counter: counter %d cannot be signalled %d behind a wait that was given up, whose result nobody has asked for: %w", c.slot, n, err)
	}
	if err := c.state(); err != nil { // it was, just now
		return err
	}
	if err := c.write(s, n); err != nil {
		return err
	}
	c.last = n
	return nil
}

// write queues the write of the number, with an event behind it, which costs a third as
// much as the write.
func (c *Counter) write(s *cu.Stream, n uint64) error {
	return c.usage.give(s, func() error { return s.WriteValue64(c.word, n, cu.WriteDefault) })
}

// given is what a waiter writes when it gives up. It is larger than any number that is
// waited for, so it frees all waits. The driver compares by the sign of the difference, so
// a larger number would not do.
const given uint64 = math.MaxInt64

// Wait makes work that is queued in s from now on wait until the number is n or more
// (cuStreamWaitValue64). If ctx ends first, s goes on and the counter is broken: other
// waits for it end as well, and every later call fails with the error of the first wait
// that was given up. n is below 2⁶³ − 1, and s must not be captured. One goroutine watches
// all waits of a stream. See [cu.Stream.Guard].
//
// Have few streams of a context wait at once: up to four of ordinary priority held up nothing on
// an H100, and the counter could free nine, by a stream of the most urgent priority. With too
// many, neither the waits nor the context may ever end. See [cu.Stream.WaitValue32].
func (c *Counter) Wait(ctx context.Context, s *cu.Stream, n uint64) (*cu.StreamWait, error) {
	if err := plain.ContextErr(ctx); err != nil {
		return nil, err
	}
	if err := c.takes(s, n); err != nil {
		return nil, err
	}
	w, err := s.Guard(ctx,
		func() error {
			return c.usage.give(s, func() error { return s.WaitValue64(c.word, n, cu.WaitGEQ) })
		},
		c.met,
		func() error { return c.giveUp(cmp.Or(plain.ContextErr(ctx), errUnmarked)) })
	if err != nil {
		return nil, err
	}
	c.remember(w)
	return w, nil
}

// errClosed says that there is no counter, or that it was closed.
var errClosed = plain.ErrorOf("counter: the counter is nil or closed", cu.ErrClosed)

// errUnmarked breaks a counter when the stream of a wait was closed, or its context lost,
// while the wait was being queued.
var errUnmarked = errors.New("the stream did not take all of the wait")

// takes returns why s can neither signal n nor wait for it, or nil.
func (c *Counter) takes(s *cu.Stream, n uint64) error {
	if err := c.counts(n); err != nil {
		return err
	}
	err := s.NotCaptured()
	if errors.Is(err, cu.ErrStreamCaptureUnsupported) {
		return fmt.Errorf("counter: a counter takes no stream that is being captured: %w", err)
	}
	return err
}

// counts returns why the number cannot become n, or nil.
func (c *Counter) counts(n uint64) error {
	if err := c.state(); err != nil {
		return err
	}
	if n >= given {
		return fmt.Errorf("counter: a counter counts below %d, and does not get to %d", given, n)
	}
	return nil
}

func (c *Counter) state() error {
	if c == nil || c.rescue == nil {
		return errClosed
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.failed == nil && c.closing {
		return errClosed
	}
	return c.failed
}

// met returns why nobody may rely on a wait that the stream has passed, or nil: the number
// may come from a stream that has given up an earlier wait.
func (c *Counter) met() error {
	if err := c.failure(); err != nil {
		return err
	}
	if _, err := c.Value(); errors.Is(err, cu.ErrGivenUp) {
		return err
	}
	return nil // also if the counter was closed meanwhile
}

// failure is state for a wait, which may be met while the counter is being closed.
func (c *Counter) failure() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.failed
}

// Close ends the counter on this side, and releases the buffer and the contexts. From its
// first call on, all other methods fail with [cu.ErrClosed], unless a wait was given up. Close
// waits for queued signals and waits in all streams, but no longer than a second: then it
// fails with [vmm.ErrInUse] and says how many there are. Call it again. After it has succeeded,
// it does nothing. The contexts of the streams may be closed before or after it. If the
// counter's reference to a context is the last, Close waits for all work there
// ([cu.Context.Close]).
func (c *Counter) Close() error {
	if c == nil || c.rescue == nil {
		return nil
	}
	c.mu.Lock()
	c.closing = true
	c.mu.Unlock()
	if err := c.settle(); err != nil {
		return fmt.Errorf("counter: counter %d at %s cannot be closed: %w; let the streams go on, and close it again", c.slot, c.word, err)
	}
	return errors.Join(c.ctx.Close(), c.hold.Close())
}

// settle waits until no stream will use the word any more, and ends its usage.
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
