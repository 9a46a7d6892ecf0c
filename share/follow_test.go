package share

import (
	"context"
	"errors"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/fence"
	"github.com/gpufd/gpufd/internal/serve"
	"github.com/gpufd/gpufd/internal/wire"
	"github.com/gpufd/gpufd/sock"
	"github.com/gpufd/gpufd/vmm"
)

// filled is a buffer of a unit whose first word is v, and which goes when t ends.
func filled(t testing.TB, ctx *cu.Context, v uint32) *vmm.Buffer {
	t.Helper()
	buf := newBuffer(t, ctx, granularity(t, ctx.Device()))
	require.NoError(t, cu.Fill(ctx, buf.Ptr(), v, 1))
	return buf
}

// seen is what a body of Follow found, and its attachment.
type seen struct {
	value uint32
	att   *Attachment
}

// followed follows "data" at path until t ends or cancel is called, and says on a channel
// what it sees. The result is the error of the last pair.
func followed(t testing.TB, ctx *cu.Context, path string, opts ...AttachOptions) (found chan seen, cancel func() error) {
	t.Helper()
	life, stop := context.WithCancel(t.Context())
	found = make(chan seen)
	result := make(chan error, 1)
	go func() {
		var last error
		defer func() { result <- last }() // when everything is closed
		for att, err := range Follow(life, path, "data", ctx.Device(), first(opts)) {
			if err != nil {
				last = err
				return
			}
			word := make([]uint32, 1)
			if err := cu.CopyToHost(ctx, word, att.Ptr()); err != nil {
				t.Error(err)
			}
			found <- seen{word[0], att}
		}
	}()
	return found, func() error { stop(); return <-result }
}

func awaitSeen(t testing.TB, found chan seen, want uint32) *Attachment {
	t.Helper()
	select {
	case s := <-found:
		require.Equal(t, want, s.value)
		return s.att
	case <-soon(t).Done():
		require.FailNow(t, "nothing follows")
		return nil
	}
}

func awaitCause(t testing.TB, ctx context.Context) error {
	t.Helper()
	select {
	case <-ctx.Done():
	case <-soon(t).Done():
		require.FailNow(t, "the context does not end")
	}
	return context.Cause(ctx)
}

// A follower may come before the producer, gets each version at the same address, comes again when
// the producer has taken the lease back, and goes on with the producer's successor. It ends with its
// context.
func TestFollow(t *testing.T) {
	dev, ctx := leavesNothing(t)
	room := ok(vmm.Reserve(dev.Driver(), granularity(t, dev)))(t)
	defer func() { require.NoError(t, room.Close()) }()
	path := socketPath(t)
	found, cancel := followed(t, ctx, path, AttachOptions{Reservation: room})

	time.Sleep(20 * time.Millisecond) // for some tries
	srv := ok(Listen(path, nil))(t)
	expect(srv, "data")
	first := put(t, srv, filled(t, ctx, 1))
	a := awaitSeen(t, found, 1)
	require.Equal(t, room.Ptr(), a.Ptr())
	require.NoError(t, a.Context().Err())

	second := replace(t, srv, filled(t, ctx, 2))
	require.ErrorIs(t, awaitCause(t, a.Context()), ErrSuperseded)
	b := awaitSeen(t, found, 2)
	require.Equal(t, room.Ptr(), b.Ptr())
	require.NoError(t, first.end(t), "the first has let go")
	second.await(t, Mapped, 1)
	leasesAs(srv, "data")[0].Revoke("") // is not asked for again behind the body's back
	require.ErrorIs(t, awaitCause(t, b.Context()), ErrRevoked)
	b = awaitSeen(t, found, 2)

	require.NoError(t, srv.Close())
	require.Error(t, awaitCause(t, b.Context()))
	require.ErrorIs(t, second.end(t), ErrClosed)
	srv = ok(Listen(path, nil))(t)
	defer func() { require.NoError(t, srv.Close()) }()
	expect(srv, "data")
	put(t, srv, filled(t, ctx, 3))
	c := awaitSeen(t, found, 3)
	require.Equal(t, room.Ptr(), c.Ptr())

	require.ErrorIs(t, cancel(), context.Canceled)
	require.Zero(t, c.Ptr(), "it was closed")
}

