package server

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/gpufd/gpufd/keeper/api"
	"github.com/gpufd/gpufd/keeper/internal/fdstore"
	"github.com/gpufd/gpufd/keeper/internal/protocol"
	"github.com/gpufd/gpufd/keeper/internal/state"
	"github.com/gpufd/gpufd/sock"
)

// ErrEnded says that a keeper has ended because [End] asked it to ([Server.Err]).
var ErrEnded = errors.New("keeper: it was asked to end, with its fd store")

// End ends the keeper at a socket and its fd store, both of this user, and removes their sockets and
// locks. What they keep is given up: processes that have it mapped keep it, and it is free when the last
// one has released it. End returns what was kept. A service manager may start both again.
//
// Without a keeper, End ends the fd store that one has left behind. Without a store, too, the error is
// [sock.ErrNoListener].
func End(ctx context.Context, socket string) (lost []api.Info, err error) {
	var asked time.Time
	for {
		store, err := fdstore.Dial(ctx, socket+storeSuffix)
		none := errors.Is(err, sock.ErrNoListener)
		switch {
		case err == nil: // no keeper has it
			lost, err = endIdle(ctx, store)
			return lost, errors.Join(err, removeSockets(socket))
		case none && !asked.IsZero():
			if err := removeSockets(socket); !errors.Is(err, sock.ErrListening) { // else the keeper is about to end
				return lost, err
			}
		case !none && !errors.Is(err, ErrBusy):
			return nil, fmt.Errorf("ending the fd store: %w", err)
		case time.Since(asked) > patience: // it may be another one by now
			names, err := askToEnd(ctx, socket)
			if err != nil {
				if none && errors.Is(err, sock.ErrNoListener) {
					err = errors.Join(err, removeSockets(socket)) // left by a dead keeper
				}
				return nil, err
			}
			asked = time.Now()
			if len(names) > 0 {
				lost = names
			}
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("waiting for the keeper to end: %w", context.Cause(ctx))
		case <-time.After(takeOverPause):
		}
	}
}

// askToEnd asks the keeper that serves to end, and returns what it keeps.
func askToEnd(ctx context.Context, socket string) ([]state.Info, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	c, err := protocol.Dial(ctx, socket)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	kept, err := c.Query(ctx, protocol.Request{Op: protocol.OpList})
	if err == nil {
		_, err = c.Ask(ctx, protocol.Request{Op: protocol.OpEnd})
	}
	if errors.Is(err, sock.ErrPeerLost) || errors.Is(err, context.DeadlineExceeded) { // it ends, or is asked again
		err = nil
	}
	return kept.Names, err
}

// endIdle ends a store that no keeper has, and returns what it had.
func endIdle(ctx context.Context, store *fdstore.Client) (lost []state.Info, err error) {
	manifest, err := store.Manifest(ctx)
	if err == nil && manifest != nil {
		var st *state.State
		if st, err = state.Decode(manifest, state.Policy{Owner: uint32(os.Geteuid())}); err == nil {
			lost = st.All()
		}
	}
	return lost, errors.Join(err, store.Exit(ctx), store.Close())
}

// mayEnd returns nil if a client may end this keeper.
func (c *session) mayEnd() error {
	if c.who.UID != uint32(os.Geteuid()) {
		return &state.Error{Code: state.Denied, Message: "a keeper is ended by its own user"}
	}
	return nil
}

// removeSockets removes the keeper's two sockets and their locks, unless a living process has them:
// listening at a path takes over what dead processes left, and closing removes it. The files that the
// fd store had are closed a little after its end.
func removeSockets(socket string) error {
	var errs []error
	for _, path := range []string{socket, socket + protocol.ControlSuffix} {
		errs = append(errs, removeSocket(path))
	}
	return errors.Join(errs...)
}

func removeSocket(path string) error {
	if !exists(path) && !exists(path+".lock") {
		return nil
	}
	l, err := sock.Listen(path)
	for range 5 {
		if !errors.Is(err, sock.ErrListening) {
			break
		}
		time.Sleep(10 * time.Millisecond)
		l, err = sock.Listen(path)
	}
	if err != nil {
		return err
	}
	return l.Close()
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}
