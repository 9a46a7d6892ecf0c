package server

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/keeper"
	"github.com/gpufd/gpufd/keeper/api"
	"github.com/gpufd/gpufd/keeper/internal/protocol"
	"github.com/gpufd/gpufd/keeper/internal/state"
	"github.com/gpufd/gpufd/share"
	"github.com/gpufd/gpufd/vmm"
)

func TestRemove(t *testing.T) {
	s, c, dev := kept(t)
	requireCode(t, "not-found", c.Remove(soon(t), "x"))
	put(t, c, dev, "x", 1)
	all := attach(t, c, dev, "x")
	eventually(t, c, "x", func(i api.Info) bool { return len(i.Holders) == 1 })
	held := storeSets(s)
	require.NoError(t, c.Remove(soon(t), "x"))
	<-all[0].Done()
	require.ErrorIs(t, all[0].Err(), share.ErrWithdrawn)
	requireBytes(t, all[0], 1)
	letGoOf(t, all)
	require.ErrorIs(t, errOf(share.Attach(soon(t), s.opts.Socket, "x", dev, nil)), share.ErrRefused)
	info := eventually(t, c, "x", func(i api.Info) bool { return len(i.Retired) == 1 && i.Retired[0].Gone })
	require.Equal(t, "removed", info.State)
	require.True(t, info.Retired[0].Holders[0].Revoked, "this process lives, and nobody knows what it has mapped")
	require.Less(t, storeSets(s), held, "the store has given up the descriptors")
	require.Equal(t, uint64(2), put(t, c, dev, "x", 2).Version, "numbers are not used again")
}

// A reader said goodbye just before its name was removed, and the keeper had not read it yet:
// the reader is no holder, although its process lives.
func TestReaderLeavesBeforeRemove(t *testing.T) {
	open := make(chan bool)
	goOn := sync.OnceFunc(func() { close(open) })
	var deaf atomic.Bool // the keeper does not read what the reader sends
	testHookStep = func(step string) {
		if step == share.Mapped.String() && deaf.Load() {
			<-open
		}
	}
	t.Cleanup(func() { testHookStep = func(string) {} })
	s, c, dev := kept(t)
	defer goOn()
	put(t, c, dev, "x", 1)
	deaf.Store(true)
	att := ok(share.Attach(soon(t), s.opts.Socket, "x", dev, nil))(t)
	eventually(t, c, "x", func(i api.Info) bool { return len(i.Holders) == 1 })
	require.NoError(t, att.Close())
	require.NoError(t, c.Remove(soon(t), "x"))
	require.Equal(t, "removed", stat(t, c, "x").State)
	goOn()
	require.Eventually(t, func() bool { _, err := c.Stat(soon(t), "x"); return err != nil }, waitLong, waitStep)
}

// storeSets returns how many sets of descriptors the store has.
func storeSets(s *Server) int {
	hold(s)
	defer s.finish()
	return len(s.vault.files)
}

// A version that was replaced stays while somebody has it, and goes then.
func TestRetiredVersionGoes(t *testing.T) {
	s, c, dev := kept(t)
	put(t, c, dev, "x", 1)
	all := attach(t, c, dev, "x")
	put(t, c, dev, "x", 2)
	info := stat(t, c, "x")
	require.Len(t, info.Retired, 1)
	require.Equal(t, uint64(1), info.Retired[0].Version)
	require.Len(t, info.Retired[0].Holders, 1)
	requireBytes(t, all[0], 1)
	<-all[0].Superseded()
	letGoOf(t, all)
	eventually(t, c, "x", func(i api.Info) bool { return len(i.Retired) == 0 })
	awaitOffers(t, s, 1)
}

func TestDrain(t *testing.T) {
	_, c, dev := kept(t)
	put(t, c, dev, "x", 1)
	all := attach(t, c, dev, "x")
	for name, do := range map[string]struct{ drain, undrain func() error }{
		"name":   {func() error { return c.Drain(soon(t), "x") }, func() error { return c.Undrain(soon(t), "x") }},
		"device": {func() error { return c.DrainDevice(soon(t), dev.UUID()) }, func() error { return c.UndrainDevice(soon(t), dev.UUID()) }},
	} {
		t.Run(name, func(t *testing.T) {
			require.NoError(t, do.drain())
			require.Equal(t, keeper.DrainNotice, string(<-all[0].Notices()))
			require.Equal(t, "draining", stat(t, c, "x").State)
			require.ErrorIs(t, errOf(keeper.Attach(soon(t), dev.Driver(), c.Client, "x", keeper.Want{})), share.ErrRefused)
			require.NoError(t, do.undrain())
			attach(t, c, dev, "x")
		})
	}
	requireCode(t, "not-found", c.Drain(soon(t), "y"))
}

