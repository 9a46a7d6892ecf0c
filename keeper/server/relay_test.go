package server

import (
	"context"
	"encoding/binary"
	"errors"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gpufd/gpufd/keeper"
	"github.com/gpufd/gpufd/keeper/internal/fdstore"
	"github.com/gpufd/gpufd/keeper/internal/protocol"
	"github.com/gpufd/gpufd/sock"
)

// A storeRelay stands between keepers and their fd store, in the test's process. It reports each exchange that changes
// something: "hold", "swap" and "drop" before the store gets it, "held", "swapped" and "dropped" before the keeper gets the answer.
type storeRelay struct {
	ctx      context.Context
	listener *sock.Listener
	store    string
	dead     atomic.Pointer[sock.Conn] // the connection of the killed keeper: nothing is passed on from there or to there

	mu      sync.Mutex
	reached func(step string, keeper *sock.Conn)
}

// The operations of an fd store that change what it has, before and after its answer.
var (
	storeAsked    = map[uint16]string{2: "hold", 3: "swap", 4: "drop"}
	storeAnswered = map[uint16]string{2: "held", 3: "swapped", 4: "dropped"}
)

// relayStore starts an fd store for the keepers at socket, and a relay before it.
func relayStore(t testing.TB, socket string) *storeRelay {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	r := &storeRelay{ctx: ctx, store: socket + ".behind"}
	first := anothersStore(t, r.store)
	require.NoError(t, first.Close())
	var err error
	r.listener, err = sock.Listen(socket + storeSuffix)
	require.NoError(t, err)
	var work sync.WaitGroup
	work.Go(r.serve)
	t.Cleanup(func() {
		cancel()
		require.NoError(t, r.listener.Close())
		work.Wait()
		if c, err := fdstore.Dial(soon(t), r.store); err == nil {
			exitStore(t, c)
		}
	})
	return r
}

// call makes the relay call f at each step from now on, with the connection of the keeper.
func (r *storeRelay) call(f func(step string, keeper *sock.Conn)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.reached = f
}

// onceAt calls f at the step in where ("swap:3": when that comes for the third time).
func onceAt(where string, f func(keeper *sock.Conn)) func(step string, keeper *sock.Conn) {
	step, count, _ := strings.Cut(where, ":")
	n, err := strconv.ParseInt(count, 10, 64)
	if err != nil {
		panic(err)
	}
	var left atomic.Int64
	left.Store(n)
	return func(now string, keeper *sock.Conn) {
		if now == step && left.Add(-1) == 0 {
			f(keeper)
		}
	}
}

// kill kills a keeper that is another process at a step, counted from now on.
func (r *storeRelay) kill(where string) {
	dies := onceAt(where, func(keeper *sock.Conn) {
		r.dead.Store(keeper)
		_ = unix.Kill(int(keeper.Peer().PID), unix.SIGKILL)
	})
	r.call(func(step string, keeper *sock.Conn) {
		if int(keeper.Peer().PID) != os.Getpid() {
			dies(step, keeper)
		}
	})
}

func (r *storeRelay) report(step string, keeper *sock.Conn) {
	r.mu.Lock()
	f := r.reached
	r.mu.Unlock()
	if f != nil && step != "" {
		f(step, keeper)
	}
}

// killStore kills the store and ends the relay, so that the keeper finds none.
func (r *storeRelay) killStore(pid int) {
	_ = r.listener.Close()
	_ = unix.Kill(pid, unix.SIGKILL)
}

func (r *storeRelay) serve() {
	var work sync.WaitGroup
	defer work.Wait()
	for {
		keeper, err := r.listener.Accept(r.ctx)
		if err != nil {
			return
		}
		work.Go(func() {
			defer keeper.Drop()
			store, err := sock.Dial(r.ctx, r.store)
			if err != nil {
				return
			}
			defer store.Drop()
			work.Go(func() {
				_ = r.forward(storeAnswered, keeper, store, keeper)
				keeper.Drop()
			})
			_ = r.forward(storeAsked, keeper, keeper, store)
		})
	}
}

// forward passes records on until a connection ends, and reports those that have a name.
func (r *storeRelay) forward(names map[uint16]string, keeper, from, to *sock.Conn) error {
	for {
		rec, err := from.Receive(r.ctx)
		if err != nil {
			return err
		}
		r.report(names[binary.LittleEndian.Uint16(rec.Data[6:])&^(1<<15)], keeper)
		if r.dead.Load() == keeper {
			return rec.Close()
		}
		if err := pass(r.ctx, rec, to); err != nil {
			return err
		}
	}
}

// pass sends a record on, and closes its files.
func pass(ctx context.Context, rec sock.Record, to *sock.Conn) error {
	return errors.Join(to.Send(ctx, rec.Data, rec.Files...), rec.Close())
}

// relayClients starts a relay before the control socket of a keeper, and returns the socket that clients dial then.
func relayClients(t testing.TB, keeper string, reached func(step string) error) (socket string) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	r := &relay{ctx: ctx, keeper: keeper, reached: reached}
	socket = keeper + ".relay"
	l := ok(sock.Listen(socket + protocol.ControlSuffix))(t)
	var work sync.WaitGroup
	work.Go(func() { r.serve(l) })
	t.Cleanup(func() {
		cancel()
		require.NoError(t, l.Close())
		work.Wait()
	})
	return socket
}

// A Put whose time is over when the version is committed, before it has read the answer, reports that
// it is committed.
func TestPutOutOfTimeWhenItIsDone(t *testing.T) {
	ctx, cancel := context.WithCancel(soon(t))
	s, _, dev := kept(t)
	c := dialled(t, relayClients(t, s.opts.Socket, func(step string) error {
		if step == "deliver answered" {
			cancel()
			time.Sleep(100 * time.Millisecond) // until the client has seen it
		}
		return nil
	}))
	k := ok(c.Put(ctx, keeper.Put{Name: "x"}, part(0, dev, 1)))(t)
	require.Error(t, ctx.Err())
	require.Equal(t, uint64(1), k.Version)
	require.Len(t, k.Digests, 1)
	require.Equal(t, uint64(1), stat(t, c, "x").Version)
}
