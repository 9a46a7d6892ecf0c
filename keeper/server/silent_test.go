package server

import (
	"fmt"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/keeper"
	"github.com/gpufd/gpufd/keeper/api"
	"github.com/gpufd/gpufd/keeper/internal/protocol"
	"github.com/gpufd/gpufd/keeper/internal/state"
	"github.com/gpufd/gpufd/share"
	"github.com/gpufd/gpufd/sock"
)

// stop stops a process until goOn or the end of the test.
func stop(t testing.TB, pid int) (goOn func()) {
	t.Helper()
	require.NoError(t, unix.Kill(pid, unix.SIGSTOP))
	goOn = func() { _ = unix.Kill(pid, unix.SIGCONT) }
	t.Cleanup(goOn)
	for end := time.Now().Add(waitLong); !isStopped(pid); time.Sleep(waitStep) { // which takes a moment
		if time.Now().After(end) {
			t.Errorf("process %d does not stop", pid)
			break
		}
	}
	return goOn
}

// isStopped reports whether all threads of a process are stopped (proc_pid_stat(5)).
func isStopped(pid int) bool {
	threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
	for _, path := range threads {
		if text, err := os.ReadFile(path); err != nil || !strings.Contains(string(text), ") T ") {
			return false
		}
	}
	return len(threads) > 0
}

// hastyKeeper opens a keeper that waits for a step no longer than that, and has name a.
func hastyKeeper(t *testing.T, step time.Duration) (*Server, *client, *cu.Device, *diary) {
	t.Helper()
	return hastyKeeperAt(t, newSocket(t), step)
}

func hastyKeeperAt(t *testing.T, socket string, step time.Duration) (*Server, *client, *cu.Device, *diary) {
	t.Helper()
	s, _, dev, lines := loggedKeeperAt(t, socket)
	require.NoError(t, s.Close())
	opts := s.opts
	opts.Timeout = step
	s = opened(t, opts)
	return s, dialled(t, opts.Socket), dev, lines
}

func probe(s *Server) string {
	w := httptest.NewRecorder()
	s.answerProbe(w, nil)
	return w.Body.String()
}

// The fd store does not answer, for somebody has stopped it: clients that ask and readers that
// attach do not wait, and changes end with an error that says so. When it goes on, all goes on,
// and nothing is lost.
func TestFault88_StoreIsStopped(t *testing.T) {
	s, c, dev, lines := hastyKeeper(t, 5*time.Second)
	asks, reader := dialled(t, s.opts.Socket), dialled(t, s.opts.Socket)
	put(t, c, dev, "b", 2)
	goOn := stop(t, s.Status().Store)
	changed := make(chan error, 1)
	go func() { changed <- c.Remove(soon(t), "b") }()
	require.Eventually(t, func() bool { return len(s.changeLock.taken) == 1 }, waitLong, waitStep)

	list := ok(asks.List(soon(t)))(t)
	require.Len(t, list, 2)
	require.Equal(t, uint64(1), stat(t, asks, "a").Version)
	require.Equal(t, 2, s.Status().Names)
	require.Equal(t, "2", scraped(s)["gpufd_keeper_names"])
	got := attach(t, reader, dev, "a")
	requireBytes(t, got[0], 1)
	select {
	case err := <-changed:
		t.Fatalf("it has waited for the change, which ended with %v", err)
	default:
	}

	requireCode(t, string(api.Unknown), <-changed)
	requireCode(t, string(api.StoreSilent), c.Drain(soon(t), "a"))
	lines.await(t, "has not answered for 5s")
	require.Equal(t, "serving, with an fd store that does not answer\n", probe(s))
	require.NoError(t, s.Err())
	require.NoError(t, got[0].Err())

	goOn()
	lines.await(t, "answers again")
	require.Eventually(t, func() bool { return probe(s) == "serving\n" }, waitLong, waitStep)
	eventually(t, asks, "a", func(i api.Info) bool { return len(i.Holders) == 1 })
	require.Eventually(t, func() bool { _, err := asks.Stat(soon(t), "b"); return err != nil }, waitLong, waitStep, "the change was made")
	put(t, c, dev, "b", 3)
	require.NoError(t, s.Close())
	opened(t, s.opts)
	requireBytes(t, attach(t, dialled(t, s.opts.Socket), dev, "b")[0], 3)
	requireBytes(t, attach(t, dialled(t, s.opts.Socket), dev, "a")[0], 1)
}