// A body that lets go early is given what is newer, and nothing twice.
func TestFollowGivesNothingTwice(t *testing.T) {
	_, ctx, srv := listening(t)
	expect(srv, "data")
	put(t, srv, filled(t, ctx, 1))
	found, cancel := followed(t, ctx, srv.Path())
	require.NoError(t, awaitSeen(t, found, 1).Close())
	awaitBehind(t, srv, 1)
	replace(t, srv, filled(t, ctx, 2))
	require.NoError(t, awaitSeen(t, found, 2).Report(soon(t), nil))
	awaitBehind(t, srv, 1)
	replace(t, srv, filled(t, ctx, 3))
	awaitSeen(t, found, 3)
	require.ErrorIs(t, cancel(), context.Canceled)
}

// Follow ends with an error that waiting does not mend, and the reservation is as before.
func TestFollowEnds(t *testing.T) {
	dev, ctx := leavesNothing(t)
	g := granularity(t, dev)
	room := ok(vmm.Reserve(dev.Driver(), g))(t)
	defer func() { require.NoError(t, room.Close()) }()
	srv := listen(t)
	expect(srv, "data")
	serveAs(t, srv, "data", newBuffer(t, ctx, 2*g), cu.ReadOnly)
	for want, opt := range map[error]AttachOptions{ErrRefused: {Access: cu.ReadWrite}, vmm.ErrCapacity: {Reservation: room}} {
		pairs := 0
		for att, err := range Follow(soon(t), srv.Path(), "data", dev, &opt) {
			pairs++
			require.Nil(t, att)
			require.ErrorIs(t, err, want)
			require.NotErrorIs(t, err, context.DeadlineExceeded)
		}
		require.Equal(t, 1, pairs)
		require.NotZero(t, room.Ptr())
	}
	require.False(t, Retryable(&serve.RefusalError{Code: wire.RefusedPolicy}), "one that is not admitted does not ask again")
}

// A bereft is a Follow whose producer is killed. The test's process has the memory, too, to
// offer it on.
type bereft struct {
	path   string
	from   *Attachment // as a successor has it
	found  chan seen
	cancel func() error
	att    *Attachment // that the body of Follow has
	v1     *child
}

func follows(t *testing.T, dev *cu.Device, ctx *cu.Context, opts ...AttachOptions) *bereft {
	t.Helper()
	b := &bereft{path: socketPath(t)}
	t.Cleanup(func() { _, _ = os.Remove(b.path), os.Remove(b.path+".lock") }) // the killed producer's
	b.v1 = start(t, "producer", b.path, "4")
	b.v1.says(t, "listening")
	b.from = attachedAt(t, b.path, dev, AttachOptions{Reoffer: true, Access: cu.ReadWrite})
	b.found, b.cancel = followed(t, ctx, b.path, opts...)
	b.att = (<-b.found).att
	awaitRead(t, b.att.now.Load().transport.Conn)
	return b
}

// loses kills the producer, and returns when that is known.
func (b *bereft) loses(t *testing.T) {
	t.Helper()
	lease := b.att.now.Load().done
	b.v1.kill()
	select {
	case <-lease:
	case <-soon(t).Done():
		require.FailNow(t, "the lease does not end")
	}
}

// successor is a server in the producer's place, which expects what it is to offer.
func (b *bereft) successor(t *testing.T) *Server {
	t.Helper()
	srv := ok(Listen(b.path, nil))(t)
	t.Cleanup(func() { require.NoError(t, srv.Close()) })
	expect(srv, "data")
	return srv
}

// nobodyFollows fails if the body is called again.
func (b *bereft) nobodyFollows(t *testing.T) {
	t.Helper()
	select {
	case <-b.found:
		require.FailNow(t, "the body is called again")
	case <-time.After(20 * time.Millisecond):
	}
}

