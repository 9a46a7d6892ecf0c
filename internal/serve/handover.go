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

// AwaitAttached waits until each consumer that has a lease has mapped the memory, or ctx is done.
func (s *Server) AwaitAttached(ctx context.Context) {
	s.mu.Lock()
	if s.attaching == 0 {
		s.mu.Unlock()
		return
	}
	if s.attached == nil {
		s.attached = make(chan struct{})
	}
	attached := s.attached
	s.mu.Unlock()
	select {
	case <-attached:
	case <-ctx.Done():
	}
}

// noteAttached notes that a consumer with a lease has mapped the memory, or has gone.
func (s *Server) noteAttached() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.attaching--; s.attaching == 0 && s.attached != nil {
		close(s.attached)
		s.attached = nil
	}
}
