package channel

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/internal/plain"
)

// A tracker knows how far a stream has got with what a channel has given it, in steps. A step
// that is marked ends with a number that the stream writes to a word that no other process has.
// A mark takes the device half a microsecond and more, so others are marked when somebody asks, or
// when the stream is closed.
type tracker struct {
	ctx     *cu.Context
	mem     *cu.HostMemory
	word    words
	at      cu.DevicePtr
	letGo   func()        // frees the stream, or begins to; it may be called again
	onClose func()        // lastChance
	queued  atomic.Uint64 // the number of the last step
	marked  atomic.Uint64 // and of the last one that is marked
	asked   atomic.Bool   // a goroutine of asks is under way

	mu     sync.Mutex // held while a stream is given a step or a mark: the driver may keep the call until the stream goes on
	stream *cu.Stream // that has the latest work
	closed bool
}

// closeLimit is how long Close waits for a stream.
const closeLimit = time.Second

func newTracker(ctx *cu.Context, letGo func()) (*tracker, error) {
	t := &tracker{ctx: ctx, letGo: letGo}
	t.onClose = t.lastChance
	var err error
	if t.mem, err = ctx.AllocHost(pageSize, cu.HostPortable); err != nil {
		return nil, fmt.Errorf("channel: allocating a word for streams: %w", err)
	}
	t.word = words{t.mem.Bytes()}
	t.word.store(0, 0)
	if t.at = t.mem.Ptr(); t.at == 0 {
		return nil, errors.Join(errors.New("channel: streams cannot address pinned memory here"), t.mem.Close())
	}
	return t, nil
}

// done is the last number that was written.
func (t *tracker) done() uint64 { return t.word.load(0) }

// idle reports whether the stream has done all that it was given.
func (t *tracker) idle() bool {
	return t.done() >= t.queued.Load() || t.marked.Load() < t.queued.Load() && t.catchUp()
}

// catchUp reports whether the stream has done all steps, and marks the last of them if it has not.
func (t *tracker) catchUp() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return true
	}
	queued := t.queued.Load()
	if t.marked.Load() < queued {
		if idle, err := t.stream.Query(); idle && err == nil {
			t.word.store(0, queued) // nothing is on its way there
			t.marked.Store(queued)
		}
	}
	_ = t.mark() // else the next call does
	return t.done() >= queued
}

// asks is idle, but never blocks: if a mark is wanted, a goroutine makes it, because the driver may block that
// call until the stream goes on.
func (t *tracker) asks() bool {
	if t.done() >= t.queued.Load() {
		return true
	}
	if t.marked.Load() < t.queued.Load() && t.asked.CompareAndSwap(false, true) {
		go func() {
			defer t.asked.Store(false)
			t.catchUp()
		}()
	}
	return false
}

// lastChance is catchUp before the stream is closed, after which no call could reach it. While the driver keeps a
// call, lastChance frees the stream again and again. If the stream waits for other work, lastChance returns when that
// is done: the driver destroys no stream while a call on it is under way.
func (t *tracker) lastChance() {
	marked := begin(func() { t.catchUp() })
	for {
		select {
		case <-marked:
			return
		case <-time.After(closeLimit):
			t.letGo()
		}
	}
}

// pass waits until the stream has done the steps that it has by now, all of which are marked, or its context is lost.
func (t *tracker) pass() {
	until := t.queued.Load()
	for pause := pollMin; t.done() < min(until, t.queued.Load()) && !t.isLost(); pause = min(2*pause, sleepMax) { // the driver may refuse a step
		time.Sleep(pause)
	}
}

// mark marks the last step, unless it is. It runs with mu held.
func (t *tracker) mark() error {
	queued := t.queued.Load()
	if t.marked.Load() >= queued {
		return nil
	}
	if err := t.stream.NotCaptured(); err != nil {
		return err
	}
	err := t.stream.BatchMemOps(t.op(queued))
	if err == nil {
		t.marked.Store(queued)
	}
	return err
}

// op writes a number to the word.
func (t *tracker) op(number uint64) cu.MemOp { return cu.WriteOp64(t.at, number, cu.WriteDefault) }

// takes says why s cannot be given more, if so: the words of a side are written in order,
// so another stream has to wait for the one before.
func (t *tracker) takes(s *cu.Stream) error {
	if err := s.NotCaptured(); err != nil {
		return fmt.Errorf("channel: a graph that is captured here would use the same frame at every launch; end the capture first: %w", err)
	}
	if s != t.stream && !t.idle() {
		return fmt.Errorf("%w: another stream still has frames of this side queued; synchronise it first, or go on with it", ErrOrder)
	}
	return nil
}

// errStreamClosed says that a stream gets no step.
var errStreamClosed = plain.ErrorOf("channel: the stream is nil, closed or being closed", cu.ErrClosed)

