package keeper

import (
	"context"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/keeper/api"
	"github.com/gpufd/gpufd/keeper/internal/protocol"
)

// A Client asks a keeper what it has, and gives it memory to keep. Readers need none:
// share.Attach and share.Follow take what a keeper keeps. The caller owns the Client and ends
// it with Close. It is safe for concurrent use; requests take turns. If a keeper dies before it
// answers a question (Status, List, Stat), the Client asks the next one.
type Client struct {
	socket string
	wire   *protocol.Client
}

// Dial connects to the keeper whose readers' socket lies at socket. Errors:
// [sock.ErrNoListener] and the others of [sock.Dial].
func Dial(ctx context.Context, socket string) (*Client, error) {
	wire, err := protocol.Dial(ctx, socket)
	if err != nil {
		return nil, err
	}
	return &Client{socket, wire}, nil
}

// Close ends the connection, and a request that waits. The keeper gives up what was booked and
// not delivered when its time is over or this process has ended. Close may be called again and
// on nil.
func (c *Client) Close() error { return c.conn().Close() }

// conn returns the connection, or nil, which is a closed one.
func (c *Client) conn() *protocol.Client {
	if c == nil {
		return nil
	}
	return c.wire
}

// Status asks the keeper to describe itself.
func (c *Client) Status(ctx context.Context) (api.Status, error) {
	a, err := c.conn().Query(ctx, protocol.Request{Op: protocol.OpStatus})
	if err != nil {
		return api.Status{}, err
	}
	if a.Status == nil {
		return api.Status{}, protocol.ErrMalformed
	}
	return *a.Status, nil
}

// List returns what is kept under all names that this process may read.
func (c *Client) List(ctx context.Context) ([]api.Info, error) {
	a, err := c.conn().Query(ctx, protocol.Request{Op: protocol.OpList})
	return a.Names, err
}

// Stat returns what is kept under a name. If there is no such name the error is an [*api.Error]
// with the code not-found.
func (c *Client) Stat(ctx context.Context, name string) (api.Info, error) {
	a, err := c.conn().Query(ctx, protocol.Request{Op: protocol.OpStat, Name: name})
	if err != nil {
		return api.Info{}, err
	}
	if len(a.Names) != 1 {
		return api.Info{}, protocol.ErrMalformed
	}
	return a.Names[0], nil
}

// Remove makes the keeper give up a name. The keeper tells its readers (share.ErrWithdrawn),
// which keep what they have mapped. The memory is free when the last of them has let go.
func (c *Client) Remove(ctx context.Context, name string) error {
	return c.RemoveVersion(ctx, name, 0)
}

// RemoveVersion is Remove if that version is the current one; 0 is any. If another one is
// current the error is an [*api.Error] with the code conflict.
func (c *Client) RemoveVersion(ctx context.Context, name string, version uint64) error {
	_, err := c.conn().Ask(ctx, protocol.Request{Op: protocol.OpRemove, Name: name, Version: version})
	return err
}

// Drain makes the keeper refuse new readers of a name and tell the readers that have it
// ([DrainNotice]).
func (c *Client) Drain(ctx context.Context, name string) error {
	return c.drain(ctx, protocol.Request{Name: name, On: true})
}

// Undrain makes the keeper admit new readers of a name again.
func (c *Client) Undrain(ctx context.Context, name string) error {
	return c.drain(ctx, protocol.Request{Name: name})
}

// DrainDevice is Drain for all that is kept on a device, which takes no new memory either.
func (c *Client) DrainDevice(ctx context.Context, dev cu.UUID) error {
	return c.drain(ctx, protocol.Request{Device: dev.String(), On: true})
}

// UndrainDevice is Undrain for all that is kept on a device, which takes new memory again.
func (c *Client) UndrainDevice(ctx context.Context, dev cu.UUID) error {
	return c.drain(ctx, protocol.Request{Device: dev.String()})
}

func (c *Client) drain(ctx context.Context, r protocol.Request) error {
	r.Op = protocol.OpDrain
	_, err := c.conn().Ask(ctx, r)
	return err
}

// Park makes the keeper copy the current version of a name to memory of the host, and free that of its devices; it has
// to be that version, unless version is 0. If processes may have the memory mapped, the error is an [*api.Error] with the
// code conflict that names them. The keeper brings the memory back when a reader attaches, or for Unpark. If ctx
// ends first, the keeper goes on.
func (c *Client) Park(ctx context.Context, name string, version uint64) (api.Moved, error) {
	return c.move(ctx, protocol.OpPark, name, version)
}

// Unpark makes the keeper bring the current version of a name back to its devices, as Park has it the other way.
func (c *Client) Unpark(ctx context.Context, name string, version uint64) (api.Moved, error) {
	return c.move(ctx, protocol.OpUnpark, name, version)
}

func (c *Client) move(ctx context.Context, op, name string, version uint64) (api.Moved, error) {
	a, err := c.conn().Ask(ctx, protocol.Request{Op: op, Name: name, Version: version})
	if err != nil {
		return api.Moved{}, err
	}
	if a.Moved == nil {
		return api.Moved{}, protocol.ErrMalformed
	}
	return *a.Moved, nil
}

// Report tells the keeper that a part of a version is damaged, quarantined or ok again (verdict),
// and why. counted reports whether the keeper acts on that: it does if this user may write or
// remove the name.
func (c *Client) Report(ctx context.Context, name string, version uint64, part int, verdict, reason string) (counted bool, err error) {
	a, err := c.conn().Ask(ctx, protocol.Request{Op: protocol.OpReport, Name: name, Version: version, Part: part, Verdict: verdict, Reason: reason})
	return a.Counted, err
}

// Yield asks the keeper to end for a successor, which finds everything in the fd store.
func (c *Client) Yield(ctx context.Context) error {
	_, err := c.conn().Ask(ctx, protocol.Request{Op: protocol.OpYield})
	return err
}

// Watch calls f with each event of a name, or of all names if that is "". It returns when ctx
// is done, f returns false or the keeper has ended. Other requests of the Client wait that long.
func (c *Client) Watch(ctx context.Context, name string, f func(api.Event) bool) error {
	return c.conn().Watch(ctx, name, f)
}
