package server

import (
	"context"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/cutest"
	"github.com/gpufd/gpufd/keeper"
	"github.com/gpufd/gpufd/keeper/api"
	"github.com/gpufd/gpufd/keeper/internal/protocol"
	"github.com/gpufd/gpufd/keeper/internal/state"
	"github.com/gpufd/gpufd/share"
	"github.com/gpufd/gpufd/sock"
)

// A pause stops the first change that ends an offer, after the store's answer.
type pause struct {
	server  atomic.Pointer[Server] // that makes the change
	reached chan bool
	attach  chan bool // a reader comes
	goOn    func()
}

func newPause(t *testing.T, relay *storeRelay) *pause {
	open := make(chan bool)
	p := &pause{reached: make(chan bool, 1), attach: make(chan bool, 1), goOn: sync.OnceFunc(func() { close(open) })}
	testHookStep = func(step string) {
		if step == "attach" {
			select {
			case p.attach <- true:
			default:
			}
		}
	}
	t.Cleanup(func() { testHookStep = func(string) {} })
	relay.call(func(step string, _ *sock.Conn) {
		if s := p.server.Load(); step == "swapped" && s != nil && s.leaves() > 0 && p.server.CompareAndSwap(s, nil) {
			p.reached <- true
			<-open
		}
	})
	return p
}

// holdLong holds a keeper's changeLock for longer than a store may take, until finish.
func holdLong(t *testing.T, s *Server) (finish func()) {
	t.Helper()
	hold(s)
	require.Eventually(t, s.changeLock.heldLong, waitLong, waitStep)
	return sync.OnceFunc(s.finish)
}

// A keeper whose store does not answer serves readers, and its successor could not: it does
// not yield.
//
//fault:rows 88
func TestNoYieldWithAStoppedStore(t *testing.T) {
	s, c, _, _ := hastyKeeper(t, time.Second)
	finish := holdLong(t, s)
	defer finish()
	requireCode(t, string(api.StoreSilent), c.Yield(soon(t)))
	_, err := servedManifest(soon(t), c.conn())
	requireCode(t, string(api.StoreSilent), err)
	finish()
	require.NoError(t, s.Err())
	require.NoError(t, c.Yield(soon(t)))
	<-s.Done()
	require.ErrorIs(t, s.Err(), ErrYielded)
}

// A change that goes on after its keeper has taken the offers, to end them, makes no others, and
// is not lost.
func TestChangeOutlastsTheOffers(t *testing.T) {
	socket := newSocket(t)
	p := newPause(t, relayStore(t, socket))
	var ends atomic.Bool
	taken, goEnd := make(chan bool), make(chan bool)
	paused := testHookStep
	testHookStep = func(step string) {
		paused(step)
		if step == "offers taken" && ends.CompareAndSwap(true, false) {
			taken <- true
			<-goEnd
		}
	}
	s, c, dev, lines := hastyKeeperAt(t, socket, 20*time.Second)
	defer p.goOn()
	p.server.Store(s)
	go func() { _, _ = c.Put(soon(t), keeper.Put{Name: "a"}, part(0, dev, 2)) }() // it may fail with the end of the keeper
	<-p.reached
	ends.Store(true)
	closed := make(chan error, 1)
	go func() { closed <- s.Close() }()
	<-taken
	p.goOn()
	s.changeLock.taken <- struct{}{} // the change has ended
	<-s.changeLock.taken
	s.mu.Lock()
	offers, resumable := s.offers, s.resumable
	s.mu.Unlock()
	close(goEnd)
	require.NoError(t, <-closed)
	require.Nil(t, offers)
	require.Nil(t, resumable)
	require.NotContains(t, lines.text(), "cannot be offered")
	opened(t, s.opts)
	requireBytes(t, attach(t, dialled(t, s.opts.Socket), dev, "a")[0], 2)
}

