package share

import (
	"context"

	"github.com/gpufd/gpufd/internal/serve"
	"github.com/gpufd/gpufd/sock"
)

// Listen makes a socket at path and listens. The directory must exist and be safe. The
// server answers consumers from the first [Server.Offer] on. The errors are those of [sock.Listen], and one for an invalid option.
func Listen(path string, opts *ListenOptions) (*Server, error) {
	o, err := opts.options()
	if err != nil {
		return nil, err
	}
	return open(o, func(opts []sock.ListenOption) (*sock.Listener, error) { return sock.Listen(path, opts...) })
}

// TakeOver is [Listen] at a socket that the server at the other end of from hands over
// ([Server.HandOver]). Load, or attach to, what you will offer before you call it, so that
// consumers need not wait. The server accepts them from the first offer on: with several
// names, make pending offers without memory of all of them first.
//
// The errors are those of [sock.TakeOver]; after an error the predecessor goes on as before.
func TakeOver(ctx context.Context, from *sock.Conn, path string, opts *ListenOptions) (*Server, error) {
	o, err := opts.options()
	if err != nil {
		return nil, err
	}
	return open(o, func(opts []sock.ListenOption) (*sock.Listener, error) {
		return sock.TakeOver(ctx, from, path, opts...)
	})
}

// open makes a server of the listener that listen returns.
func open(o *serve.Options, listen func([]sock.ListenOption) (*sock.Listener, error)) (*Server, error) {
	core, err := serve.Open(o, listen)
	if err != nil {
		return nil, err
	}
	return &Server{core: core}, nil
}
