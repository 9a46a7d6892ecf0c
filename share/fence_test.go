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
	"github.com/gpufd/gpufd/internal/wire"
	"github.com/gpufd/gpufd/sock"
	"github.com/gpufd/gpufd/vmm"
)

// noProcess simulates an older kernel, whose peers are in another PID namespace.
func noProcess() PeerOption {
	return func(o *serve.PeerOptions) {
		o.Process = func(*sock.Conn) (*sock.Process, error) { return nil, sock.ErrNoProcess }
	}
}

// requireNoFence checks that nothing will tell when the process is fenced, and that a caller who
// asks hears so at once. A wait for Released succeeds if the memory was released.
func requireNoFence(t *testing.T, fenced <-chan struct{}, await func(context.Context, Fence) error, released bool) *FenceError {
	t.Helper()
	require.False(t, serve.IsClosed(fenced))
	err := await(context.Background(), Fenced)
	require.ErrorIs(t, err, ErrNoFence)
	if released {
		require.NoError(t, await(context.Background(), Released))
	} else {
		require.ErrorIs(t, await(context.Background(), Released), ErrNoFence)
	}
	var who *FenceError
	require.ErrorAs(t, err, &who)
	require.Len(t, who.Peers, 1)
	require.Contains(t, err.Error(), who.Peers[0].String())
	return who
}

// Where no death would say anything, or none would be seen, each wait says so at once.
//
//fault:rows 82
func TestUnknownFences(t *testing.T) {
	spy, mps, ctx := spied(t)
	fault := underMPS(spy.Faults)
	dev := cutest.Device(t)
	for name, c := range map[string]struct {
		producer, consumer *cu.Device
		listen             []ListenOption
		attach             []AttachOption
		ofLease, ofAtt     bool // unknown
	}{
		"consumer under MPS":          {dev, mps, nil, nil, true, false},
		"producer under MPS":          {mps, dev, nil, nil, false, true},
		"older kernel of the server":  {dev, dev, []ListenOption{noProcess()}, nil, true, false},
		"older kernel of the client":  {dev, dev, nil, []AttachOption{noProcess()}, false, true},
		"older kernel of both, close": {dev, dev, []ListenOption{noProcess()}, []AttachOption{noProcess()}, true, true},
	} {
		t.Run(name, func(t *testing.T) {
			srv := listen(t, c.listen...)
			buf := ok(vmm.New(c.producer, 64))(t)
			leases := make(chan *Lease, 1)
			s := put(t, srv, buf, OnLease(func(l *Lease) { leases <- l }))
			att := ok(Attach(soon(t), srv.Path(), "data", c.consumer, append(c.attach, WithAccess(ReadWrite))...))(t)
			l := <-leases
			if c.ofLease {
				require.ErrorIs(t, l.AwaitFence(context.Background(), Fenced), ErrNoFence, "while the lease lives")
			}
			s.cancel()
			<-l.Done()
			require.ErrorIs(t, awaitDone(t, att), ErrRevoked)
			if c.ofLease {
				requireNoFence(t, l.Fenced(), l.AwaitFence, false)
			} else {
				require.ErrorIs(t, l.AwaitFence(briefly(t), Fenced), context.DeadlineExceeded)
			}
			if c.ofAtt {
				requireNoFence(t, att.Fenced(), att.AwaitFence, true)
			} else {
				require.ErrorIs(t, att.AwaitFence(briefly(t), Fenced), context.DeadlineExceeded)
			}
			require.NoError(t, att.Close())
			require.ErrorIs(t, requireNoFence(t, att.Fenced(), att.AwaitFence, true), ErrNoFence, "nobody watches for it any more")
			require.NoError(t, s.end(t))
			require.NoError(t, buf.Close())
		})
	}
	fault.Stop()
	fault = spy.Fail("cuDeviceGetAttribute", cu.ErrInvalidValue)
	flags, sure := processFlags(mps)
	require.Equal(t, wire.ProcessMPS, flags, "an older driver cannot tell")
	require.False(t, sure)

	srv := listen(t)
	require.Equal(t, wire.ProcessMPS, srv.knownFlags(mps))
	fault.Stop()
	require.Zero(t, srv.knownFlags(mps), "no answer is none to keep")
	spy.Fail("cuDeviceGetAttribute", cu.ErrInvalidValue)
	require.Zero(t, srv.knownFlags(mps), "a device that has answered is asked once")
	flags, _ = processFlags(mps)
	require.Equal(t, wire.ProcessMPS, flags)
	_ = ctx
}

