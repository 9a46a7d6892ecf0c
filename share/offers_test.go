package share

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/fence"
	"github.com/gpufd/gpufd/internal/wire"
	"github.com/gpufd/gpufd/sock"
	"github.com/gpufd/gpufd/vmm"
)

// awaitOver waits for the end of an offer, and returns why.
func awaitOver(t testing.TB, o *Offer) error {
	t.Helper()
	select {
	case <-o.Done():
		return o.Err()
	case <-soon(t).Done():
		require.FailNow(t, "the offer does not end")
		return nil
	}
}

// An offer without memory is one on purpose.
func TestOfferOfNothing(t *testing.T) {
	_, _, srv := listening(t)
	for _, src := range []Source{nil, (*vmm.Buffer)(nil)} {
		_, err := srv.Offer("data", src, nil)
		require.ErrorContains(t, err, "no memory to offer (nil)")
	}
	o := ok(srv.Offer("data", nil, &OfferOptions{Pending: true}))(t)
	require.ErrorContains(t, o.Publish(soon(t)), "provide it first")
	require.ErrorContains(t, o.Provide((*vmm.Buffer)(nil)), "no memory to offer (nil)")
	require.ErrorContains(t, awaitOver(t, o), "no memory to offer (nil)", "what failed later is in Err")
}

// The later of two offers that supersede another has the name in the end, whichever is ready first.
func TestOffersTakeTheNameInOrder(t *testing.T) {
	warmUp(t)
	dev, ctx, srv := listening(t)
	first := ok(srv.Offer("data", newBuffer(t, ctx, 1), &OfferOptions{Synchronized: true}))(t)
	busy := newBuffer(t, ctx, 2)
	h := holding(t, ctx, busy)
	second := ok(first.Supersede(busy, nil))(t)
	third := ok(first.Supersede(newBuffer(t, ctx, 3), &OfferOptions{Synchronized: true}))(t)
	require.NoError(t, awaitOver(t, first))
	require.NoError(t, h.letGo())
	require.NoError(t, awaitOver(t, second))
	require.EqualValues(t, 3, attached(t, srv, "data", dev).Size())
	require.NoError(t, third.Close())
}

// A Publish whose context ends leaves the offer pending, and can be called again. It waits for what may
// write the memory, and hears of it as often as it asks.
func TestPublishIsCalledAgain(t *testing.T) {
	dev, ctx, srv := listening(t)
	buf := newBuffer(t, ctx, 1)
	before := ok(srv.Offer("before", buf, &OfferOptions{Access: cu.ReadWrite, Fence: fence.Released, FenceTimeout: time.Minute, Synchronized: true}))(t)
	att := attached(t, srv, "before", dev, AttachOptions{Access: cu.ReadWrite})
	o := ok(srv.Offer("data", buf, &OfferOptions{Pending: true}))(t)
	ended := make(chan error, 1)
	go func() { ended <- before.Close() }()
	require.ErrorIs(t, awaitDone(t, att), ErrWithdrawn)
	for range 3 {
		require.ErrorIs(t, o.Publish(briefly(t)), context.DeadlineExceeded)
	}
	require.NoError(t, att.Close())
	require.NoError(t, <-ended)
	require.NoError(t, o.Publish(soon(t)))
	require.ErrorContains(t, o.Publish(soon(t)), "is published")
	require.NoError(t, o.Close())
	require.ErrorIs(t, o.Publish(soon(t)), ErrWithdrawn)
}

// A pending offer whose memory may still be written in the end says so whenever it is published.
func TestPublishOfMemoryThatMayBeWritten(t *testing.T) {
	dev, ctx, srv := listening(t)
	buf := newBuffer(t, ctx, 1)
	before := ok(srv.Offer("before", buf, &OfferOptions{Access: cu.ReadWrite, Fence: fence.Released, FenceTimeout: time.Second / 2, Synchronized: true}))(t)
	att := attached(t, srv, "before", dev, AttachOptions{Access: cu.ReadWrite})
	o := ok(srv.Offer("data", buf, &OfferOptions{Pending: true}))(t)
	var who *fence.Error
	require.ErrorAs(t, before.Close(), &who)
	require.ErrorIs(t, awaitDone(t, att), ErrWithdrawn)
	require.NoError(t, o.Publish(soon(t)), "the earlier offer is over, and was never waited for")
	require.NoError(t, o.Close())
}

// The application may call the offer from its functions, while it is published or prepared.
func TestFunctionsOfAnOfferCallIt(t *testing.T) {
	dev, ctx, srv := listening(t)
	var o *Offer
	said := make(chan error, 2)
	o = ok(srv.Offer("data", nil, &OfferOptions{Pending: true, OnLease: func(*Lease) { said <- o.Publish(soon(t)) }, OnEvent: func(e Event) {
		if e.Kind == Sent {
			said <- o.Provide(nil)
		}
	}}))(t)
	early(t, srv, wants(dev))
	require.NoError(t, o.Provide(newBuffer(t, ctx, 1)))
	published := <-said == nil // Provide had returned before the session, which was about to wait, got there
	require.Error(t, <-said)
	require.Equal(t, published, o.Publish(soon(t)) != nil)
	require.NoError(t, o.Close())
}

