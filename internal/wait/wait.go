// Package wait holds what every wait says when its context ends it.
package wait

import (
	"context"
	"errors"
	"fmt"
)

// Err says why ctx is done: it matches ctx.Err() and context.Cause(ctx). It is nil
// while ctx goes on.
func Err(ctx context.Context) error {
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