func TestWatch(t *testing.T) {
	s, c, dev := kept(t)
	watcher := dialled(t, s.opts.Socket)
	events := make(chan api.Event, 16)
	ended := make(chan error, 1)
	ctx, cancel := context.WithCancel(soon(t))
	go func() {
		ended <- watcher.Watch(ctx, "x", func(e api.Event) bool { events <- e; return e.Kind != "removed" })
	}()
	watching := func(n int) func() bool {
		return func() bool {
			s.mu.Lock()
			defer s.mu.Unlock()
			return len(s.watchers) == n
		}
	}
	require.Eventually(t, watching(1), waitLong, waitStep)
	put(t, c, dev, "y", 1)
	put(t, c, dev, "x", 1)
	require.NoError(t, errOf(c.Report(soon(t), "x", 1, 0, "damaged", "bits")))
	require.NoError(t, c.Drain(soon(t), "x"))
	require.NoError(t, c.Remove(soon(t), "x"))
	for _, kind := range []string{"committed", "damaged", "draining", "removed"} {
		e := <-events
		require.Equal(t, kind, e.Kind)
		require.Equal(t, "x", e.Name)
	}
	require.NoError(t, <-ended)
	require.NoError(t, errOf(watcher.Status(ctx)), "the client asks over another connection")
	go func() { ended <- watcher.Watch(ctx, "", func(api.Event) bool { return true }) }()
	require.Eventually(t, watching(1), waitLong, waitStep)
	cancel()
	require.ErrorIs(t, <-ended, context.Canceled)
	require.Eventually(t, watching(0), waitLong, waitStep)
	require.NoError(t, s.Close())
	require.NotContains(t, fmt.Sprint(scraped(s)), "refusals", "a watcher that leaves is not refused")
}

// Bytes that were changed behind the keeper's back are found by their digest. A part that a
// process with the right to write reports is served no more.
func TestFault89_BytesChangedBehindTheKeepersBack(t *testing.T) {
	s, c, dev := kept(t)
	put(t, c, dev, "x", 1)
	reader := attach(t, c, dev, "x")[0]
	all := ok(keeper.Attach(soon(t), dev.Driver(), c.Client, "x", keeper.Want{Part: new(0), Access: cu.ReadWrite}))(t)
	eventually(t, c, "x", func(i api.Info) bool { return len(i.Holders) == 2 })
	primary := ok(dev.PrimaryContext())(t)
	require.NoError(t, cu.CopyToDevice(primary, all[0].Ptr()+1, []byte{0xff}))
	require.NoError(t, primary.Close())
	letGoOf(t, all)

	digest := ok(reader.Digest(soon(t)))(t)
	require.NotEqual(t, reader.Data.Digest, digest)
	counted := ok(c.Report(soon(t), "x", 1, 0, "damaged", "its digest is "+digest))(t)
	require.True(t, counted)
	info := stat(t, c, "x")
	require.Equal(t, "damaged", info.State)
	require.Contains(t, info.Parts[0].Reason, digest)
	<-reader.Done()
	_, err := keeper.Attach(soon(t), dev.Driver(), c.Client, "x", keeper.Want{})
	requireCode(t, "damaged", err)
	require.ErrorIs(t, errOf(share.Attach(soon(t), s.opts.Socket, "x", dev, nil)), share.ErrRefused)
	_, err = c.Report(soon(t), "x", 1, 0, "ok", "")
	requireCode(t, "damaged", err)
	require.Equal(t, "damaged", stat(t, c, "x").State, "for good")
	put(t, c, dev, "x", 2)
	requireBytes(t, attach(t, c, dev, "x")[0], 2)
}

func number[T any](n T) *T { return &n }

