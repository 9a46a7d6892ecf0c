package share

import (
	"context"
	"errors"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/internal/wire"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/sock"
)

var errSecret = errors.New("the secret is 4711")

// A doorkeeper admits consumers that do not ask to write, and remembers which peers asked.
type doorkeeper struct {
	mu    sync.Mutex
	asked []Offer
	peers []sock.Peer
}

func (d *doorkeeper) authorize(p sock.Peer, o Offer) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.asked, d.peers = append(d.asked, o), append(d.peers, p)
	if o.Access == ReadWrite {
		return errSecret
	}
	return nil
}

func (d *doorkeeper) all() []Offer {
	d.mu.Lock()
	defer d.mu.Unlock()
	return append([]Offer(nil), d.asked...)
}

// A consumer that the application refuses learns that and nothing else, whenever it
// comes; one that it lets in is served, and each was asked about once.
func TestAuthorize(t *testing.T) {
	dev, ctx := leavesNothing(t)
	kind := dev.Driver().Kind()
	buf := newBuffer(t, ctx, 1)
	reads, writes := wire.Attach{Driver: kind, Access: ReadOnly, Name: "data"}, wire.Attach{Driver: kind, Access: ReadWrite, Name: "data"}
	for name, c := range map[string]struct {
		expected bool // the consumers come before there is an offer
		prepared bool // the offer is prepared, and they come before its data at the latest
	}{
		"there is an offer":         {false, false},
		"one is expected":           {true, false},
		"one is prepared":           {false, true},
		"one is expected, prepared": {true, true},
	} {
		t.Run(name, func(t *testing.T) {
			var door doorkeeper
			srv := listen(t, WithAuthorize(door.authorize))
			s := newServed(srv)
			opts := []OfferOption{OnEvent(s.see), WithData([]byte("mine"))}
			offer := func(over context.Context) error { return srv.Offer(over, "data", buf, ReadWrite, opts...) }
			var good, bad *sock.Conn
			come := func() {
				good, bad = dialed(t, srv), dialed(t, srv)
				require.NoError(t, good.Send(soon(t), wire.Encode(reads)))
				require.NoError(t, bad.Send(soon(t), wire.Encode(writes)))
			}
			if c.expected {
				srv.Expect("data")
				good, bad = early(t, srv, reads), early(t, srv, writes)
				require.Empty(t, door.all(), "there is nothing to ask about")
			}
			if c.prepared {
				p := ok(srv.Prepare("data", buf, ReadWrite, opts...))(t)
				offer = p.Offer
				if !c.expected {
					come()
				}
				s.await(t, Sent, 1)
				requireDenied(t, s, bad)
			}
			s.start(t, "data", offer)
			if good == nil {
				come()
			}
			if !c.prepared {
				requireDenied(t, s, bad)
			}
			requireOffered(t, good, c.prepared)
			for _, o := range door.all() {
				require.Equal(t, "data", o.Name)
				require.Equal(t, []byte("mine"), o.Data)
				require.EqualValues(t, 1, o.Descriptor.Size)
				require.Equal(t, pid(), o.Producer.PID)
			}
			require.Len(t, door.all(), 2, "each was asked about once")
			require.Equal(t, pid(), door.peers[0].PID)
			require.Len(t, s.of(Connected), 1)
			require.NoError(t, good.Close())
			require.NoError(t, s.await(t, Ended, 1).Err)
		})
	}
}

// requireDenied checks that the first thing that conn hears is that it may not, and
// that the observer knows why.
func requireDenied(t *testing.T, s *served, conn *sock.Conn) {
	t.Helper()
	require.Equal(t, wire.Refuse{Code: RefusedPolicy, Text: "the producer does not admit you"}, heard(t, conn))
	require.NoError(t, conn.Close())
	require.ErrorIs(t, s.await(t, PeerRefused, 1).Err, errSecret)
	require.Equal(t, pid(), s.await(t, PeerRefused, 1).Peer.PID)
}