// step gives s the operations of a step, and its mark behind them if it is to be marked. Nobody
// takes the stream for idle while it is given that. If the stream is closed meanwhile, Close waits and
// marks the step. A stream that is being closed gets no step.
func (t *tracker) step(s *cu.Stream, number uint64, marked bool, ops []cu.MemOp) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if marked {
		ops = append(ops, t.op(number))
	}
	if !s.OnClose(t, t.onClose) {
		return errStreamClosed
	}
	if s != t.stream { // which has done all, so that nothing of this side keeps it open while the driver keeps the step
		t.stream.OnClose(t, nil)
	}
	before := t.queued.Swap(number)
	if err := s.BatchMemOps(ops...); err != nil {
		t.queued.Store(before)
		if s != t.stream {
			s.OnClose(t, nil)
		}
		return fmt.Errorf("channel: %w", err)
	}
	if marked {
		t.marked.Store(number)
	}
	t.stream = s
	return nil
}

// part gives s the first operations of a step.
func (t *tracker) part(s *cu.Stream, ops []cu.MemOp) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return s.BatchMemOps(ops...)
}

// skip notes what the host has done in place of the stream, which is idle.
func (t *tracker) skip(number uint64) {
	t.mu.Lock() // which marks are made under
	defer t.mu.Unlock()
	t.word.store(0, number)
	t.queued.Store(number)
	t.marked.Store(number)
}

// await waits until the stream is idle, or its context is lost.
func (t *tracker) await(limit time.Duration) error {
	if t == nil {
		return nil
	}
	pause := pollMin
	for end := time.Now().Add(limit); !t.asks(); pause = min(2*pause, sleepMax) {
		if t.isLost() {
			return nil
		}
		if time.Now().After(end) {
			return t.inUse()
		}
		time.Sleep(pause)
	}
	return nil
}

// inUse says that the stream has not done what it was given.
func (t *tracker) inUse() error {
	return fmt.Errorf("%w: the stream has done %d of the %d steps that it was given; synchronise it, then call Close again", ErrInUse, t.done(), t.queued.Load())
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
	t.mu.Lock() // behind the last mark
	defer t.mu.Unlock()
	t.closed = true
	t.stream.OnClose(t, nil)
	return t.mem.Close()
}

// free writes into a word that streams here wait for what frees them all, until the stream has
// done the steps that it has by now, or its context is lost.
func (t *tracker) free(w words, off int) {
	until := t.queued.Load()
	var marking sync.WaitGroup
	if t.done() < until && t.marked.Load() < until {
		marking.Go(func() { t.markUntil(until) }) // the driver may keep the call until the stream goes on
	}
	keepFreeing(w, off, func() bool { return t.done() >= min(until, t.queued.Load()) }, t.isLost) // the driver may refuse a step
	marking.Wait()
}

// markUntil marks the given step or a later one. It waits for the end of a capture, during which no mark can be made.
func (t *tracker) markUntil(until uint64) {
	for pause := pollMin; t.done() < until && !t.isLost(); pause = min(2*pause, sleepMax) {
		t.mu.Lock()
		err := t.mark()
		t.mu.Unlock()
		if err == nil {
			return
		}
		if errors.Is(err, cu.ErrClosed) { // the stream has ended with a context
			t.outlast(until)
		}
		time.Sleep(pause)
	}
}

// outlast waits for all work of the context, where the stream cannot be asked any more.
func (t *tracker) outlast(until uint64) {
	limit, cancel := context.WithTimeout(context.Background(), closeLimit)
	defer cancel()
	if t.ctx.Synchronize(limit) != nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if until = min(until, t.queued.Load()); t.done() < until { // else another stream has got further
		t.word.store(0, until)
	}
}

// keepFreeing writes into a word what frees streams that wait for it, in bursts, until over is true: a dead
// peer's device goes on writing for some milliseconds (E1), and one that lives and lies may write as
// often as it likes. A burst takes spinFor, or as long as the pause before it if somebody else has
// written meanwhile. Those take two seconds in all, because the stream may have other work to do.
// keepFreeing also ends after a burst if lost is true.
func keepFreeing(w words, off int, over, lost func() bool) {
	spin, budget := spinFor, 2*time.Second
	for pause := pollMin; ; pause = min(2*pause, sleepMax) {
		for end := time.Now().Add(spin); ; {
			w.store(off, given)
			if over() {
				return
			}
			if time.Now().After(end) {
				break
			}
		}
		if lost() {
			return
		}
		time.Sleep(pause)
		spin = spinFor
		if w.load(off) != given && budget > 0 {
			spin = max(spinFor, pause)
			budget -= spin
		}
	}
}

// lockWithin locks mu unless that takes longer than limit. Then a goroutine waits on, until whoever holds mu lets go.
func lockWithin(mu *sync.Mutex, limit time.Duration) bool {
	var decided atomic.Bool // by whichever comes first, the lock or the limit
	locked := begin(func() {
		mu.Lock()
		if !decided.CompareAndSwap(false, true) {
			mu.Unlock()
		}
	})
	select {
	case <-locked:
		return true
	case <-time.After(limit):
		return !decided.CompareAndSwap(false, true)
	}
}

// begin runs f on a goroutine of its own, and returns what is closed when f has returned.
func begin(f func()) <-chan struct{} {
	over := make(chan struct{})
	go func() {
		defer close(over)
		f()
	}()
	return over
}

// isClosed reports whether c is.
func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
