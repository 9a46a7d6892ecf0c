package gpufd

import (
	"context"
	"errors"
	"time"

	"github.com/gpufd/gpufd/internal/cli"
)

// errIdle ends work that makes no progress.
var errIdle = errors.New("no progress")

// An idle bounds the time without progress of work that may take long.
type idle struct {
	ctx    context.Context
	outer  context.Context
	limit  time.Duration
	cancel context.CancelCauseFunc
	timer  *time.Timer
}

// newIdle returns an idle whose ctx ends when alive was not called for limit.
func newIdle(ctx context.Context, limit time.Duration) *idle {
	i := &idle{outer: ctx, limit: limit}
	i.ctx, i.cancel = context.WithCancelCause(ctx)
	i.timer = time.AfterFunc(limit, func() { i.cancel(errIdle) })
	return i
}

func (i *idle) alive() { i.timer.Reset(i.limit) }

func (i *idle) stop() {
	i.timer.Stop()
	i.cancel(nil)
}

// explain adds to an error that there was no progress, or that the outer context is done, if
// that is why. A keeper's own error says more, and stays as it is.
func (i *idle) explain(err error) error {
	switch {
	case err == nil:
		return nil
	case i.outer.Err() != nil:
		return i.outer.Err()
	case errors.Is(context.Cause(i.ctx), errIdle) && (errors.Is(err, context.Canceled) || errors.Is(err, errIdle)):
		return cli.Codef(cli.ExitPeer, "%w for %s: %w; wait longer with --timeout", errIdle, i.limit, err)
	}
	return err
}
