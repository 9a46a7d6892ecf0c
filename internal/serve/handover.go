package serve

import (
	"context"

	"github.com/gpufd/gpufd/internal/plain"
	"github.com/gpufd/gpufd/sock"
)

// HandOver gives the server's socket to the process at the other end of to, which calls TakeOver.
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