// An older consumer does not say whether it runs under MPS.
func TestFenceOfAnOlderConsumer(t *testing.T) {
	dev, ctx, srv := listening(t)
	leases := make(chan *Lease, 1)
	s := put(t, srv, newBuffer(t, ctx, 1), OnLease(func(l *Lease) { leases <- l }))
	conn := asked(t, srv, wants(dev))
	require.True(t, heard(t, conn).(wire.Offer).Process.Told)
	require.NoError(t, conn.Close())
	s.await(t, Ended, 1)
	l := <-leases
	require.ErrorContains(t, requireNoFence(t, l.Fenced(), l.AwaitFence, false), "older")
}

// FAULTS 82: the memory is handed back when the consumer that could write it is dead, and not
// when its lease has ended.
func TestFault82_WriterIsWaitedForUntilItIsDead(t *testing.T) {
	_, ctx, srv := listening(t)
	leases := make(chan *Lease, 1)
	s := put(t, srv, newBuffer(t, ctx, 1), WithFence(soon(t), Fenced), OnLease(func(l *Lease) { leases <- l }))
	c := leaver(t, srv, "close")
	s.await(t, Ended, 1)
	l := <-leases
	require.NoError(t, l.AwaitFence(soon(t), Released))
	require.False(t, serve.IsClosed(l.Fenced()), "a promise is no fence")
	s.cancel()
	require.ErrorIs(t, l.AwaitFence(briefly(t), Fenced), context.DeadlineExceeded)
	require.Empty(t, s.result, "it is not handed back")
	c.kill()
	require.NoError(t, s.end(t))
	<-l.Fenced()
}

// A consumer that has released the memory is not waited for, if that is enough. One whose
// offer has ended keeps its connection until then, and says so. None of them dies.
//
//fault:rows 82
func TestOfferWaitsForReleases(t *testing.T) {
	_, ctx, srv := listening(t)
	s := put(t, srv, newBuffer(t, ctx, 1), WithFence(soon(t), Released))
	leaver(t, srv, "close")
	s.await(t, Ended, 1)
	revoked := start(t, "leaver", srv.Path(), "close when revoked")
	revoked.says(t, "mapped")
	killed := leaver(t, srv, "")
	s.cancel()
	revoked.says(t, "closed")
	s.await(t, Ended, 2)
	require.Empty(t, s.result, "another has not")
	killed.kill()
	require.NoError(t, s.end(t))
	revoked.end(t)
}

