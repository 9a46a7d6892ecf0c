package share

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/cutest"
	"github.com/gpufd/gpufd/fence"
	"github.com/gpufd/gpufd/internal/serve"
	"github.com/gpufd/gpufd/internal/wire"
	"github.com/gpufd/gpufd/sock"
	"github.com/gpufd/gpufd/vmm"
)

// noProcess simulates an older kernel, whose peers are in another PID namespace.
func noProcess(o *serve.PeerOptions) {
	o.Process = func(*sock.Conn) (*sock.Process, error) { return nil, sock.ErrNoProcess }
}

// requireNoFence checks that nothing will tell when the process is fenced, and that a caller who
// asks hears so at once.
func requireNoFence(t *testing.T, fenced <-chan struct{}, await func(context.Context, fence.Kind) error) {
	t.Helper()
	require.False(t, serve.IsClosed(fenced))
	err := await(context.Background(), fence.Fenced)
	require.ErrorIs(t, err, fence.ErrUnknown)
	var who *fence.Error
	require.ErrorAs(t, err, &who)
	require.Len(t, who.Peers, 1)
	require.Contains(t, err.Error(), who.Peers[0].String())
}

// Each wait fails at once if the death of the process would say nothing, or would not be seen. A
// consumer that has closed has released the memory all the same.
//
//fault:rows 82
func TestUnknownFences(t *testing.T) {
	spy, mps, _ := spied(t)
	fault := underMPS(spy.Faults)
	dev := cutest.Device(t)
	for name, c := range map[string]struct {
		producer, consumer *cu.Device
		listen, attach     func(*serve.PeerOptions)
		ofLease, ofAtt     bool // unknown
	}{
		"consumer under MPS":         {dev, mps, nil, nil, true, false},
		"producer under MPS":         {mps, dev, nil, nil, false, true},
		"older kernel of the server": {dev, dev, noProcess, nil, true, false},
		"older kernel of the client": {dev, dev, nil, noProcess, false, true},
	} {
		t.Run(name, func(t *testing.T) {
			srv := listen(t, ListenOptions{peer: c.listen})
			buf := ok(vmm.New(c.producer, 64))(t)
			onLease, begun := leases()
			s := put(t, srv, buf, OfferOptions{OnLease: onLease})
			att := ok(Attach(soon(t), srv.Path(), "data", c.consumer, &AttachOptions{Access: cu.ReadWrite, peer: c.attach}))(t)
			l := next(t, begun)
			if c.ofLease {
				require.ErrorIs(t, l.AwaitFence(context.Background(), fence.Fenced), fence.ErrUnknown, "while the lease lives")
			}
			s.cancel()
			<-l.Done()
			require.ErrorIs(t, awaitDone(t, att), ErrWithdrawn)
			if c.ofLease {
				requireNoFence(t, l.Fenced(), l.AwaitFence)
				require.ErrorIs(t, l.AwaitFence(context.Background(), fence.Released), fence.ErrUnknown)
			} else {
				require.ErrorIs(t, l.AwaitFence(briefly(t), fence.Fenced), context.DeadlineExceeded)
			}
			if c.ofAtt {
				requireNoFence(t, att.Fenced(), att.AwaitFence)
			} else {
				require.ErrorIs(t, att.AwaitFence(briefly(t), fence.Fenced), context.DeadlineExceeded)
			}
			require.NoError(t, att.AwaitFence(context.Background(), fence.Released))
			require.NoError(t, att.Close())
			requireNoFence(t, att.Fenced(), att.AwaitFence) // nobody watches for it any more
			require.NoError(t, s.end(t))
			require.NoError(t, buf.Close())
		})
	}
	fault.Stop()
	fault = spy.Fail("cuDeviceGetAttribute", cu.ErrInvalidValue)
	srv := listen(t)
	require.Equal(t, wire.ProcessMPS, srv.knownFlags(mps), "an older driver cannot tell")
	fault.Stop()
	require.Zero(t, srv.knownFlags(mps), "no answer is none to keep")
}

