package server

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/cutest"
	"github.com/gpufd/gpufd/internal/wire"
	"github.com/gpufd/gpufd/keeper"
	"github.com/gpufd/gpufd/keeper/api"
	"github.com/gpufd/gpufd/keeper/internal/protocol"
	"github.com/gpufd/gpufd/keeper/internal/state"
	"github.com/gpufd/gpufd/share"
	"github.com/gpufd/gpufd/sock"
	"github.com/gpufd/gpufd/vmm"
)

// reopened is the keeper that follows another one, with changed options, and a client of it.
func reopened(t *testing.T, s *Server, change func(*Options)) (*Server, *client) {
	t.Helper()
	require.NoError(t, s.Close())
	opts := s.opts
	change(&opts)
	next := opened(t, opts)
	return next, dialled(t, opts.Socket)
}

// requireParked requires that a version is parked, or is not.
func requireParked(t *testing.T, c *client, name string, parked bool) {
	t.Helper()
	require.Equal(t, parked, stat(t, c, name).ParkedBytes > 0)
}

// A keeper that starts finds what is parked. A reader that resumes while it is detached does not bring it back, and one
// that reattaches does.
func TestParkedAcrossKeepers(t *testing.T) {
	s, c, dev := pooled(t, 1)
	put(t, c, dev, "x", 5)
	a := attached(t, s, dev, "x")
	at := a.Ptr()
	require.True(t, ok(a.Detach(soon(t), 0))(t))
	require.Positive(t, ok(c.Park(soon(t), "x", 0))(t).Bytes)

	s, c = reopened(t, s, func(*Options) {})
	<-a.Done()
	requireParked(t, c, "x", true)
	resumeDetached(t, s, dev, a.Offer().Descriptor.Generation)
	h := eventually(t, c, "x", func(n api.Info) bool { return len(n.Holders) == 1 && !n.Holders[0].Lost && n.Holders[0].Detached }).Holders[0]
	require.Equal(t, int32(os.Getpid()), h.PID)
	requireParked(t, c, "x", true)
	again := ok(a.Reattach(soon(t), share.Same))(t)
	require.Equal(t, at, again.Ptr())
	requireParked(t, c, "x", false)
	j := ok(newJudge(dev))(t)
	require.NoError(t, j.check(again, dataOf(t, again), 5))
	require.NoError(t, j.close())
	require.NoError(t, again.Close())
}

// A detached lease that was lost with its keeper is not in the way of parking, and its reader gets the memory again.
func TestParkWhileADetachedReaderIsLost(t *testing.T) {
	s, c, dev := pooled(t, 1)
	put(t, c, dev, "x", 5)
	a := attached(t, s, dev, "x")
	require.True(t, ok(a.Detach(soon(t), 0))(t))
	eventually(t, c, "x", func(n api.Info) bool { return len(n.Holders) == 1 && n.Holders[0].Detached })
	_, c = reopened(t, s, func(*Options) {})
	require.True(t, eventually(t, c, "x", func(n api.Info) bool { return len(n.Holders) == 1 }).Holders[0].Lost)
	require.Positive(t, ok(c.Park(soon(t), "x", 0))(t).Bytes)
	<-a.Done()
	again := ok(a.Reattach(soon(t), share.Same))(t)
	requireParked(t, c, "x", false)
	require.NoError(t, again.Close())
}

// resumeDetached is a connection that resumes a lease, and says that it has detached, until the test ends.
func resumeDetached(t *testing.T, s *Server, dev *cu.Device, generation uint64) {
	t.Helper()
	conn := ok(sock.Dial(soon(t), s.opts.Socket))(t)
	t.Cleanup(func() { require.NoError(t, conn.Close()) })
	say := func(m wire.Message) { require.NoError(t, conn.Send(soon(t), wire.Encode(m))) }
	say(wire.Attach{Driver: dev.Driver().Kind(), Access: cu.ReadOnly, Name: "x", Resume: generation, Process: wire.Process{Told: true}})
	rec := ok(conn.Receive(soon(t)))(t)
	require.Empty(t, rec.Files)
	require.IsType(t, wire.Offer{}, ok(wire.Decode(rec.Data))(t))
	say(wire.Mapped{Generation: generation})
	say(wire.Detached{})
}

