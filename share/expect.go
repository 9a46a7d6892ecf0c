package share

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/gpufd/gpufd/sock"
)

// An expectation is an offer that will be made.
type expectation struct {
	step    progress
	waiting []*waiter // in the order of their coming
}

// A waiter is a consumer that came before the offer it wants. Its goroutine
// reads, so that what it says to the offer is heard at once; others send.
type waiter struct {
	link  link
	want  attach
	ctx   context.Context // of the reading
	stop  context.CancelCauseFunc
	told  time.Time // of progress
	lease *lease    // once it is admitted

	sent    chan struct{} // closed when the offer was sent, or could not be
	sendErr error
	disarm  func() // ends what bounds the reading after that
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
	s.expect(name)
}

// expect runs with mu held.
func (s *Server) expect(name string) {
	if s.offers[name] == nil && s.expected[name] == nil {
		s.expected[name] = &expectation{}
	}
	s.startAccepting()
}

// claim is Expect for an offer that can still be made.
func (s *Server) claim(name string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.ctx.Err() != nil:
		return context.Cause(s.ctx)
	case s.offers[name] != nil:
		return fmt.Errorf("%w: %q", ErrNameTaken, name)
	}
	s.expect(name)
	return nil
}

// Working tells the consumers that wait for name how far its making is.
func (s *Server) Working(name string, done, total uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e := s.expected[name]; e != nil {
		e.step = progress{done, total}
		for _, w := range e.waiting {
			w.tell(e.step)
		}
	}
}

// tell sends progress, unless the peer has heard of some just now. It runs with
// the server's mu held, so it does not wait: who has not read what came before
// has something to read.
func (w *waiter) tell(step progress) {
	if step.total == 0 || time.Since(w.told) < progressPause {
		return
	}
	w.told = time.Now()
	_ = w.link.conn.TrySend(encode(step)) // who has gone is noticed by its reader
}

// forget ends the wait for an offer that failed.
func (s *Server) forget(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, w := range s.fulfil(name) {
		w.stop(noOffer(name))
	}
}

// fulfil ends the expectation of name and returns who waited. It runs with mu
// held.
func (s *Server) fulfil(name string) []*waiter {
	e := s.expected[name]
	if e == nil {
		return nil
	}
	delete(s.expected, name)
	return e.waiting
}

// queue has a consumer wait if what it wants is expected, and returns nil if
// not.
func (s *Server) queue(l link, want attach) *waiter {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.expected[want.name]
	if want.name == "" && len(s.offers) == 0 && len(s.expected) == 1 {
		for _, e = range s.expected {
		}
	}
	if e == nil {
		return nil
	}
	w := &waiter{link: l, want: want, sent: make(chan struct{}), disarm: func() {}}
	w.ctx, w.stop = context.WithCancelCause(s.ctx)
	e.waiting = append(e.waiting, w)
	w.tell(e.step)
	return w
}

// leave takes a waiter off its queue, and returns its lease if it has been
// admitted.
func (s *Server) leave(w *waiter) *lease {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range s.expected {
		e.waiting = slices.DeleteFunc(e.waiting, func(x *waiter) bool { return x == w })
	}
	return w.lease
}

// wait reads until the consumer says something, which is the answer to an offer
// that it was sent meanwhile, or out of turn.
func (s *Server) wait(w *waiter) {
	defer w.stop(nil)
	m, rec, err := w.link.receive(w.ctx, true)
	_ = rec.Close() // receive has seen to it that it holds nothing
	if errors.Is(err, context.Canceled) {
		err = context.Cause(w.ctx) // nobody cancelled, but told to stop
	}
	if s.leave(w) != nil {
		w.goOn(m, err)
		return
	}
	if err == nil {
		err = unexpected(m, "from a consumer that waits for an offer")
	}
	s.turnAway(w.link, err)
}

// admitAll makes leases for those who waited for an offer that is there now,
// and returns those who got one. It runs with mu held.
func (s *Server) admitAll(waiting []*waiter) (admitted []*waiter) {
	for _, w := range waiting {
		l, err := s.admit(w.link, w.want)
		if err != nil {
			w.stop(err)
			continue
		}
		w.lease = l
		admitted = append(admitted, w)
	}
	return admitted
}

// deliver sends the offer to who has waited for it, at once if it does not have
// to wait: to wake the goroutine that reads would take longer than to send.
func (w *waiter) deliver() {
	l := w.lease
	l.tell(Connected, nil)
	err := l.sendOffer(l.conn.TrySend)
	if !errors.Is(err, sock.ErrWouldWait) {
		w.delivered(err)
		return
	}
	go func() { w.delivered(l.sendOffer(l.sendRecord)) }()
}

// delivered lets the reader go on. From now on the consumer is not waited for
// longer than for any other answer.
func (w *waiter) delivered(err error) {
	if w.sendErr = err; err == nil {
		w.lease.tell(Sent, nil)
		timer := time.AfterFunc(w.link.timeout, func() { w.stop(ErrTimeout) })
		ctx := w.lease.offering.ctx
		unhook := context.AfterFunc(ctx, func() { w.stop(context.Cause(ctx)) })
		w.disarm = func() { timer.Stop(); unhook() }
	}
	close(w.sent)
	if err != nil {
		w.stop(err) // the reader tells
	}
}

// goOn serves a consumer that was sent the offer it has waited for, and has
// answered, or failed to.
func (w *waiter) goOn(m message, err error) {
	l := w.lease
	<-w.sent
	if w.sendErr != nil {
		err = w.sendErr
	}
	if err != nil {
		w.disarm()
		l.end(l.lost(err, false))
		return
	}
	over, err := l.hear(m)
	w.disarm() // late: it stops nothing but a reading that is over
	if !over {
		err = l.follow()
	}
	l.end(err)
}
