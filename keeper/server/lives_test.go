package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/cutest"
	"github.com/gpufd/gpufd/internal/broker"
	"github.com/gpufd/gpufd/keeper"
	"github.com/gpufd/gpufd/keeper/api"
	"github.com/gpufd/gpufd/keeper/internal/protocol"
	"github.com/gpufd/gpufd/share"
	"github.com/gpufd/gpufd/sock"
)

func init() { children["writer"] = mortalWriter }

// mortalWriter puts a version with a part on each device, through a relay that may kill it.
func mortalWriter() error {
	cutest.ExpectLeaks()
	drv, err := cutest.Open()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	dies := mortalAt(os.Getenv(stepEnv))
	r := &relay{ctx: ctx, keeper: os.Getenv(socketEnv), reached: func(step string) error { dies(step); return nil }}
	socket := fmt.Sprintf("%s-%d", r.keeper, os.Getpid())
	l, err := sock.Listen(socket + protocol.ControlSuffix)
	if err != nil {
		return err
	}
	go r.serve(l)
	x := &trial{socket: socket, devs: spread(drv), ctx: ctx, acked: map[string]uint64{}}
	x.stamps.Store(int64(os.Getpid()))
	return errors.Join(x.write("shards"), l.Close())
}

// A relay stands between a client and the keeper's control socket, in the client's process, so that the keeper sees that
// process. It reports each exchange: "files asked" before a request is passed on, "files answered" before its reply is.
type relay struct {
	ctx     context.Context
	keeper  string
	reached func(step string) error // its error ends the connection
}

// serve relays connections until l is closed.
func (r *relay) serve(l *sock.Listener) {
	for {
		client, err := l.Accept(r.ctx)
		if err != nil {
			return
		}
		go func() {
			defer client.Close()
			keeper, err := sock.Dial(r.ctx, r.keeper+protocol.ControlSuffix)
			if err != nil {
				return
			}
			defer keeper.Close()
			for err == nil {
				err = r.exchange(client, keeper)
			}
		}()
	}
}

func (r *relay) exchange(client, keeper *sock.Conn) error {
	asked, text, err := r.read(client)
	if err != nil {
		return err
	}
	var q protocol.Request
	if err := json.Unmarshal(text, &q); err != nil {
		return err
	}
	if err := r.reached(q.Op + " asked"); err != nil {
		return errors.Join(err, closeAll(asked))
	}
	if err := r.pass(asked, keeper); err != nil {
		return err
	}
	answered, _, err := r.read(keeper)
	if err != nil {
		return err
	}
	if err := r.reached(q.Op + " answered"); err != nil {
		return errors.Join(err, closeAll(answered))
	}
	return r.pass(answered, client)
}

func closeAll(records []sock.Record) (err error) {
	for _, rec := range records {
		err = errors.Join(err, rec.Close())
	}
	return err
}

// read returns the records of a message, and its text.
func (r *relay) read(from *sock.Conn) (records []sock.Record, text []byte, err error) {
	for {
		rec, err := from.Receive(r.ctx)
		if err != nil {
			return nil, nil, err
		}
		records, text = append(records, rec), append(text, rec.Data[1:]...)
		if rec.Data[0] == protocol.PieceLast {
			return records, text, nil
		}
	}
}

func (r *relay) pass(records []sock.Record, to *sock.Conn) error {
	for _, rec := range records {
		if err := pass(r.ctx, rec, to); err != nil {
			return err
		}
	}
	return nil
}

// TestFault87_WriterDies: 8 devices (fewer on a GPU machine that has no more), 8 parts, one
// version after the other, and writers that are killed at each step. Readers see all parts of one version; what a dead
// writer had is given up, and nothing is booked.
func TestFault87_WriterDies(t *testing.T) {
	x := newTrial(t, newSocket(t), spread(cutest.Driver(t)), 4*time.Minute)
	x.judges = nil
	s := opened(t, options(x.socket))
	c := dialled(t, x.socket)
	require.NoError(t, x.write("shards"))
	for range 2 {
		x.goOn("reading", func() error { return x.readStamps("shards") })
	}
	version, steps := uint64(1), []string{
		"book answered:1", "book answered:8", "files asked:1", "files asked:8", "deliver asked:1", "deliver asked:8",
		"deliver answered:1", "deliver answered:7", "deliver answered:8", "", "deliver asked:4", "",
	}
	for n := range soak(len(steps), 2*len(steps)) {
		step := steps[n%len(steps)]
		cmd := cutest.Child(x.ctx, "writer", socketEnv+"="+x.socket, stepEnv+"="+step)
		cmd.Stderr = os.Stderr
		err := cmd.Run()
		if step == "" || step == "deliver answered:8" {
			version++
		}
		if step == "" {
			require.NoError(t, err)
		} else {
			require.ErrorContains(t, err, "killed", step)
		}
		info := eventually(t, c, "shards", func(i api.Info) bool {
			return len(i.Pending) == 0 && len(i.Parts[0].WritableBy) == boolInt(i.Version == 1)
		})
		require.Equal(t, version, info.Version, step)
		require.Zero(t, info.ReservedBytes)
	}
	x.stop()
	x.work.Wait()
	t.Logf("%d attaches", x.attaches.Load())
	require.Positive(t, x.attaches.Load())
	require.NoError(t, c.Remove(soon(t), "shards"))
	require.Eventually(t, func() bool { return storeSets(s) <= 3 }, waitLong, waitStep, "two sockets and this process are left")
}

