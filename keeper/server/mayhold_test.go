package server

import (
	"os"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gpufd/gpufd/cu/cutest"
	"github.com/gpufd/gpufd/keeper"
	"github.com/gpufd/gpufd/keeper/api"
	"github.com/gpufd/gpufd/keeper/internal/state"
	"github.com/gpufd/gpufd/share"
	"github.com/gpufd/gpufd/sock"
)

// Readers that come at once get as many leases as the quota has, and those that are refused
// are told why, and which processes have the leases.
func TestQuotaOfLeasesAtOnce(t *testing.T) {
	const most, come = 3, 16
	dev, uid, leases := cutest.Device(t), uint32(os.Geteuid()), most
	opts := options(newSocket(t))
	opts.Policy.Rules = []state.Rule{{UID: &uid, Allow: []state.Right{state.Read, state.Write, state.Remove}, Leases: &leases}}
	s := opened(t, opts)
	c := dialled(t, s.opts.Socket)
	put(t, c, dev, "x", 1)
	var mu sync.Mutex
	var got []*keeper.Attached
	var work sync.WaitGroup
	for range come {
		work.Go(func() {
			all, err := keeper.Attach(soon(t), dev.Driver(), c.Client, "x", keeper.Want{})
			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				got = append(got, all...)
				return
			}
			no := requireCode(t, "quota", err)
			require.NotEmpty(t, no.Holders)
			require.ErrorIs(t, err, share.ErrRefused)
		})
	}
	work.Wait()
	require.Len(t, got, most)
	letGoOf(t, got)
	eventually(t, c, "x", func(i api.Info) bool { return len(i.Holders) == 0 })
	letGoOf(t, attach(t, c, dev, "x"))
}

// A list counts as no lease, and what it leaves out counts as no refusal.
func TestListIsNoLease(t *testing.T) {
	dev, uid, leases := cutest.Device(t), uint32(os.Geteuid()), 1
	opts := options(newSocket(t))
	opts.Policy.Rules = []state.Rule{{UID: &uid, Allow: []state.Right{state.Read, state.Write, state.Remove}, Leases: &leases}}
	s := opened(t, opts)
	c := dialled(t, s.opts.Socket)
	put(t, c, dev, "x", 1)
	for range 3 {
		offers := ok(share.List(soon(t), s.opts.Socket, nil))(t)
		require.Len(t, offers, 1)
	}
	letGoOf(t, attach(t, c, dev, "x"))
	require.NoError(t, c.Drain(soon(t), "x"))
	offers := ok(share.List(soon(t), s.opts.Socket, nil))(t)
	require.Empty(t, offers, "what nobody can attach to")
	require.NotContains(t, scraped(s), `gpufd_keeper_refusals_total{socket="readers",reason="draining"}`)
}

// A version that cannot be offered is not committed: the one before is served.
func TestCommitIsAllOrNothing(t *testing.T) {
	dev := cutest.Device(t)
	socket := newSocket(t)
	relay := relayStore(t, socket)
	opened(t, options(socket))
	c := dialled(t, socket)
	put(t, c, dev, "x", 1)
	var before unix.Rlimit
	require.NoError(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &before))
	relay.call(onceAt("held:1", func(*sock.Conn) { lowerFiles(t, 3) })) // the part's descriptors are the last
	_, err := c.Put(soon(t), keeper.Put{Name: "x"}, part(0, dev, 2))
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &before))
	require.ErrorContains(t, err, "could not be offered, and is not committed")
	require.Equal(t, uint64(1), stat(t, c, "x").Version)
	requireBytes(t, attach(t, c, dev, "x")[0], 1)
	require.Equal(t, uint64(2), put(t, c, dev, "x", 3).Version)
	requireBytes(t, attach(t, c, dev, "x")[0], 3)
}

// lowerFiles lets this process open no more files.
func lowerFiles(t *testing.T, n uint64) {
	var now unix.Rlimit
	require.NoError(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &now))
	now.Cur = n
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &now))
}
