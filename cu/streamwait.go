package cu

import (
	"context"
	"errors"
	"time"

	"github.com/gpufd/gpufd/internal/plain"
)

// ErrGivenUp says that a stream went on without what it waited for. Do not rely
// on what it did after that.
var ErrGivenUp = errors.New("cu: the wait of a stream was given up")

// A StreamWait is a wait of a stream that can be given up: see [Stream.Guard].
type StreamWait struct {
	ctx       context.Context // its end gives the wait up
	mark      *Event          // behind the wait
	met, free func() error

	givenUp error     // why nobody may rely on what the stream does behind it
	behind  bool      // a wait before this one was given up
	round   int       // of guards, if it was given up; once done
	freeing time.Time // since when the stream is being freed, because ctx has ended
	freed   time.Time // when it was freed last

	of     *guards
	next   *StreamWait         // the wait queued behind it; guarded by mu of guards, as are the next two
	lost   bool                // nobody may rely on what is queued behind it from now on
	spoils map[any]func(error) // of IfGivenUp

	done chan struct{}
	err  error // once done
}

// freeLimit is how long a stream that was freed may take to go on. Every freeAgain it
// is freed again meanwhile: a peer that is slow, not dead, may undo it.
const (
	freeLimit = 5 * time.Second
	freeAgain = 50 * time.Millisecond
)

// Guard makes later work on s wait, as begin queues it, for something that only
// another process can do, and frees s if ctx ends before that. So nothing waits
// for a peer that has died, and all can be closed (D20b). It is not for events of
// other processes, whose waits nothing frees: see [Event.Synchronize].
//
// free has to do, in another stream, what s waits for, and may be called more
// than once. met is called when s has gone on by itself. It returns nil if that
// was the peer's doing, or else says why not, such as another wait that was
// freed.
//
// Guard returns as soon as the wait is queued; with an error, nothing waits. A
// stream that is being captured is [ErrStreamCaptureUnsupported].
// [StreamWait.Result] says whether the wait was met. ctx should have a deadline,
// whose end costs nothing once the wait is over.
//
// When a wait is given up, or met says that another freed s, the stream does the
// work behind it, and nothing can take that back. So the waits queued on s before
// it was over, or before anybody asked for its [StreamWait.Result], are
// [ErrGivenUp] as well, met or not: if the last one was met, all before it were.
//
// One goroutine watches all waits of a stream, until the last is over, and calls
// met and free. It holds a reference to the context ([Context.Retain]), so that
// it frees the stream in time even if the stream's own reference is closed.
//
// While s waits, load no code and call nothing that waits for all work of a
// context or device, such as [Memory.Close] or [Context.Synchronize]: it waits
// for s as well, and may keep it from being freed.
func (s *Stream) Guard(ctx context.Context, begin, met, free func() error) (*StreamWait, error) {
	if err := plain.ContextErr(ctx); err != nil {
		return nil, err
	}
	if err := s.NotCaptured(); err != nil {
		return nil, err
	}
	g := &s.guards
	g.order.Lock()
	defer g.order.Unlock()
	held, before, err := g.enter(s.ctx)
	if err != nil {
		return nil, err
	}
	mark, err := held.NewEvent(EventDisableTiming)
	if err != nil {
		return nil, errors.Join(err, g.leave())
	}
	if err := begin(); err != nil {
		return nil, errors.Join(err, mark.Close(), g.leave())
	}
	if err := mark.Record(s); err != nil { // s was closed, or its context lost
		return nil, errors.Join(err, free(), mark.Close(), g.leave())
	}
	w := &StreamWait{ctx: ctx, mark: mark, met: met, free: free, of: g, done: make(chan struct{})}
	g.add(w, before)
	return w, nil
}

// IfGivenUp calls f if a wait of [Stream.Guard] that s has now is given up,
// before s is freed: f can tell others not to rely on what is given to s from now
// on. If another frees s, f is called when that is known: at
// [StreamWait.Distrust], or when met says so. If a wait is being given up
// already, f is called at once; if s has none, never. If several f have the same
// key and are behind the same wait, one of them is called. f gets the error of
// the wait and must end soon. It runs on the goroutine that watches the stream's
// waits, or on that of Distrust.
//
// If a wait was given up and nobody has asked for its [StreamWait.Result],
// IfGivenUp returns why and does not call f: what s is given now is behind that
// wait.
func (s *Stream) IfGivenUp(key any, f func(error)) error {
	if s == nil {
		return unusable("IfGivenUp", "the stream", true)
	}
	g := &s.guards
	g.mu.Lock()
	last, why := g.last, g.losing
	switch {
	case g.unseen != nil:
		defer g.mu.Unlock()
		return g.unseen
	case last == nil:
		g.mu.Unlock()
	case last.lost:
		g.mu.Unlock()
		f(why)
	default:
		if last.spoils == nil {
			last.spoils = map[any]func(error){}
		}
		last.spoils[key] = f
		g.mu.Unlock()
	}
	return nil
}

// Distrust says that the caller will free s by freeing another stream that waits
// for the same. It calls each f of [Stream.IfGivenUp] behind the wait with why
// before it returns. met still decides the results. For nil, the zero StreamWait
// and a wait that is over it does nothing.
func (s *StreamWait) Distrust(why error) {
	if !s.isZero() && !isOver(s) {
		s.of.lose(s, why)
	}
}

func isOver(s *StreamWait) bool {
	select {
	case <-s.done:
		return true
	default:
		return false
	}
}

// isZero reports whether nothing was queued: such a wait is over, and [ErrClosed].
func (s *StreamWait) isZero() bool { return s == nil || s.done == nil }

// Done returns a channel that is closed when the wait is over, met or given up.
// For nil and the zero StreamWait it is closed.
func (s *StreamWait) Done() <-chan struct{} {
	if s.isZero() {
		return over
	}
	return s.done
}

// over is the Done of what never was.
var over = func() chan struct{} { c := make(chan struct{}); close(c); return c }()

// Result waits until the wait is over, and returns nil if it was met.
// [ErrGivenUp], with the error of the context that ended, says that the stream
// went on without the peer's work, or that it did so at an earlier wait. For nil
// and the zero StreamWait it is [ErrClosed].
func (s *StreamWait) Result() error {
	if s.isZero() {
		return unusable("Result", "the wait", true)
	}
	<-s.done
	if s.round > 0 {
		s.of.see(s.round)
	}
	return s.err
}
