package share

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/cutest"
	"github.com/gpufd/gpufd/internal/serve"
)

// occupy keeps a stream of ctx busy until release is called, or the test ends.
func occupy(t *testing.T, ctx *cu.Context) (release func()) {
	t.Helper()
	end := ok(busy(ctx))(t)
	release = func() { require.NoError(t, end()) }
	t.Cleanup(release)
	return release
}

// hasty is listening with a driver whose Close of memory waits for a moment only.
func hasty(t *testing.T) (*cu.Device, *cu.Context, *Server) {
	t.Helper()
	dev := cutest.Device(t, cu.WithCloseLimit(20*time.Millisecond))
	ctx := cutest.Context(t, dev)
	return dev, ctx, listen(t)
}

// Close of an attachment waits for what was queued before it. If it waits in vain, the memory is mapped as before
// and the lease goes on.
func TestCloseOfAnAttachmentWaits(t *testing.T) {
	dev, ctx, srv := hasty(t)
	s := put(t, srv, filled(t, ctx, 7))
	att := attached(t, srv, "data", dev)
	release := occupy(t, ctx)
	for _, end := range []func() error{att.Close, func() error { return att.Release(briefly(t)) }} {
		err := end()
		require.ErrorIs(t, err, ErrInUse)
		require.ErrorIs(t, err, context.DeadlineExceeded)
	}
	require.NotZero(t, att.Ptr())
	require.False(t, serve.IsClosed(att.Done()))
	require.Len(t, leasesAs(srv, "data"), 1)
	release()
	require.NoError(t, att.Release(soon(t)))
	require.Zero(t, att.Ptr())
	s.await(t, Ended, 1)
}

// While Close waits, the attachment is used as before, and cannot change hands.
func TestAttachmentIsUsedWhileCloseWaits(t *testing.T) {
	dev, ctx, srv := listening(t)
	s := put(t, srv, filled(t, ctx, 7))
	att := attached(t, srv, "data", dev)
	release := occupy(t, ctx)
	closed := make(chan error, 1)
	go func() { closed <- att.Close() }()
	require.Eventually(t, func() bool {
		att.owner.Lock()
		defer att.owner.Unlock()
		return att.closing > 0
	}, 30*time.Second, time.Millisecond)
	require.NotZero(t, att.Ptr())
	require.NoError(t, att.Progress(soon(t), 1, 2))
	s.cancel()
	require.ErrorIs(t, awaitDone(t, att), ErrWithdrawn)
	require.ErrorIs(t, errOf(att.Resume(soon(t))), ErrInUse)
	release()
	require.NoError(t, <-closed)
	require.ErrorIs(t, errOf(att.Resume(soon(t))), ErrClosed)
}

// CloseNow does not wait, for those who know.
func TestCloseNowOfAnAttachment(t *testing.T) {
	dev, ctx, srv := listening(t)
	s := put(t, srv, filled(t, ctx, 7))
	att := attached(t, srv, "data", dev)
	occupy(t, ctx)
	require.NoError(t, att.CloseNow())
	require.Zero(t, att.Ptr())
	require.NoError(t, att.Close())
	s.await(t, Ended, 1)
}

// Report closes legacy memory first. If that is in use, nothing is said, and the lease goes on.
func TestReportOfLegacyMemoryInUse(t *testing.T) {
	_, ctx, srv := listening(t)
	m := newLegacy(t, ctx, 1<<20)
	s := serveLegacy(t, srv, m, OfferOptions{Verdict: true, MaxConsumers: 1})
	start(t, "consumer", srv.Path(), "report in use").end(t)
	require.NoError(t, s.end(t))
	require.NoError(t, m.Close())
}

