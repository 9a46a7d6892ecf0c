package channel

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/gpufd/gpufd/cu"
)

// A tracker knows how far a stream has got with what a channel has given it. The last
// operation of each batch writes a number to a word that no other process has: so also a
// stream that was closed with work in it is known to be done, and by whom does not matter.
type tracker struct {
	ctx      *cu.Context
	mem      *cu.HostMemory
	word     words
	at       cu.DevicePtr
	stream   *cu.Stream                         // that has the latest work
	give     func(*cu.Stream, []cu.MemOp) error // BatchMemOps, but in tests
	captured func(*cu.Stream) error             // NotCaptured, but in tests
	queued   atomic.Uint64                      // the number that it writes last
}

// closeLimit is how long Close waits for a stream.
const closeLimit = time.Second

func newTracker(ctx *cu.Context) (*tracker, error) {
	t := &tracker{ctx: ctx, captured: (*cu.Stream).NotCaptured, give: func(s *cu.Stream, ops []cu.MemOp) error { return s.BatchMemOps(ops...) }}
	var err error
	if t.mem, err = ctx.AllocHost(pageSize, cu.HostPortable); err != nil {
		return nil, fmt.Errorf("channel: allocating a word for streams: %w", err)
	}
	t.word = words{t.mem.Bytes()}
	t.word.store(0, 0)
	if t.at, err = t.mem.DevicePtr(); err != nil {
		return nil, errors.Join(err, t.mem.Close())
	}
	return t, nil
}

// done is the last number that was written.
func (t *tracker) done() uint64 { return t.word.load(0) }

// idle reports whether the stream has done all that it was given.
func (t *tracker) idle() bool { return t.done() >= t.queued.Load() }

// takes says why s cannot be given more, if so: the words of a side are written in order,
// so another stream has to wait for the one before.
func (t *tracker) takes(s *cu.Stream) error {
	if err := t.captured(s); err != nil {
		return fmt.Errorf("channel: a graph that is captured here would use the same frame at every launch; end the capture first: %w", err)
	}
	if s != t.stream && !t.idle() {
		return fmt.Errorf("%w: another stream still has frames of this side queued; synchronise it first, or go on with it", ErrOrder)
	}
	return nil
}

// queue gives s a batch whose last operation writes the number. Nobody takes the stream for
// idle while it is given that.
func (t *tracker) queue(s *cu.Stream, number uint64, ops []cu.MemOp) error {
	before := t.queued.Swap(number)
	if err := t.give(s, ops); err != nil {
		t.queued.Store(before)
		return fmt.Errorf("channel: %w", err)
	}
	t.stream = s
	return nil
}

// skip notes what the host has done in place of the stream, which is idle.
func (t *tracker) skip(number uint64) {
	t.word.store(0, number)
	t.queued.Store(number)
}

// await waits until the stream is idle, or its context is lost.
func (t *tracker) await(limit time.Duration) error {
	if t == nil {
		return nil
	}
	pause := pollMin
	for end := time.Now().Add(limit); !t.idle(); pause = min(2*pause, sleepMax) {
		if t.isLost() {
			return nil
		}
		if time.Now().After(end) {
			return fmt.Errorf("%w: the stream has done %d of the %d steps that it was given; synchronise it, then call Close again", ErrInUse, t.done(), t.queued.Load())
		}
		time.Sleep(pause)
	}
	return nil
}

// isLost reports whether the context is lost: then no stream of it does anything more.
func (t *tracker) isLost() bool {
	_, err := t.ctx.NullStream().Query()
	return errors.Is(err, cu.ErrContextLost) || errors.Is(err, cu.ErrClosed)
}

func (t *tracker) close() error {
	if t == nil {
		return nil
	}
	return t.mem.Close()
}

// free writes into a word that streams here wait for what frees them all, again and again:
// a dead peer's device goes on writing for some milliseconds (E1), and one that lives and
// lies may write as often as it likes. So each time it writes for a while.
func (t *tracker) free(w words, off int, until uint64) {
	for pause := pollMin; ; pause = min(2*pause, sleepMax) {
		for end := time.Now().Add(spinFor); ; {
			w.store(off, given)
			if t.done() >= until {
				return
			}
			if time.Now().After(end) {
				break
			}
		}
		if t.isLost() {
			return
		}
		time.Sleep(pause)
	}
}
