package cu

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/gpufd/gpufd/gpumem"
)

// ErrInUse says that memory was not closed, because work that may use it is still queued. Nothing has
// changed. It is [gpumem.ErrInUse].
var ErrInUse = gpumem.ErrInUse

// An inUseError is [ErrInUse] with what to do.
type inUseError struct {
	text  string
	cause error
}

func (e *inUseError) Error() string { return e.text }

// Is matches ErrInUse.
func (e *inUseError) Is(target error) bool { return target == ErrInUse }

// Unwrap returns what ended the wait.
func (e *inUseError) Unwrap() error { return e.cause }

// notClosed returns the error of memory that was not closed because of err, that of a wait which took so long.
func notClosed(what string, err error, took time.Duration) error {
	switch {
	case err == nil:
		return nil
	case barred(err):
		return &inUseError{what + " is not closed, because a stream is being captured, and may use it: close it when the capture has ended", err}
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		return &inUseError{fmt.Sprintf("%s is not closed: after %s, streams still have work from before: synchronise them, or free one that waits, and close it again",
			what, took.Round(time.Millisecond)), err}
	}
	return fmt.Errorf("%s is not closed: it is not known whether streams use it: %w", what, err)
}
