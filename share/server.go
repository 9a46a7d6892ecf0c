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
// and listens. Consumers are answered from the first [Server.Expect] or
// [Server.Offer] on. The errors are those of [sock.Listen].
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
	m, rec, err := l.receive(s.ctx, false)
	if err != nil {
		s.tell(Event{Kind: PeerRefused, Peer: l.conn.Peer(), Err: err})
		if !errors.Is(err, sock.ErrPeerLost) {
			l.part(refusal(err))
		}
		return
	}
	defer rec.Close()
	want, ok := m.(attach)
	if !ok {
		err := unexpected(m, "where a wish to attach belongs")
		s.tell(Event{Kind: PeerRefused, Peer: l.conn.Peer(), Err: err})
		l.part(refusal(err))
		return
	}
	waited, err := s.await(l, want.name)
	if err != nil {
		s.tell(Event{Kind: PeerRefused, Peer: l.conn.Peer(), Err: err})
		switch {
		case s.ctx.Err() != nil:
			l.part(refuse{RefusedName, "the producer ended before its offer was ready"})
		case !errors.Is(err, sock.ErrPeerLost):
			l.part(refusal(err))
		}
		return
	}
	o, number, no := s.admit(want)
	if no != nil {
		waited.close()
		s.tell(Event{Kind: PeerRefused, Peer: l.conn.Peer(), Err: fmt.Errorf("%s: %s", no.code, no.text)})
		l.part(*no)
		return
	}
	o.follow(l, want, number, waited)
}

// admit finds the offer that fits and takes a place in it, whose number it
// returns.
func (s *Server) admit(want attach) (*offering, int, *refuse) {
	s.mu.Lock()
	defer s.mu.Unlock()
	o := s.offers[want.name]
	if want.name == "" && len(s.offers) == 1 {
		for _, o = range s.offers {
		}
	}
	switch {
	case o == nil:
		return nil, 0, &refuse{RefusedName, fmt.Sprintf("there is no offer %q here", want.name)}
	case want.driver != o.msg.desc.Kind:
		return nil, 0, &refuse{RefusedKind, fmt.Sprintf("the producer uses the %s driver and the consumer %s; run both with the same -driver", o.msg.desc.Kind, want.driver)}
	case want.access > o.msg.access:
		return nil, 0, &refuse{RefusedAccess, fmt.Sprintf("%q is offered %s, and %s was asked for", o.msg.name, o.msg.access, want.access)}
	case o.leases > 0 && o.begun >= o.leases:
		return nil, 0, &refuse{RefusedBusy, fmt.Sprintf("%q has all the %d consumers it waits for", o.msg.name, o.leases)}
	}
	o.begun++
	o.work.Add(1)
	o.moved()
	return o, o.begun, nil
}

// tell gives an event that belongs to no offer to all of them.
func (s *Server) tell(e Event) {
	s.mu.Lock()
	var fs []func(Event)
	for _, o := range s.offers {
		fs = append(fs, o.observe)
	}
	s.mu.Unlock()
	for _, f := range fs {
		f(e)
	}
}
