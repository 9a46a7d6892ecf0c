package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"github.com/gpufd/gpufd/internal/descriptor"
	"github.com/gpufd/gpufd/internal/plain"
	"github.com/gpufd/gpufd/keeper/api"
	"github.com/gpufd/gpufd/keeper/internal/fdstore"
	"github.com/gpufd/gpufd/keeper/internal/protocol"
	"github.com/gpufd/gpufd/keeper/internal/state"
	"github.com/gpufd/gpufd/sock"
)

// ErrBusy says that another keeper has the fd store.
var ErrBusy = fdstore.ErrBusy

// takeOverPause is how long TakeOver waits before it asks for the store again.
const takeOverPause = 20 * time.Millisecond

// TakeOver opens a keeper in the place of a living one, which ends: for an upgrade. Clients that
// connect meanwhile are not refused. If there is no keeper TakeOver is Open.
//
// Before it asks the other keeper to end, TakeOver listens for metrics and reads what that keeper
// keeps. If this fails, the other keeper serves on. If something fails later, the other one goes
// on with [TakeBack].
func TakeOver(ctx context.Context, opts Options) (*Server, error) {
	if err := plain.ContextErr(ctx); err != nil {
		return nil, err
	}
	if err := opts.check(); err != nil {
		return nil, err
	}
	scrapers, err := listenMetrics(opts.Metrics, true)
	if err != nil {
		return nil, err
	}
	s, err := takeOver(ctx, opts, scrapers)
	if err != nil && scrapers != nil {
		_ = scrapers.Close()
	}
	return s, err
}

// takeOver asks the keeper that has the store to yield, until the store is free.
func takeOver(ctx context.Context, opts Options, scrapers net.Listener) (*Server, error) {
	var yielded time.Time // when a keeper last did
	for {
		s, err := open(ctx, opts, scrapers)
		if !errors.Is(err, ErrBusy) {
			return s, err
		}
		if time.Since(yielded) > patience { // before that it is still ending; later another keeper has followed it
			ok, err := askToYield(ctx, opts)
			if err != nil {
				return nil, err
			}
			if ok {
				yielded = time.Now()
			}
		}
		select {
		case <-ctx.Done():
			return nil, errors.Join(context.Cause(ctx), err)
		case <-time.After(takeOverPause):
		}
	}
}

// askToYield makes the serving keeper end, once it is clear that this process can continue
// with what that keeper keeps. It returns false if no keeper answers now: the store is free
// soon, or the one that has it is about to serve.
func askToYield(ctx context.Context, opts Options) (yielded bool, err error) {
	step, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	c, err := protocol.Dial(step, opts.Socket)
	if err == nil {
		defer c.Close()
		_, err = c.Query(step, protocol.Request{Op: protocol.OpStatus})
	}
	switch {
	case errors.Is(err, sock.ErrNoListener), errors.Is(err, sock.ErrPeerLost), errors.Is(err, context.DeadlineExceeded):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("asking the keeper to yield: %w", err)
	}
	err = canFollow(ctx, c, opts.Policy)
	if errors.Is(err, sock.ErrPeerLost) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("this keeper cannot follow the one that serves, which goes on: %w", err)
	}
	if _, err := c.Ask(ctx, protocol.Request{Op: protocol.OpYield}); err != nil && !errors.Is(err, sock.ErrPeerLost) {
		return false, fmt.Errorf("asking the keeper to yield: %w", err)
	}
	return true, nil
}

// canFollow returns nil if this process can read the manifest of the keeper that serves.
func canFollow(ctx context.Context, c *protocol.Client, p api.Policy) error {
	manifest, err := servedManifest(ctx, c)
	if state.CodeOf(err) == state.BadRequest {
		return nil // the keeper is older than this operation, and so is its manifest
	}
	if err != nil {
		return err
	}
	_, err = state.Decode(manifest, state.Policy(p))
	return err
}

// servedManifest returns what the keeper would leave to a successor now.
func servedManifest(ctx context.Context, c *protocol.Client) ([]byte, error) {
	_, files, err := c.AskFiles(ctx, protocol.Request{Op: protocol.OpManifest})
	defer sock.DropFiles(files)
	if err != nil {
		return nil, err
	}
	if len(files) != 1 {
		return nil, protocol.ErrMalformed
	}
	return io.ReadAll(io.NewSectionReader(files[0], 0, fdstore.MaxManifest))
}

// manifest answers a successor that wants to know whether it can read the manifest.
func (c *session) manifest() (protocol.Reply, []*os.File, error) {
	if err := c.mayYield(); err != nil {
		return protocol.Reply{}, nil, err
	}
	c.server.mu.Lock()
	text := c.server.state.Encode()
	c.server.mu.Unlock()
	f, err := descriptor.Sealed("gpufd-manifest", text)
	if err != nil {
		return protocol.Reply{}, nil, err
	}
	return protocol.Reply{}, oneFile(f), nil
}

// TakeBack is for a program whose keeper has yielded ([ErrYielded]) and was closed. It waits
// until the successor serves, and then returns nil and no error. If the successor gives up or
// dies before that, TakeBack opens a keeper with the options. ctx bounds it.
func TakeBack(ctx context.Context, opts Options) (*Server, error) {
	if err := plain.ContextErr(ctx); err != nil {
		return nil, err
	}
	asking, cancel := context.WithCancel(ctx)
	defer cancel()
	serves := make(chan bool, 1)
	go func() { serves <- awaitService(asking, opts.Socket) }()
	for free := time.Duration(0); ; {
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("waiting for the keeper that has taken over: %w", context.Cause(ctx))
		case ok := <-serves:
			if ok {
				return nil, nil
			}
			serves = nil
		case <-time.After(takeOverPause):
		}
		if free += takeOverPause; isBusy(ctx, opts.Socket) {
			free = 0
		}
		if free < patience {
			continue // it asks for the store as often as this does
		}
		s, err := Open(ctx, opts)
		if !errors.Is(err, ErrBusy) {
			return s, err
		}
		free = 0
	}
}

// awaitService waits until a keeper answers.
func awaitService(ctx context.Context, socket string) bool {
	for ctx.Err() == nil {
		c, err := protocol.Dial(ctx, socket)
		if err == nil {
			_, err = c.Query(ctx, protocol.Request{Op: protocol.OpStatus})
			_ = c.Close()
		}
		if err == nil {
			return true
		}
		select {
		case <-ctx.Done():
		case <-time.After(takeOverPause):
		}
	}
	return false
}

// isBusy reports whether a keeper has the store.
func isBusy(ctx context.Context, socket string) bool {
	store, err := fdstore.Dial(ctx, socket+storeSuffix)
	if err == nil {
		_ = store.Close()
	}
	return errors.Is(err, ErrBusy)
}

// storeDone is closed when the store has died.
func (s *Server) storeDone() <-chan struct{} { return s.vault.client().Done() }
