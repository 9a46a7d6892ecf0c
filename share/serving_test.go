package share

import (
	"context"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/internal/broker"
	"github.com/gpufd/gpufd/internal/serve"
	"github.com/gpufd/gpufd/internal/wire"
	"github.com/gpufd/gpufd/sock"
	"github.com/gpufd/gpufd/vmm"
)

// A served is an offer under way.
type served struct {
	*Server
	cancel context.CancelFunc
	result chan error // of Offer

	mu     sync.Mutex
	events []Event
	moved  chan struct{}
}

func listen(t testing.TB, opts ...ListenOptions) *Server {
	t.Helper()
	log := &refusalLog{}
	o := first(opts)
	o.OnRefused = log.see
	srv := ok(Listen(socketPath(t), o))(t)
	refusalLogs.Store(srv, log)
	t.Cleanup(func() {
		require.NoError(t, srv.Close())
		refusalLogs.Delete(srv)
	})
	return srv
}

// put offers buf as "data", read-write, until t ends or cancel is called.
func put(t testing.TB, srv *Server, buf *vmm.Buffer, opts ...OfferOptions) *served {
	t.Helper()
	return serveAs(t, srv, "data", buf, cu.ReadWrite, opts...)
}

func serveAs(t testing.TB, srv *Server, name string, buf *vmm.Buffer, access cu.Access, opts ...OfferOptions) *served {
	t.Helper()
	s := newServed(srv)
	s.start(t, name, func(ctx context.Context) error {
		return offerFor(ctx, srv, name, buf, access, s.watching(opts))
	})
	return s
}

// watching are the options of an offer whose events s sees, unless they say otherwise.
func (s *served) watching(opts []OfferOptions) OfferOptions {
	o := *first(opts)
	if o.OnEvent == nil {
		o.OnEvent = s.see
	}
	return o
}

// first returns the options that a test gives, or none.
func first[T any](opts []T) *T {
	if len(opts) == 0 {
		return new(T)
	}
	return &opts[0]
}

func newServed(srv *Server) *served {
	s := &served{Server: srv, result: make(chan error, 1), moved: make(chan struct{}, 1)}
	if log, has := refusalLogs.Load(srv); has {
		log.(*refusalLog).tell(s)
	}
	return s
}

// start runs offer until t ends or cancel is called.
func (s *served) start(t testing.TB, name string, offer func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	s.cancel = cancel
	go func() { s.result <- offer(ctx) }()
	t.Cleanup(func() {
		cancel()
		s.result <- <-s.result
	})
	for !offered(s.Server, name) {
		if len(s.result) > 0 {
			break // it failed, or was short
		}
		runtime.Gosched()
	}
}

func offered(srv *Server, name string) bool {
	_, published := offeredAs(srv, name)
	return published
}

func (s *served) see(e Event) {
	s.mu.Lock()
	s.events = append(s.events, e)
	s.mu.Unlock()
	select {
	case s.moved <- struct{}{}:
	default:
	}
}

// await waits for the nth event of that kind.
func (s *served) await(t testing.TB, k EventKind, n int) Event {
	t.Helper()
	for ctx := soon(t); ; {
		if all := s.of(k); len(all) >= n {
			return all[n-1]
		}
		select {
		case <-s.moved:
		case <-ctx.Done():
			require.FailNow(t, "no such event", "%s number %d among %v", k, n, s.of(0))
		}
	}
}

// of lists the events of a kind so far, or all.
func (s *served) of(k EventKind) (found []Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range s.events {
		if e.Kind == k || k == 0 {
			found = append(found, e)
		}
	}
	return found
}

// stop ends the offer, which is no error.
func (s *served) stop(t testing.TB) {
	t.Helper()
	s.cancel()
	require.NoError(t, s.end(t))
}

// end is what Offer returns.
func (s *served) end(t testing.TB) error {
	t.Helper()
	select {
	case err := <-s.result:
		s.result <- err
		return err
	case <-soon(t).Done():
		require.FailNow(t, "Offer does not end")
		return nil
	}
}

