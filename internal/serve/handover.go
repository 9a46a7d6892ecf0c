package serve

import (
	"context"
	"errors"

	"github.com/gpufd/gpufd/internal/plain"
	"github.com/gpufd/gpufd/sock"
)

// HandOver gives the server's socket to the process at the other end of to, which calls TakeOver.
func (s *Server) HandOver(ctx context.Context, to *sock.Conn) error {
	if err := plain.ContextErr(ctx); err != nil {
		return err
	}
	if s.isZero() || s.ctx.Err() != nil {
		return errServerClosed
	}
	if err := s.listener.HandOver(ctx, to); err != nil {
		return err
	}
	s.mu.Lock()
	s.successor = true
	s.mu.Unlock()
	return s.leave(ctx)
}

// leave waits until the consumers that have come to a socket which is another process' now are served.
func (s *Server) leave(ctx context.Context) error {
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

// Shutdown ends the server for a successor, as Settle and CloseForSuccessor do.
func (s *Server) Shutdown(ctx context.Context) error {
	if s.isZero() {
		return errServerClosed
	}
	return join(s.Settle(ctx), s.CloseForSuccessor())
}

// Settle waits until those that are attaching have mapped the memory, or ctx is done. If somebody has
// copies of the socket (Files), no others are admitted from now on: they wait there.
func (s *Server) Settle(ctx context.Context) (err error) {
	s.settling.Lock()
	defer s.settling.Unlock()
	if s.listener.IsShared() {
		err = s.leaveSocket(ctx)
	}
	s.awaitAttached(ctx)
	return err
}

// CloseForSuccessor is Close, but tells consumers that the server restarts.
func (s *Server) CloseForSuccessor() error {
	s.mu.Lock()
	s.successor = true
	s.mu.Unlock()
	return s.Close()
}

// leaveSocket admits no more consumers, and leaves the socket in place. For that it hands the listener
// over to this process, which closes it at once.
func (s *Server) leaveSocket(ctx context.Context) error {
	from, to, err := sock.NewPair()
	if err != nil {
		return err
	}
	took := make(chan error, 1)
	go func() { took <- takeAndLeave(ctx, to, s.Path()) }()
	handed := s.listener.HandOver(ctx, from)
	if handed == nil {
		err = s.leave(ctx)
	}
	err = errors.Join(handed, err, from.Close()) // this ends takeAndLeave, too
	err = errors.Join(err, <-took, to.Close())
	if errors.Is(handed, sock.ErrHandedOver) || errors.Is(handed, sock.ErrClosed) && ctx.Err() == nil {
		return nil // somebody else has left it
	}
	return err
}

// takeAndLeave takes a socket over and leaves it in place, and accepts nobody.
func takeAndLeave(ctx context.Context, from *sock.Conn, path string) error {
	l, err := sock.TakeOver(ctx, from, path)
	if err != nil {
		return err
	}
	files, err := l.Files() // Close removes no socket whose files another process has
	return errors.Join(err, sock.CloseFiles(files), l.Close())
}

// enter counts work among what Close waits for.
func (s *Server) enter() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ctx.Err() != nil {
		return context.Cause(s.ctx)
	}
	s.work.Add(1)
	return nil
}

// awaitAttached waits until each consumer that has a lease has mapped the memory, or ctx is done.
func (s *Server) awaitAttached(ctx context.Context) {
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

// noteAttaching notes that the consumer was told that the data is there, and has not mapped the memory yet.
// It runs with the server's mu held.
func (l *Lease) noteAttaching() {
	l.attaching = true
	l.offering.server.attaching++
}

// noteAttached notes that the consumer has mapped the memory, or has gone.
func (l *Lease) noteAttached() {
	s := l.offering.server
	s.mu.Lock()
	defer s.mu.Unlock()
	if !l.attaching {
		return
	}
	l.attaching = false
	if s.attaching--; s.attaching == 0 && s.attached != nil {
		close(s.attached)
		s.attached = nil
	}
}