// requireOffered checks that conn gets the offer, and its data if that was pending, and
// answers.
func requireOffered(t *testing.T, conn *sock.Conn, pending bool) {
	t.Helper()
	o, ok := heard(t, conn).(wire.Offer)
	require.True(t, ok)
	require.Equal(t, pending, o.Pending)
	if pending {
		require.IsType(t, wire.Publish{}, heard(t, conn))
	}
	require.NoError(t, conn.Send(soon(t), wire.Encode(wire.Mapped{Generation: o.Memory.Generation})))
}

// Whatever the application's error is, the peer is told the same.
func TestAuthorizeWithAnyError(t *testing.T) {
	dev, ctx := leavesNothing(t)
	say := make(chan error, 1)
	srv := listen(t, WithAuthorize(func(sock.Peer, Offer) error { return <-say }))
	s := put(t, srv, newBuffer(t, ctx, 1))
	for i, err := range []error{sock.ErrPeerLost, ErrTimeout, ErrVersion, wire.Refuse{Code: RefusedBusy, Text: "x"}, context.Canceled} {
		say <- err
		conn := dialed(t, srv)
		require.NoError(t, conn.Send(soon(t), wire.Encode(wants(dev))))
		require.Equal(t, turnedAway, heard(t, conn))
		require.NoError(t, conn.Close())
		require.ErrorIs(t, s.await(t, PeerRefused, i+1).Err, err)
	}
}

// Attach says what the producer said.
func TestAuthorizeRefusesAttach(t *testing.T) {
	dev, ctx := leavesNothing(t)
	var door doorkeeper
	srv := listen(t, WithAuthorize(door.authorize))
	put(t, srv, newBuffer(t, ctx, 1))
	_, err := Attach(soon(t), srv.Path(), "", dev, WithAccess(ReadWrite))
	var no *RefusalError
	require.ErrorAs(t, err, &no)
	require.Equal(t, RefusedPolicy, no.Code)
	require.EqualError(t, err, "refused by the peer (not allowed): the producer does not admit you")
	requireServed(t, srv, ctx)
	require.ErrorAs(t, errOf(Attach(soon(t), srv.Path(), "no", dev)), &no)
	require.Equal(t, RefusedName, no.Code)
	require.Len(t, door.all(), 2, "nobody asks about what is not there")
}

// A hook that takes its time costs its own consumer time, and nobody else: neither
// consumers that wait with it, nor the one that offers.
func TestAuthorizeHoldsNobodyUp(t *testing.T) {
	dev, ctx := leavesNothing(t)
	for _, prepared := range []bool{false, true} {
		begun, goOn := make(chan struct{}), make(chan struct{})
		srv := listen(t, WithAuthorize(func(_ sock.Peer, o Offer) error {
			if o.Access == ReadWrite {
				close(begun)
				<-goOn
			}
			return nil
		}))
		srv.Expect("data")
		kind := dev.Driver().Kind()
		slow, quick := early(t, srv, wire.Attach{Driver: kind, Access: ReadWrite, Name: "data"}), early(t, srv, wire.Attach{Driver: kind, Access: ReadOnly, Name: "data"})
		s, buf := newServed(srv), newBuffer(t, ctx, 1)
		offer := func(over context.Context) error {
			return srv.Offer(over, "data", buf, ReadWrite, OnEvent(s.see))
		}
		if prepared {
			p := ok(srv.Prepare("data", buf, ReadWrite, OnEvent(s.see)))(t)
			offer = p.Offer
			s.await(t, Sent, 1) // the quick one's
		}
		s.start(t, "data", offer)
		requireOffered(t, quick, prepared)
		<-begun
		srv.Working("data", 1, 2) // takes the server's lock
		requireServed(t, srv, ctx)
		require.Len(t, s.of(Connected), 2)
		close(goOn)
		requireOffered(t, slow, false) // the data is there by now
		for _, conn := range []*sock.Conn{slow, quick} {
			require.NoError(t, conn.Close())
		}
		s.await(t, Ended, 3)
		s.stop(t)
	}
}

