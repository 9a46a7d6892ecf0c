package server

import (
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/cutest"
	"github.com/gpufd/gpufd/internal/serve"
	"github.com/gpufd/gpufd/internal/wire"
	"github.com/gpufd/gpufd/keeper"
	"github.com/gpufd/gpufd/keeper/api"
	"github.com/gpufd/gpufd/keeper/internal/state"
	"github.com/gpufd/gpufd/share"
	"github.com/gpufd/gpufd/sock"
)

// A reader that comes back for a replaced version whose parked bytes are damaged is refused each time.
func TestReattachToADamagedVersion(t *testing.T) {
	s, c, dev := pooled(t, 1)
	put(t, c, dev, "x", 1)
	a := attached(t, s, dev, "x")
	require.True(t, ok(a.Detach(soon(t), 0))(t))
	require.Positive(t, ok(c.Park(soon(t), "x", 0))(t).Bytes)
	put(t, c, dev, "x", 2)
	hold(s)
	files := ok(s.vault.fetch(uint64(chunksOf(s)[0].ID)))(t)
	s.finish()
	scribble(t, dev, files[0])
	sock.DropFiles(files)
	_, err := a.Reattach(soon(t), share.Same)
	require.ErrorIs(t, err, share.ErrBusy)
	for range 2 {
		_, err = a.Reattach(soon(t), share.Same)
		require.ErrorIs(t, err, share.ErrRefused)
		require.NotErrorIs(t, err, share.ErrBusy)
	}
	require.Equal(t, "2", scraped(s)[`gpufd_keeper_refusals_total{socket="readers",reason="damaged"}`])
}

// Nor does it get a version back that was quarantined meanwhile.
func TestReattachToAQuarantinedVersion(t *testing.T) {
	s, c, dev := kept(t)
	put(t, c, dev, "x", 1)
	a := attached(t, s, dev, "x")
	require.True(t, ok(a.Detach(soon(t), 0))(t))
	put(t, c, dev, "x", 2)
	require.NoError(t, errOf(c.Report(soon(t), "x", 1, 0, "quarantined", "a test")))
	_, err := a.Reattach(soon(t), share.Same)
	require.ErrorIs(t, err, share.ErrRefused)
}

// A reader hears to come again if the keeper has no descriptors to send, and gets them when it has.
func TestNoDescriptorsAfterUnparking(t *testing.T) {
	socket := newSocket(t)
	store := relayStore(t, socket)
	h, dev := hookSteps(t), cutest.Device(t)
	requireHostMemory(t, dev)
	opts := options(socket)
	opts.Pool = granule
	opened(t, opts)
	c := dialled(t, socket)
	awaitPool(t, c)
	put(t, c, dev, "x", 1)
	require.Positive(t, ok(c.Park(soon(t), "x", 0))(t).Bytes)
	var before unix.Rlimit
	require.NoError(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &before))
	h.once("unpark held", func() { store.call(onceAt("swapped:1", func(*sock.Conn) { lowerFiles(t, 3) })) })
	_, err := share.Attach(soon(t), socket, "x", dev, nil)
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &before))
	require.ErrorIs(t, err, share.ErrBusy)
	require.ErrorContains(t, err, "cannot be handed out now")
	require.Eventually(t, func() bool {
		a, err := share.Attach(soon(t), socket, "x", dev, nil)
		return err == nil && a.Close() == nil
	}, waitLong, waitStep)
}

// leased is a keeper whose users have at most that many leases.
func leased(t *testing.T, most int) (*Server, *client, *cu.Device) {
	t.Helper()
	dev, uid := cutest.Device(t), uint32(os.Geteuid())
	opts := options(newSocket(t))
	opts.Policy.Rules = []state.Rule{{UID: &uid, Allow: []state.Right{state.Read, state.Write, state.Remove}, Leases: &most}}
	s := opened(t, opts)
	return s, dialled(t, opts.Socket), dev
}

