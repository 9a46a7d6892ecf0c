package share

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/fence"
	"github.com/gpufd/gpufd/internal/serve"
	"github.com/gpufd/gpufd/internal/wire"
	"github.com/gpufd/gpufd/sock"
)

var errSecret = errors.New("the secret is 4711")

// A doorkeeper admits consumers that do not ask to write, and remembers which peers asked.
type doorkeeper struct {
	mu    sync.Mutex
	asked []OfferInfo
	peers []sock.Peer
}

func (d *doorkeeper) authorize(p sock.Peer, o OfferInfo) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.asked, d.peers = append(d.asked, o), append(d.peers, p)
	d.asked[len(d.asked)-1].Data = bytes.Clone(o.Data)
	clear(o.Data) // it is a copy: the consumer gets what was offered
	if o.Access == cu.ReadWrite {
		return errSecret
	}
	return nil
}

func (d *doorkeeper) all() []OfferInfo {
	d.mu.Lock()
	defer d.mu.Unlock()
	return append([]OfferInfo(nil), d.asked...)
}

// A consumer that the application refuses learns that and nothing else, whenever it
// comes; one that it lets in is served, and each was asked about once.
func TestAuthorize(t *testing.T) {
	dev, ctx := leavesNothing(t)
	buf := newBuffer(t, ctx, 1)
	reads, writes := wants(dev), wants(dev)
	writes.Access = cu.ReadWrite
	data := OfferOptions{Data: []byte("mine")}
	for name, c := range map[string]struct {
		expected bool // the consumers come before there is an offer
		prepared bool // and they come before its data
	}{
		"there is an offer":         {false, false},
		"one is expected":           {true, false},
		"one is prepared":           {false, true},
		"one is expected, prepared": {true, true},
	} {
		t.Run(name, func(t *testing.T) {
			var door doorkeeper
			var p *preparedOffer
			var s *served
			var good, bad *sock.Conn
			srv := listen(t, ListenOptions{Authorize: door.authorize})
			if c.expected {
				expect(srv, "data")
				good, bad = early(t, srv, reads), early(t, srv, writes)
				require.Empty(t, door.all(), "there is nothing to ask about")
			}
			if c.prepared {
				p, s = prepared(t, srv, "data", buf, cu.ReadWrite, data)
			} else {
				s = put(t, srv, buf, data)
			}
			if !c.expected {
				good, bad = asked(t, srv, reads), asked(t, srv, writes)
			}
			requireDenied(t, s, bad)
			if c.prepared {
				s.await(t, Sent, 1)
				s.start(t, "data", p.offer)
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
	require.Equal(t, turnedAway, heard(t, conn))
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

// Attach says what the producer said, which is the same whatever the application's error is.
func TestAuthorizeRefusesAttach(t *testing.T) {
	dev, ctx := leavesNothing(t)
	say := make(chan error, 1)
	srv := listen(t, ListenOptions{Authorize: func(sock.Peer, OfferInfo) error { return <-say }})
	s := put(t, srv, newBuffer(t, ctx, 1))
	var no *serve.RefusalError
	for i, err := range []error{errSecret, sock.ErrPeerLost, ErrTimeout, wire.ErrVersion, wire.Refuse{Code: wire.RefusedBusy, Text: "x"}, context.Canceled} {
		say <- err
		require.ErrorAs(t, errOf(Attach(soon(t), srv.Path(), "", dev, nil)), &no)
		require.Equal(t, wire.RefusedPolicy, no.Code)
		require.EqualError(t, no, "refused by the peer (not allowed): the producer does not admit you")
		require.ErrorIs(t, s.await(t, PeerRefused, i+1).Err, err)
	}
	require.ErrorAs(t, errOf(Attach(soon(t), srv.Path(), "no", dev, nil)), &no)
	require.Equal(t, wire.RefusedName, no.Code, "nobody asks about what is not there")
	say <- nil
	requireServed(t, srv, ctx)
}

// A consumer gets only the offer that the application has allowed. The application is asked
// again about an offer that takes its place while it decides, which holds nobody else up.
func TestAuthorizeIsAboutThatOffer(t *testing.T) {
	dev, ctx := leavesNothing(t)
	buf := newBuffer(t, ctx, 1)
	questions, goOn := make(chan string, 3), make(chan struct{})
	srv := listen(t, ListenOptions{Authorize: func(_ sock.Peer, o OfferInfo) error {
		questions <- string(o.Data)
		if string(o.Data) == "first" {
			<-goOn
		}
		return nil
	}})
	first := put(t, srv, buf, OfferOptions{Data: []byte("first")})
	conn := asked(t, srv, wants(dev))
	require.Equal(t, "first", <-questions)
	first.stop(t)
	put(t, srv, buf, OfferOptions{Data: []byte("second")})
	requireServed(t, srv, ctx)
	require.Equal(t, "second", <-questions, "of another consumer")
	goOn <- struct{}{}
	requireOffered(t, conn, false)
	require.Equal(t, "second", <-questions)
	require.NoError(t, conn.Close())
	require.Empty(t, first.of(Connected))
}

// The mode that others need to connect is the one asked for.
func TestModeOfTheSocket(t *testing.T) {
	for want, mode := range map[os.FileMode]os.FileMode{0o600: 0, 0o660: 0o660, 0o666: 0o666} {
		info := ok(os.Stat(listen(t, ListenOptions{Mode: mode}).Path()))(t)
		require.Equal(t, want, info.Mode().Perm())
	}
}

// The application decides with the handle before it, which is a copy. It hears, and the observer,
// that a consumer of legacy memory can write, even if it asks for less.
func TestLegacyIsAuthorized(t *testing.T) {
	dev, ctx := leavesNothing(t)
	m := newLegacy(t, ctx, 1)
	type question struct {
		handle cu.IPCHandle
		access cu.Access
	}
	questions := make(chan question, 1)
	srv := listen(t, ListenOptions{Authorize: func(_ sock.Peer, o OfferInfo) error {
		questions <- question{o.Legacy.Handle, o.Access}
		clear(o.Legacy.Handle[:])
		return nil
	}})
	s := serveLegacy(t, srv, m)
	for i := range 2 {
		conn := asked(t, srv, wants(dev))
		o := heard(t, conn).(wire.Offer)
		require.Equal(t, cu.ReadWrite, o.Access)
		require.Equal(t, m.handle.Handle, o.Legacy.Handle)
		require.Equal(t, question{m.handle.Handle, cu.ReadWrite}, <-questions)
		require.Equal(t, cu.ReadWrite, s.await(t, Connected, i+1).Access)
		require.Equal(t, cu.ReadWrite, leasesAs(srv, "data")[0].Access())
		require.NoError(t, conn.Close())
		s.await(t, Ended, i+1)
	}
}

// WithAuthorizeName: a consumer that may not ask for a name does not learn whether it is there, nor
// gets that offer if it names none and comes early.
func TestAuthorizeName(t *testing.T) {
	dev, ctx := leavesNothing(t)
	srv := listen(t, ListenOptions{AuthorizeName: func(_ sock.Peer, name string, _ cu.Access) error {
		if name == "data" {
			return errSecret
		}
		return nil
	}})
	expect(srv, "data")
	only := wants(dev)
	only.Name = ""
	conn := early(t, srv, only)
	put(t, srv, newBuffer(t, ctx, 1))
	answer, refused := heard(t, conn).(wire.Refuse)
	require.True(t, refused, "it gets what it may not ask for")
	require.Equal(t, wire.RefusedName, answer.Code)
	require.NotContains(t, answer.Text, "data")
	for name, want := range map[string]wire.RefusalCode{"data": wire.RefusedPolicy, "": wire.RefusedName, "none": wire.RefusedName} {
		var no *serve.RefusalError
		require.ErrorAs(t, errOf(Attach(soon(t), srv.Path(), name, dev, nil)), &no, "%q", name)
		require.Equal(t, want, no.Code, "%q", name)
		require.NotContains(t, no.Error(), "data")
	}
	again := only
	again.Reattach = 1
	requireRefusal(t, asked(t, srv, again), wire.RefusedName, "of a generation that is not there")
	require.Empty(t, listedBy(t, srv))
}

// A consumer that reattaches memory which is not there learns that the name stands for other memory if the application
// lets it know of that. It is asked with access 0.
func TestAuthorizeReattach(t *testing.T) {
	dev, ctx := leavesNothing(t)
	var door doorkeeper
	var closed atomic.Bool
	srv := listen(t, ListenOptions{Authorize: func(p sock.Peer, o OfferInfo) error {
		if closed.Load() {
			return errSecret
		}
		return door.authorize(p, o)
	}})
	buf := newBuffer(t, ctx, 1)
	put(t, srv, buf)
	want := wants(dev)
	want.Reattach = buf.Describe().Generation + 1
	requireRefusal(t, asked(t, srv, want), wire.RefusedStale, "")
	require.Len(t, door.all(), 1)
	require.Zero(t, door.all()[0].Access)
	closed.Store(true)
	requireRefusal(t, asked(t, srv, want), wire.RefusedPolicy, "")
	want.Name = ""
	requireRefusal(t, asked(t, srv, want), wire.RefusedPolicy, "")
}

// A consumer waits for the application no longer than for anything else.
func TestAuthorizeTakesTooLong(t *testing.T) {
	dev, ctx := leavesNothing(t)
	decided := make(chan struct{})
	srv := listen(t, ListenOptions{Authorize: func(sock.Peer, OfferInfo) error {
		<-decided
		return nil
	}})
	put(t, srv, newBuffer(t, ctx, 1))
	bound, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	_, err := Attach(bound, srv.Path(), "data", dev, &AttachOptions{Timeout: 3 * time.Second / 2})
	close(decided)
	require.ErrorIs(t, err, ErrTimeout)
}

// A consumer that has waited is asked about again: what it may ask for can have changed.
func TestAuthorizeNameAfterAWait(t *testing.T) {
	dev, ctx := leavesNothing(t)
	var over atomic.Bool
	srv := listen(t, ListenOptions{AuthorizeName: func(sock.Peer, string, cu.Access) error {
		if over.Load() {
			return errSecret
		}
		return nil
	}, Parts: func(_ sock.Peer, name string) []string { return []string{name + "/0"} }})
	old := newBuffer(t, ctx, 1)
	put(t, srv, old)
	want := wants(dev)
	want.After = old.Describe().Generation
	conn := asked(t, srv, want)
	awaitBehind(t, srv, 1)
	over.Store(true)
	replace(t, srv, newBuffer(t, ctx, 2))
	requireRefusal(t, conn, wire.RefusedPolicy, "")
}

// The time of a step is the consumer's: what the application does meanwhile does not count.
func TestSlowApplicationCostsTheConsumerNothing(t *testing.T) {
	dev, ctx, srv := listening(t)
	buf := newBuffer(t, ctx, 1)
	ended := make(chan error, 1)
	slow := func(e Event) {
		switch e.Kind {
		case Progress:
			outlast(t)
		case Ended:
			ended <- e.Err
		}
	}
	s := newServed(srv)
	s.start(t, "data", func(ctx context.Context) error {
		return offerFor(ctx, srv, "data", buf, cu.ReadOnly, OfferOptions{OnEvent: slow, terms: timeoutFrom(Connected, 1, brief), Verdict: true, MaxConsumers: 1})
	})
	conn := asked(t, srv, wants(dev))
	heard(t, conn)
	for _, m := range []wire.Message{isMapped(buf), wire.Progress{Done: 1, Total: 2}, wire.Verdict{OK: true}} {
		require.NoError(t, conn.Send(soon(t), wire.Encode(m)))
	}
	require.NoError(t, <-ended)
	require.NoError(t, s.end(t))
}

// A process that dies before its connection says what it wants is known to be dead.
func TestFenceOfAProcessThatDiedEarly(t *testing.T) {
	dev, ctx := leavesNothing(t)
	c := startCommand(t, exec.Command("sleep", "1000"))
	file := os.NewFile(uintptr(ok(unix.PidfdOpen(c.cmd.Process.Pid, 0))(t)), "pidfd")
	defer file.Close()
	srv := listen(t, ListenOptions{peer: func(o *serve.PeerOptions) {
		o.Process = func(*sock.Conn) (*sock.Process, error) { return sock.ProcessOf(file) }
	}})
	s := serveAs(t, srv, "data", newBuffer(t, ctx, 1), cu.ReadWrite, OfferOptions{Fence: fence.Fenced, FenceTimeout: time.Minute})
	conn := dialed(t, srv)
	require.Eventually(t, func() bool { return watched(srv) == 1 }, 10*time.Second, time.Millisecond)
	c.kill()
	require.Eventually(t, func() bool { return watched(srv) == 0 }, 10*time.Second, time.Millisecond)
	want := wants(dev)
	want.Access, want.Process = cu.ReadWrite, wire.Process{Told: true}
	require.NoError(t, conn.Send(soon(t), wire.Encode(want)))
	heard(t, conn)
	require.NoError(t, conn.Close())
	s.await(t, Ended, 1)
	s.stop(t)
}

// An application that is told of a lease of the new memory takes back one of the old, and waits for
// its end: the two are told by the same Replace.
func TestOnLeaseEndsAnotherLease(t *testing.T) {
	dev, ctx, srv := listening(t)
	onLease, begun := leases()
	old := newBuffer(t, ctx, 1)
	put(t, srv, old, OfferOptions{OnLease: onLease})
	att := attached(t, srv, "data", dev)
	held := next(t, begun)
	n := waitForNewer(t, srv, dev, old)
	awaitBehind(t, srv, 1)
	newer := newBuffer(t, ctx, 2)
	s := newServed(srv)
	s.start(t, "data", func(ctx context.Context) error {
		return replaceFor(ctx, srv, "data", newer, cu.ReadOnly, OfferOptions{OnLease: func(*Lease) {
			held.Revoke("")
			<-held.Done()
		}})
	})
	n.gets(t, newer)
	require.ErrorIs(t, awaitDone(t, att), ErrRevoked)
}

// Offers that are made while the server closes fail, and nothing else.
func TestOfferWhileTheServerCloses(t *testing.T) {
	_, ctx := leavesNothing(t)
	buf := newBuffer(t, ctx, 1)
	exportOnce(t, buf)
	for round := range 100 {
		srv := listen(t)
		var work sync.WaitGroup
		var begun atomic.Int32
		for n := range 8 {
			work.Go(func() {
				begun.Add(1)
				err := offerFor(soon(t), srv, strconv.Itoa(n), buf, cu.ReadOnly, OfferOptions{Synchronized: true})
				assert.ErrorIs(t, err, ErrClosed)
			})
		}
		for begun.Load() < int32(round%8) {
			runtime.Gosched()
		}
		require.NoError(t, srv.Close())
		work.Wait()
	}
}
