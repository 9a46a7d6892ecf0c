package serve

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"

	"github.com/gpufd/gpufd/internal/broker"
	"github.com/gpufd/gpufd/internal/wire"
	"github.com/gpufd/gpufd/sock"
)

// A Server listens at a socket and serves the offers made on it.
type Server struct {
	listener *sock.Listener
	opts     *Options
	places   *places
	watches  *watches
	ctx      context.Context
	stop     context.CancelCauseFunc
	accept   sync.Once
	work     sync.WaitGroup
	visits   sync.WaitGroup // peers without a lease or a place in line, and the goroutine that accepts

	settling sync.Mutex // held by Settle

	mu        sync.Mutex
	broker    *broker.Broker
	number    uint64 // the last id
	offerings map[broker.OfferID]*Offering
	sessions  map[broker.SessionID]*session
	fencing   []*Offering                 // those with a fence that have not finished
	finished  []broker.OfferID            // by this step
	watched   map[broker.ProcessID]*Watch // for offers that wait for their ends
	successor bool                        // another process has, or will have, the names: leases end for a restart
	attaching int                         // leases whose consumers have not mapped the memory yet, though its data is there
	attached  chan struct{}               // closed when there is none; nil if nobody waits for that
}

// Listen makes a server that listens at path.
func Listen(path string, o *Options) (*Server, error) {
	return Open(o, func(opts []sock.ListenOption) (*sock.Listener, error) { return sock.Listen(path, opts...) })
}

// Open makes a server of the listener that listen returns.
func Open(o *Options, listen func([]sock.ListenOption) (*sock.Listener, error)) (*Server, error) {
	l, err := listen(append([]sock.ListenOption{
		sock.WithMaxRecord(wire.MaxRecord), sock.WithMaxFDs(0), sock.WithFarewell(wire.Encode(notAllowed)), sock.WithPolicy(o.Policy),
	}, o.Sock...))
	if err != nil {
		return nil, err
	}
	s := &Server{
		listener:  l,
		opts:      o,
		places:    newPlaces(o.Connections, o.PerPeer),
		broker:    broker.New(broker.Options{Consults: o.asks(), Hides: o.asks()}),
		offerings: map[broker.OfferID]*Offering{},
		sessions:  map[broker.SessionID]*session{},
		watched:   map[broker.ProcessID]*Watch{},
	}
	s.watches = newWatches(s, o.Connections)
	s.ctx, s.stop = context.WithCancelCause(context.Background())
	return s, nil
}

// Path returns the path of the socket.
func (s *Server) Path() string {
	if s.isZero() {
		return ""
	}
	return s.listener.Path()
}

// Files returns copies of the descriptors of the server's socket, to keep it alive while nobody listens.
func (s *Server) Files() ([]*os.File, error) {
	if s.isZero() {
		return nil, errServerClosed
	}
	return s.listener.Files()
}

// Start makes the server answer consumers even before the first Offer.
func (s *Server) Start() {
	if s.isZero() {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.startAccepting()
}

// Reclaim undoes Server.Files when nobody has the copies any more.
func (s *Server) Reclaim() {
	if !s.isZero() {
		s.listener.Reclaim()
	}
}

// isZero reports whether s is nil or zero: its methods fail with [ErrClosed].
func (s *Server) isZero() bool { return s == nil || s.listener == nil }

// Close ends all offers and connections, waits for them, and removes the socket, unless that was handed over.
func (s *Server) Close() error {
	if s.isZero() {
		return nil
	}
	s.end(errServerClosed)
	err := s.listener.Close()
	s.work.Wait()
	return err
}

// end ends all offers and sessions.
func (s *Server) end(cause error) {
	s.mu.Lock() // Start starts accepting under it
	s.stop(cause)
	work := s.step(broker.Close{Restarting: s.successor})
	s.mu.Unlock()
	performAll(work)
}

// newID returns a number for an offer or a session. It runs with mu held.
func (s *Server) newID() uint64 {
	s.number++
	return s.number
}

// join makes a session known to the loop, until forget.
func (s *Server) join(x *session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	x.id = broker.SessionID(s.newID())
	s.sessions[x.id] = x
}

func (s *Server) forget(x *session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.sessions, x.id)
}

// startAccepting starts serving if nobody has. It runs with mu held.
func (s *Server) startAccepting() {
	if s.ctx.Err() != nil {
		return
	}
	s.accept.Do(func() {
		s.work.Add(1)
		s.visits.Add(1)
		go s.serve()
	})
}

// serve accepts until the server is closed or handed over. A failure of one peer does not
// affect others; a listener that fails ends every offer. The goroutine that has accepted a peer
// talks to it, and another one accepts: so the peer waits for no other thread to wake up.
func (s *Server) serve() {
	var next bool // another goroutine accepts
	defer func() {
		if !next {
			s.visits.Done()
			s.work.Done()
		}
	}()
	for !next {
		var refused *sock.NotAdmittedError
		conn, err := s.listener.Accept(s.ctx)
		switch {
		case err == nil:
			if talk := s.take(conn); talk != nil {
				next = true
				go s.serve()
				talk()
			}
		case errors.As(err, &refused):
			s.tell(refused.Peer, err)
		case errors.Is(err, sock.ErrHandedOver):
			return
		default:
			s.end(fmt.Errorf("accepting consumers: %w", err))
			return
		}
	}
}

// take returns what serves conn if there is a place, else nil. The place is free again when
// close(2) of the connection has returned, which may take as long as the peer likes and delays
// nobody.
func (s *Server) take(conn *sock.Conn) (talk func()) {
	t := NewTransport(conn, s.opts.PeerOptions)
	leave, full := s.places.take(conn.Peer())
	if full != "" {
		no := wire.Refuse{Code: wire.RefusedBusy, Text: full}
		_ = t.Close(no, 0)
		s.tell(conn.Peer(), no)
		return nil
	}
	s.work.Add(1)
	s.visits.Add(1)
	return func() {
		defer s.work.Done()
		x := newSession(s, t)
		x.settled = sync.OnceFunc(s.visits.Done)
		x.watch, x.unwatched = s.watches.join(conn)
		x.talk()
		s.watches.leave(x.watch)
		dropped := conn.Drop()
		select {
		case <-dropped:
			leave()
		default:
			go func() { <-dropped; leave() }()
		}
	}
}

// tell tells of a peer that gets no lease.
func (s *Server) tell(peer sock.Peer, err error) {
	if s.opts.OnRefused != nil {
		s.opts.OnRefused(peer, err)
	}
}

// Leases returns the leases of the offer of that name that have not ended, in the order of
// their numbers.
func (s *Server) Leases(name string) []*Lease {
	if s.isZero() {
		return nil
	}
	s.mu.Lock()
	o := s.offerings[s.broker.Named(name)]
	s.mu.Unlock()
	if o == nil {
		return nil
	}
	return o.Leases()
}

// Look calls f with the broker, which f reads and does not keep.
func (s *Server) Look(f func(*broker.Broker)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f(s.broker)
}

// Conn returns a session's connection: tests fill its queue.
func (s *Server) Conn(id broker.SessionID) *sock.Conn {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sessions[id].transport.Conn
}

// Load returns how many connections are served, and how many processes are watched.
func (s *Server) Load() (connections, processes int) {
	return s.places.count(), s.watches.count()
}

// Remove removes the socket and its lock file without waiting, for a process that is about to end without
// Close.
func (s *Server) Remove() error {
	if s.isZero() {
		return nil
	}
	return s.listener.Remove()
}
