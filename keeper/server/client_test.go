package server

import (
	"context"
	"errors"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/keeper"
	"github.com/gpufd/gpufd/keeper/internal/protocol"
)

// A client is one of package keeper, and a connection over which a test sends requests of its own.
type client struct {
	*keeper.Client
	socket string
	once   sync.Once
	own    *protocol.Client
}

func dial(ctx context.Context, socket string) (*client, error) {
	c, err := keeper.Dial(ctx, socket)
	return &client{Client: c, socket: socket}, err
}

// conn returns that connection. If there is none, its requests say that it is closed.
func (c *client) conn() *protocol.Client {
	c.once.Do(func() { c.own, _ = protocol.Dial(context.Background(), c.socket) })
	return c.own
}

func (c *client) Close() error { return errors.Join(c.Client.Close(), c.own.Close()) }

// dialled is a client of the keeper at socket, which ends with the test.
func dialled(t testing.TB, socket string) *client {
	t.Helper()
	c := ok(dial(soon(t), socket))(t)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	return c
}

// book books a part with the timeout of p.
func (c *client) book(ctx context.Context, p keeper.Put, part keeper.Part, transaction string) (*protocol.Booking, error) {
	return c.conn().Book(ctx, protocol.Request{
		Name: p.Name, Transaction: transaction, Parts: p.Parts, Part: part.Index, Labels: p.Labels, Expect: p.Expect,
		Device: part.Device.UUID().String(), Kind: part.Device.Driver().Kind().String(), Bytes: part.Size,
	}, p.Timeout)
}