// If a successor offers the same memory, even after the predecessor was killed, a follower goes
// on undisturbed. The body has the same attachment, mapping, context and notices, and only the
// lease is another one.
//
//fault:rows 85
func TestFollowGoesOnWithTheSameMemory(t *testing.T) {
	dev, ctx := leavesNothing(t)
	connected := 0
	b := follows(t, dev, ctx, AttachOptions{OnConnected: func(sock.Peer) { connected++ }})
	at, notices, fenced, superseded := b.att.Ptr(), b.att.Notices(), b.att.Fenced(), b.att.Superseded()
	b.loses(t)
	require.NoError(t, b.att.Err(), "it is without a lease")
	require.ErrorIs(t, b.att.Notify(soon(t), []byte("who is there")), sock.ErrPeerLost)
	require.NoError(t, b.att.AwaitFence(soon(t), fence.Fenced), "the producer that was lost")
	require.ErrorContains(t, errOf(b.att.Resume(soon(t))), "the lease has not ended")

	v2 := b.successor(t)
	leases := make(chan *Lease, 10)
	s := serveAs(t, v2, "data", b.from.Buffer(), cu.ReadOnly, OfferOptions{OnLease: func(l *Lease) {
		if err := l.Notify(soon(t), []byte("I am the next")); err != nil {
			t.Error(err)
		}
		leases <- l
	}, Data: []byte("v2")})
	require.Equal(t, "I am the next", string(<-notices))
	offer := b.att.Offer()
	require.EqualValues(t, os.Getpid(), offer.Producer.PID)
	require.Equal(t, "v2", string(offer.Data))
	require.NoError(t, b.att.Notify(soon(t), []byte("hello")))
	require.Equal(t, "hello", string(<-(<-leases).Notices()))
	require.False(t, serve.IsClosed(b.att.Done()))
	require.Equal(t, at, b.att.Ptr())
	<-fenced // of the first
	require.False(t, serve.IsClosed(b.att.Fenced()), "this process lives")
	b.nobodyFollows(t)
	require.Equal(t, 1, connected)

	replace(t, v2, filled(t, ctx, 7))
	require.ErrorIs(t, awaitCause(t, b.att.Context()), ErrSuperseded)
	<-superseded
	awaitSeen(t, b.found, 7)
	require.NoError(t, s.end(t))
	require.ErrorIs(t, b.cancel(), context.Canceled)
}

// A consumer that closes its attachment at the instant at which that gets another lease leaves in
// order. The successor has a lease that has ended, or none.
func TestFollowIsClosedWhileItResumes(t *testing.T) {
	dev, ctx := leavesNothing(t)
	for range 5 {
		b := follows(t, dev, ctx)
		b.loses(t)
		s := serveAs(t, b.successor(t), "data", b.from.Buffer(), cu.ReadOnly)
		s.await(t, Mapped, 1)
		require.NoError(t, b.att.Close())
		require.NoError(t, s.await(t, Ended, 1).Err)
		require.ErrorIs(t, b.att.Err(), ErrClosed)
		require.ErrorIs(t, b.cancel(), context.Canceled)
		s.stop(t)
		require.NoError(t, b.from.Close())
	}
}

// An attachment is without a lease no longer than was said.
func TestFollowIsBoundedWithoutALease(t *testing.T) {
	dev, ctx := leavesNothing(t)
	for _, d := range []time.Duration{time.Nanosecond, brief} {
		b := follows(t, dev, ctx, AttachOptions{MaxAbsence: d})
		begun := time.Now()
		b.loses(t)
		require.ErrorIs(t, awaitCause(t, b.att.Context()), sock.ErrPeerLost)
		require.GreaterOrEqual(t, time.Since(begun), d)
		require.Less(t, time.Since(begun), serve.DefaultTimeout/2)
		require.ErrorIs(t, b.cancel(), context.Canceled)
	}
}

// A body that closes its attachment while there is no lease, or gives a verdict that nobody hears,
// ends it: it takes no other lease, and the body is not given the same memory again.
func TestFollowIsLeftWithoutALease(t *testing.T) {
	dev, ctx := leavesNothing(t)
	for name, leave := range map[string]func(*testing.T, *Attachment){
		"closed": func(t *testing.T, a *Attachment) {
			require.NoError(t, a.Close())
			require.ErrorIs(t, a.Err(), ErrClosed)
		},
		"judged": func(t *testing.T, a *Attachment) {
			reported := make(chan error, 1)
			a.swap.Lock() // which the verdict has to wait for
			go func() { reported <- a.Report(soon(t), nil) }()
			<-briefly(t).Done()
			require.NoError(t, a.Context().Err(), "it ends behind the verdict")
			a.swap.Unlock()
			require.ErrorIs(t, <-reported, sock.ErrPeerLost)
			require.ErrorIs(t, awaitCause(t, a.Context()), sock.ErrPeerLost)
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := follows(t, dev, ctx)
			b.loses(t)
			leave(t, b.att)
			srv := b.successor(t)
			s := serveAs(t, srv, "data", b.from.Buffer(), cu.ReadOnly)
			awaitBehind(t, srv, 1)
			b.nobodyFollows(t)
			require.ErrorIs(t, b.cancel(), context.Canceled)
			s.stop(t)
		})
	}
}