// If a reader cannot map a part as its writer declared it, the part is quarantined. Clients that
// ask then are told which process wrote it, also when that has ended.
func TestPartThatIsNotAsDeclared(t *testing.T) {
	s, c, dev := kept(t)
	b := bookingOf(t, c, dev, small)
	d, files := exported(t, dev)
	m := protocol.Describe(d)
	m.ChunkSize *= 2
	require.NoError(t, errOf(b.Deliver(soon(t), protocol.Delivery{Memory: m, Files: files, Digest: "gpufd-d1:" + strings.Repeat("0", 32)})))
	require.ErrorIs(t, errOf(keeper.Attach(soon(t), dev.Driver(), c.Client, "booked", keeper.Want{})), vmm.ErrDescriptor)
	_, err := keeper.Attach(soon(t), dev.Driver(), c.Client, "booked", keeper.Want{})
	no := requireCode(t, "quarantined", err)
	require.Contains(t, no.Message, "chunk size")
	require.Contains(t, no.Message, fmt.Sprintf("process %d of uid %d wrote it", os.Getpid(), os.Getuid()))
	require.Equal(t, int32(os.Getpid()), no.Holders[0].PID)

	require.NoError(t, s.mutate(func(st *state.State) error {
		for _, id := range st.Pidfds() {
			st.Fence(id)
		}
		return nil
	}))
	p := stat(t, c, "booked").Parts[0]
	require.Empty(t, p.WritableBy)
	require.True(t, p.Writer.Fenced)
	require.Equal(t, int32(os.Getpid()), p.Writer.PID)
}

// limited opens a keeper with another policy, in the place of the one that has the socket.
func limited(t testing.TB, s *Server, rules ...state.Rule) *client {
	t.Helper()
	require.NoError(t, s.Close())
	opts := options(s.opts.Socket)
	opts.Policy.Rules = rules
	return dialled(t, opened(t, opts).opts.Socket)
}

// A reader without the right to write may neither lease for writing nor stop the service of a
// part: its reports are counted and shown.
//
//fault:rows 89
func TestReaderMayNotWrite(t *testing.T) {
	s, c, dev := kept(t)
	put(t, c, dev, "ro-x", 1)
	put(t, c, dev, "hidden", 1)
	me := uint32(os.Geteuid())
	c = limited(t, s, state.Rule{UID: &me, Prefix: "ro-", Allow: []state.Right{state.Read}}, state.Rule{UID: &me, Prefix: "hidden", Allow: []state.Right{}})
	requireBytes(t, attach(t, c, dev, "ro-x")[0], 1)
	require.ErrorIs(t, errOf(keeper.Attach(soon(t), dev.Driver(), c.Client, "ro-x", keeper.Want{Part: new(0), Access: cu.ReadWrite})), share.ErrRefused)
	counted := ok(c.Report(soon(t), "ro-x", 1, 0, "damaged", ""))(t)
	require.False(t, counted)
	info := stat(t, c, "ro-x")
	require.Equal(t, "ok", info.State)
	require.Equal(t, 1, info.Parts[0].Reports)
	_, err := c.Put(soon(t), keeper.Put{Name: "ro-x"}, part(0, dev, 2))
	requireCode(t, "denied", err)
	requireCode(t, "denied", c.Remove(soon(t), "ro-x"))
	requireCode(t, "denied", c.Drain(soon(t), "ro-x"))
	_, err = c.Stat(soon(t), "hidden")
	requireCode(t, "denied", err)
	require.ErrorIs(t, errOf(share.Attach(soon(t), s.opts.Socket, "hidden", dev, nil)), share.ErrRefused)
	names := ok(c.List(soon(t)))(t)
	require.Len(t, names, 1)
	offers := ok(share.List(soon(t), s.opts.Socket, nil))(t)
	require.Len(t, offers, 1)
}

func TestQuotas(t *testing.T) {
	s, _, dev := kept(t)
	me := uint32(os.Geteuid())
	c := limited(t, s, state.Rule{UID: &me, Prefix: "q-", Allow: []state.Right{state.Read, state.Write, state.Remove},
		Bytes: number(uint64(3 * small)), Names: number(2), Leases: number(1)})
	put(t, c, dev, "q-a", 1)
	put(t, c, dev, "q-b", 1)
	_, err := c.Put(soon(t), keeper.Put{Name: "q-c"}, part(0, dev, 1))
	no := requireCode(t, "quota", err)
	require.NotEmpty(t, no.Holders, "who has the room")
	big := part(0, dev, 1)
	big.Size = 2 * small
	_, err = c.Put(soon(t), keeper.Put{Name: "q-a"}, big)
	requireCode(t, "quota", err)
	require.NoError(t, c.Remove(soon(t), "q-b"))
	require.NoError(t, errOf(c.Put(soon(t), keeper.Put{Name: "q-a"}, big)))

	all := attach(t, c, dev, "q-a")
	eventually(t, c, "q-a", func(i api.Info) bool { return len(i.Holders) == 1 })
	require.ErrorIs(t, errOf(keeper.Attach(soon(t), dev.Driver(), c.Client, "q-a", keeper.Want{})), share.ErrRefused)
	letGoOf(t, all)
	eventually(t, c, "q-a", func(i api.Info) bool { return len(i.Holders) == 0 })
	attach(t, c, dev, "q-a")
}
