package cu

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// A Queue is where a copy or fill that waits does its work: a [*Stream], behind the work that it
// has, or a [*Context], which stands for its null stream. There are no others.
//
//	err = kernel.Launch(s, cfg, p)
//	err = cu.CopyToHost(s, results, p) // after the kernel
//
// With a context such a call waits for earlier work of the null stream and of blocking streams,
// but not for that of [Context.NewStream].
//
// Such a call returns when its queue has nothing to do (cuStreamSynchronize): it waits for what others
// give to the queue meanwhile, too, and if the queue waits for ever, so does the call, and Close of
// the stream or context with it. For a wait that can end, call the Async form, and [Stream.Synchronize]
// with a context.
//
// A stream that is being captured is refused ([ErrStreamCaptureUnsupported]), and a context while a blocking
// stream of it is ([ErrStreamCaptureImplicit]). Begin no capture of a stream while another goroutine uses
// it: the capture may take in the copy. The call then fails, but only when the capture has ended and no copy
// from or to the caller's memory runs any more, or after ten seconds, which the error says.
type Queue interface {
	queue(op string) (*Stream, error)
}

func (s *Stream) queue(op string) (*Stream, error) {
	if s == nil {
		return nil, unusable(op, "the stream", true)
	}
	return s, nil
}

func (c *Context) queue(op string) (*Stream, error) {
	if c == nil {
		return nil, unusable(op, "the context", true)
	}
	return c.null, nil
}

// waiting gives work to q's stream, and waits for that.
func waiting(q Queue, op string, work func(*Stream) error) error {
	if q == nil {
		return unusable(op, "the stream or context", true)
	}
	s, err := q.queue(op)
	if err != nil {
		return err
	}
	captures := s.captured.Load()
	if err := s.run("cuStreamSynchronize", s.refuseCaptured); err != nil { // before any of it is captured
		return err
	}
	if err := work(s); err != nil {
		return err
	}
	err = s.wait()
	switch {
	case barred(err):
		return s.waitBehindCapture(op, err)
	case err == nil && s.captured.Load() != captures:
		return s.mayBeCaptured(op, ErrStreamCaptureUnsupported)
	}
	return err
}

// captureLimit is how long waitBehindCapture waits; tests change it.
var captureLimit = 10 * time.Second

// mayBeCaptured returns the error of work of which nobody knows whether it ran or was captured.
func (s *Stream) mayBeCaptured(op string, captured error) error {
	return fmt.Errorf("cu: %s: the stream began to be captured meanwhile: the work has ended, or is in the graph: %w", op, captured)
}

// barred says that a stream could not be asked because of a capture: its own, or, of the null stream, that of a
// blocking stream.
func barred(err error) bool {
	return errors.Is(err, ErrStreamCaptureUnsupported) || errors.Is(err, ErrStreamCaptureImplicit)
}

// waitBehindCapture waits for work of s, which cannot be asked until a capture that began meanwhile has ended. If the
// capture is that of s, nobody knows whether the work ran or was captured, so it fails.
func (s *Stream) waitBehindCapture(op string, captured error) error {
	ctx, cancel := context.WithTimeout(context.Background(), captureLimit)
	defer cancel()
	err := poll(ctx, func() (bool, error) {
		done, err := s.Query()
		if barred(err) {
			return false, nil
		}
		return done, err
	})
	switch {
	case err != nil:
		return fmt.Errorf("cu: %s: a stream began to be captured meanwhile, and the work may still run, or be in the graph: %w; %w", op, captured, err)
	case s == s.ctx.null: // which cannot be captured
		return nil
	}
	return s.mayBeCaptured(op, captured)
}