func boolInt(b bool) int {
	if b {
		return 1
	}
	return 0
}

// readStamps takes all parts, and requires the first byte of each to be of one version.
func (x *trial) readStamps(name string) error {
	c, err := dial(x.ctx, x.socket)
	if err != nil {
		return err
	}
	all, err := keeper.Attach(x.ctx, x.devs[0].Driver(), c.Client, name, keeper.Want{})
	err = errors.Join(err, c.Close())
	if len(all) != len(x.devs) && err == nil {
		err = fmt.Errorf("%d parts", len(all))
	}
	for i, a := range all {
		var stamp int64
		_, serr := fmt.Sscan(a.Data.Labels["stamp"], &stamp)
		first := make([]byte, 1)
		ctx, cerr := a.Device().PrimaryContext()
		if cerr == nil {
			cerr = errors.Join(cu.CopyToHost(ctx, first, a.Ptr()), ctx.Close())
		}
		if a.Data.Version != all[0].Data.Version || first[0] != fillOf(stamp, i) {
			cerr = errors.Join(cerr, fmt.Errorf("a mixture: byte %d of %v and %v", first[0], a.Data, all[0].Data))
		}
		err = errors.Join(err, serr, cerr)
	}
	for _, a := range all {
		err = errors.Join(err, a.Close())
	}
	x.attaches.Add(1)
	return err
}

// A Put goes on with the keeper that follows one which was killed, wherever that happens.
//
//fault:rows 86
func TestPutOutlivesItsKeeper(t *testing.T) {
	for _, step := range []string{"hold:4", "held:4", "swap:3"} { // earlier ones belong to the start, and to the booking
		t.Run(step, func(t *testing.T) {
			dev := cutest.Device(t)
			c, second := mortalAndNext(t, step)
			require.Equal(t, uint64(1), put(t, c, dev, "x", 5).Version)
			next := <-second
			requireBytes(t, attach(t, dialled(t, next.opts.Socket), dev, "x")[0], 5)
			require.NoError(t, next.Close())
		})
	}
}

// TestFault91_AnswerToACommitIsLost: a keeper is killed when the store has what a writer
// delivered, and the writer has no answer. The next one tells it the version, once.
func TestFault91_AnswerToACommitIsLost(t *testing.T) {
	for _, step := range []string{"swapped:4", "deliver answered:1", "swapped:5", "deliver answered:2"} { // for the first part, and for the second
		t.Run(step, func(t *testing.T) {
			dev := cutest.Device(t)
			c, second := mortalAndNext(t, step)
			k := ok(c.Put(soon(t), keeper.Put{Name: "x", Parts: 2}, part(0, dev, 5), part(1, dev, 6)))(t)
			require.Equal(t, uint64(1), k.Version)
			next := <-second
			require.Equal(t, "1", scraped(next)["gpufd_keeper_commits_total"])
			require.Equal(t, uint64(1), stat(t, c, "x").Version)
			for i, a := range attach(t, dialled(t, next.opts.Socket), dev, "x") {
				requireBytes(t, a, byte(5+i))
				require.Equal(t, k.Digests[i], a.Data.Digest)
			}
			require.NoError(t, next.Close())
		})
	}
}