// A parked version that is replaced meanwhile stays for its detached reader, which gets it, or the newest. Nobody else
// brings it back. Its chunks are free when it goes.
func TestParkedVersionIsReplaced(t *testing.T) {
	s, c, dev := pooled(t, 2)
	put(t, c, dev, "x", 1)
	a := attached(t, s, dev, "x")
	other := attached(t, s, dev, "x")
	for _, r := range []*share.Attachment{a, other} {
		require.True(t, ok(r.Detach(soon(t), 0))(t))
	}
	require.Positive(t, ok(c.Park(soon(t), "x", 0))(t).Bytes)
	put(t, c, dev, "x", 2)
	<-a.Superseded()
	requireBytes(t, attach(t, c, dev, "x")[0], 2)
	n := stat(t, c, "x")
	require.True(t, n.Retired[0].Parts[0].Parked)
	require.Equal(t, uint64(small), n.ParkedBytes)

	newest := ok(other.Reattach(soon(t), share.Newest))(t)
	j := ok(newJudge(dev))(t)
	require.NoError(t, j.check(newest, dataOf(t, newest), 2))
	require.NoError(t, newest.Close())
	require.Equal(t, uint64(small), stat(t, c, "x").ParkedBytes)

	same := ok(a.Reattach(soon(t), share.Same))(t)
	require.Equal(t, uint64(1), dataOf(t, same).Version)
	require.NoError(t, j.check(same, dataOf(t, same), 1))
	require.NoError(t, j.close())
	requireParked(t, c, "x", false)
	require.True(t, ok(same.Detach(soon(t), 0))(t))
	require.NoError(t, same.Close())
	eventually(t, c, "x", func(n api.Info) bool { return len(n.Retired) == 0 })
	require.Equal(t, uint64(2*granule), ok(c.Status(soon(t)))(t).Pool.Free)

	eventually(t, c, "x", func(n api.Info) bool { return len(n.Holders) == 1 }) // attach's, of this test
}

// A reader that follows a name does not bring back what it has already, and gets what comes.
func TestFollowerOfAParkedVersion(t *testing.T) {
	s, c, dev := pooled(t, 1)
	put(t, c, dev, "x", 1)
	a := attached(t, s, dev, "x")
	generation := a.Offer().Descriptor.Generation
	require.NoError(t, a.Close())
	eventually(t, c, "x", func(n api.Info) bool { return len(n.Holders) == 0 })
	require.Positive(t, ok(c.Park(soon(t), "x", 0))(t).Bytes)
	ctx, cancel := context.WithTimeout(soon(t), 100*time.Millisecond)
	defer cancel()
	require.Error(t, errOf(share.Attach(ctx, s.opts.Socket, "x", dev, &share.AttachOptions{NewerThan: generation, Wait: true})))
	_, err := share.List(soon(t), s.opts.Socket, nil)
	require.NoError(t, err)
	requireParked(t, c, "x", true)
}

// If a version cannot be brought back, its readers hear why, and it stays where it is.
func TestUnparkFails(t *testing.T) {
	s, c, dev := pooled(t, 1)
	put(t, c, dev, "x", 1)
	require.Positive(t, ok(c.Park(soon(t), "x", 0))(t).Bytes)
	s, c = reopened(t, s, func(o *Options) { o.Mover = []string{"/bin/sh", "-c", "echo no such luck >&2; exit 3"} })
	_, err := share.Attach(soon(t), s.opts.Socket, "x", dev, nil)
	require.ErrorIs(t, err, share.ErrBusy)
	require.ErrorContains(t, err, "no such luck")
	requireCode(t, "failed", errOf(c.Unpark(soon(t), "x", 0)))
	requireParked(t, c, "x", true)
	_, c = reopened(t, s, func(o *Options) { o.Mover = options("").Mover })
	requireBytes(t, attach(t, c, dev, "x")[0], 1)
}

// A part whose bytes have changed in memory of the host is damaged: it stays there, and is not served.
func TestParkedBytesAreDamaged(t *testing.T) {
	s, c, dev := pooled(t, 1)
	put(t, c, dev, "x", 1)
	require.Positive(t, ok(c.Park(soon(t), "x", 0))(t).Bytes)
	hold(s)
	files := ok(s.vault.fetch(uint64(chunksOf(s)[0].ID)))(t)
	s.finish()
	scribble(t, dev, files[0])
	sock.DropFiles(files)
	requireCode(t, "damaged", errOf(c.Unpark(soon(t), "x", 0)))
	n := stat(t, c, "x")
	require.Equal(t, "damaged", n.State)
	require.Contains(t, n.Parts[0].Reason, "its digest is gpufd-d1:")
	requireParked(t, c, "x", true)
	require.ErrorIs(t, errOf(share.Attach(soon(t), s.opts.Socket, "x", dev, nil)), share.ErrRefused)
	require.Zero(t, ok(c.Unpark(soon(t), "x", 0))(t).Bytes)
	put(t, c, dev, "x", 2)
	require.Equal(t, uint64(granule), ok(c.Status(soon(t)))(t).Pool.Free)
}

