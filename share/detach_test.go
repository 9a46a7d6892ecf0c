package share

import (
	"context"
	"errors"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/cutest"
	"github.com/gpufd/gpufd/fence"
	"github.com/gpufd/gpufd/sock"
	"github.com/gpufd/gpufd/vmm"
)

// detach detaches an attachment whose lease is kept.
func detach(t testing.TB, att *Attachment, keep time.Duration) {
	t.Helper()
	require.True(t, ok(att.Detach(soon(t), keep))(t))
	require.True(t, att.Detached())
}

// reattach reattaches, and closes the attachment when t ends.
func reattach(t testing.TB, att *Attachment, want Which) *Attachment {
	t.Helper()
	next := ok(att.Reattach(soon(t), want))(t)
	t.Cleanup(func() { require.NoError(t, next.Close()) })
	return next
}

// A detached attachment has its address and its lease, and nothing mapped. Reattached, it has the same bytes at the same
// address, with a lease of its own.
func TestDetachAndReattach(t *testing.T) {
	spy, dev, ctx := spied(t)
	g := granularity(t, dev)
	room := ok(vmm.Reserve(dev.Driver(), (sock.MaxFDs+1)*g))(t)
	buf := newBuffer(t, ctx, (sock.MaxFDs+1)*g-1, vmm.WithChunkSize(g))
	owed := spy.owed()
	for name, opts := range map[string]AttachOptions{"its own address": {}, "in a reservation": {Reservation: room}, "offered on": {Reoffer: true}} {
		t.Run(name, func(t *testing.T) {
			srv := listen(t)
			onLease, begun := leases()
			s := put(t, srv, buf, OfferOptions{OnLease: onLease, Data: noise(5000, 3)})
			att := attached(t, srv, "data", dev, opts)
			at, size := att.Ptr(), att.Size()
			for round := range 3 {
				l, descriptors := next(t, begun), cutest.Descriptors()
				detach(t, att, time.Hour)
				require.Zero(t, spy.mappings()-int(buf.Describe().Chunks))
				require.Nil(t, att.Buffer())
				require.Equal(t, at, att.Ptr())
				require.Equal(t, size, att.Size())
				require.Equal(t, cu.ReadOnly, att.Access())
				require.Equal(t, dev, att.Device())
				require.NoError(t, att.Err())
				s.await(t, Detached, round+1)
				require.True(t, l.Detached())
				require.NoError(t, l.Notify(soon(t), []byte("x")))
				require.Equal(t, "x", string(<-att.Notices()))
				if !opts.Reoffer {
					require.Empty(t, hasMoreOf(cutest.Descriptors(), descriptors))
				}

				again := reattach(t, att, Which(round%2))
				require.Equal(t, at, again.Ptr())
				require.Equal(t, at, att.Ptr())
				require.Equal(t, noise(5000, 3), again.Offer().Data)
				requireNoise(t, ctx, again.Buffer(), 1)
				require.False(t, att.Detached())
				require.ErrorIs(t, awaitDone(t, att), ErrClosed)
				require.NoError(t, awaitEnd(t, srv, l), "it left in order")
				require.ErrorIs(t, errOf(att.Reattach(soon(t), Same)), ErrClosed)
				require.ErrorIs(t, errOf(att.Detach(soon(t), 0)), ErrClosed)
				require.NoError(t, att.Close(), "and takes nothing with it")
				require.False(t, again.Detached())
				att = again
			}
			require.NoError(t, att.Close())
			require.Equal(t, uint64(0), uint64(att.Ptr()))
			s.stop(t)
			require.NoError(t, srv.Close())
		})
		require.Equal(t, owed, spy.owed())
	}
	require.NoError(t, room.Close())
}

// hasMoreOf lists the kinds of descriptors of which there are more now, but for connections.
func hasMoreOf(now, before map[string]int) (more []string) {
	for kind, n := range now {
		if n > before[kind] && !strings.Contains(kind, "socket") {
			more = append(more, kind)
		}
	}
	return more
}