// mortalAndNext is a client of a keeper that dies at a step, and the keeper that follows.
func mortalAndNext(t *testing.T, step string) (*client, <-chan *Server) {
	t.Helper()
	socket := newSocket(t)
	relayStore(t, socket).kill(step)
	first := ok(mortal(soon(t), socket, ""))(t)
	var mu sync.Mutex // the client may have several connections
	var lost error
	dies := onceAt(step, func(*sock.Conn) {
		lost = errors.New("nobody hears this answer")
		assert.NoError(t, first.Process.Kill())
	})
	c := awaitKeeper(t, relayClients(t, socket, func(now string) error {
		mu.Lock()
		defer mu.Unlock()
		lost = nil
		dies(now, nil)
		return lost
	}))
	second := make(chan *Server, 1)
	ctx := soon(t)
	go func() {
		_ = first.Wait()
		s, _ := openNext(ctx, options(socket))
		second <- s
	}()
	return c, second
}

// awaitKeeper is a client of a keeper that is starting.
func awaitKeeper(t testing.TB, socket string) *client {
	t.Helper()
	var c *client
	require.Eventually(t, func() (ok bool) {
		var err error
		c, err = dial(soon(t), socket)
		return err == nil
	}, waitLong, waitStep)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	return c
}

// Ten keepers take over one from the other, while readers attach and writers commit all the
// time. Nobody is refused.
//
//fault:rows 86
func TestTakeOver(t *testing.T) {
	x := newTrial(t, newSocket(t), []*cu.Device{cutest.Device(t)}, time.Minute)
	s := ok(Open(soon(t), options(x.socket)))(t)
	c := dialled(t, x.socket)
	require.NoError(t, x.write("a"))
	x.goOn("writing", func() error { return x.write("a") })
	for range 3 {
		x.goOn("attaching", func() error {
			att, err := share.Attach(x.ctx, x.socket, "a", x.devs[0], nil)
			if err != nil {
				return err
			}
			x.attaches.Add(1)
			return errors.Join(x.verify(att, mustData(att), 0), att.Close())
		})
		x.goOn("asking", func() error { _, err := c.Stat(x.ctx, "a"); return err })
	}
	for n := range 10 {
		before := x.attaches.Load() + x.commits.Load()
		ended := make(chan error, 1)
		go func() {
			<-s.Done()
			ended <- errors.Join(ignore(s.Err(), ErrYielded), s.Close())
		}()
		s.patience = waitLong // a busy machine may need more than a second for an attach
		next, err := TakeOver(soon(t), options(x.socket))
		require.NoError(t, err, n)
		require.NoError(t, <-ended)
		s = next
		require.Eventually(t, func() bool { return x.attaches.Load()+x.commits.Load() > before+5 || x.ctx.Err() != nil }, waitLong, waitStep)
	}
	x.stop()
	x.work.Wait()
	t.Logf("%d commits, %d attaches", x.commits.Load(), x.attaches.Load())
	requireNothingLost(t, x, s)
	require.ErrorIs(t, errOf(Open(soon(t), options(x.socket))), ErrBusy)
	require.NoError(t, s.Close())
}

func ignore(err, not error) error {
	if errors.Is(err, not) {
		return nil
	}
	return err
}

// TestFault88_StoreDies: a keeper logs it and gives another store everything; a keeper that is
// killed after that has lost nothing.
func TestFault88_StoreDies(t *testing.T) {
	dev, lines := cutest.Device(t), newDiary()
	opts := options(newSocket(t))
	opts.Log = lines.log
	s := opened(t, opts)
	c := dialled(t, opts.Socket)
	put(t, c, dev, "x", 1)
	reader := attach(t, c, dev, "x")[0]
	st := s.Status()
	require.NoError(t, unix.Kill(st.Store, unix.SIGKILL))
	lines.await(t, "would lose what is kept")
	lines.await(t, "holds everything")
	require.NotEqual(t, st.Store, s.Status().Store)
	require.NoError(t, reader.Err(), "readers do not hear of it")
	put(t, c, dev, "y", 2)
	require.NoError(t, s.Close())

	next := opened(t, opts)
	require.Equal(t, 2, next.Status().Names)
	c = dialled(t, opts.Socket)
	requireBytes(t, attach(t, c, dev, "x")[0], 1)
	requireBytes(t, attach(t, c, dev, "y")[0], 2)
	<-reader.Done()
	resumed := ok(reader.Resume(soon(t)))(t)
	require.NoError(t, resumed.Close())
}