// scribble changes a byte of memory of the host.
func scribble(t *testing.T, dev *cu.Device, f *os.File) {
	t.Helper()
	a := ok(vmm.ImportHost(dev.Driver(), f, granule))(t)
	r := ok(vmm.Reserve(dev.Driver(), granule))(t)
	m := ok(r.Map(0, a))(t)
	require.NoError(t, m.SetHostAccess(cu.ReadWrite))
	m.HostBytes()[100] ^= 1
	require.NoError(t, m.Close())
	require.NoError(t, r.Close())
	require.NoError(t, a.Close())
}

// A version whose bytes are not what its writer declared is not parked.
func TestDamagedOnItsDevice(t *testing.T) {
	s, c, dev := pooled(t, 1)
	d, files := exported(t, dev)
	b := bookingOf(t, c, dev, d.Size)
	require.NoError(t, errOf(b.Deliver(soon(t), protocol.Delivery{Memory: protocol.Describe(d), Files: files, Digest: "gpufd-d1:" + strings.Repeat("0", 32)})))
	requireCode(t, "damaged", errOf(c.Park(soon(t), "booked", 0)))
	require.Equal(t, "damaged", stat(t, c, "booked").State)
	requireParked(t, c, "booked", false)
	require.Equal(t, 1, len(freeChunks(s)))
}

// All parts of a version move together, each to its own device, and what does not fit is refused before anything moves.
func TestParkParts(t *testing.T) {
	s, c, _ := pooled(t, shards)
	devs := spread(cutest.Driver(t))
	var parts []keeper.Part
	for i, dev := range devs {
		parts = append(parts, part(i, dev, byte(i)))
	}
	require.NoError(t, errOf(c.Put(soon(t), keeper.Put{Name: "x", Parts: shards}, parts...)))
	require.Equal(t, uint64(shards*small), ok(c.Park(soon(t), "x", 0))(t).Bytes)
	for _, p := range stat(t, c, "x").Parts {
		require.True(t, p.Parked)
	}
	put(t, c, devs[0], "y", 9)
	requireCode(t, "no-room", errOf(c.Park(soon(t), "y", 0)))
	for i, a := range attach(t, c, devs[0], "x") {
		requireBytes(t, a, byte(i))
	}
	require.Equal(t, shards, len(freeChunks(s)))
}

// A user that may write a name may park it; a reader brings it back, and no more.
func TestRightToPark(t *testing.T) {
	s, c, dev := pooled(t, 1)
	put(t, c, dev, "ro-x", 1)
	require.Positive(t, ok(c.Park(soon(t), "ro-x", 0))(t).Bytes)
	me := uint32(os.Geteuid())
	s, c = reopened(t, s, func(o *Options) {
		o.Policy.Rules = []state.Rule{{UID: &me, Prefix: "ro-", Allow: []state.Right{state.Read}}}
	})
	requireCode(t, "denied", errOf(c.Park(soon(t), "ro-x", 0)))
	requireCode(t, "denied", errOf(c.Unpark(soon(t), "ro-x", 0)))
	requireBytes(t, attach(t, c, dev, "ro-x")[0], 1)
	requireCode(t, "not-found", errOf(reopenedOwn(t, s).Park(soon(t), "none", 0)))
}

// reopenedOwn is a client of the keeper that follows another one, without rules.
func reopenedOwn(t *testing.T, s *Server) *client {
	t.Helper()
	_, c := reopened(t, s, func(o *Options) { o.Policy.Rules = nil })
	return c
}

// The pool is made while readers are served. It outlives its keeper, grows and shrinks, and what is parked stays.
func TestParkPool(t *testing.T) {
	s, c, dev := pooled(t, 3)
	put(t, c, dev, "x", 1)
	require.Positive(t, ok(c.Park(soon(t), "x", 0))(t).Bytes)
	taken := chunksOf(s)[0]
	for _, step := range []struct{ want, bytes uint64 }{{5, 5}, {2, 2}, {0, 1}, {1, 1}} {
		before := chunksOf(s)
		s, c = reopened(t, s, func(o *Options) { o.Pool = step.want * granule })
		require.Eventually(t, func() bool {
			p := ok(c.Status(soon(t)))(t).Pool
			return p.Bytes == step.bytes*granule && p.Free == (step.bytes-1)*granule
		}, waitLong, waitStep, "%d", step.want)
		require.Contains(t, chunksOf(s), taken)
		if now := chunksOf(s); len(now) < len(before) {
			require.Subset(t, before, now, "none is made anew")
		}
	}
	requireBytes(t, attach(t, c, dev, "x")[0], 1)
	_, c = reopened(t, s, func(o *Options) { o.Pool = 0 })
	require.Eventually(t, func() bool { return ok(c.Status(soon(t)))(t).Pool == nil }, waitLong, waitStep)
	no := requireCode(t, "no-room", errOf(c.Park(soon(t), "x", 0)))
	require.Contains(t, no.Message, "--park-pool")
}