// Follow keeps the address of a version that is in use, says so, and goes on when it is not.
func TestFollowWaitsForTheVersionBefore(t *testing.T) {
	_, ctx, srv := hasty(t)
	put(t, srv, filled(t, ctx, 1))
	waits := make(chan error, 100)
	found, cancel := followed(t, ctx, srv.Path(), AttachOptions{OnWait: func(err error) {
		select {
		case waits <- err:
		default:
		}
	}})
	one := awaitSeen(t, found, 1)
	two := filled(t, ctx, 2)
	release := occupy(t, ctx)
	replace(t, srv, two, OfferOptions{Synchronized: true})
	for err := range waits {
		if errors.Is(err, ErrInUse) {
			break
		}
	}
	require.NotZero(t, one.Ptr())
	require.Empty(t, found)
	release()
	awaitSeen(t, found, 2)
	require.Zero(t, one.Ptr())
	require.ErrorIs(t, cancel(), context.Canceled)
}

// A Follow that ends while the memory is in use ends its lease, and leaves the memory to a later Close.
func TestFollowEndsWhileItsMemoryIsInUse(t *testing.T) {
	_, ctx, srv := hasty(t)
	put(t, srv, filled(t, ctx, 1))
	found, cancel := followed(t, ctx, srv.Path())
	one := awaitSeen(t, found, 1)
	release := occupy(t, ctx)
	err := cancel()
	require.ErrorIs(t, err, context.Canceled)
	require.ErrorIs(t, err, ErrInUse)
	require.Error(t, awaitDone(t, one))
	require.NotZero(t, one.Ptr())
	release()
	require.NoError(t, one.Close())
	require.Zero(t, one.Ptr())
}

// A body that breaks out of Follow does not wait for the work that uses the memory.
func TestFollowIsLeftWhileItsMemoryIsInUse(t *testing.T) {
	dev, ctx, srv := hasty(t)
	put(t, srv, filled(t, ctx, 1))
	var att *Attachment
	release := occupy(t, ctx)
	for a, err := range Follow(context.Background(), srv.Path(), "data", dev, nil) {
		require.NoError(t, err)
		att = a
		break
	}
	require.Error(t, awaitDone(t, att), "its lease has ended")
	require.NotZero(t, att.Ptr())
	release()
	require.NoError(t, att.Close())
	require.Zero(t, att.Ptr())
}

// Current tries again to close what was in use when it was replaced.
func TestCurrentClosesWhatWasInUse(t *testing.T) {
	dev, ctx, srv := hasty(t)
	put(t, srv, filled(t, ctx, 1))
	att := attached(t, srv, "data", dev)
	var c Current
	require.NoError(t, c.Swap(att))
	release := occupy(t, ctx)
	brief, cancel := context.WithTimeout(context.Background(), 200*time.Millisecond)
	defer cancel()
	require.Error(t, c.Close(brief))
	require.NotZero(t, att.Ptr())
	release()
	require.NoError(t, c.Close(soon(t)))
	require.Zero(t, att.Ptr())
}

// A version that was in use when it was replaced is closed behind the next version that is, so that a program that swaps for
// years does not keep them all.
func TestSwapClosesWhatWasInUse(t *testing.T) {
	dev, ctx, srv := hasty(t)
	put(t, srv, filled(t, ctx, 1))
	var c Current
	left := func(n int) func() bool {
		return func() bool {
			c.mu.Lock()
			defer c.mu.Unlock()
			return c.old == 0 && len(c.left) == n
		}
	}
	var all []*Attachment
	swap := func() {
		att := attached(t, srv, "data", dev)
		all = append(all, att)
		require.NoError(t, c.Swap(att))
	}
	release := occupy(t, ctx)
	swap()
	for n := range 3 {
		swap()
		require.Eventually(t, left(n+1), 30*time.Second, time.Millisecond)
	}
	for _, att := range all {
		require.NotZero(t, att.Ptr())
	}
	release()
	swap()
	require.Eventually(t, left(0), 30*time.Second, time.Millisecond)
	for _, att := range all[:4] {
		require.Zero(t, att.Ptr())
	}
	require.NoError(t, c.Close(soon(t)))
}