// While an attachment is detached nothing here keeps the memory: it is free once the producer has closed it (D12).
func TestDetachedMemoryIsFree(t *testing.T) {
	dev, ctx := leavesNothing(t)
	free := freeMemory(t, ctx)
	srv := ok(Listen(socketPath(t), nil))(t)
	buf := ok(vmm.New(dev, 8<<20))(t)
	offer := ok(srv.Offer("data", buf, nil))(t)
	att := ok(Attach(soon(t), srv.Path(), "data", dev, nil))(t)
	at := att.Ptr()
	detach(t, att, 0)
	require.NoError(t, offer.Close())
	require.ErrorIs(t, awaitDone(t, att), ErrWithdrawn)
	require.NoError(t, buf.Close())
	require.Equal(t, free, freeMemory(t, ctx))

	require.True(t, att.Detached())
	require.ErrorIs(t, errOf(att.Reattach(soon(t), Same)), ErrNotFound)
	require.NoError(t, srv.Close())
	require.ErrorIs(t, errOf(att.Reattach(soon(t), Newest)), sock.ErrNoListener)
	require.Equal(t, at, att.Ptr())
	require.NoError(t, att.Close())
	require.Zero(t, att.Ptr())
	require.False(t, att.Detached())
}

// A thousand rounds leave descriptors, mappings, memory and goroutines as they were.
func TestThousandTimesDetached(t *testing.T) {
	spy, dev, ctx := spied(t)
	srv := listen(t)
	put(t, srv, newBuffer(t, ctx, 1), OfferOptions{MaxConsumers: 1, OnEvent: func(Event) {}})
	att := ok(Attach(soon(t), srv.Path(), "data", dev, nil))(t)
	bound := soon(t)
	round := func() {
		require.True(t, ok(att.Detach(bound, time.Hour))(t))
		att = ok(att.Reattach(bound, Same))(t)
	}
	for range 20 { // for what grows once
		round()
	}
	settle := func() {
		require.Eventually(t, func() bool { return connections(srv) == 1 }, 30*time.Second, time.Millisecond)
	}
	settle()
	owed, descriptors, free, goroutines, heap := spy.owed(), cutest.Descriptors(), freeMemory(t, ctx), runtime.NumGoroutine(), heapSize()
	for range 1000 {
		round()
	}
	settle()
	require.Equal(t, owed, spy.owed())
	require.Equal(t, free, freeMemory(t, ctx))
	requireDescriptors(t, descriptors)
	require.Eventually(t, func() bool { return runtime.NumGoroutine() < goroutines+10 }, 30*time.Second, time.Millisecond)
	require.Less(t, heapSize(), heap+1<<19)
	requireNoise(t, ctx, att.Buffer(), 1)
	require.NoError(t, att.Close())
}