// The store stops while it is told of a version: a reader that attaches to that name gets the
// new one when the store goes on, or is told in time that it has not, and the version before is
// not dropped under a reader.
//
//fault:rows 88
func TestStoreStopsDuringACommit(t *testing.T) {
	stopped := make(chan func(), 1)
	socket := newSocket(t)
	relay := relayStore(t, socket)
	s, c, dev, _ := hastyKeeperAt(t, socket, 3*time.Second)
	relay.call(func(step string, _ *sock.Conn) {
		if step == "swap" && s.leaves() > 0 {
			stopped <- stop(t, s.Status().Store)
		}
	})
	changed := make(chan error, 1)
	go func() {
		_, err := c.Put(soon(t), keeper.Put{Name: "a"}, part(0, dev, 2))
		changed <- err
	}()
	var goOn func()
	select {
	case goOn = <-stopped:
	case <-soon(t).Done():
		require.FailNow(t, "the store is not asked")
	}
	_, err := keeper.Attach(soon(t), dev.Driver(), dialled(t, s.opts.Socket).Client, "a", keeper.Want{})
	require.ErrorIs(t, err, share.ErrRefused, "nobody knows which version is the one")
	requireCode(t, string(api.StoreSilent), err)
	requireCode(t, string(api.Unknown), <-changed)
	goOn()
	require.Equal(t, uint64(2), attach(t, dialled(t, s.opts.Socket), dev, "a")[0].Data.Version)
}

// leaves returns how many offers a change is about to end.
func (s *Server) leaves() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.leaving)
}

// A keeper ends although its store does not answer, and the next one finds all.
//
//fault:rows 88
func TestCloseWithAStoppedStore(t *testing.T) {
	s, c, dev, lines := hastyKeeper(t, time.Second)
	goOn := stop(t, s.Status().Store)
	_, err := c.Put(soon(t), keeper.Put{Name: "b"}, part(0, dev, 2))
	requireCode(t, string(api.Unknown), err)
	closed := make(chan error, 1)
	go func() { closed <- s.Close() }()
	select {
	case err := <-closed:
		require.NoError(t, err)
	case <-soon(t).Done():
		goOn()
		t.Fatal("it waits for the store without end")
	}
	require.NotContains(t, lines.text(), "answers again")
	require.NotContains(t, lines.text(), "counted is lost", "what the store has is not known: nothing more is said to it")
	goOn()
	opened(t, s.opts)
	requireBytes(t, attach(t, dialled(t, s.opts.Socket), dev, "a")[0], 1)
}

// TestFault88_StoreDiesWithinACommit: the store dies before it has a part's descriptors,
// between these and the manifest that names them, or after the manifest. The change is made
// whole or not at all, and the writer is told which.
func TestFault88_StoreDiesWithinACommit(t *testing.T) {
	for step, made := range map[string]bool{
		"hold:1": false, "held:1": false, "hold:2": false, "held:2": false, "swap:1": false, "swapped:1": true,
	} {
		t.Run(step, func(t *testing.T) {
			socket := newSocket(t)
			relay := relayStore(t, socket)
			s, c, dev, lines := loggedKeeperAt(t, socket)
			other := keeper.Put{Name: "b", Parts: 1, Expect: number(uint64(0))}
			b := ok(c.book(soon(t), other, part(0, dev, 2), "tx"))(t)
			d, files := exported(t, dev)
			store := s.vault.pid()
			relay.call(onceAt(step, func(*sock.Conn) { relay.killStore(store) }))
			a, err := b.Deliver(soon(t), protocol.Delivery{Memory: protocol.Describe(d), Files: files, Digest: "gpufd-d1:" + strings.Repeat("0", 32), Table: []byte(`{"a":1}`)})
			if made {
				require.NoError(t, err)
				require.Equal(t, uint64(1), a.Version)
			} else {
				requireCode(t, string(api.StoreLost), err)
				require.Zero(t, stat(t, c, "b").Version)
			}
			lines.await(t, "holds everything")
			if !made { // the booking was not lost
				require.NoError(t, b.Renew(soon(t)))
				a = ok(b.Deliver(soon(t), protocol.Delivery{Memory: protocol.Describe(d), Files: files, Digest: "gpufd-d1:" + strings.Repeat("0", 32), Table: []byte(`{"a":1}`)}))(t)
				require.Equal(t, uint64(1), a.Version)
			}
			requireStoreHasAll(t, s)
			require.NoError(t, s.Close())
			s = opened(t, s.opts)
			c = dialled(t, s.opts.Socket)
			requireBytes(t, attach(t, c, dev, "a")[0], 1)
			require.JSONEq(t, `{"a":1}`, string(attach(t, c, dev, "b")[0].Data.Table))
			require.Equal(t, uint64(1), stat(t, c, "b").Version)
		})
	}
}