// Memory that a consumer of an earlier offer may still write is not offered again before that is
// over; nor if it is not known, or the wait for it has ended. Other memory is.
//
//fault:rows 82
func TestMemoryIsOfferedAgainBehindItsFence(t *testing.T) {
	for _, dies := range []bool{true, false} {
		_, ctx, srv := listening(t)
		bound, cancel := context.WithCancel(context.Background())
		defer cancel()
		buf := newBuffer(t, ctx, 1)
		first := put(t, srv, buf, WithFence(bound, Fenced))
		c := leaver(t, srv, "close")
		first.await(t, Ended, 1)
		replace(t, srv, newBuffer(t, ctx, 2)) // its last consumer has left
		require.ErrorIs(t, errOf(srv.Prepare("more", buf, ReadOnly)), ErrInUse)
		over, stop := context.WithCancel(soon(t))
		stop()
		require.NoError(t, srv.Replace(over, "data", buf, ReadOnly), "it was over before it began")

		before, again := offeringOf(srv), newServed(srv)
		until, end := context.WithCancel(soon(t))
		go func() { again.result <- srv.Replace(until, "data", buf, ReadWrite, OnEvent(again.see)) }()
		require.Eventually(t, func() bool { return isExpected(srv) }, 10*time.Second, time.Millisecond)
		again.goesOn(t)
		require.EqualValues(t, 2, attached(t, srv, "data", ctx.Device()).Size())
		require.Empty(t, again.of(Offered))
		if dies {
			c.kill()
			require.NoError(t, first.end(t))
			again.await(t, Offered, 1)
			awaitReplaced(t, srv, before)
			require.EqualValues(t, 1, attached(t, srv, "data", ctx.Device()).Size())
			end()
			require.NoError(t, again.end(t))
		} else {
			cancel()
			require.ErrorIs(t, first.end(t), context.Canceled)
			var who *FenceError
			require.ErrorAs(t, again.end(t), &who)
			require.EqualValues(t, c.cmd.Process.Pid, who.Peers[0].PID)
			require.EqualValues(t, 2, attached(t, srv, "data", ctx.Device()).Size())
		}
		end()
	}
}

// Memory that has grown is the same memory, and so is that of its descriptors alone.
//
//fault:rows 82
func TestMemoryThatHasGrownIsBehindItsFence(t *testing.T) {
	dev, ctx := leavesNothing(t)
	srv, chunk := listen(t), granularity(t, dev)
	buf := newBuffer(t, ctx, chunk, vmm.WithChunkSize(chunk), vmm.WithCapacity(2*chunk))
	first := put(t, srv, buf, WithFence(soon(t), Released))
	att := attached(t, srv, "data", dev, WithAccess(ReadWrite))
	memory, files, err := buf.Export()
	require.NoError(t, err)
	defer func() { require.NoError(t, sock.CloseFiles(files)) }()
	first.cancel()
	require.ErrorIs(t, awaitDone(t, att), ErrRevoked)
	require.NoError(t, buf.Grow(2*chunk))

	require.ErrorIs(t, errOf(srv.Prepare("more", buf, ReadOnly)), ErrInUse)
	require.ErrorIs(t, errOf(srv.OfferFiles("more", memory, files, ReadOnly)), ErrInUse)
	require.NoError(t, att.Close())
	require.NoError(t, first.end(t))
	more := ok(srv.Prepare("more", buf, ReadOnly))(t)
	require.NoError(t, more.Close())
}

// An offer of the same memory, or of more of it, does not wait for the consumers of the offer that
// it replaces.
//
//fault:rows 82
func TestSameMemoryIsReplacedWithoutWaiting(t *testing.T) {
	dev, ctx := leavesNothing(t)
	srv, chunk := listen(t), granularity(t, dev)
	buf := newBuffer(t, ctx, chunk, vmm.WithChunkSize(chunk), vmm.WithCapacity(3*chunk))
	for n := range uint64(3) {
		require.NoError(t, buf.Grow((n+1)*chunk))
		replace(t, srv, buf, WithFence(soon(t), Released)).await(t, Offered, 1)
		att := attached(t, srv, "data", dev, WithAccess(ReadWrite))
		require.Equal(t, (n+1)*chunk, att.Size())
	}
}

// The wait for consumers that may write ends with its context, and with the server, and names them.
//
//fault:rows 82
func TestOfferWaitsForFencesNoLongerThan(t *testing.T) {
	for name, want := range map[string]Fence{"released": Released, "fenced": Fenced} {
		for _, closed := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				_, ctx, srv := listening(t)
				bound, cancel := context.WithTimeout(context.Background(), brief)
				if closed {
					bound, cancel = context.WithCancel(context.Background())
				}
				defer cancel()
				s := put(t, srv, newBuffer(t, ctx, 1), WithFence(bound, want), goodbyeIn(1, brief))
				c := leaver(t, srv, "")
				s.await(t, Mapped, 1)
				c.stop(t)
				s.cancel()
				if closed {
					s.await(t, Offered, 1)
					require.NoError(t, srv.Close())
				}
				err := s.end(t)
				var who *FenceError
				require.ErrorAs(t, err, &who)
				require.Equal(t, want, who.Want)
				require.Len(t, who.Peers, 1)
				require.EqualValues(t, c.cmd.Process.Pid, who.Peers[0].PID)
				require.Equal(t, closed, errors.Is(err, ErrNoFence), "%v", err)
				require.Equal(t, !closed, errors.Is(err, context.DeadlineExceeded), "%v", err)
			})
		}
	}
}