// attached is an attachment that is closed when t ends.
func attached(t testing.TB, srv *Server, name string, dev *cu.Device, opts ...AttachOptions) *Attachment {
	t.Helper()
	att := ok(Attach(soon(t), srv.Path(), name, dev, first(opts)))(t)
	t.Cleanup(func() { require.NoError(t, att.Close()) })
	return att
}

// awaitDone waits for the lease's end and returns why.
func awaitDone(t testing.TB, att *Attachment) error {
	t.Helper()
	select {
	case <-att.Done():
		return att.Err()
	case <-soon(t).Done():
		require.FailNow(t, "the lease does not end")
		return nil
	}
}

// requireServed checks that the server still serves.
func requireServed(t testing.TB, srv *Server, ctx *cu.Context) {
	t.Helper()
	att := ok(Attach(soon(t), srv.Path(), "", ctx.Device(), nil))(t)
	requireNoise(t, ctx, att.Buffer(), 1)
	require.NoError(t, att.Close())
}

// early is a raw connection of a consumer that waits for an offer.
func early(t testing.TB, srv *Server, want wire.Attach) *sock.Conn {
	t.Helper()
	before := len(waiting(srv))
	conn := dialed(t, srv)
	require.NoError(t, conn.Send(soon(t), wire.Encode(want)))
	require.Eventually(t, func() bool { return len(waiting(srv)) > before }, 10*time.Second, 100*time.Microsecond)
	return conn
}

// waiting returns the sessions that wait for any offer.
func waiting(srv *Server) (all []broker.Waiter) {
	srv.core.Look(func(b *broker.Broker) {
		all = slices.DeleteFunc(b.Waiting(), func(w broker.Waiter) bool { return w.Knows != 0 })
	})
	return all
}

// offeredAs returns the number of the offer that has a name, and whether it is published.
func offeredAs(srv *Server, name string) (id broker.OfferID, published bool) {
	srv.core.Look(func(b *broker.Broker) {
		id = b.Named(name)
		published = slices.ContainsFunc(b.There(), func(l broker.Listed) bool { return l.Offer == id && l.Published })
	})
	return id, published
}

// offers counts those that are known, with those that are over but have leases or fences.
func offers(srv *Server) (n int) {
	srv.core.Look(func(b *broker.Broker) { n = b.Offers() })
	return n
}

// stands reports whether a name stands for anything, or is expected to.
func stands(srv *Server, name string) (known bool) {
	srv.core.Look(func(b *broker.Broker) { known = b.Knows(name) })
	return known
}

// heard is the next message on conn, whose files are closed.
func heard(t testing.TB, conn *sock.Conn) wire.Message {
	t.Helper()
	rec := ok(conn.Receive(soon(t)))(t)
	m := ok(wire.Decode(rec.Data))(t)
	require.Len(t, rec.Files, wire.Descriptors(m))
	require.NoError(t, rec.Close())
	return m
}

// isMapped is what a consumer says that has mapped buf.
func isMapped(buf *vmm.Buffer) wire.Mapped { return wire.Mapped{Generation: buf.Describe().Generation} }

// dialed is a raw connection to a server.
func dialed(t testing.TB, srv *Server) *sock.Conn {
	t.Helper()
	c := ok(sock.Dial(soon(t), srv.Path()))(t)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	return c
}

// connections counts those that are served.
func connections(srv *Server) int {
	n, _ := srv.core.Load()
	return n
}

// hearer speaks messages on a raw connection.
func hearer(conn *sock.Conn) *serve.Transport {
	o := serve.NewPeerOptions()
	o.Rate = 0
	return serve.NewTransport(conn, o)
}

// exportOnce makes buf remember its descriptors, so that a later offer of it calls no driver.
func exportOnce(t testing.TB, buf *vmm.Buffer) {
	t.Helper()
	l := ok(buf.Lend())(t)
	require.NoError(t, l.Close())
}

// turnedAway is the answer to a peer that the application does not admit.
var turnedAway = wire.Refuse{Code: wire.RefusedPolicy, Text: "the producer does not admit you"}