// A consumer gets only the offer that the application has allowed. The application is asked
// again about an offer that takes its place while it decides.
func TestAuthorizeIsAboutThatOffer(t *testing.T) {
	dev, ctx := leavesNothing(t)
	buf := newBuffer(t, ctx, 1)
	for _, second := range []bool{true, false} {
		var door doorkeeper
		begun, goOn := make(chan struct{}), make(chan struct{})
		srv := listen(t, WithAuthorize(func(p sock.Peer, o Offer) error {
			err := door.authorize(p, o)
			if len(door.all()) == 1 {
				close(begun)
				<-goOn
			}
			return err
		}))
		first := put(t, srv, buf, WithData([]byte("first")))
		conn := dialed(t, srv)
		require.NoError(t, conn.Send(soon(t), wire.Encode(wants(dev))))
		<-begun
		first.stop(t)
		if !second {
			close(goOn)
			requireRefusal(t, conn, RefusedName, "it is gone")
			require.Len(t, door.all(), 1)
			require.NoError(t, conn.Close())
			continue
		}
		s := put(t, srv, buf, WithData([]byte("second")))
		close(goOn)
		requireOffered(t, conn, false)
		asked := door.all()
		require.Len(t, asked, 2)
		require.Equal(t, "first", string(asked[0].Data))
		require.Equal(t, "second", string(asked[1].Data))
		require.NoError(t, conn.Close())
		s.await(t, Ended, 1)
		require.Empty(t, first.of(Connected))
	}
}

// A consumer that waited and speaks out of turn, or goes, is no matter for the
// application.
func TestAuthorizeOfConsumersThatDoNotWait(t *testing.T) {
	dev, ctx := leavesNothing(t)
	var door doorkeeper
	srv := listen(t, WithAuthorize(door.authorize))
	srv.Expect("data")
	gone, chatty := early(t, srv, wants(dev)), early(t, srv, wants(dev))
	require.NoError(t, gone.Close())
	require.NoError(t, chatty.Send(soon(t), wire.Encode(wire.Mapped{Generation: 1})))
	requireRefusal(t, chatty, RefusedRecord, "nothing is there")
	require.NoError(t, chatty.Close())
	require.Eventually(t, func() bool { return connections(srv) == 0 }, 10*time.Second, time.Millisecond)
	put(t, srv, newBuffer(t, ctx, 1))
	require.Empty(t, door.all())
	requireServed(t, srv, ctx)
	require.Len(t, door.all(), 1)
}

// The hook may call the server, and what it does to its offer is its own.
func TestAuthorizeMayCallTheServer(t *testing.T) {
	dev, ctx := leavesNothing(t)
	buf := newBuffer(t, ctx, 1)
	over, cancel := context.WithCancel(context.Background())
	cancel()
	var srv *Server
	srv = listen(t, WithAuthorize(func(_ sock.Peer, o Offer) error {
		srv.Expect("more")
		srv.Working("more", 1, 2)
		clear(o.Data)
		return srv.Offer(over, "another", buf, ReadOnly)
	}))
	put(t, srv, buf, WithData([]byte("mine")))
	for range 2 {
		att := attached(t, srv, "data", dev)
		require.Equal(t, "mine", string(att.Offer().Data))
	}
}

// The mode that others need to connect is the one asked for.
func TestModeOfTheSocket(t *testing.T) {
	for want, opts := range map[os.FileMode][]ListenOption{0o600: nil, 0o660: {WithMode(0o660)}, 0o666: {WithMode(0o666)}} {
		info := ok(os.Stat(listen(t, opts...).Path()))(t)
		require.Equal(t, want, info.Mode().Perm())
	}
}