// A reader that waits for a change gets the new version also if the keeper is asked to end
// meanwhile.
func TestReaderWaitsWhileTheKeeperEnds(t *testing.T) {
	socket := newSocket(t)
	p := newPause(t, relayStore(t, socket))
	s, c, dev, _ := hastyKeeperAt(t, socket, 20*time.Second)
	defer p.goOn()
	s.patience = waitLong
	p.server.Store(s)
	go func() { _, _ = c.Put(soon(t), keeper.Put{Name: "a"}, part(0, dev, 2)) }()
	<-p.reached
	type result struct {
		att *share.Attachment
		err error
	}
	got := make(chan result, 1)
	before := s.metrics.all()[countAttached]
	go func() {
		att, err := share.Attach(soon(t), s.opts.Socket, "a", dev, nil)
		got <- result{att, err}
	}()
	<-p.attach
	closed := make(chan error, 1)
	go func() { closed <- s.Close() }()
	<-s.Done()
	p.goOn()
	r := <-got
	require.NoError(t, r.err)
	require.Equal(t, uint64(2), dataOf(t, r.att).Version)
	require.NoError(t, r.att.Close())
	require.NoError(t, <-closed)
	require.Equal(t, before+1, s.metrics.all()[countAttached], "by the keeper that ended")
}

// A writer that was told that the store is silent asks again with its ticket, and is told the
// version that its first delivery has made.
//
//fault:rows 88 91
func TestDeliverAgainAfterSilence(t *testing.T) {
	socket := newSocket(t)
	p := newPause(t, relayStore(t, socket))
	s, c, dev, _ := hastyKeeperAt(t, socket, time.Second)
	defer p.goOn()
	p.server.Store(s)
	b := ok(c.book(soon(t), keeper.Put{Name: "a", Parts: 1}, part(0, dev, 2), "tx"))(t)
	d, files := exported(t, dev)
	_, err := b.Deliver(soon(t), protocol.Delivery{Memory: protocol.Describe(d), Files: files, Digest: "gpufd-d1:00000000000000000000000000000000"})
	requireCode(t, string(api.Unknown), err)
	again := protocol.Request{Op: protocol.OpDeliver, Ticket: b.Ticket}
	_, err = c.conn().Ask(soon(t), again)
	requireCode(t, string(api.StoreSilent), err)
	require.Positive(t, taken(s.received))

	p.goOn()
	a := ok(c.conn().Ask(soon(t), again))(t)
	require.Equal(t, uint64(2), a.Version)
	require.Zero(t, taken(s.received))
	waited := delivery{booking: state.Booking{By: state.Writer{Who: s.self()}}} // it waited for changeLock, after the first
	version, _, err := s.keep(again, waited)
	require.NoError(t, err)
	require.Equal(t, uint64(2), version)
	require.ErrorIs(t, errOf(s.renew(b.Ticket, s.self(), time.Hour)), errDelivered)
	require.NoError(t, b.Renew(soon(t)))
	require.Equal(t, uint64(2), b.Came.Version)
	require.Equal(t, uint64(2), stat(t, c, "a").Version)
}

// taken returns how many places are taken.
func taken(p *places) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.taken
}

// A reader that asks why it was refused is told of a silent store only if that is the reason: not
// of a change that takes a moment, and not of one that ends other offers.
//
//fault:rows 88
func TestLeaseWhileOthersLeave(t *testing.T) {
	s, c, _, _ := hastyKeeper(t, time.Second)
	asks := func() error {
		_, err := c.conn().Query(soon(t), protocol.Request{Op: protocol.OpLease, Name: "a", Access: cu.ReadOnly.String()})
		return err
	}
	leave := func(of *offer) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.leaving = map[*offer]bool{of: true}
	}
	s.mu.Lock()
	current := s.offers["a"]
	s.mu.Unlock()
	leave(current)
	require.NoError(t, asks(), "no change takes long")
	finish := holdLong(t, s)
	defer finish()
	leave(current) // a change may have come between
	requireCode(t, string(api.StoreSilent), asks())
	leave(&offer{name: "a", as: "a"}) // one of a retired version
	require.NoError(t, asks())
	s.mu.Lock()
	s.leaving = nil
	s.mu.Unlock()
}