// A pool that cannot be made is told to the operator, and to whoever parks.
func TestParkPoolFails(t *testing.T) {
	dev := cutest.Device(t)
	opts, log := options(newSocket(t)), newDiary()
	opts.Pool, opts.Log, opts.Mover = granule, log.log, []string{"/bin/sh", "-c", "echo no GPU here >&2; exit 3"}
	opened(t, opts)
	log.await(t, "no GPU here")
	c := dialled(t, opts.Socket)
	put(t, c, dev, "x", 1)
	require.Contains(t, requireCode(t, "no-room", errOf(c.Park(soon(t), "x", 0))).Message, "no GPU here")
	require.Contains(t, ok(c.Status(soon(t)))(t).Pool.Error, "no GPU here")
}

// Watchers hear of what moves, and metrics show it.
func TestParkingIsShown(t *testing.T) {
	s, c, dev := pooled(t, 2)
	put(t, c, dev, "x", 1)
	watcher := dialled(t, s.opts.Socket)
	events := make(chan api.Event, 10)
	ctx, cancel := context.WithCancel(soon(t))
	over := make(chan error, 1)
	go func() {
		over <- watcher.Watch(ctx, "x", func(e api.Event) bool {
			events <- e
			return true
		})
	}()
	require.Eventually(t, func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return len(s.watchers) == 1
	}, waitLong, waitStep)
	require.NoError(t, errOf(c.Park(soon(t), "x", 0)))
	require.Equal(t, "parked", (<-events).Kind)
	values := scraped(s)
	require.Equal(t, "4096", values["gpufd_keeper_parked_bytes"])
	require.Equal(t, "2097152", values[`gpufd_keeper_pool_bytes{state="free"}`])
	require.Equal(t, "2097152", values[`gpufd_keeper_pool_bytes{state="used"}`])
	require.NoError(t, errOf(c.Unpark(soon(t), "x", 0)))
	require.Equal(t, "unparked", (<-events).Kind)
	cancel()
	<-over
}

// A reader whose steps have less time than unparking takes waits nevertheless: it hears that the keeper is at work.
func TestReaderWaitsForALongUnparking(t *testing.T) {
	x, s, c, h := hooked(t)
	x.insist(c, c.Park)
	const step = 1500 * time.Millisecond
	var began time.Time
	h.once("unpark planned", func() {
		began = time.Now()
		time.Sleep(2 * step) // as a copy may take
	})
	a, err := share.Attach(soon(t), s.opts.Socket, keeper.OfferName(parkedName, 0, 2), x.dev, &share.AttachOptions{Timeout: step})
	require.NoError(t, err)
	require.GreaterOrEqual(t, time.Since(began), 2*step)
	require.NoError(t, a.Close())
}

// A reader that comes while a version is copied is served, and the version is not parked.
func TestReaderComesWhileParking(t *testing.T) {
	x, s, c, h := hooked(t)
	var a *share.Attachment
	h.once("park copied", func() {
		a = ok(share.Attach(soon(t), s.opts.Socket, keeper.OfferName(parkedName, 1, 2), x.dev, nil))(t)
	})
	no := requireCode(t, "conflict", errOf(c.Park(soon(t), parkedName, 0)))
	require.Equal(t, int32(os.Getpid()), no.Holders[0].PID)
	requireParked(t, c, parkedName, false)
	require.NoError(t, x.judge.check(a, dataOf(t, a), fillOf(1, 1)))
	require.NoError(t, a.Close())
	x.verify(c)
}

// A reader that comes while the store is asked to take a parked version waits, and has it brought back.
func TestReaderComesWhileParkingIsRecorded(t *testing.T) {
	socket := newSocket(t)
	store := relayStore(t, socket)
	opts := options(socket)
	opts.Pool = granule
	dev := cutest.Device(t)
	requireHostMemory(t, dev)
	came := make(chan struct{}, 1)
	h := hookSteps(t)
	s := opened(t, opts)
	c := dialled(t, socket)
	awaitPool(t, c)
	put(t, c, dev, "x", 7)

	got := make(chan error, 1)
	comes := onceAt("swap:1", func(*sock.Conn) {
		h.once("attach", func() { came <- struct{}{} })
		go func() {
			a, err := share.Attach(soon(t), socket, "x", dev, nil)
			if err == nil {
				err = a.Close()
			}
			got <- err
		}()
		<-came
	})
	h.once("park copied", func() { store.call(comes) })
	require.Positive(t, ok(c.Park(soon(t), "x", 0))(t).Bytes)
	require.NoError(t, <-got)
	store.call(nil)
	requireParked(t, c, "x", false)
	requireBytes(t, attach(t, c, dev, "x")[0], 7)
	require.Len(t, freeChunks(s), 1)
}
