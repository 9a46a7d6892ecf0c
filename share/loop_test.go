package share

import (
	"context"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gpufd/gpufd/internal/serve"
	"github.com/gpufd/gpufd/internal/wire"
	"github.com/gpufd/gpufd/sock"
)

// An application that is told of a lease of the new memory takes back one of the old, and waits for
// its end: the two are told by the same Replace.
func TestOnLeaseEndsAnotherLease(t *testing.T) {
	dev, ctx, srv := listening(t)
	onLease, begun := leases()
	old := newBuffer(t, ctx, 1)
	put(t, srv, old, onLease)
	att := attached(t, srv, "data", dev)
	held := next(t, begun)
	n := waitForNewer(t, srv, dev, old)
	awaitBehind(t, srv, 1)
	newer := newBuffer(t, ctx, 2)
	s := newServed(srv)
	s.start(t, "data", func(ctx context.Context) error {
		return srv.Replace(ctx, "data", newer, ReadOnly, OnLease(func(*Lease) {
			held.Revoke()
			<-held.Done()
		}))
	})
	n.gets(t, newer)
	require.ErrorIs(t, awaitDone(t, att), ErrRevoked)
}

// The time of a step is the consumer's: what the application does meanwhile does not count.
func TestSlowApplicationCostsTheConsumerNothing(t *testing.T) {
	dev, ctx, srv := listening(t)
	buf := newBuffer(t, ctx, 1)
	ended := make(chan error, 1)
	slow := OnEvent(func(e Event) {
		switch e.Kind {
		case Progress:
			outlast(t)
		case Ended:
			ended <- e.Err
		}
	})
	s := newServed(srv)
	s.start(t, "data", func(ctx context.Context) error {
		return srv.Offer(ctx, "data", buf, ReadOnly, slow, timeoutFrom(Connected, 1, brief), WithVerdict(), WithLeases(1))
	})
	conn := asked(t, srv, wants(dev))
	heard(t, conn)
	for _, m := range []wire.Message{isMapped(buf), wire.Progress{Done: 1, Total: 2}, wire.Verdict{OK: true}} {
		require.NoError(t, conn.Send(soon(t), wire.Encode(m)))
	}
	require.NoError(t, <-ended)
	require.NoError(t, s.end(t))
}

// A process that dies before its connection says what it wants is known to be dead.
func TestFenceOfAProcessThatDiedEarly(t *testing.T) {
	dev, ctx := leavesNothing(t)
	c := startCommand(t, exec.Command("sleep", "1000"))
	file := os.NewFile(uintptr(ok(unix.PidfdOpen(c.cmd.Process.Pid, 0))(t)), "pidfd")
	defer file.Close()
	srv := listen(t, PeerOption(func(o *serve.PeerOptions) {
		o.Process = func(*sock.Conn) (*sock.Process, error) { return sock.ProcessOf(file) }
	}))
	s := serveAs(t, srv, "data", newBuffer(t, ctx, 1), ReadWrite, WithFence(soon(t), Fenced))
	conn := dialed(t, srv)
	require.Eventually(t, func() bool { return watched(srv) == 1 }, 10*time.Second, time.Millisecond)
	c.kill()
	require.Eventually(t, func() bool { return watched(srv) == 0 }, 10*time.Second, time.Millisecond)
	want := wants(dev)
	want.Access, want.Process = ReadWrite, wire.Process{Told: true}
	require.NoError(t, conn.Send(soon(t), wire.Encode(want)))
	heard(t, conn)
	require.NoError(t, conn.Close())
	s.await(t, Ended, 1)
	s.stop(t)
}

// Offers that are made while the server closes fail, and nothing else.
func TestOfferWhileTheServerCloses(t *testing.T) {
	_, ctx := leavesNothing(t)
	buf := newBuffer(t, ctx, 1)
	exportOnce(t, buf)
	for round := range 500 {
		srv := listen(t)
		var work sync.WaitGroup
		var begun atomic.Int32
		for n := range 8 {
			work.Go(func() {
				begun.Add(1)
				err := srv.Offer(soon(t), strconv.Itoa(n), buf, ReadOnly, WithSynchronized())
				assert.ErrorIs(t, err, ErrClosed)
			})
		}
		for begun.Load() < int32(round%8) {
			runtime.Gosched()
		}
		require.NoError(t, srv.Close())
		work.Wait()
	}
}
