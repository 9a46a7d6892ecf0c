package share

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/gpufd/gpufd/sock"
)

// A Server listens at a socket and serves the offers made on it. The caller
// owns it. It is safe for concurrent use.
type Server struct {
	listener *sock.Listener
	timeout  time.Duration
	places   chan struct{} // one per connection
	ctx      context.Context
	stop     context.CancelCauseFunc
	accept   sync.Once
	work     sync.WaitGroup

	mu       sync.Mutex
	offers   map[string]*offering
	expected map[string]*expectation
}

// A ListenOption changes what [Listen] does.
type ListenOption func(*listenOptions)

type listenOptions struct {
	timeout     time.Duration
	connections int
	sock        []sock.Option
}

// WithPolicy says which peers may attach; see [sock.WithPolicy].
func WithPolicy(p sock.Policy) ListenOption {
	return func(o *listenOptions) { o.sock = append(o.sock, sock.WithPolicy(p)) }
}

// WithTimeout bounds each step of a conversation with a consumer. The default
// is [DefaultTimeout].
func WithTimeout(d time.Duration) ListenOption { return func(o *listenOptions) { o.timeout = d } }

// WithConnections bounds the connections that are served at once, 1024 by
// default; further ones are refused.
func WithConnections(n int) ListenOption { return func(o *listenOptions) { o.connections = n } }

// Listen makes the socket at path, whose directory has to exist and be safe,
// and listens. Consumers are answered from the first [Server.Expect],
// [Server.Prepare] or [Server.Offer] on. The errors are those of [sock.Listen].
func Listen(path string, opts ...ListenOption) (*Server, error) {
	o := listenOptions{timeout: DefaultTimeout, connections: 1024}
	for _, f := range opts {
		f(&o)
	}
	l, err := sock.Listen(path, o.sock...)
	if err != nil {
		return nil, err
	}
	s := &Server{
		listener: l,
		timeout:  o.timeout,
		places:   make(chan struct{}, max(1, o.connections)),
		offers:   map[string]*offering{},
		expected: map[string]*expectation{},
	}
	s.ctx, s.stop = context.WithCancelCause(context.Background())
	return s, nil
}

// Path is where the server listens.
func (s *Server) Path() string { return s.listener.Path() }

// Close ends all offers and connections, waits for them, and removes the
// socket. It may be called again and on nil, but not by an observer, for whom
// it would wait.
func (s *Server) Close() error {
	if s == nil {
		return nil
	}
	s.mu.Lock() // Expect starts accepting under it
	s.stop(ErrClosed)
	s.mu.Unlock()
	err := s.listener.Close()
	s.work.Wait()
	return err
}

// startAccepting starts serving if nobody has. It runs with mu held.
func (s *Server) startAccepting() {
	if s.ctx.Err() != nil {
		return
	}
	s.accept.Do(func() {
		s.work.Add(1)
		go s.serve()
	})
}

// serve accepts until the server is closed. What goes wrong with one peer
// concerns nobody else; a listener that fails ends every offer.
func (s *Server) serve() {
	defer s.work.Done()
	for {
		var refused *sock.RefusedError
		conn, err := s.listener.Accept(s.ctx)
		switch {
		case err == nil:
			s.take(conn)
		case errors.As(err, &refused):
			s.tell(Event{Kind: PeerRefused, Peer: refused.Peer, Err: err})
		default:
			s.stop(fmt.Errorf("accepting consumers: %w", err))
			return
		}
	}
}

// take starts serving conn if there is a place.
func (s *Server) take(conn *sock.Conn) {
	l := link{conn, s.timeout}
	select {
	case s.places <- struct{}{}:
		s.work.Add(1)
		go func() {
			defer s.work.Done()
			defer func() { <-s.places }()
			defer conn.Close()
			s.talk(l)
		}()
	default:
		l.dismiss()
	}
}

// talk reads what the peer wants and hands it to the offer.
func (s *Server) talk(l link) {
	want, err := l.wish(s.ctx)
	if err != nil {
		s.turnAway(l, err)
		return
	}
	w, admitted, err := s.queue(l, want)
	switch {
	case err != nil:
		w.stop(err)
		s.turnAway(l, err)
	case w == nil:
		s.attend(l, want)
	case admitted:
		w.deliver()
		s.wait(w)
	default:
		s.wait(w)
	}
}

// attend serves a peer that wants an offer that is there, or none.
func (s *Server) attend(l link, want attach) {
	s.mu.Lock()
	lease, err := s.admit(l, want)
	s.mu.Unlock()
	if err != nil {
		s.turnAway(l, err)
		return
	}
	lease.run()
}

// wish reads what a new peer wants.
func (l link) wish(ctx context.Context) (attach, error) {
	m, rec, err := l.receive(ctx, false)
	if err != nil {
		return attach{}, err
	}
	want, ok := m.(attach)
	if !ok {
		err = unexpected(m, "where a wish to attach belongs")
	}
	return want, errors.Join(err, rec.Close())
}

// turnAway ends a conversation that led to no lease, and says why.
func (s *Server) turnAway(l link, err error) {
	var no refuse
	answer := refusal(err)
	switch {
	case errors.As(err, &no): // the decision was ours
		err, answer = no, no
	case s.ctx.Err() != nil:
		answer = refuse{RefusedName, "the producer ended before its offer was ready"}
	}
	s.tell(Event{Kind: PeerRefused, Peer: l.conn.Peer(), Err: err})
	if !errors.Is(err, sock.ErrPeerLost) {
		l.part(answer)
	}
}

// admit finds the offer that fits and makes a lease of it. The error is a
// refuse. It runs with mu held.
func (s *Server) admit(l link, want attach) (*Lease, error) {
	o := s.offers[want.name]
	if want.name == "" && len(s.offers) == 1 {
		for _, o = range s.offers {
		}
	}
	if o == nil {
		return nil, noOffer(want.name)
	}
	return o.admit(l, want)
}

// admit makes a lease for a consumer that the offer fits. The error is a refuse.
// It runs with mu held.
func (o *offering) admit(l link, want attach) (*Lease, error) {
	switch {
	case want.driver != o.msg.desc.Kind:
		return nil, refuse{RefusedKind, fmt.Sprintf("the producer uses the %s driver and the consumer %s; run both with the same -driver", o.msg.desc.Kind, want.driver)}
	case want.access > o.msg.access:
		return nil, refuse{RefusedAccess, fmt.Sprintf("%q is offered %s, and %s was asked for", o.msg.name, o.msg.access, want.access)}
	case o.leases > 0 && o.begun >= o.leases:
		return nil, refuse{RefusedBusy, fmt.Sprintf("%q has all the %d consumers it waits for", o.msg.name, o.leases)}
	}
	o.begun++
	o.numbered++
	o.work.Add(1)
	o.moved()
	s := newLease(o, l, want, o.numbered)
	o.live = append(o.live, s)
	return s, nil
}

func noOffer(name string) refuse {
	return refuse{RefusedName, fmt.Sprintf("there is no offer %q here", name)}
}

// tell gives an event that belongs to no offer to all of them, and to those that
// are prepared.
func (s *Server) tell(e Event) {
	s.mu.Lock()
	var fs []func(Event)
	for _, o := range s.offers {
		fs = append(fs, o.observe)
	}
	for _, x := range s.expected {
		if x.prepared != nil {
			fs = append(fs, x.prepared.observe)
		}
	}
	s.mu.Unlock()
	for _, f := range fs {
		f(e)
	}
}
