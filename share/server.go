package share

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/gpufd/gpufd/sock"
)

// A Server listens at a socket and serves the offers made on it. The caller
// owns it. It is safe for concurrent use.
type Server struct {
	listener *sock.Listener
	timeout  time.Duration
	goodbye  time.Duration // goodbye, but in tests
	rate     int           // records a second
	places   *places
	allow    func(sock.Peer, Offer) error // or nil
	ctx      context.Context
	stop     context.CancelCauseFunc
	accept   sync.Once
	work     sync.WaitGroup

	mu       sync.Mutex
	offers   map[string]*offering
	expected map[string]*expectation
	watching map[*offering]struct{} // whose observers hear of what belongs to no offer
}

// A ListenOption changes what [Listen] does.
type ListenOption func(*listenOptions)

type listenOptions struct {
	timeout     time.Duration
	connections int
	perPeer     int
	rate        int
	allow       func(sock.Peer, Offer) error
	sock        []sock.ListenOption
}

// WithPolicy says which peers may attach; see [sock.WithPolicy]. Who may not is
// told so ([RefusedPolicy]).
func WithPolicy(p sock.Policy) ListenOption {
	return func(o *listenOptions) { o.sock = append(o.sock, sock.WithPolicy(p)) }
}

// WithMode sets the permissions of the socket's file, 0600 by default; see
// [sock.WithMode]. Other users need them to connect, beside the right to search
// the directory.
func WithMode(mode os.FileMode) ListenOption {
	return func(o *listenOptions) { o.sock = append(o.sock, sock.WithMode(mode)) }
}

// WithAuthorize has f decide who gets an offer, of those whom the policy lets in.
// The offer is what would be given, with the access that the peer asks for, which is
// [ReadWrite] for legacy memory whatever it asks for. f is called once for each consumer and offer, before the consumer is sent anything of
// it, prepared offers included. About a consumer that waits it is called when the
// offer is there; until then the consumer hears of no more than progress
// ([Server.Working]).
//
// An error refuses the peer ([RefusedPolicy]). The peer is told no more than that;
// the error goes to the observers ([PeerRefused]).
//
// f runs on the goroutine of its connection, of several at once, and keeps nobody
// else waiting. It may call the server, but not close it: Close waits for it. The
// peer that it is about waits no longer than its own patience.
func WithAuthorize(f func(peer sock.Peer, offer Offer) error) ListenOption {
	return func(o *listenOptions) { o.allow = f }
}

// WithBacklog bounds the connections that wait to be accepted, 1,024 by default; see
// [sock.WithBacklog].
func WithBacklog(n int) ListenOption {
	return func(o *listenOptions) { o.sock = append(o.sock, sock.WithBacklog(n)) }
}

// WithTimeout bounds each step of a conversation with a consumer. The default
// is [DefaultTimeout].
func WithTimeout(d time.Duration) ListenOption { return func(o *listenOptions) { o.timeout = d } }

// WithConnections bounds the connections that are served at once, 1024 by
// default; further ones are refused ([RefusedBusy]). Consumers that wait for an
// offer count.
func WithConnections(n int) ListenOption { return func(o *listenOptions) { o.connections = n } }

// WithConnectionsPerPeer bounds the connections that are served at once of one
// process, 256 by default; further ones are refused ([RefusedBusy]). The processes
// that have no pid here, because they are in other PID namespaces, count as one for
// each user.
func WithConnectionsPerPeer(n int) ListenOption { return func(o *listenOptions) { o.perPeer = n } }

// WithRecordRate bounds the records that are taken of one connection, 1,000 a
// second by default, which may come at once. Who sends more is refused
// ([RefusedRate]) and disconnected. 0 is no bound.
func WithRecordRate(perSecond int) ListenOption { return func(o *listenOptions) { o.rate = perSecond } }

// Listen makes the socket at path, whose directory has to exist and be safe,
// and listens. Consumers are answered from the first [Server.Expect],
// [Server.Prepare] or [Server.Offer] on. The errors are those of [sock.Listen].
func Listen(path string, opts ...ListenOption) (*Server, error) {
	o := listenOptions{
		timeout: DefaultTimeout, connections: defaultConnections, perPeer: defaultConnectionsPerPeer, rate: defaultRate,
		sock: []sock.ListenOption{sock.WithMaxRecord(mostRecord), sock.WithMaxFDs(0), sock.WithFarewell(encode(notAllowed))},
	}
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
		goodbye:  goodbye,
		rate:     o.rate,
		places:   newPlaces(o.connections, o.perPeer),
		allow:    o.allow,
		offers:   map[string]*offering{},
		expected: map[string]*expectation{},
		watching: map[*offering]struct{}{},
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
	l := link{conn, s.timeout, s.goodbye, newMeter(s.rate)}
	leave, full := s.places.take(conn.Peer())
	if full != "" {
		no := refuse{RefusedBusy, full}
		l.dismiss(no)
		s.tell(Event{Kind: PeerRefused, Peer: conn.Peer(), Err: no})
		return
	}
	s.work.Add(1)
	go func() {
		defer s.work.Done()
		defer leave()
		defer conn.Close()
		s.talk(l)
	}()
}