// A process that has as many leases as it may, and has detached from them, attaches again: to the same, and to what
// has replaced it. It gets no others.
func TestReattachAtTheQuota(t *testing.T) {
	s, c, dev := leased(t, 2)
	put(t, c, dev, "x", 1)
	all := []*share.Attachment{attached(t, s, dev, "x"), attached(t, s, dev, "x")}
	again := func(which share.Which) {
		for _, a := range all {
			require.True(t, ok(a.Detach(soon(t), 0))(t))
		}
		for i, a := range all {
			all[i] = ok(a.Reattach(soon(t), which))(t)
			t.Cleanup(func() { require.NoError(t, all[i].Close()) })
		}
	}
	again(share.Same)
	put(t, c, dev, "x", 2)
	again(share.Newest)
	require.Equal(t, uint64(2), dataOf(t, all[1]).Version)
	_, err := keeper.Attach(soon(t), dev.Driver(), c.Client, "x", keeper.Want{})
	requireCode(t, "quota", err)
}

// A replaced version is handed to users of which a process has had it, and to no others: while it is parked they hear
// so, and a lease of one that was admitted to what has replaced it ends before it has begun.
func TestReattachOfAnotherUser(t *testing.T) {
	h, dev := hookSteps(t), cutest.Device(t)
	requireHostMemory(t, dev)
	other := uint32(os.Geteuid()) + 1
	opts := options(newSocket(t))
	opts.Pool, opts.Policy.Rules = granule, []state.Rule{{UID: &other, Allow: []state.Right{state.Read}}}
	s := opened(t, opts)
	c := dialled(t, opts.Socket)
	awaitPool(t, c)
	put(t, c, dev, "x", 1)
	a := attached(t, s, dev, "x")
	require.True(t, ok(a.Detach(soon(t), 0))(t))
	require.Positive(t, ok(c.Park(soon(t), "x", 0))(t).Bytes)
	put(t, c, dev, "x", 2)

	was := wire.Offer{Name: "x", Memory: a.Offer().Descriptor}
	var told serve.Told
	require.ErrorAs(t, s.authorize(sock.Peer{UID: other}, was, cu.ReadOnly), &told)
	require.Equal(t, wire.RefusedStale, told.Code)

	h.once("lease", func() {
		s.holders.mu.Lock()
		defer s.holders.mu.Unlock()
		clear(s.holders.unknown)
	})
	_, err := a.Reattach(soon(t), share.Same)
	require.ErrorIs(t, err, share.ErrRevoked)
	require.NoError(t, ok(a.Reattach(soon(t), share.Same))(t).Close())
}

// A reader that says again and again that it has detached has the manifest written once.
func TestFloodOfDetached(t *testing.T) {
	socket := newSocket(t)
	store := relayStore(t, socket)
	dev := cutest.Device(t)
	opened(t, options(socket))
	c := dialled(t, socket)
	put(t, c, dev, "x", 1)
	var swaps atomic.Int64
	conn := ok(sock.Dial(soon(t), socket))(t)
	t.Cleanup(func() { require.NoError(t, conn.Close()) })
	say := func(m wire.Message) { require.NoError(t, conn.Send(soon(t), wire.Encode(m))) }
	say(wire.Attach{Driver: dev.Driver().Kind(), Access: cu.ReadOnly, Name: "x", Process: wire.Process{Told: true}})
	rec := ok(conn.Receive(soon(t)))(t)
	offer := ok(wire.Decode(rec.Data))(t).(wire.Offer)
	sock.DropFiles(rec.Files)
	say(wire.Mapped{Generation: offer.Memory.Generation})
	say(wire.Detached{})
	eventually(t, c, "x", func(n api.Info) bool { return len(n.Holders) == 1 && n.Holders[0].Detached })
	store.call(func(step string, _ *sock.Conn) {
		if step == "swap" {
			swaps.Add(1)
		}
	})
	tick := time.NewTicker(flushPause / 2) // as fast as it may
	defer tick.Stop()
	for range 100 {
		<-tick.C
		say(wire.Detached{})
	}
	require.Len(t, stat(t, c, "x").Holders, 1)
	require.Less(t, swaps.Load(), int64(5))
}