func heapSize() uint64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC() // behind the finalizers
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// Detach of memory that is in use fails, and changes neither it nor the lease.
func TestDetachOfMemoryInUse(t *testing.T) {
	dev, ctx, srv := listening(t)
	put(t, srv, newBuffer(t, ctx, 64))
	att := attached(t, srv, "data", dev, AttachOptions{Reoffer: true})
	other := listen(t)
	release := func() error { return nil }
	for name, use := range map[string]func() (end func() error){
		"held":    func() func() error { return ok(att.Buffer().Hold("graph 1"))(t).Close },
		"a view":  func() func() error { return ok(att.Buffer().NewView(cu.ReadOnly))(t).Close },
		"offered": func() func() error { return ok(other.Offer("data", att.Buffer(), nil))(t).Close },
		"current": func() func() error {
			var c Current
			require.NoError(t, c.Swap(ok(Attach(soon(t), srv.Path(), "data", dev, nil))(t)))
			h := ok(att.Buffer().Hold("the test"))(t)
			now, done := c.Use()
			require.ErrorIs(t, errOf(now.Detach(soon(t), 0)), ErrInUse)
			done()
			return func() error { return errors.Join(h.Close(), c.Close(soon(t))) }
		},
		"queued work": func() func() error {
			release = ok(busy(ctx))(t)
			return func() error { return release() }
		},
	} {
		end := use()
		bound := soon(t)
		if name == "queued work" {
			bound = briefly(t)
		}
		require.ErrorIs(t, errOf(att.Detach(bound, 0)), ErrInUse, name)
		require.False(t, att.Detached(), name)
		require.NoError(t, att.Err())
		require.NoError(t, end(), name)
		requireNoise(t, ctx, att.Buffer(), 1)
	}
	require.ErrorContains(t, errOf(att.Detach(soon(t), -1)), "-1ns")
	require.ErrorContains(t, errOf(att.Reattach(soon(t), Same)), "not detached")
	require.ErrorContains(t, errOf(att.Reattach(soon(t), 2)), "Which(2)")
	detach(t, att, 0)
	require.NoError(t, other.Close())
}

// A lease that cannot be kept is given up, with a farewell: of memory that may be written, of a channel, and with a producer
// that is older. The same memory is found while the name stands for it.
func TestDetachGivesUpALease(t *testing.T) {
	dev, ctx := leavesNothing(t)
	buf := newBuffer(t, ctx, 1)
	cursors := OfferOptions{CursorSize: 4096, OnCursors: func(*Lease, *os.File) error { return nil }}
	for name, c := range map[string]struct {
		offer  OfferOptions
		attach AttachOptions
	}{
		"writes":  {OfferOptions{}, AttachOptions{Access: cu.ReadWrite}},
		"fenced":  {OfferOptions{Fence: fence.Released, FenceTimeout: time.Minute}, AttachOptions{Access: cu.ReadWrite}},
		"cursors": {cursors, AttachOptions{MaxCursors: 4096}},
	} {
		t.Run(name, func(t *testing.T) {
			srv := listen(t)
			onLease, begun := leases()
			c.offer.OnLease = onLease
			s := serveAs(t, srv, "data", buf, cu.ReadWrite, c.offer)
			att := attached(t, srv, "data", dev, c.attach)
			l := next(t, begun)
			require.False(t, ok(att.Detach(soon(t), 0))(t))
			require.True(t, att.Detached())
			require.NoError(t, awaitEnd(t, srv, l))
			require.NoError(t, l.AwaitFence(soon(t), fence.Released))
			require.False(t, l.Detached())
			require.ErrorIs(t, awaitDone(t, att), ErrClosed)
			require.ErrorIs(t, context.Cause(att.Context()), ErrClosed)
			require.False(t, ok(att.Detach(soon(t), 0))(t), "again")
			att = reattach(t, att, Same)
			requireNoise(t, ctx, att.Buffer(), 1)
			require.NoError(t, att.Close())
			s.stop(t)
			require.NoError(t, srv.Close())
		})
	}
}

// When the time is over, the producer takes the lease back. The memory is found as long as it is there.
func TestDetachedLongerThanKept(t *testing.T) {
	dev, ctx, srv := listening(t)
	buf := newBuffer(t, ctx, 1)
	s := put(t, srv, buf)
	att := attached(t, srv, "data", dev)
	detach(t, att, time.Nanosecond)
	err := awaitDone(t, att)
	require.ErrorIs(t, err, ErrRevoked)
	require.ErrorContains(t, err, "longer than the 0.001 s")
	s.await(t, Ended, 1)
	require.True(t, att.Detached())
	att = reattach(t, att, Same)
	requireNoise(t, ctx, att.Buffer(), 1)

	detach(t, att, brief)
	detach(t, att, 0) // anew
	outlast(t)
	require.NoError(t, att.Err())
	leasesAs(srv, "data")[0].Revoke("go")
	require.ErrorContains(t, awaitDone(t, att), "go")
	att = ok(att.Resume(soon(t)))(t)
	require.True(t, att.Detached())
	att = reattach(t, att, Newest)
	requireNoise(t, ctx, att.Buffer(), 1)
}