// talk reads what the peer wants and sees it through.
func (s *Server) talk(l link) {
	want, err := l.wish(s.ctx)
	switch {
	case err == nil:
		err = errOffered
	case errors.Is(err, s.ctx.Err()) && !errors.Is(err, ErrTimeout):
		err = errors.Join(errSilent, err)
	}
	for errors.Is(err, errOffered) {
		err = s.attend(l, want)
	}
	if err != nil {
		s.turnAway(l, err)
	}
}

// errOffered says that there is an offer, or another one, to be asked for.
var errOffered = errors.New("share: there is an offer now")

// errSilent says that the server was closed when a peer had not said what it wants.
var errSilent = errors.New("share: closed before the peer had said what it wants")

// attend serves a peer until it has gone. The error is why it is to be turned away,
// or errOffered.
func (s *Server) attend(l link, want attach) error {
	allowed, err := s.authorize(l, want)
	if err != nil {
		return err
	}
	lease, w, err := s.enlist(l, want, allowed)
	switch {
	case err != nil:
		return err
	case w == nil:
		lease.run()
		return nil
	case lease != nil:
		w.deliver()
	}
	return s.wait(w)
}

// authorize asks the application about what a peer wants, if that is there. It
// returns the offering that it asked about.
func (s *Server) authorize(l link, want attach) (*offering, error) {
	if s.allow == nil {
		return nil, nil
	}
	s.mu.Lock()
	o, _ := s.lookup(want.name)
	s.mu.Unlock()
	if o == nil {
		return nil, nil
	}
	would := Offer{
		Name: o.msg.name, Descriptor: o.msg.desc, Access: o.gives(want), Data: bytes.Clone(o.msg.data), Legacy: o.msg.legacy.clone(),
		Producer: sock.Peer{UID: uint32(os.Geteuid()), GID: uint32(os.Getegid()), PID: int32(os.Getpid())},
	}
	if err := s.allow(l.conn.Peer(), would); err != nil {
		return nil, deniedError{err}
	}
	return o, nil
}

// A deniedError is the application's no, which is not for the peer to read.
type deniedError struct{ error }

func (e deniedError) Unwrap() error { return e.error }

// notAllowed is what the peer is told.
var notAllowed = refuse{RefusedPolicy, "the producer does not admit you"}

// enlist makes a lease for a peer that wants an offer that is there, or has it wait
// for one that is expected. Of an offer that is prepared the waiter has a lease, and
// is to be sent the descriptors. Where the application decides, an offer that it was
// not asked about is errOffered.
func (s *Server) enlist(l link, want attach, allowed *offering) (*Lease, *waiter, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	o, e := s.lookup(want.name)
	switch {
	case o != nil && s.allow != nil && o != allowed:
		return nil, nil, errOffered
	case e != nil:
		return s.queue(l, want, e)
	case o != nil:
		lease, err := o.admit(l, want)
		return lease, nil, err
	}
	return nil, nil, noOffer(want.name)
}

// lookup finds the offer of that name, or the only one if that is "", and what it is
// expected as, if its data is not there yet. It runs with mu held.
func (s *Server) lookup(name string) (*offering, *expectation) {
	e, o := s.expected[name], s.offers[name]
	switch {
	case name == "" && len(s.offers) == 0 && len(s.expected) == 1:
		for _, e = range s.expected {
		}
	case name == "" && len(s.offers) == 1:
		for _, o = range s.offers {
		}
	}
	if e != nil {
		return e.prepared, e
	}
	return o, nil
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
	var denied deniedError
	answer, gone := refusal(err), errors.Is(err, sock.ErrPeerLost) || errors.Is(err, ErrVerdict) || errors.Is(err, ErrRefused)
	switch {
	case errors.As(err, &denied): // whatever it is
		answer, gone = notAllowed, false
	case errors.As(err, &no): // the decision was ours
		err, answer = no, no
	case errors.Is(err, errSilent):
		answer = refuse{RefusedName, "the producer has ended, and you had not said what you want"}
	case s.ctx.Err() != nil && !errors.Is(err, ErrTimeout):
		answer = refuse{RefusedName, "the producer ended before its offer was ready"}
	}
	s.tell(Event{Kind: PeerRefused, Peer: l.conn.Peer(), Err: err})
	if !gone {
		_ = l.part(answer)
	}
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

// tell gives an event that belongs to no offer to all of them, from their making to
// their end.
func (s *Server) tell(e Event) {
	s.mu.Lock()
	all := slices.Collect(maps.Keys(s.watching))
	s.mu.Unlock()
	for _, o := range all {
		o.inform(e)
	}
}

// inform tells the observer, unless the offer has ended, which waits for that.
func (o *offering) inform(e Event) {
	o.server.mu.Lock()
	_, watching := o.server.watching[o]
	if watching {
		o.work.Add(1)
	}
	o.server.mu.Unlock()
	if watching {
		defer o.work.Done()
		o.observe(e)
	}
}
