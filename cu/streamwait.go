package cu

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"time"

	"github.com/gpufd/gpufd/internal/wait"
)

// ErrGivenUp says that a stream went on although what it waited for had not
// come. Do not rely on what it did after that.
var ErrGivenUp = errors.New("cu: the wait of a stream was given up")

// A StreamWait is a wait of a stream that can be given up: [Stream.Guard].
type StreamWait struct {
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
	mark, err := s.ctx.NewEvent(EventDisableTiming)
	if err != nil {
		return nil, err
	}
	if err := begin(); err != nil {
		return nil, errors.Join(err, mark.Close())
	}
	if err := mark.Record(s); err != nil { // s was closed, or its context lost
		return nil, errors.Join(err, free(), mark.Close())
	}
	w := &StreamWait{done: make(chan struct{})}
	go w.watch(ctx, mark, met, free)
	return w, nil
}

// watch waits until the mark after the wait is reached, or helps it on.
func (w *StreamWait) watch(ctx context.Context, mark *Event, met, free func() error) {
	defer close(w.done)
	defer runtime.KeepAlive(mark)
	w.err = poll(ctx, mark.Query)
	if w.err == nil {
		w.err = met()
	} else if ctx.Err() != nil {
		w.err = fmt.Errorf("%w: %w", ErrGivenUp, w.err)
		if err := freed(mark, free); err != nil {
			w.err = errors.Join(w.err, fmt.Errorf("cu: the stream waits still: %w", err))
		}
	}
	_ = mark.Close() // its context's end does it, too
}

// freed frees the stream of mark, and sees it go on.
func freed(mark *Event, free func() error) error {
	for end := time.Now().Add(freeLimit); ; {
		if err := free(); err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(context.Background(), freeAgain)
		err := poll(ctx, mark.Query)
		cancel()
		if !errors.Is(err, context.DeadlineExceeded) || time.Now().After(end) {
			return err
		}
	}
}

// Done is closed when the wait is over, met or given up.
func (w *StreamWait) Done() <-chan struct{} { return w.done }

// Result waits until the wait is over, and is nil if it was met. [ErrGivenUp],
// with the error of the context that ended, says that the stream has gone on
// with what the peer did not finish.
func (w *StreamWait) Result() error {
	<-w.done
	return w.err
}
