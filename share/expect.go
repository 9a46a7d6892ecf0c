package share

import (
	"context"
	"fmt"
	"time"
)

// An expectation is an offer that will be made.
type expectation struct {
	step  progress
	moved chan struct{} // closed at each step, and when the offer is there
}

// progressPause is how often at most a waiting peer hears of progress.
const progressPause = 250 * time.Millisecond

// Expect has consumers that ask for name before it is offered wait for it,
// where they would be refused. They wait as long as [Server.Working] says now
// and then that this side is at work, or until their own patience ends; an
// Offer of that name ends the wait, also one that fails.
func (s *Server) Expect(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.offers[name] == nil && s.expected[name] == nil {
		s.expected[name] = &expectation{moved: make(chan struct{})}
	}
	s.startAccepting()
}

// claim is Expect for an offer that is ready but for its announcement.
func (s *Server) claim(name string) error {
	s.mu.Lock()
	taken := s.offers[name] != nil
	s.mu.Unlock()
	if taken {
		return fmt.Errorf("%w: %q", ErrNameTaken, name)
	}
	s.Expect(name)
	return nil
}

// forget ends the wait for an offer that failed.
func (s *Server) forget(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fulfil(name)
}

// Working tells the consumers that wait for name how far its making is.
func (s *Server) Working(name string, done, total uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e := s.expected[name]; e != nil {
		e.step = progress{done, total}
		close(e.moved)
		e.moved = make(chan struct{})
	}
}

// fulfil lets the consumers that wait for name go on. It runs with mu held.
func (s *Server) fulfil(name string) {
	if e := s.expected[name]; e != nil {
		delete(s.expected, name)
		close(e.moved)
	}
}

// pending returns how far the offer of that name is, and what is closed when
// that changes, or nil if nobody expects it.
func (s *Server) pending(name string) (progress, <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.expected[name]
	if name == "" && len(s.offers) == 0 && len(s.expected) == 1 {
		for _, e = range s.expected {
		}
	}
	if e == nil {
		return progress{}, nil
	}
	return e.step, e.moved
}

// await holds a consumer until the offer that it wants is there or nobody
// expects it any more. One that speaks out of turn, or goes, is not waited for.
// The reader that saw to that goes on: what it hears next is the answer to the
// offer. It is nil if there was nothing to wait for.
func (s *Server) await(l link, name string) (*earlyReader, error) {
	if _, moved := s.pending(name); moved == nil {
		return nil, nil
	}
	r := l.read(s.ctx)
	if err := s.awaitOffer(l, name, r); err != nil {
		r.close()
		return nil, err
	}
	return r, nil
}

func (s *Server) awaitOffer(l link, name string, r *earlyReader) error {
	var told time.Time
	for {
		step, moved := s.pending(name)
		if moved == nil {
			return nil
		}
		if step.total > 0 && time.Since(told) >= progressPause {
			told = time.Now()
			if err := l.send(s.ctx, step); err != nil {
				return err
			}
		}
		select {
		case <-moved:
		case h := <-r.heard:
			return h.outOfTurn()
		case <-s.ctx.Done():
			return context.Cause(s.ctx)
		}
	}
}
