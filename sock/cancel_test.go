package sock

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

var errCause = errors.New("the reason")

// blocking is a call that blocks, and what Close of its owner has to end.
type blocking struct {
	call  func(ctx context.Context) error
	owner io.Closer
}

var blockingCalls = map[string]func(t *testing.T) blocking{
	"Receive": func(t *testing.T) blocking {
		_, b := pair(t)
		return blocking{func(ctx context.Context) error { _, err := b.Receive(ctx); return err }, b}
	},
	"Send to a full queue": func(t *testing.T) blocking {
		a, _ := pair(t)
		fill(t, a)
		return blocking{func(ctx context.Context) error { return a.Send(ctx, make([]byte, 30000)) }, a}
	},
	"WaitClose": func(t *testing.T) blocking {
		a, _ := pair(t)
		return blocking{a.WaitClose, a}
	},
	"Accept": func(t *testing.T) blocking {
		l := listenAt(t, filepath.Join(safeDir(t), "s"))
		return blocking{func(ctx context.Context) error { _, err := l.Accept(ctx); return err }, l}
	},
	"HandOver": func(t *testing.T) blocking {
		l := listenAt(t, filepath.Join(safeDir(t), "s"))
		return blocking{func(ctx context.Context) error { a, _ := pair(t); return l.HandOver(ctx, a) }, l}
	},
	"Accept during HandOver": func(t *testing.T) blocking {
		l := listenAt(t, filepath.Join(safeDir(t), "s"))
		a, b := pair(t)
		ended := make(chan error, 1)
		ctx, cancel := context.WithCancel(context.Background())
		go func() { ended <- l.HandOver(ctx, a) }()
		t.Cleanup(func() { cancel(); require.Error(t, <-ended) })
		requireOffered(t, b)
		return blocking{func(ctx context.Context) error { _, err := l.Accept(ctx); return err }, l}
	},
	"TakeOver": func(t *testing.T) blocking {
		a, _ := pair(t)
		path := filepath.Join(safeDir(t), "s")
		return blocking{func(ctx context.Context) error { _, err := TakeOver(ctx, a, path); return err }, a}
	},
	"waiting for the turn": func(t *testing.T) blocking {
		a, _ := pair(t)
		ended := make(chan error)
		go func() { _, err := a.Receive(context.Background()); ended <- err }()
		t.Cleanup(func() { require.ErrorIs(t, <-ended, ErrClosed) })
		t.Cleanup(func() { require.NoError(t, a.Close()) })
		require.Eventually(t, func() bool { return len(a.s.read.turn) == 1 }, 10*time.Second, time.Millisecond)
		return blocking{func(ctx context.Context) error { _, err := a.Receive(ctx); return err }, a}
	},
	"Dial to a full backlog": func(t *testing.T) blocking {
		path := filepath.Join(safeDir(t), "s")
		t.Cleanup(bare(t, path, unix.SOCK_SEQPACKET, 0))
		dialled(t, path)
		return blocking{func(ctx context.Context) error { _, err := Dial(ctx, path); return err }, nil}
	},
}

// TestFault64_Cancel: every blocking call ends with its context, and with the
// Close of what it waits on, and says which.
func TestFault64_Cancel(t *testing.T) {
	for name, prepare := range blockingCalls {
		t.Run(name, func(t *testing.T) {
			requireNoLeak(t)
			b := prepare(t)

			require.ErrorIs(t, b.call(briefly(t)), context.DeadlineExceeded)

			ctx, cancel := context.WithCancelCause(context.Background())
			cancel(errCause)
			requireCancelled(t, b.call(ctx))

			ctx, cancel = context.WithCancelCause(context.Background())
			defer time.AfterFunc(10*time.Millisecond, func() { cancel(errCause) }).Stop()
			requireCancelled(t, b.call(ctx))

			require.ErrorIs(t, b.call(briefly(t)), context.DeadlineExceeded, "it still blocks")
			if b.owner == nil {
				return
			}
			done := make(chan error)
			go func() { done <- b.call(context.Background()) }()
			require.NoError(t, b.owner.Close())
			err := <-done
			require.ErrorIs(t, err, ErrClosed)
			require.NotErrorIs(t, err, ErrPeerLost)
			require.ErrorIs(t, b.call(context.Background()), ErrClosed)
		})
	}
}

func requireCancelled(t *testing.T, err error) {
	t.Helper()
	require.ErrorIs(t, err, context.Canceled)
	require.ErrorIs(t, err, errCause)
	require.NotErrorIs(t, err, context.DeadlineExceeded)
}