// Descriptors stay the caller's if the offer cannot be made, whatever ends it.
func TestDescriptorsOfAnOfferThatFails(t *testing.T) {
	_, ctx, srv := listening(t)
	memory, files := kept(t, ctx, 5, 1)
	defer func() { require.NoError(t, sock.CloseFiles(files)) }()
	taken := ok(srv.Offer("taken", nil, &OfferOptions{Pending: true}))(t)
	require.NoError(t, taken.Provide(newBuffer(t, ctx, 1)))
	closed := listen(t)
	require.NoError(t, closed.Close())
	for name, offer := range map[string]func() (*Offer, error){
		"taken": func() (*Offer, error) { return srv.Offer("taken", Descriptors{memory, files}, nil) },
		"data": func() (*Offer, error) {
			return srv.Offer("data", Descriptors{memory, files}, &OfferOptions{Data: make([]byte, MaxData+1)})
		},
		"memory": func() (*Offer, error) { return srv.Offer("x", Descriptors{vmm.Descriptor{}, files}, nil) },
		"closed": func() (*Offer, error) { return closed.Offer("x", Descriptors{memory, files}, nil) },
	} {
		require.Error(t, errOf(offer()), name)
		for _, f := range files {
			require.NoError(t, errOf(f.Stat()), name)
		}
	}
	require.NoError(t, taken.Close())
}

// Shutdown waits for nobody whose data is not there.
func TestShutdownOfAPendingOffer(t *testing.T) {
	dev, ctx, srv := listening(t)
	o := ok(srv.Offer("data", newBuffer(t, ctx, 1), &OfferOptions{Pending: true}))(t)
	conn := asked(t, srv, wants(dev))
	require.True(t, heard(t, conn).(wire.Offer).Pending)
	ended := make(chan error, 1)
	go func() { ended <- srv.Shutdown(context.Background()) }()
	require.Equal(t, wire.EndRestarting, heard(t, conn).(wire.Revoke).Reason)
	require.NoError(t, conn.Close())
	require.NoError(t, <-ended)
	require.NoError(t, awaitOver(t, o), "its application has ended it")
}

// An offer that ends while it is published has an error, or was published.
func TestPublishAndEnd(t *testing.T) {
	_, ctx, srv := listening(t)
	buf := newBuffer(t, ctx, 1)
	for range 200 {
		o := ok(srv.Offer("data", buf, &OfferOptions{Pending: true, Synchronized: true}))(t)
		ended := make(chan error, 1)
		go func() { ended <- o.Close() }()
		if err := o.Publish(soon(t)); err != nil {
			require.ErrorIs(t, err, ErrWithdrawn)
		}
		require.NoError(t, <-ended)
	}
}

// A pending offer that waits for what may write its memory hears in the end that it may still be written,
// also if nobody asked just then.
func TestPublishHearsOfWritersAfterATry(t *testing.T) {
	_, ctx, srv := listening(t)
	buf := newBuffer(t, ctx, 1)
	before := ok(srv.Offer("data", buf, &OfferOptions{Access: cu.ReadWrite, Fence: fence.Released, FenceTimeout: 10 * brief, Synchronized: true}))(t)
	c := leaver(t, srv, "")
	o := ok(srv.Offer("next", buf, &OfferOptions{Pending: true}))(t)
	c.stop(t)
	ended := make(chan error, 1)
	go func() { ended <- before.Close() }()
	require.Eventually(t, func() bool { return !offered(srv, "data") }, 10*time.Second, time.Millisecond)
	try, cancel := context.WithTimeout(t.Context(), brief)
	defer cancel()
	require.ErrorIs(t, o.Publish(try), context.DeadlineExceeded)
	var who *fence.Error
	require.ErrorAs(t, <-ended, &who)
	require.ErrorAs(t, o.Publish(soon(t)), &who, "both have the same error")
	require.ErrorAs(t, awaitOver(t, o), &who)
}

// Options are copied: what the caller does with them afterwards is nobody's business.
func TestOptionsAreCopied(t *testing.T) {
	dev, ctx, srv := listening(t)
	memory, files := kept(t, ctx, 5, 1)
	told := make(chan Event, 16)
	opts := &OfferOptions{OnEvent: func(e Event) { told <- e }, OnLease: func(*Lease) {}}
	o := ok(srv.Offer("data", Descriptors{memory, files}, opts))(t)
	*opts = OfferOptions{}
	clear(files)
	require.NoError(t, attached(t, srv, "data", dev).Close())
	require.Equal(t, Connected, (<-told).Kind)
	require.NoError(t, o.Close())
}

// Legacy memory cannot be offered for reading alone, and is not by accident.
func TestLegacyIsNotOfferedReadOnly(t *testing.T) {
	_, ctx, srv := listening(t)
	require.ErrorContains(t, errOf(srv.Offer("data", newLegacy(t, ctx, 1), &OfferOptions{Access: cu.ReadOnly})), "read-only")
}

// A lease that is revoked while its consumer hangs is over when the fence's time is.
func TestRevokedWriterThatHangs(t *testing.T) {
	_, ctx, srv := listening(t)
	onLease, begun := leases()
	o := ok(srv.Offer("data", newBuffer(t, ctx, 1), &OfferOptions{Access: cu.ReadWrite, Fence: fence.Released, FenceTimeout: brief, OnLease: onLease}))(t)
	c := leaver(t, srv, "")
	l := next(t, begun)
	c.stop(t)
	l.Revoke("")
	require.ErrorIs(t, awaitEnd(t, srv, l), ErrRevoked)
	require.Error(t, o.Close())
}
