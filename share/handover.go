package share

import (
	"context"

	"github.com/gpufd/gpufd/internal/plain"
	"github.com/gpufd/gpufd/sock"
)

// HandOver gives the server's socket to the process at the other end of to, which calls
// [TakeOver]. No consumer is refused meanwhile, and there is always a server. This server
// goes on to serve its leases, and the consumers that have connected before, until the
// offers end. Consumers that connect during the handover wait; later ones are the
// successor's. After HandOver, Close leaves the socket alone.
//
// HandOver returns when each consumer that had connected here has a lease of which [OnLease]
// has told, waits for an expected offer or for newer memory ([WithWait]), or was refused. So
// the function of OnLease must not wait for it. If ctx is done first, HandOver returns nil if
// the successor has the socket by then. To end without taking a lease back, wait for the
// leases that there are now ([Server.Leases], [Lease.Done]): there will be no others.
//
// A successor that offers the same memory attaches to it first, [WithReoffer]; its lease
// goes on like the others. Consumers do not notice the handover. When their offer here ends
// ([ErrRevoked]), they attach again; [Follow] resumes the lease with the successor without
// disturbing its user.
//
// After an error the server goes on as before, and serves the consumers that waited. The
// errors are those of [sock.Listener.HandOver], which also says what becomes of to. Bound
// the wait for the successor's answer with ctx: until then consumers wait, too.
func (s *Server) HandOver(ctx context.Context, to *sock.Conn) error {
	if err := plain.ContextErr(ctx); err != nil {
		return err
	}
	if s.isZero() || s.ctx.Err() != nil {
		return ErrClosed
	}
	if err := s.listener.HandOver(ctx, to); err != nil {
		return err
	}
	if s.enter() != nil { // it was closed meanwhile, which told everybody
		return nil
	}
	s.mu.Lock()
	s.startAccepting() // if there was no offer: it tells the queued consumers so
	s.mu.Unlock()
	settled := make(chan struct{})
	go func() {
		defer s.work.Done()
		defer close(settled)
		s.visits.Wait()
	}()
	select {
	case <-settled:
	case <-ctx.Done(): // the successor has the socket nevertheless
	}
	return nil
}