// A deciding context calls decide when somebody begins to wait for it.
type deciding struct {
	context.Context
	decide func()
}

func (d deciding) Done() <-chan struct{} {
	d.decide()
	return d.Context.Done()
}

// A reader whose time is over at the moment when its offer is decided gets that offer.
func TestDecidedAtTheLastMoment(t *testing.T) {
	old, next := &offer{version: 1}, &offer{version: 2}
	now := old
	s := &Server{vault: &vault{}, leaving: map[*offer]bool{old: true}, left: make(chan struct{})}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	s.mu.Lock()
	defer s.mu.Unlock()
	of := ok(s.await(deciding{ctx, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		now = next
		s.stay()
		cancel()
	}}, func() *offer { return now }))(t)
	require.Equal(t, next, of)
}

// Nobody gets a version that ends since the last process that might have come back for it
// has died, and no manifest says that yet.
func TestDeadReadersVersionLeaves(t *testing.T) {
	var leaves atomic.Int64
	dev, socket := cutest.Device(t), newSocket(t)
	relay := relayStore(t, socket)
	s := opened(t, options(socket))
	c := dialled(t, socket)
	put(t, c, dev, "x", 1)
	attach(t, c, dev, "x")
	put(t, c, dev, "x", 2)
	require.NoError(t, s.Close())
	opts := s.opts
	opts.Grace = time.Hour
	s = opened(t, opts)
	hold(s)
	defer s.finish()
	require.Len(t, s.resumable, 1)
	s.state.Holds(func(_ state.HoldID, _ string, h state.Holder) { s.dead[h.Pidfd] = true })
	relay.call(func(step string, _ *sock.Conn) {
		if step == "swap" {
			leaves.Store(int64(s.leaves()))
		}
	})
	require.NoError(t, s.commit(s.state.Clone()))
	require.Equal(t, int64(1), leaves.Load())
	require.Empty(t, s.resumable)
}

// A reader that was admitted before a version was dropped, and gets its lease after that, is
// shown until it says goodbye.
func TestLeaseOfADroppedVersion(t *testing.T) {
	leases, dropped := make(chan bool), make(chan bool)
	var once sync.Once
	testHookStep = func(step string) {
		if step == "lease" {
			once.Do(func() {
				leases <- true
				<-dropped
			})
		}
	}
	t.Cleanup(func() { testHookStep = func(string) {} })
	s, c, dev := kept(t)
	put(t, c, dev, "x", 1)
	taken := make(chan *share.Attachment, 1)
	go func() {
		a, err := share.Attach(soon(t), s.opts.Socket, "x", dev, nil)
		if err != nil {
			t.Error(err)
		}
		taken <- a
	}()
	<-leases
	put(t, c, dev, "x", 2)
	require.Empty(t, stat(t, c, "x").Retired)
	close(dropped)
	a := <-taken
	info := eventually(t, c, "x", func(i api.Info) bool { return len(i.Retired) == 1 })
	require.True(t, info.Retired[0].Gone)
	require.Equal(t, uint64(1), info.Retired[0].Version)
	require.Equal(t, uint64(small), info.Retired[0].Bytes)
	require.Equal(t, int32(os.Getpid()), info.Retired[0].Holders[0].PID)
	require.NoError(t, a.Close())
	eventually(t, c, "x", func(i api.Info) bool { return len(i.Retired) == 0 })
}

// A store that was killed does not answer again.
//
//fault:rows 88
func TestStoppedStoreIsKilled(t *testing.T) {
	s, c, _, lines := hastyKeeper(t, time.Second)
	pid := s.Status().Store
	stop(t, pid)
	requireCode(t, string(api.Unknown), c.Remove(soon(t), "a"))
	lines.await(t, "has not answered for 1s") // which a timer of its own logs
	require.NoError(t, unix.Kill(pid, unix.SIGKILL))
	lines.await(t, "holds everything")
	require.NotContains(t, lines.text(), "answers again")
}
