package share

import (
	"context"
	"errors"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/cutest"
	"github.com/gpufd/gpufd/cu/sys"
	"github.com/gpufd/gpufd/sock"
	"github.com/gpufd/gpufd/vmm"
)

// twoEnds is a predecessor's end of a connection and its successor's.
func twoEnds(t testing.TB) (a, b *sock.Conn) {
	t.Helper()
	a, b, err := sock.NewPair()
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, a.Close())
		require.NoError(t, b.Close())
	})
	return a, b
}

// handingOver returns the server that takes over from v1, and what v1's HandOver returns.
func handingOver(t testing.TB, ctx context.Context, v1 *Server) (*Server, chan error) {
	t.Helper()
	a, b := twoEnds(t)
	given := make(chan error, 1)
	go func() { given <- v1.HandOver(ctx, a) }()
	v2 := ok(TakeOver(soon(t), b, v1.Path(), &ListenOptions{Mode: 0o666}))(t)
	t.Cleanup(func() { require.NoError(t, v2.Close()) })
	return v2, given
}

// handedOver returns the server that has taken over from v1.
func handedOver(t testing.TB, v1 *Server) *Server {
	t.Helper()
	v2, given := handingOver(t, soon(t), v1)
	require.NoError(t, <-given)
	return v2
}

// A successor has the path and the memory, and its predecessor the leases that it had, until
// it is closed. What consumers have mapped stays.
//
//fault:rows 85
func TestSuccessorTakesOver(t *testing.T) {
	dev, ctx := leavesNothing(t)
	v1 := listen(t)
	s1 := put(t, v1, newBuffer(t, ctx, 1<<20))
	old := attached(t, v1, "data", dev)
	from := attached(t, v1, "data", dev, AttachOptions{Reoffer: true})
	v2 := handedOver(t, v1)
	require.Equal(t, v1.Path(), v2.Path())
	early := make(chan error, 1)
	go func() { // before there is an offer
		att, err := Attach(soon(t), v1.Path(), "data", dev, nil)
		early <- errors.Join(err, att.Close())
	}()
	s2 := serveAs(t, v2, "data", from.Buffer(), cu.ReadOnly)
	late := attached(t, v2, "data", dev)
	require.Equal(t, old.Offer().Descriptor, late.Offer().Descriptor)
	require.NoError(t, <-early)
	require.Len(t, leasesAs(v1, "data"), 2)

	require.NoError(t, old.Err())
	require.NoError(t, v1.Remove())
	require.NoError(t, v1.Close())
	require.ErrorIs(t, s1.end(t), ErrClosed)
	require.ErrorIs(t, awaitDone(t, old), ErrRestarting)
	require.ErrorIs(t, awaitDone(t, from), ErrRestarting)
	require.ErrorIs(t, from.Close(), ErrInUse)
	require.NoError(t, late.Err())
	requireNoise(t, ctx, attached(t, v2, "data", dev).Buffer(), 1)
	s2.stop(t)
}

// HandOver does not return before the application has heard of each lease (OnLease): it may end
// the server when there is none that goes on.
func TestHandOverWaitsForOnLease(t *testing.T) {
	dev, ctx, v1 := listening(t)
	heard, wait := make(chan struct{}), make(chan struct{})
	put(t, v1, newBuffer(t, ctx, 1), OfferOptions{OnLease: func(*Lease) {
		close(heard)
		<-wait
	}})
	conn := asked(t, v1, wants(dev))
	<-heard
	_, given := handingOver(t, soon(t), v1)
	<-briefly(t).Done()
	require.Empty(t, given)
	close(wait)
	require.NoError(t, <-given)
	require.NoError(t, conn.Close())
}

// A consumer that has connected and not said what it wants is still waited for, and served, but
// no longer than the context wants.
func TestHandOverWaitsForWhoHasConnected(t *testing.T) {
	dev, ctx, v1 := listening(t)
	put(t, v1, newBuffer(t, ctx, 1))
	var v2 *Server
	var given chan error
	attached(t, v1, "data", dev, AttachOptions{OnConnected: func(sock.Peer) {
		v2, given = handingOver(t, soon(t), v1)
		require.Empty(t, given)
	}})
	require.NoError(t, <-given)
	require.Len(t, leasesAs(v1, "data"), 1)

	expect(v2, "data")
	silent := dialed(t, v2)
	limit, cancel := context.WithCancel(soon(t))
	_, given = handingOver(t, limit, v2)
	require.Empty(t, given)
	cancel()
	require.NoError(t, <-given)
	require.NoError(t, errors.Join(v2.Close(), silent.Close()))
}