// FAULTS 82: the memory is handed back when every consumer that could write it is dead, or has
// released it if that is enough, and not when its lease has ended. One whose offer has ended keeps
// its connection until it has released the memory.
//
//fault:rows 82
func TestFault82_WriterIsWaitedFor(t *testing.T) {
	for _, want := range []fence.Kind{fence.Released, fence.Fenced} {
		t.Run(want.String(), func(t *testing.T) {
			_, ctx, srv := listening(t)
			onLease, begun := leases()
			s := put(t, srv, newBuffer(t, ctx, 1), OfferOptions{Fence: want, FenceTimeout: time.Minute, OnLease: onLease})
			closed := leaver(t, srv, "close")
			s.await(t, Ended, 1)
			l := next(t, begun)
			require.NoError(t, l.AwaitFence(soon(t), fence.Released))
			require.False(t, serve.IsClosed(l.Fenced()), "a promise is no fence")
			revoked := start(t, "leaver", srv.Path(), "close when revoked")
			revoked.says(t, "mapped")
			killed := leaver(t, srv, "")
			s.cancel()
			revoked.says(t, "closed")
			s.await(t, Ended, 2)
			require.Empty(t, s.result, "another has not")
			killed.kill()
			if want == fence.Fenced {
				revoked.kill()
				outlast(t)
				require.ErrorIs(t, l.AwaitFence(briefly(t), fence.Fenced), context.DeadlineExceeded)
				require.Empty(t, s.result, "it is not handed back")
				closed.kill()
				<-l.Fenced()
			}
			require.NoError(t, s.end(t))
		})
	}
}

// Memory that has grown is the same memory, and so is that of its descriptors alone. An offer of it
// replaces another without waiting, but nothing else is.
//
//fault:rows 82
func TestMemoryThatHasGrownIsBehindItsFence(t *testing.T) {
	dev, ctx, srv := listening(t)
	chunk := granularity(t, dev)
	buf := newBuffer(t, ctx, chunk, vmm.WithChunkSize(chunk), vmm.WithCapacity(2*chunk))
	first := put(t, srv, buf, OfferOptions{Fence: fence.Released, FenceTimeout: time.Minute})
	att := attached(t, srv, "data", dev, AttachOptions{Access: cu.ReadWrite})
	require.NoError(t, buf.Grow(2*chunk))
	second := replace(t, srv, buf, OfferOptions{Fence: fence.Released, FenceTimeout: time.Minute})
	newer := attached(t, srv, "data", dev, AttachOptions{Access: cu.ReadWrite})
	require.True(t, newer.Offer().AwaitsRelease)
	require.Equal(t, 2*chunk, newer.Size())
	second.cancel()
	require.ErrorIs(t, awaitDone(t, newer), ErrWithdrawn)

	require.ErrorIs(t, errOf(prepare(srv, "more", buf, cu.ReadOnly)), ErrInUse)
	require.NoError(t, errors.Join(newer.Close(), att.Close()))
	require.NoError(t, errors.Join(first.end(t), second.end(t)))
	more := ok(prepare(srv, "more", buf, cu.ReadOnly))(t)
	require.NoError(t, more.Close())
}

// The wait for consumers that may write ends with its context, and with the server, and names them.
//
//fault:rows 82
func TestOfferWaitsForFencesNoLongerThan(t *testing.T) {
	for name, c := range map[string]struct {
		want   fence.Kind
		closed bool
	}{"Released": {fence.Released, false}, "Released, closed": {fence.Released, true}, "Fenced": {fence.Fenced, false}} {
		want, closed := c.want, c.closed
		t.Run(name, func(t *testing.T) {
			_, ctx, srv := listening(t)
			buf := newBuffer(t, ctx, 1)
			within := time.Hour
			if !closed {
				within = 3 * time.Second
			}
			s := put(t, srv, buf, OfferOptions{Fence: want, FenceTimeout: within, terms: goodbyeIn(1, brief)})
			c := leaver(t, srv, "")
			s.await(t, Mapped, 1)
			c.stop(t)
			s.cancel()
			require.Eventually(t, func() bool { return !offered(srv, "data") }, 10*time.Second, time.Millisecond)
			again := newServed(srv) // the same memory waits for the same fence
			go func() {
				again.result <- replaceFor(soon(t), srv, "data", buf, cu.ReadWrite, OfferOptions{OnEvent: again.see})
			}()
			again.goesOn(t)
			require.False(t, offered(srv, "data"))
			if closed {
				require.NoError(t, srv.Close())
				require.Error(t, again.end(t))
			} else {
				require.ErrorIs(t, again.end(t), context.DeadlineExceeded)
			}
			err := s.end(t)
			var who *fence.Error
			require.ErrorAs(t, err, &who)
			require.Equal(t, want, who.Want)
			require.Len(t, who.Peers, 1)
			require.EqualValues(t, c.cmd.Process.Pid, who.Peers[0].PID)
			require.Equal(t, closed, errors.Is(err, fence.ErrUnknown), "%v", err)
			require.Equal(t, !closed, errors.Is(err, context.DeadlineExceeded), "%v", err)
		})
	}
}