// Somebody removes the sockets' files: the next keeper makes others and logs it.
//
//fault:rows 86
func TestSocketIsRemoved(t *testing.T) {
	s, c, dev := kept(t)
	put(t, c, dev, "x", 1)
	require.NoError(t, s.Close())
	for _, suffix := range []string{"", protocol.ControlSuffix} {
		require.NoError(t, os.Remove(s.opts.Socket+suffix))
	}
	lines := newDiary()
	opts := options(s.opts.Socket)
	opts.Log = lines.log
	opened(t, opts)
	require.Equal(t, 2, strings.Count(lines.text(), "somebody has removed the socket"), lines.text())
	requireBytes(t, attach(t, dialled(t, opts.Socket), dev, "x")[0], 1)
}

// A reader that lived through a keeper's death and does not come back is forgotten in time;
// one that does has one lease.
func TestReadersComeBackOrAreForgotten(t *testing.T) {
	s, c, dev := kept(t)
	put(t, c, dev, "x", 1)
	reader := attach(t, c, dev, "x")[0]
	eventually(t, c, "x", func(i api.Info) bool { return len(i.Holders) == 1 })
	require.NoError(t, s.Close())
	opts := options(s.opts.Socket)
	opts.Grace = 2 * time.Second
	opened(t, opts)
	info := stat(t, c, "x")
	require.Len(t, info.Holders, 1)
	require.True(t, info.Holders[0].Lost)
	<-reader.Done()
	resumed := ok(reader.Resume(soon(t)))(t)
	eventually(t, c, "x", func(i api.Info) bool { return len(i.Holders) == 1 && !i.Holders[0].Lost })
	require.NoError(t, resumed.Close())
	eventually(t, c, "x", func(i api.Info) bool { return len(i.Holders) == 0 })
}

// A booking is forgotten when its time is over, and when its writer has died.
//
//fault:rows 87
func TestBookingsEnd(t *testing.T) {
	s, c, dev := kept(t)
	put(t, c, dev, "x", 1)
	require.NoError(t, errOf(c.book(soon(t), keeper.Put{Name: "x", Parts: 1, Timeout: time.Millisecond}, part(0, dev, 2), "t")))
	require.Equal(t, uint64(small), stat(t, c, "x").ReservedBytes)
	require.NoError(t, s.Close())
	opts := options(s.opts.Socket)
	opts.Ticket = time.Second // looked at ten times a second
	opened(t, opts)
	eventually(t, c, "x", func(i api.Info) bool { return i.ReservedBytes == 0 })
}

// TestFault86_ReaderOfARetiredVersion: a reader has version 1 while version 2 is current, and
// keepers die. It resumes its lease each time, is told that there is a newer version, and is
// known until it goes. Nobody else gets the old version.
func TestFault86_ReaderOfARetiredVersion(t *testing.T) {
	s, c, dev := kept(t)
	put(t, c, dev, "x", 1)
	reader := attach(t, c, dev, "x")[0].Attachment
	other := attach(t, c, dev, "x")[0]
	_, err := c.Put(soon(t), keeper.Put{Name: "x", Parts: 2}, part(0, dev, 2), part(1, dev, 3)) // the offers of its parts have other names
	require.NoError(t, err)
	opts := s.opts
	opts.Grace = time.Hour
	for range 2 {
		require.NoError(t, s.Close())
		s = opened(t, opts)
		<-reader.Done()
		info := eventually(t, c, "x", func(i api.Info) bool { return len(i.Retired) == 1 && i.Retired[0].Holders[0].Lost })
		require.Equal(t, uint64(1), info.Retired[0].Version)
		next := ok(reader.Resume(soon(t)))(t)
		reader = next
		eventually(t, c, "x", func(i api.Info) bool {
			return len(i.Retired) == 1 && len(i.Retired[0].Holders) == 1 && !i.Retired[0].Holders[0].Lost
		})
		require.ErrorIs(t, errOf(share.Attach(soon(t), opts.Socket, "x", dev, nil)), share.ErrRefused, "x has parts now")
		requireBytes(t, attach(t, c, dev, "x")[0], 2)
	}
	require.ErrorIs(t, errOf(other.Resume(soon(t))), share.ErrRefused, "its process has the lease that it had lost")
	require.NoError(t, reader.Close())
	require.NoError(t, other.Close())
	eventually(t, c, "x", func(i api.Info) bool { return len(i.Retired) == 0 })
	awaitOffers(t, s, 2)
}

// awaitOffers waits until a keeper offers n parts, with those that are retired and have readers.
func awaitOffers(t *testing.T, s *Server, n int) {
	t.Helper()
	require.Eventually(t, func() (done bool) {
		s.readers.Look(func(b *broker.Broker) { done = b.Offers() == n })
		return done
	}, waitLong, waitStep)
}