// A handover that fails costs nothing. The server goes on, and another attempt may be made.
//
//fault:rows 85
func TestServerThatIsNotTakenOverGoesOn(t *testing.T) {
	dev, ctx, v1 := listening(t)
	put(t, v1, newBuffer(t, ctx, 1))
	a, b := twoEnds(t)
	waiting := make(chan error, 1)
	given := make(chan error, 1)
	go func() { given <- v1.HandOver(soon(t), a) }()
	rec := ok(b.Receive(soon(t)))(t) // nobody gets in any more
	require.NoError(t, rec.Close())
	go func() {
		att, err := Attach(soon(t), v1.Path(), "data", dev, nil)
		waiting <- errors.Join(err, att.Close())
	}()
	require.NoError(t, b.Send(soon(t), []byte("no memory")))
	require.ErrorContains(t, <-given, "no memory")
	require.NoError(t, <-waiting)
	require.NoError(t, attached(t, v1, "data", dev).Close())

	a, b = twoEnds(t)
	require.ErrorContains(t, errOf(TakeOver(soon(t), b, v1.Path(), &ListenOptions{MaxConnections: -1})), "connections")
	require.NoError(t, b.Close())
	require.ErrorIs(t, v1.HandOver(soon(t), a), sock.ErrPeerLost)
	require.NoError(t, v1.Close())
	require.ErrorIs(t, v1.HandOver(soon(t), a), ErrClosed)

	v2 := handedOver(t, listen(t)) // which never offered anything
	a, b = twoEnds(t)
	go func() { given <- v2.HandOver(soon(t), a) }()
	rec = ok(b.Receive(soon(t)))(t)
	require.NoError(t, rec.Close())
	require.NoError(t, v2.Close(), "at any time")
	require.ErrorIs(t, <-given, sock.ErrClosed)
}

// HandOver does not wait for a consumer that waits for newer memory than the predecessor offers.
// That consumer asks the successor when the offer has ended. A consumer that has the memory
// mapped resumes its lease there.
//
//fault:rows 85
func TestHandOverWithWaitersAndResumes(t *testing.T) {
	dev, ctx := leavesNothing(t)
	v1 := listen(t)
	buf := newBuffer(t, ctx, 1)
	put(t, v1, buf)
	old := attached(t, v1, "data", dev)
	from := attached(t, v1, "data", dev, AttachOptions{Reoffer: true})
	waits := waitForNewer(t, v1, dev, buf)
	awaitBehind(t, v1, 1)

	v2 := handedOver(t, v1)
	awaitBehind(t, v1, 1)
	s := serveAs(t, v2, "data", from.Buffer(), cu.ReadOnly)
	require.NoError(t, v1.Close())
	require.Nil(t, <-waits.att)
	require.True(t, Retryable(<-waits.err), "Follow asks again")

	require.ErrorIs(t, awaitDone(t, old), ErrRestarting)
	next := ok(old.Resume(soon(t)))(t)
	require.Len(t, leasesAs(v2, "data"), 1)
	require.Equal(t, leasesAs(v2, "data")[0].Peer(), next.Offer().Producer)
	requireNoise(t, ctx, next.Buffer(), 1)
	require.NoError(t, next.Close())
	s.stop(t)
}

// childSuccessor attaches to the predecessor at the path that it is told, and offers
// the same memory at its own.
func childSuccessor() error {
	dev, ctx, err := childDevice()
	if err != nil {
		return err
	}
	att, err := Attach(context.Background(), os.Getenv(doEnv), "data", dev, &AttachOptions{Reoffer: true, Access: cu.ReadWrite})
	if err != nil {
		return err
	}
	offer := func(served context.Context, srv *Server) error {
		return offerFor(served, srv, "data", att.Buffer(), cu.ReadWrite)
	}
	return errors.Join(serveUntilInputEnds(offer), att.Close(), ctx.Close())
}