// An offer waits neither for a consumer that may only read, nor for one that can never be known to
// be fenced.
func TestOfferThatNeedNotWait(t *testing.T) {
	dev, ctx, srv := listening(t)
	buf := newBuffer(t, ctx, 1)
	require.ErrorContains(t, offerFor(soon(t), srv, "x", buf, cu.ReadOnly, OfferOptions{Fence: fence.Fenced, FenceTimeout: 0}), "FenceTimeout of 0s")
	require.ErrorContains(t, offerFor(soon(t), srv, "x", buf, cu.ReadOnly, OfferOptions{Fence: 0, FenceTimeout: time.Minute}), "want both or neither")
	s := put(t, srv, buf, OfferOptions{Fence: fence.Fenced, FenceTimeout: time.Hour})
	att := attached(t, srv, "", dev)
	require.ErrorContains(t, att.AwaitFence(soon(t), 7), "Kind(7)")
	require.NoError(t, att.Close())
	s.await(t, Ended, 1)
	s.stop(t)

	s = put(t, srv, buf, OfferOptions{Fence: fence.Fenced, FenceTimeout: time.Hour})
	want := wants(dev)
	want.Access = cu.ReadWrite
	conn := asked(t, srv, want)
	heard(t, conn)
	require.NoError(t, conn.Close())
	s.await(t, Ended, 1)
	s.cancel()
	require.ErrorIs(t, s.end(t), fence.ErrUnknown)
}

// A server watches as many processes as it takes connections, and each once. When it is
// closed nothing of that is left, whoever lives.
func TestWatchesAreBoundedAndEnd(t *testing.T) {
	_, ctx, srv := listening(t, ListenOptions{MaxConnections: 2})
	onLease, begun := leases()
	put(t, srv, newBuffer(t, ctx, 1), OfferOptions{OnLease: onLease})
	idle := func() bool { return connections(srv) == 0 }
	var all []*Lease
	for range 3 {
		leaver(t, srv, "close")
		require.Eventually(t, idle, 10*time.Second, time.Millisecond)
		all = append(all, next(t, begun))
	}
	require.ErrorIs(t, all[0].AwaitFence(soon(t), fence.Fenced), fence.ErrUnknown, "the oldest gave way")
	require.ErrorIs(t, all[1].AwaitFence(briefly(t), fence.Fenced), context.DeadlineExceeded)
	require.Equal(t, 2, watched(srv))
	for range 5 { // of one process
		require.NoError(t, attached(t, srv, "", ctx.Device()).Close())
		require.Eventually(t, idle, 10*time.Second, time.Millisecond)
	}
	require.Equal(t, 2, watched(srv))
	require.NoError(t, srv.Close())
	require.Zero(t, watched(srv))
	require.ErrorIs(t, all[2].AwaitFence(soon(t), fence.Fenced), fence.ErrUnknown)
	require.ErrorIs(t, all[2].AwaitFence(soon(t), fence.Fenced), ErrClosed)
	require.NoError(t, all[2].AwaitFence(soon(t), fence.Released))
}

// watched is how many processes a server watches.
func watched(srv *Server) int {
	_, n := srv.core.Load()
	return n
}

