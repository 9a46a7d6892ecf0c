package plain

import (
	"context"
	"errors"
	"fmt"
)

// ContextErr returns why ctx is done: the error matches ctx.Err() and context.Cause(ctx). It is nil
// while ctx is not done.
func ContextErr(ctx context.Context) error {
	err := ctx.Err()
	if err == nil {
		return nil
	}
	cause := context.Cause(ctx)
	if errors.Is(cause, err) {
		return cause
	}
	return fmt.Errorf("%w: %w", err, cause)
}