// Memory goes on from process to process while those before end, one in good order and
// one by SIGKILL. The bytes stay, and so does the generation.
//
//fault:rows 85
func TestMemoryIsOfferedOnFromProcessToProcess(t *testing.T) {
	dev, ctx := leavesNothing(t)
	paths := []string{socketPath(t), socketPath(t), socketPath(t)}
	v1 := start(t, "producer", paths[0], "3145728")
	v1.says(t, "listening")
	first := attachedAt(t, paths[0], dev)
	generation := first.Offer().Descriptor.Generation

	v2 := start(t, "successor", paths[1], paths[0])
	v2.says(t, "listening")
	second := attachedAt(t, paths[1], dev, AttachOptions{Access: cu.ReadWrite})
	v1.end(t)
	require.ErrorIs(t, awaitDone(t, first), ErrWithdrawn)
	require.Equal(t, generation, second.Offer().Descriptor.Generation)
	requireNoise(t, ctx, second.Buffer(), 1)

	v3 := start(t, "successor", paths[2], paths[1])
	v3.says(t, "listening")
	third := attachedAt(t, paths[2], dev)
	v2.kill()
	require.ErrorIs(t, awaitDone(t, second), sock.ErrPeerLost)
	require.Equal(t, first.Offer().Descriptor, third.Offer().Descriptor)
	requireNoise(t, ctx, third.Buffer(), 1)
	require.NoError(t, cu.CopyToDevice(ctx, second.Ptr(), noise(second.Size(), 2)))
	for _, att := range []*Attachment{first, second, third} {
		requireNoise(t, ctx, att.Buffer(), 2) // it is one memory
		require.NoError(t, att.Close())
	}
	v3.end(t)
	srv := ok(Listen(paths[1], nil))(t) // what the killed one left on disk is reclaimed
	require.NoError(t, srv.Close())
}

// attachedAt attaches to "data" of another process.
func attachedAt(t *testing.T, path string, dev *cu.Device, opts ...AttachOptions) *Attachment {
	t.Helper()
	att := ok(Attach(soon(t), path, "data", dev, first(opts)))(t)
	t.Cleanup(func() { require.NoError(t, att.Close()) })
	return att
}

// A successor that attached read-only offers read-only, whatever its predecessor offered.
func TestNoMoreAccessIsOfferedOn(t *testing.T) {
	dev, ctx := leavesNothing(t)
	v1, v2 := listen(t), listen(t)
	put(t, v1, newBuffer(t, ctx, 1))
	plain := attached(t, v1, "data", dev)
	require.ErrorIs(t, offerFor(soon(t), v2, "data", plain.Buffer(), cu.ReadOnly), vmm.ErrNotShareable)

	readOnly := attached(t, v1, "data", dev, AttachOptions{Reoffer: true})
	err := offerFor(soon(t), v2, "data", readOnly.Buffer(), cu.ReadWrite)
	require.ErrorIs(t, err, vmm.ErrNotShareable)
	require.ErrorContains(t, err, "read-only")
	require.ErrorIs(t, errOf(prepare(v2, "data", readOnly.Buffer(), cu.ReadWrite)), vmm.ErrNotShareable)
	serveAs(t, v2, "data", readOnly.Buffer(), cu.ReadOnly).stop(t)
}

// While the memory is offered on, its predecessor goes on hearing that it is in use. Then Close
// closes the memory before the connection, because a producer that hears that the lease has ended
// may write the memory.
func TestAttachmentThatIsOfferedOnIsNotClosed(t *testing.T) {
	var from *Attachment
	var lease []error // as it is when memory is unmapped
	dev := cutest.Device(t, cu.WithHook(func(call sys.Call, next func() sys.CUresult) sys.CUresult {
		if call.Symbol() == "cuMemUnmap" {
			lease = append(lease, from.Err())
		}
		return next()
	}))
	ctx := leavesNothingOn(t, dev)
	v1, v2 := listen(t), listen(t)
	put(t, v1, newBuffer(t, ctx, 1<<20))
	from = attached(t, v1, "data", dev, AttachOptions{Reoffer: true})
	s := serveAs(t, v2, "data", from.Buffer(), cu.ReadOnly)
	require.ErrorIs(t, from.Close(), ErrInUse)
	require.NoError(t, from.Err())
	require.Len(t, leasesAs(v1, "data"), 1)
	s.stop(t)
	require.NoError(t, from.Close())
	require.Equal(t, []error{nil}, lease)
	require.ErrorIs(t, from.Err(), ErrClosed)
}

// Legacy memory ends with the process that allocated it.
func TestLegacyMemoryIsNotOfferedOn(t *testing.T) {
	dev, ctx := leavesNothing(t)
	v1 := listen(t)
	serveLegacy(t, v1, newLegacy(t, ctx, 1))
	for want, legacy := range map[error]bool{ErrHandle: true, ErrUnsupported: false} {
		require.ErrorIs(t, errOf(Attach(soon(t), v1.Path(), "data", dev, &AttachOptions{Reoffer: true, Legacy: legacy})), want)
	}
}