// TestOneContextDoesNotHurtTheNext: a deadline that was set for one call is gone
// in the next, in either direction.
func TestOneContextDoesNotHurtTheNext(t *testing.T) {
	a, b := pair(t)
	for range 200 {
		ctx, cancel := context.WithCancel(context.Background())
		go cancel()
		require.ErrorIs(t, errOf(b.Receive(ctx)), context.Canceled)
		requireWorks(t, a, b)
	}
	ctx, cancel := context.WithCancel(context.Background())
	received := make(chan error)
	go func() { _, err := b.Receive(ctx); received <- err }()
	requireWorks(t, b, a)
	cancel()
	require.ErrorIs(t, <-received, context.Canceled)
	requireWorks(t, b, a)
}

// TestDisarmWaits: the interrupt of one call cannot arrive during the next one,
// however late it runs.
func TestDisarmWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		var deadlines []time.Time
		d := newDirection(func(at time.Time) error {
			if !at.IsZero() {
				<-release
			}
			deadlines = append(deadlines, at)
			return nil
		})
		ctx, cancel := context.WithCancel(context.Background())
		disarm := d.interruptWhenDone(ctx)
		cancel()
		synctest.Wait()
		disarmed := false
		go func() { disarm(); disarmed = true }()
		synctest.Wait()
		require.False(t, disarmed)
		close(release)
		synctest.Wait()
		require.True(t, disarmed)
		require.Equal(t, []time.Time{past, {}}, deadlines)
	})
}

// TestWaitersDoNotInterruptEachOther: of two calls in one direction, each ends
// with its own context.
func TestWaitersDoNotInterruptEachOther(t *testing.T) {
	a, b := pair(t)
	received := make(chan error)
	go func() {
		_, err := b.Receive(context.Background())
		received <- err
	}()
	for range 20 {
		require.ErrorIs(t, errOf(b.Receive(briefly(t))), context.DeadlineExceeded)
	}
	require.NoError(t, a.Send(soon(t), []byte("x")))
	require.NoError(t, <-received)
}

// TestCancelEatsNothing: contexts end at any moment, on both sides. What Send
// said it sent arrives, once and in order; what it said it did not, does not.
func TestCancelEatsNothing(t *testing.T) {
	requireNoLeak(t)
	a, b := pair(t)
	f := tempFile(t, "x")
	sent := make(chan uint32, 10000)
	go func() {
		defer a.Close()
		defer close(sent)
		for i := range uint32(3000) {
			ctx, cancel := context.WithCancel(context.Background())
			go cancel()
			record := binary.LittleEndian.AppendUint32(make([]byte, 0, 4000), i)[:4000]
			err := a.Send(ctx, record, f)
			switch {
			case err == nil:
				sent <- i
			case !errors.Is(err, context.Canceled):
				t.Errorf("send: %v", err)
			}
			cancel()
		}
	}()
	var got []uint32
	for {
		ctx, cancel := context.WithCancel(context.Background())
		go cancel()
		rec, err := b.Receive(ctx)
		cancel()
		if errors.Is(err, context.Canceled) {
			continue
		}
		if errors.Is(err, io.EOF) {
			break
		}
		require.NoError(t, err)
		require.Len(t, rec.Files, 1)
		require.NoError(t, rec.Close())
		got = append(got, binary.LittleEndian.Uint32(rec.Data))
	}
	var want []uint32
	for i := range sent {
		want = append(want, i)
	}
	require.Equal(t, want, got)
	require.NotEmpty(t, got)
}

// TestBlockingModeOfOthers: whoever shares the description may set it to
// blocking mode; contexts hold all the same.
func TestBlockingModeOfOthers(t *testing.T) {
	a, b := pair(t)
	require.NoError(t, b.s.control(func(fd int) error { return unix.SetNonblock(fd, false) }))
	require.ErrorIs(t, errOf(b.Receive(briefly(t))), context.DeadlineExceeded)
	fill(t, b)
	require.ErrorIs(t, b.Send(briefly(t), []byte("one more")), context.DeadlineExceeded)
	requireWorks(t, a, b)
}

func TestBackoff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := backoff{next: 10 * time.Millisecond, max: time.Second}
		for _, want := range []time.Duration{10, 20, 40, 80, 160, 320, 640, 1000, 1000} {
			start := time.Now()
			require.NoError(t, b.wait(context.Background(), nil))
			require.Equal(t, want*time.Millisecond, time.Since(start))
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
		defer cancel()
		start := time.Now()
		require.ErrorIs(t, b.wait(ctx, nil), context.DeadlineExceeded)
		require.Equal(t, time.Millisecond, time.Since(start), "cut short")
		closed := make(chan struct{})
		close(closed)
		require.ErrorIs(t, b.wait(context.Background(), closed), ErrClosed)
	})
}
