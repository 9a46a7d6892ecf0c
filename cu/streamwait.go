package cu

import (
	"context"
	"errors"
	"time"

	"github.com/gpufd/gpufd/internal/wait"
)

// ErrGivenUp says that a stream went on although what it waited for had not
// come. Do not rely on what it did after that.
var ErrGivenUp = errors.New("cu: the wait of a stream was given up")

// A StreamWait is a wait of a stream that can be given up: [Stream.Guard].
type StreamWait struct {
	ctx       context.Context // whose end gives it up
	mark      *Event          // behind the wait
	met, free func() error

	givenUp error     // why nobody may rely on what the stream does behind it
	behind  bool      // a wait before this one was given up
	freeing time.Time // since when the stream is being freed, because ctx has ended
	freed   time.Time // when it was freed last

	done chan struct{}
	err  error // once done
}

// freeLimit is how long a stream that was freed may take to go on. So often it is
// freed again meanwhile: a peer that is slow, not dead, may undo it.
const (
	freeLimit = 5 * time.Second
	freeAgain = 50 * time.Millisecond
)

// Guard has work given to s from now on wait, as begin queues it, for something
// that only another process can do, and frees s if ctx ends before that. So
// nothing waits for a peer that has died, and all can be closed (D20b).
// share.Counter is made of it. It is not for events of other processes, whose
// waits nothing frees: see [Event.Synchronize].
//
// free has to do, in another stream, what s waits for, and may be called more
// than once. met is asked when s has gone on by itself. It returns nil if that
// was the peer's doing, or else says why not, such as another wait that was
// freed.
//
// Guard returns as soon as the wait is queued; with an error, nothing waits. A
// stream that is being captured is [ErrStreamCaptureUnsupported].
// [StreamWait.Result] says whether the wait was met. ctx should have a
// deadline, whose end costs nothing once the wait is over.
//
// When a wait is given up, the stream does what it was given behind it, and nothing can
// take that back. So the waits that were queued on s before it was over are [ErrGivenUp]
// as well, whether or not they are met: if the last one was met, all before it were.
//
// One goroutine looks after all waits of a stream, until the last is over, and calls met
// and free. It holds a reference to the context ([Context.Retain]): the stream is freed
// in time though the one that it was made in is closed.
//
// While s waits, load no code and do not call what waits for all work of a
// context or device, such as [Memory.Close] or [Context.Synchronize]: that
// waits for s as well, and may keep it from being freed.
func (s *Stream) Guard(ctx context.Context, begin, met, free func() error) (*StreamWait, error) {
	if err := s.NotCaptured(); err != nil {
		return nil, err
	}
	if err := wait.Err(ctx); err != nil {
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
	w := &StreamWait{ctx: ctx, mark: mark, met: met, free: free, done: make(chan struct{})}
	g.add(w, before)
	return w, nil
}

// Done is closed when the wait is over, met or given up.
func (s *StreamWait) Done() <-chan struct{} { return s.done }

// Result waits until the wait is over, and is nil if it was met. [ErrGivenUp],
// with the error of the context that ended, says that the stream has gone on
// with what the peer did not finish, or that this was so of a wait before.
func (s *StreamWait) Result() error {
	<-s.done
	return s.err
}
