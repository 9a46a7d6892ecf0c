package main

import (
	"context"
	"errors"
	"time"

	"github.com/gpufd/gpufd/internal/cli"
)

// errIdle is why work ends that did not go on.
var errIdle = errors.New("nothing went on")

// An idle bounds work that may take long, as long as it goes on.
type idle struct {
	ctx    context.Context
	outer  context.Context
	limit  time.Duration
	cancel context.CancelCauseFunc
	timer  *time.Timer
}

// newIdle ends its ctx when alive was not called for limit.
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

// explain says of an error that nothing went on, where that is why, or that the outer
// context is done. A keeper's error says more than the former.
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
