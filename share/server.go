package share

import (
	"context"
	"errors"
	"os"
	"sync"

	"github.com/gpufd/gpufd/internal/plain"
	"github.com/gpufd/gpufd/internal/serve"
	"github.com/gpufd/gpufd/sock"
)

// A Server listens at a socket and serves the offers made on it. The caller
// owns it. It is safe for concurrent use. The zero Server is a closed one.
type Server struct {
	core  *serve.Server
	flags sync.Map // *cu.Device → what processFlags says of it
}

// server returns what serves, or nil for the zero Server.
func (s *Server) server() *serve.Server {
	if s == nil {
		return nil
	}
	return s.core
}

// Path returns the path of the socket.
func (s *Server) Path() string { return s.server().Path() }

// Files returns copies of the descriptors of the server's socket, to keep it alive while
// nobody listens; see [sock.Listener.Files].
func (s *Server) Files() ([]*os.File, error) { return s.server().Files() }

// Start makes the server answer consumers even before the first Offer: it
// refuses them. Without Start they wait.
func (s *Server) Start() { s.server().Start() }

// Reclaim undoes [Server.Files] when nobody has the copies any more; see
// [sock.Listener.Reclaim].
func (s *Server) Reclaim() { s.server().Reclaim() }

// Close ends all offers and connections, waits for them, and removes the socket, unless
// that was handed over. Close may be called again and on nil. It waits for functions of
// [OfferOptions].OnEvent, which must not call it.
func (s *Server) Close() error { return s.server().Close() }

// Shutdown ends the server for a successor: the next run of this program, or a process to which the
// socket was handed over or that has copies of it ([Server.Files]), in which peers that connect
// meanwhile wait. Consumers learn that the producer is restarting ([ErrRestarting]): [Follow] goes on
// with the memory that is mapped, and comes back. Shutdown waits for consumers that are attaching, until
// ctx is done, and then does what Close does, so that nothing of the server is left in any case. With a
// context that has ended it waits for nobody, and returns that error as well.
func (s *Server) Shutdown(ctx context.Context) error {
	err := s.server().Shutdown(ctx)
	if ended := plain.ContextErr(ctx); ended != nil && !errors.Is(err, ctx.Err()) {
		err = errors.Join(ended, err)
	}
	return err
}

// Remove removes the socket and its lock file without waiting, for a process that is about
// to end without Close. After Close it does nothing.
func (s *Server) Remove() error { return s.server().Remove() }

// HandOver gives the server's socket to the process at the other end of to, which calls
// [TakeOver]. No consumer is refused meanwhile, and there is always a server. This server
// goes on to serve its leases, and the consumers that have connected before, until the
// offers end. Consumers that connect during the handover wait; later ones are the
// successor's. After HandOver, Close and Shutdown leave the socket alone, and tell consumers that the
// producer restarts. The connection can be used on, to hear when the successor serves.
//
// HandOver returns when each consumer that had connected here has a lease of which [OfferOptions].OnLease
// has told, waits for an offer without memory or for newer memory ([AttachOptions].Wait), or was refused. So
// the function of OnLease must not wait for it. If ctx is done first, HandOver returns nil if
// the successor has the socket by then. To end without taking a lease back, wait for the
// leases that there are now ([Offer.Leases], [Lease.Done]): there will be no others.
//
// A successor that offers the same memory attaches to it first, [AttachOptions].Reoffer; its lease
// goes on like the others. Consumers do not notice the handover. When their offer here ends
// ([ErrRestarting]), [Follow] resumes the lease with the successor without disturbing its user.
//
// After an error the server goes on as before, and serves the consumers that waited. The
// errors are those of [sock.Listener.HandOver], which also says what becomes of to. Bound
// the wait for the successor's answer with ctx: until then consumers wait, too.
func (s *Server) HandOver(ctx context.Context, to *sock.Conn) error {
	return s.server().HandOver(ctx, to)
}