// requireStoreHasAll requires that the store has what the keeper has, and nothing else, and that
// the manifest names all of that.
func requireStoreHasAll(t *testing.T, s *Server) {
	t.Helper()
	hold(s)
	defer s.finish()
	held := ok(s.vault.store.List(soon(t)))(t)
	named := s.state.Named()
	require.Len(t, held, len(s.vault.files))
	for id, n := range held {
		require.Len(t, s.vault.files[id], n)
		require.True(t, id > firstOwnID || named[state.ID(id)], id)
	}
	manifest := ok(s.vault.store.Manifest(soon(t)))(t)
	require.Equal(t, string(s.state.Encode()), string(manifest))
}

// A policy is read when a keeper starts. Quotas that are lowered below what is kept take
// nothing away: what is kept is served, and nothing is added until there is room.
func TestQuotasAreLowered(t *testing.T) {
	s, c, dev := kept(t)
	put(t, c, dev, "q-a", 1)
	put(t, c, dev, "q-b", 2)
	held := []*keeper.Attached{attach(t, c, dev, "q-a")[0], attach(t, c, dev, "q-b")[0]}
	eventually(t, c, "q-a", func(i api.Info) bool { return len(i.Holders) == 1 })
	eventually(t, c, "q-b", func(i api.Info) bool { return len(i.Holders) == 1 })
	pending := ok(c.book(soon(t), keeper.Put{Name: "q-c", Parts: 1}, part(0, dev, 3), "tx"))(t)
	me := uint32(os.Geteuid())
	all := []state.Right{state.Read, state.Write, state.Remove}
	c = limited(t, s, state.Rule{UID: &me, Prefix: "q-", Allow: all, Bytes: number(uint64(small)), Names: number(1), Leases: number(1)})
	for i, name := range []string{"q-a", "q-b"} {
		require.Equal(t, uint64(1), stat(t, c, name).Version)
		<-held[i].Done()
	}
	for i, name := range []string{"q-a", "q-b"} {
		again := ok(held[i].Resume(soon(t)))(t)
		eventually(t, c, name, func(i api.Info) bool { return len(i.Holders) == 1 && !i.Holders[0].Lost })
		require.ErrorIs(t, errOf(share.Attach(soon(t), c.socket, []string{"q-b", "q-a"}[i], dev, nil)), share.ErrRefused, "one lease is allowed")
		require.NoError(t, again.Close())
		eventually(t, c, name, func(i api.Info) bool { return len(i.Holders) == 0 })
	}
	for _, name := range []string{"q-a", "q-d"} {
		_, err := c.Put(soon(t), keeper.Put{Name: name}, part(0, dev, 4))
		requireCode(t, "quota", err)
	}
	pending.Client = c.conn()
	require.NoError(t, pending.Renew(soon(t)), "it was booked when there was room")
	require.NoError(t, pending.Cancel(soon(t)))
	require.NoError(t, c.Remove(soon(t), "q-b"))
	require.NoError(t, c.Remove(soon(t), "q-a"))
	put(t, c, dev, "q-a", 4)
	requireBytes(t, attach(t, c, dev, "q-a")[0], 4)
}