// A detached attachment is closed, as its producer may end: nothing is left.
func TestCloseOfADetachedAttachment(t *testing.T) {
	spy, dev, ctx := spied(t)
	buf := newBuffer(t, ctx, 1)
	for name, end := range map[string]func(*testing.T, *Server, *Attachment){
		"closed":    func(t *testing.T, _ *Server, a *Attachment) { require.NoError(t, a.Close()) },
		"released":  func(t *testing.T, _ *Server, a *Attachment) { require.NoError(t, a.Release(soon(t))) },
		"at once":   func(t *testing.T, _ *Server, a *Attachment) { require.NoError(t, a.CloseNow()) },
		"reported":  func(t *testing.T, _ *Server, a *Attachment) { require.NoError(t, a.Report(soon(t), nil)) },
		"abandoned": func(_ *testing.T, _ *Server, a *Attachment) { a.abandon() },
		"server closed": func(t *testing.T, srv *Server, a *Attachment) {
			require.NoError(t, srv.Close())
			require.ErrorIs(t, awaitDone(t, a), ErrWithdrawn)
		},
	} {
		t.Run(name, func(t *testing.T) {
			owed := spy.owed()
			srv := listen(t)
			s := put(t, srv, buf)
			att := ok(Attach(soon(t), srv.Path(), "data", dev, nil))(t)
			detach(t, att, 0)
			end(t, srv, att)
			s.await(t, Ended, 1)
			require.NoError(t, att.Close())
			require.NoError(t, att.Close())
			require.ErrorIs(t, errOf(att.Detach(soon(t), 0)), ErrClosed)
			require.Equal(t, owed, spy.owed())
			s.cancel()
			_ = s.end(t)
			require.NoError(t, srv.Close())
		})
	}
}

// A producer that is killed while its consumer is detached takes the memory with it: nobody else has it (D11).
func TestProducerKilledWhileDetached(t *testing.T) {
	dev, ctx := leavesNothing(t)
	free := freeMemory(t, ctx)
	path := socketPath(t)
	t.Cleanup(func() { _, _ = os.Remove(path), os.Remove(path+".lock") })
	c := start(t, "producer", path, "3145728")
	c.says(t, "listening")
	att := ok(Attach(soon(t), path, "data", dev, nil))(t)
	detach(t, att, 0)
	c.kill()
	require.ErrorIs(t, awaitDone(t, att), sock.ErrPeerLost)
	requireFree(t, ctx, free)
	require.ErrorIs(t, errOf(att.Reattach(soon(t), Same)), sock.ErrNoListener)
	require.False(t, ok(att.Detach(soon(t), 0))(t), "there is no lease")
	srv := ok(Listen(path, nil))(t)
	s := put(t, srv, newBuffer(t, ctx, 1))
	require.ErrorIs(t, errOf(att.Reattach(soon(t), Same)), ErrStale)
	next := ok(att.Reattach(soon(t), Newest))(t)
	requireNoise(t, ctx, next.Buffer(), 1)
	require.NoError(t, next.Close())
	s.stop(t)
	require.NoError(t, srv.Close())
}

// Legacy memory cannot be detached.
func TestDetachOfLegacyMemory(t *testing.T) {
	dev, _ := leavesNothing(t)
	path := socketPath(t)
	c := start(t, "legacy producer", path, "12345")
	c.says(t, "listening")
	att := ok(attachAny(soon(t), path, "data", dev))(t)
	require.ErrorIs(t, errOf(att.Detach(soon(t), 0)), ErrHandle)
	require.NoError(t, att.Err())
	require.NotZero(t, att.Ptr())
	require.NoError(t, att.Close())
	c.end(t)
}
