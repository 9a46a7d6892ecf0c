package share

import (
	"context"

	"github.com/gpufd/gpufd/sock"
)

// HandOver gives the server's socket to the process at the other end of to, which calls
// [TakeOver]: no consumer is refused meanwhile, and none finds the socket without a server.
// Those that have connected before are served here, as are all leases, until the offers
// end. Those that connect while the socket changes hands wait, and those after that are
// the successor's. Close leaves the socket alone then.
//
// HandOver returns when each consumer that had connected here has a lease, waits for an
// offer that is expected here or for newer memory ([WithWait]), or was refused; or when ctx
// is done, with nil if the socket is the successor's by then. Who is to end without taking a lease back waits for those that
// there are now ([Server.Leases], [Lease.Done]): there will be no others.
//
// A successor that is to offer the same memory attaches to it first, [WithReoffer]. Its
// lease is among those that go on. Consumers hear nothing of all this; the end of their
// offer here ([ErrRevoked]) tells them to attach again, as [Follow] does.
//
// On every error the server goes on as before, and serves who waited. It is one of
// [sock.Listener.HandOver], which also says what becomes of to. Bound the wait for the
// successor's answer with ctx: until then consumers wait, too.
func (s *Server) HandOver(ctx context.Context, to *sock.Conn) error {
	if s.isZero() || s.ctx.Err() != nil {
		return ErrClosed
	}
	if err := s.listener.HandOver(ctx, to); err != nil {
		return err
	}
	if s.enter() != nil { // it was closed meanwhile, and everybody told
		return nil
	}
	s.mu.Lock()
	s.startAccepting() // if there was no offer: who is queued is told so
	s.mu.Unlock()
	settled := make(chan struct{})
	go func() {
		defer s.work.Done()
		defer close(settled)
		s.visits.Wait()
	}()
	select {
	case <-settled:
	case <-ctx.Done(): // the socket is the successor's all the same
	}
	return nil
}

// TakeOver is [Listen] at a socket that the server at the other end of from hands over
// ([Server.HandOver]). The caller loads, or attaches to, what it is to offer before it
// calls this, so that consumers need not wait for it. They are accepted from the first
// offer on: with several names, [Server.Expect] them all before.
//
// The errors are those of [sock.TakeOver]; after each the predecessor goes on as before.
func TakeOver(ctx context.Context, from *sock.Conn, path string, opts ...ListenOption) (*Server, error) {
	return open(opts, func(opts []sock.ListenOption) (*sock.Listener, error) {
		return sock.TakeOver(ctx, from, path, opts...)
	})
}