// An offer waits neither for a consumer that may only read, nor for one that was sent nothing,
// nor for one that can never be known to be fenced.
func TestOfferThatNeedNotWait(t *testing.T) {
	dev, ctx, srv := listening(t)
	s := put(t, srv, newBuffer(t, ctx, 1), WithFence(context.Background(), Fenced))
	require.NoError(t, attached(t, srv, "", dev).Close())
	s.await(t, Ended, 1)
	s.stop(t)

	s = put(t, srv, newBuffer(t, ctx, 1), WithFence(context.Background(), Fenced))
	want := wants(dev)
	want.Access = ReadWrite
	conn := asked(t, srv, want)
	heard(t, conn)
	require.NoError(t, conn.Close())
	s.await(t, Ended, 1)
	s.cancel()
	require.ErrorIs(t, s.end(t), ErrNoFence)
}

// A server watches as many processes as it takes connections, and each once. When it is
// closed nothing of that is left, whoever lives.
func TestWatchesAreBoundedAndEnd(t *testing.T) {
	_, ctx := leavesNothing(t)
	srv := listen(t, WithConnections(2))
	leases := make(chan *Lease, 23)
	s := put(t, srv, newBuffer(t, ctx, 1), OnLease(func(l *Lease) { leases <- l }))
	var all []*Lease
	for i := range 3 {
		leaver(t, srv, "close")
		s.await(t, Ended, i+1)
		require.Eventually(t, func() bool { return connections(srv) == 0 }, 10*time.Second, time.Millisecond)
		all = append(all, <-leases)
	}
	require.ErrorIs(t, all[0].AwaitFence(soon(t), Fenced), ErrNoFence, "the oldest gave way")
	for _, l := range all[1:] {
		require.ErrorIs(t, l.AwaitFence(briefly(t), Fenced), context.DeadlineExceeded)
	}
	require.Equal(t, 2, watched(srv))
	for range 20 { // of one process
		require.NoError(t, attached(t, srv, "", ctx.Device()).Close())
		require.Eventually(t, func() bool { return connections(srv) == 0 }, 10*time.Second, time.Millisecond)
	}
	require.Equal(t, 2, watched(srv))
	require.NoError(t, srv.Close())
	require.Zero(t, watched(srv))
	require.ErrorIs(t, all[2].AwaitFence(soon(t), Fenced), ErrNoFence)
	require.ErrorIs(t, all[2].AwaitFence(soon(t), Fenced), ErrClosed)
	require.NoError(t, all[2].AwaitFence(soon(t), Released))
}

// watched is how many processes a server watches.
func watched(srv *Server) int {
	_, n := srv.core.Load()
	return n
}

func TestFenceOptions(t *testing.T) {
	_, ctx, srv := listening(t)
	buf := newBuffer(t, ctx, 1)
	var none context.Context
	require.ErrorContains(t, srv.Offer(soon(t), "x", buf, ReadOnly, WithFence(none, Fenced)), "context")
	require.ErrorContains(t, srv.Offer(soon(t), "x", buf, ReadOnly, WithFence(soon(t), 0)), "Fence(0)")
	s := put(t, srv, buf, WithFence(soon(t), Released))
	att := attached(t, srv, "", ctx.Device())
	require.True(t, att.Offer().AwaitsRelease)
	require.ErrorContains(t, att.AwaitFence(soon(t), 7), "Fence(7)")
	require.NoError(t, att.Close())
	s.stop(t)
}