// The application decides with the handle before it, which is a copy.
func TestLegacyIsAuthorized(t *testing.T) {
	_, ctx := leavesNothing(t)
	m := newLegacy(t, ctx, 1)
	asked := make(chan cu.IPCHandle, 2)
	srv := listen(t, WithAuthorize(func(_ sock.Peer, o Offer) error {
		asked <- o.Legacy.Handle
		clear(o.Legacy.Handle[:])
		return nil
	}))
	s := serveLegacy(t, srv, m, WithLeases(2))
	for range 2 {
		c := start(t, "consumer", srv.Path(), "stop when mapped")
		c.says(t, "mapped")
		c.kill()
	}
	require.NoError(t, s.end(t))
	first := <-asked
	require.NotZero(t, first)
	require.Equal(t, first, <-asked)
}

// The application that decides and the observer hear that a consumer of legacy memory can
// write, even if it asks for less.
func TestLegacyIsAlwaysReadWrite(t *testing.T) {
	_, ctx := leavesNothing(t)
	access := make(chan cu.Access, 1)
	srv := listen(t, WithAuthorize(func(_ sock.Peer, o Offer) error {
		access <- o.Access
		return nil
	}))
	s := serveLegacy(t, srv, newLegacy(t, ctx, 1))
	conn := dialed(t, srv)
	require.NoError(t, conn.Send(soon(t), wire.Encode(wants(ctx.Device()))))
	require.Equal(t, ReadWrite, heard(t, conn).(wire.Offer).Access)
	require.Equal(t, ReadWrite, <-access)
	require.Equal(t, ReadWrite, s.await(t, Connected, 1).Access)
	require.Equal(t, ReadWrite, srv.Leases("data")[0].Access())
	require.NoError(t, conn.Close())
}

// WithAuthorizeName: a consumer that may not ask for a name does not learn whether it is there.
func TestAuthorizeName(t *testing.T) {
	dev, ctx := leavesNothing(t)
	srv := listen(t, WithAuthorizeName(func(_ sock.Peer, name string, _ cu.Access) error {
		if name == "data" {
			return errors.New("no")
		}
		return nil
	}))
	put(t, srv, newBuffer(t, ctx, 1))
	for name, want := range map[string]RefusalCode{"data": RefusedPolicy, "": RefusedName, "none": RefusedName} {
		_, err := Attach(soon(t), srv.Path(), name, dev)
		var no *RefusalError
		require.ErrorAs(t, err, &no, "%q", name)
		require.Equal(t, want, no.Code, "%q", name)
		require.NotContains(t, no.Error(), "data")
	}
	all := ok(List(soon(t), srv.Path()))(t)
	require.Empty(t, all)
}

// A consumer that names no offer, comes early and may not have the name does not get it either.
func TestAuthorizeNameOfTheOnlyOffer(t *testing.T) {
	dev, ctx := leavesNothing(t)
	srv := listen(t, WithAuthorizeName(func(_ sock.Peer, name string, _ cu.Access) error {
		if name == "data" {
			return errSecret
		}
		return nil
	}))
	srv.Expect("data")
	want := wants(dev)
	want.Name = ""
	conn := early(t, srv, want)
	put(t, srv, newBuffer(t, ctx, 1))
	no, refused := heard(t, conn).(wire.Refuse)
	require.True(t, refused, "it gets what it may not ask for")
	require.Equal(t, RefusedName, no.Code)
	require.NotContains(t, no.Text, "data")
}

// A consumer that has waited is asked about again: what it may ask for can have changed.
func TestAuthorizeNameAfterAWait(t *testing.T) {
	dev, ctx := leavesNothing(t)
	var over atomic.Bool
	srv := listen(t, WithAuthorizeName(func(sock.Peer, string, cu.Access) error {
		if over.Load() {
			return errSecret
		}
		return nil
	}), WithParts(func(_ sock.Peer, name string) []string { return []string{name + "/0"} }))
	old := newBuffer(t, ctx, 1)
	put(t, srv, old)
	want := wants(dev)
	want.After = old.Describe().Generation
	conn := asked(t, srv, want)
	awaitBehind(t, srv, 1)
	over.Store(true)
	replace(t, srv, newBuffer(t, ctx, 2))
	requireRefusal(t, conn, RefusedPolicy, "")
}