// awaitRead waits until the peer has read everything.
func awaitRead(t *testing.T, conn *sock.Conn) {
	t.Helper()
	own := ok(conn.File())(t)
	defer own.Close()
	raw := ok(own.SyscallConn())(t)
	require.Eventually(t, func() bool {
		unread, err := -1, error(nil)
		require.NoError(t, raw.Control(func(fd uintptr) { unread, err = unix.IoctlGetInt(int(fd), unix.TIOCOUTQ) }))
		require.NoError(t, err)
		return unread == 0
	}, 10*time.Second, 100*time.Microsecond)
}

// The end of Follow's context ends what the body was given, and says why; the memory stays until the
// body has returned.
func TestFollowsContextEndsTheAttachments(t *testing.T) {
	_, ctx, srv := listening(t)
	put(t, srv, filled(t, ctx, 7))
	life, stop := context.WithCancelCause(t.Context())
	defer stop(nil)
	why := errors.New("why")
	var all []error
	for att, err := range Follow(life, srv.Path(), "data", ctx.Device(), nil) {
		if all = append(all, err); err != nil {
			continue
		}
		require.NoError(t, att.Context().Err())
		stop(why)
		require.ErrorIs(t, awaitCause(t, att.Context()), why)
		word := make([]uint32, 1)
		require.NoError(t, cu.CopyToHost(ctx, word, att.Ptr()))
		require.EqualValues(t, 7, word[0])
	}
	require.Len(t, all, 2)
	require.ErrorIs(t, all[1], why)
}

// If a successor has other memory, the body's attachment ends for that.
func TestFollowTakesOtherMemoryOfASuccessor(t *testing.T) {
	dev, ctx := leavesNothing(t)
	b := follows(t, dev, ctx)
	b.loses(t)
	serveAs(t, b.successor(t), "data", filled(t, ctx, 5), cu.ReadOnly)
	require.ErrorIs(t, awaitCause(t, b.att.Context()), ErrSuperseded)
	awaitSeen(t, b.found, 5)
	require.ErrorIs(t, b.att.Err(), ErrSuperseded)
	require.ErrorIs(t, b.cancel(), context.Canceled)
}

// A wait is told of after a second, and again when its reason changes. The last error has the last reason.
func TestFollowSaysWhyItWaits(t *testing.T) {
	_, ctx := leavesNothing(t)
	path := socketPath(t)
	reasons := make(chan error, 10)
	begun := time.Now()
	found, cancel := followed(t, ctx, path, AttachOptions{OnWait: func(err error) { reasons <- err }})
	reason := func() error {
		select {
		case err := <-reasons:
			return err
		case <-soon(t).Done():
			require.FailNow(t, "it waits in silence")
			return nil
		}
	}
	require.ErrorIs(t, reason(), sock.ErrNoListener)
	require.GreaterOrEqual(t, time.Since(begun), silence)
	srv := ok(Listen(path, nil))(t)
	defer func() { require.NoError(t, srv.Close()) }()
	srv.Start()
	require.ErrorContains(t, reason(), `there is no offer "data" here`)
	put(t, srv, filled(t, ctx, 1))
	awaitSeen(t, found, 1)
	require.NoError(t, srv.Shutdown(soon(t)))
	require.ErrorIs(t, reason(), sock.ErrNoListener, "without a lease")
	require.ErrorIs(t, cancel(), context.Canceled)

	life, stop := context.WithCancel(t.Context())
	time.AfterFunc(silence/2, stop)
	for _, err := range Follow(life, path, "data", ctx.Device(), nil) {
		require.ErrorIs(t, err, context.Canceled)
		require.ErrorIs(t, err, sock.ErrNoListener)
	}
	for _, err := range Follow(t.Context(), path, "data", ctx.Device(), &AttachOptions{MaxAbsence: -1}) {
		require.ErrorContains(t, err, "MaxAbsence")
	}
}