// A consumer that resumed its lease is asked to release the memory as any other, also if
// that took more than one record when it attached.
//
//fault:rows 82
func TestResumedConsumerIsAskedToRelease(t *testing.T) {
	dev, ctx := leavesNothing(t)
	g := granularity(t, dev)
	buf := newBuffer(t, ctx, (sock.MaxFDs+1)*g, vmm.WithChunkSize(g))
	att := lostAttachment(t, dev, buf, AttachOptions{Access: cu.ReadWrite})
	srv := again(t, att, ListenOptions{peer: goodbyes(brief)}) // nobody has to be quick
	s := put(t, srv, buf, OfferOptions{Fence: fence.Released, FenceTimeout: time.Minute})
	next := ok(att.Resume(soon(t)))(t)
	s.await(t, Mapped, 1)
	s.cancel()
	require.ErrorIs(t, awaitDone(t, next), ErrWithdrawn)
	outlast(t)
	require.NoError(t, next.Close())
	require.NoError(t, s.end(t))
}

// A consumer that could not attach has none of the memory, and is not waited for.
//
//fault:rows 82
func TestOfferDoesNotWaitForAConsumerThatCouldNotAttach(t *testing.T) {
	spy, dev, ctx := spied(t)
	srv := listen(t)
	s := put(t, srv, newBuffer(t, ctx, 1), OfferOptions{Fence: fence.Released, FenceTimeout: time.Minute})
	err := spy.during("cuMemMap", func() error {
		return errOf(Attach(soon(t), srv.Path(), "data", dev, &AttachOptions{Access: cu.ReadWrite}))
	})
	require.ErrorIs(t, err, cu.ErrOutOfMemory)
	require.ErrorIs(t, s.await(t, Ended, 1).Err, ErrVerdict)
	s.stop(t)
}

// A consumer that says at the instant of the offer's end that it cannot attach, by VERDICT 0 or
// REFUSE, has none of the memory either. One that has mapped it before, or resumes, still has it,
// and only its death tells when it is done.
func TestWhoCannotAttachWhenTheOfferEnds(t *testing.T) {
	dev, ctx := leavesNothing(t)
	no, refuse := wire.Verdict{Text: "no room"}, wire.Refuse{Code: wire.RefusedRate, Text: "too many"}
	for name, c := range map[string]struct {
		mapped, resumes bool
		says            wire.Message
		released        bool
	}{
		"it cannot attach":               {says: no, released: true},
		"it refuses":                     {says: refuse, released: true},
		"it has mapped the memory":       {says: no, mapped: true},
		"it has it, and resumes":         {says: no, resumes: true},
		"it finds the data good, though": {says: wire.Verdict{OK: true}},
	} {
		t.Run(name, func(t *testing.T) {
			srv, buf := listen(t), newBuffer(t, ctx, 1)
			onLease, begun := leases()
			s := put(t, srv, buf, OfferOptions{OnLease: onLease})
			want := wants(dev)
			want.Access, want.Process.Told = cu.ReadWrite, true
			if c.resumes {
				want.Resume = buf.Describe().Generation
			}
			conn := asked(t, srv, want)
			require.IsType(t, wire.Offer{}, heard(t, conn))
			s.await(t, Sent, 1)
			s.cancel()
			require.IsType(t, wire.Revoke{}, heard(t, conn))
			if c.mapped { // it crosses the REVOKE
				require.NoError(t, conn.Send(soon(t), wire.Encode(isMapped(buf))))
			}
			require.NoError(t, conn.Send(soon(t), wire.Encode(c.says)))
			require.NoError(t, conn.Close())
			s.await(t, Ended, 1)
			if l := next(t, begun); c.released {
				require.NoError(t, l.AwaitFence(soon(t), fence.Released))
			} else {
				require.ErrorIs(t, l.AwaitFence(briefly(t), fence.Released), context.DeadlineExceeded)
			}
		})
	}
}

// The error of an offer whose consumer cannot be waited for says why not.
func TestOfferSaysWhyThereIsNoFence(t *testing.T) {
	dev, ctx, srv := listening(t, ListenOptions{peer: noProcess})
	s := put(t, srv, newBuffer(t, ctx, 1), OfferOptions{Fence: fence.Fenced, FenceTimeout: time.Minute})
	att := attached(t, srv, "data", dev, AttachOptions{Access: cu.ReadWrite})
	s.await(t, Mapped, 1)
	require.NoError(t, att.Close())
	s.await(t, Ended, 1)
	s.cancel()
	err := s.end(t)
	require.ErrorIs(t, err, fence.ErrUnknown)
	require.ErrorIs(t, err, sock.ErrNoProcess)
}
