package keeper

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/gpufd/gpufd/keeper/internal/fdstore"
	"github.com/gpufd/gpufd/sock"
)

// ErrBusy says that another keeper has the fd store.
var ErrBusy = fdstore.ErrBusy

// takeOverPause is how long TakeOver waits before it asks for the store again.
const takeOverPause = 20 * time.Millisecond

// TakeOver is Open in the place of a keeper that lives, which ends: for an upgrade. Nobody
// who connects meanwhile is refused. Without a keeper there it is Open.
func TakeOver(ctx context.Context, opts Options) (*Server, error) {
	s, err := Open(ctx, opts)
	if !errors.Is(err, ErrBusy) {
		return s, err
	}
	c, err := Dial(ctx, opts.Socket)
	if err == nil {
		err = errors.Join(c.Yield(ctx), c.Close())
	}
	if err != nil && !errors.Is(err, sock.ErrNoListener) {
		return nil, fmt.Errorf("asking the keeper to yield: %w", err)
	}
	for {
		s, err := Open(ctx, opts)
		if !errors.Is(err, ErrBusy) {
			return s, err
		}
		select {
		case <-ctx.Done():
			return nil, errors.Join(context.Cause(ctx), err)
		case <-time.After(takeOverPause):
		}
	}
}

// storeDone is closed when the store has died.
func (s *Server) storeDone() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.vault.store.Done()
}