// Follow waits for an offer that is expected, and says so.
func TestFollowSaysThatItWaitsForAnExpectedOffer(t *testing.T) {
	_, ctx, srv := listening(t)
	expect(srv, "data")
	reasons := make(chan error, 10)
	found, cancel := followed(t, ctx, srv.Path(), AttachOptions{OnWait: func(err error) { reasons <- err }})
	require.ErrorIs(t, <-reasons, errNoAnswer)
	put(t, srv, filled(t, ctx, 1))
	awaitSeen(t, found, 1)
	require.ErrorIs(t, cancel(), context.Canceled)
	require.Empty(t, reasons)
}

// With overlap the body has each version beside the one before, closes what it does not want, and is not
// given that again. What it has goes on, until the loop ends.
func TestFollowWithOverlap(t *testing.T) {
	dev, ctx, srv := listening(t)
	expect(srv, "data")
	first := put(t, srv, filled(t, ctx, 1))
	found, cancel := followed(t, ctx, srv.Path(), AttachOptions{Overlap: true})
	one := awaitSeen(t, found, 1)
	second := replace(t, srv, filled(t, ctx, 2))
	two := awaitSeen(t, found, 2)
	word := make([]uint32, 1)
	for want, att := range map[uint32]*Attachment{1: one, 2: two} {
		require.NoError(t, att.Context().Err())
		require.NoError(t, cu.CopyToHost(ctx, word, att.Ptr()))
		require.Equal(t, want, word[0])
	}
	require.NotEqual(t, one.Ptr(), two.Ptr())
	require.NoError(t, two.Close()) // it is bad
	awaitBehind(t, srv, 1)
	require.NoError(t, one.Context().Err())
	third := replace(t, srv, filled(t, ctx, 3))
	three := awaitSeen(t, found, 3)
	require.NoError(t, one.Close())
	require.NoError(t, first.end(t))
	require.NoError(t, second.end(t))
	leasesAs(srv, "data")[0].Revoke("")
	require.ErrorIs(t, awaitCause(t, three.Context()), ErrRevoked)
	again := awaitSeen(t, found, 3)
	require.NotZero(t, three.Ptr(), "it is the body's")
	require.ErrorIs(t, cancel(), context.Canceled)
	require.ErrorIs(t, again.Context().Err(), context.Canceled)
	require.Zero(t, three.Ptr())
	require.Zero(t, again.Ptr())

	life, stop := context.WithCancel(t.Context())
	defer stop()
	var last *Attachment
	for att, err := range Follow(life, srv.Path(), "data", dev, &AttachOptions{Overlap: true}) {
		if err == nil {
			last = att
			stop()
			continue
		}
		require.ErrorIs(t, err, context.Canceled)
		require.NotZero(t, last.Ptr(), "the body may use it until it knows the error")
	}
	require.Zero(t, last.Ptr())
	third.stop(t)
	for _, err := range Follow(t.Context(), srv.Path(), "data", dev, &AttachOptions{Overlap: true, Reservation: &vmm.Reservation{}}) {
		require.ErrorContains(t, err, "Overlap and Reservation")
	}
}

// A version that goes on beside a newer one that was refused survives its producer's death, and is resumed.
func TestOverlapGoesOnWithoutALease(t *testing.T) {
	dev, ctx := leavesNothing(t)
	b := follows(t, dev, ctx, AttachOptions{Overlap: true})
	b.loses(t)
	require.NoError(t, b.att.Context().Err())
	s := serveAs(t, b.successor(t), "data", b.from.Buffer(), cu.ReadOnly)
	s.await(t, Mapped, 1)
	require.NoError(t, b.att.Context().Err())
	b.nobodyFollows(t)
	for range Follow(t.Context(), b.path, "data", dev, &AttachOptions{Overlap: true}) {
		break // which closes it
	}
	s.await(t, Ended, 1)
	require.ErrorIs(t, b.cancel(), context.Canceled)
	s.stop(t)
	require.NoError(t, b.from.Close())
}
