package channel

import (
	"context"
	"errors"
	"os"
	"runtime"
	"runtime/debug"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/cutest"
	"github.com/gpufd/gpufd/cu/soft"
	"github.com/gpufd/gpufd/cu/sys"
	"github.com/gpufd/gpufd/internal/testenv"
)

// hollowStream is one of a driver that has the software driver's devices, and otherwise libc's pthread_getconcurrency
// for functions, which returns 0 whatever it gets: the software driver is made of callbacks, which allocate.
func hollowStream(t testing.TB) *cu.Stream {
	libc := ok(sys.OpenFile("libc.so.6"))(t)
	zero := ok(libc("pthread_getconcurrency"))(t)
	drv := ok(cu.Open(cu.WithResolver(func(symbol string) (uintptr, error) {
		if strings.HasPrefix(symbol, "cuDeviceGet") || symbol == "cuDriverGetVersion" || symbol == "cuInit" {
			return soft.Resolver(symbol)
		}
		return zero, nil
	})))(t)
	dev := ok(drv.Device(0))(t)
	return newStream(t, cutest.Context(t, dev))
}

// hotPair are a writer and a reader, and a stream that does nothing for them.
func hotPair(t testing.TB) (w *Writer, r *Reader, s *cu.Stream) {
	ctx, srv := listening(t)
	w = newWriter(t, ctx, srv, 4, 64, WithStreams())
	r = newReader(t, ctx, srv)
	return w, r, hollowStream(t)
}

// byStreams is one frame by streams; the words are written as the streams would.
func byStreams(w *Writer, r *Reader, s *cu.Stream, m Meta) error {
	slot, err := w.AcquireOn(s)
	if err != nil {
		return err
	}
	if err := w.PublishOn(s, slot, m); err != nil {
		return err
	}
	w.track.word.store(0, w.track.queued.Load())
	r.store(offPublished, slot.Sequence)
	f, err := r.NextOn(s)
	if err != nil {
		return err
	}
	if err := r.ReleaseOn(s, f); err != nil {
		return err
	}
	r.track.word.store(0, r.track.queued.Load())
	r.store(offReleased, f.Sequence)
	return nil
}

// byHosts is one frame by hosts.
func byHosts(ctx context.Context, w *Writer, r *Reader, m Meta) error {
	slot, err := w.Acquire(ctx)
	if err != nil {
		return err
	}
	if err := w.Publish(slot, m); err != nil {
		return err
	}
	f, err := r.Next(ctx)
	if err != nil {
		return err
	}
	return r.Release(f)
}

// Invariant 10: a frame allocates nothing.
func TestFramesDoNotAllocate(t *testing.T) {
	if cutest.RaceDetector {
		t.Skip("the race detector allocates")
	}
	m := Meta{Size: 5, User: make([]byte, MaxUser)}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	t.Run("hosts", func(t *testing.T) {
		_, w, r := newPair(t, 4, 64)
		var err error
		require.Zero(t, testing.AllocsPerRun(1000, func() { err = byHosts(ctx, w, r, m) }))
		require.NoError(t, err)
	})
	t.Run("streams", func(t *testing.T) {
		w, r, s := hotPair(t)
		var err error
		require.Zero(t, testing.AllocsPerRun(1000, func() { err = byStreams(w, r, s, m) }))
		require.NoError(t, err)
	})
	t.Run("a host that waits", func(t *testing.T) {
		_, w, r := newPair(t, 4, 64)
		taken := make(chan struct{})
		var err error
		go func() {
			for range 21 {
				f, nerr := r.Next(ctx)
				if err = nerr; err == nil {
					err = r.Release(f)
				}
				taken <- struct{}{}
			}
		}()
		require.Zero(t, testing.AllocsPerRun(20, func() {
			for end := time.Now().Add(time.Millisecond); time.Now().Before(end); { // until it sleeps
				runtime.Gosched()
			}
			slot, aerr := w.Acquire(ctx)
			if aerr == nil {
				_ = w.Publish(slot, m)
			}
			<-taken
		}))
		require.NoError(t, err)
	})
}

// Frames by streams make no system call: a thread that may make none but write goes on with them.
func TestStreamFramesMakeNoSystemCall(t *testing.T) {
	if cutest.Emulated() || cutest.RaceDetector {
		t.Skip("qemu-user has no seccomp, and the race detector makes calls of its own")
	}
	var out []byte
	err := errors.New("not tried")
	// One run without a call shows that frames make none. In others Go's scheduler may take the thread away, which
	// is a call, because frames took longer than 10 ms on a machine that others use.
	for try := 0; err != nil && try < 10; try++ {
		out, err = cutest.Child(soon(t), "frames without system calls", "GODEBUG=asyncpreemptoff=1").CombinedOutput()
	}
	if strings.Contains(string(out), "no seccomp here") {
		t.Skip("the kernel has no seccomp")
	}
	require.NoError(t, err, "%s", out)
	require.Contains(t, string(out), "none")
	out, err = cutest.Child(soon(t), "frames without system calls", "GODEBUG=asyncpreemptoff=1", plantEnv+"=1").CombinedOutput()
	require.Error(t, err, "a system call ends it: %s", out)
}

// plantEnv has the child make a system call after all.
const plantEnv = testenv.PlantVar

// childWithoutCalls has one thread do frames that may make no system call.
func childWithoutCalls() error {
	var t childTest
	w, r, s := hotPair(&t)
	m := Meta{Size: 5, User: make([]byte, 16)}
	plant := os.Getenv(plantEnv) != ""
	for range 100 { // what is done once is done
		testenv.Must(byStreams(w, r, s, m))
	}
	runtime.GC()
	debug.SetGCPercent(-1) // which would have the thread wait
	var done atomic.Int32
	go func() {
		runtime.LockOSThread()
		if err := forbidCalls(); err != nil {
			done.Store(2)
			return
		}
		for range 500 {
			if byStreams(w, r, s, m) != nil {
				return
			}
			if plant {
				_, _, _ = unix.RawSyscall(unix.SYS_GETPID, 0, 0, 0)
			}
		}
		done.Store(1)
		for done.Load() == 1 { // it may not even end
		}
	}()
	for end := time.Now().Add(5 * time.Second); done.Load() == 0 && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
	}
	switch done.Load() {
	case 1:
		_, _ = os.Stdout.WriteString("none\n")
	case 2:
		_, _ = os.Stdout.WriteString("no seccomp here\n")
	default:
		os.Exit(1)
	}
	os.Exit(0)
	return nil
}

// childTest is what a child has in place of a test: it ends when anything fails.
type childTest struct{ testing.TB }

func (*childTest) Helper()                      {}
func (*childTest) Cleanup(func())               {}
func (*childTest) Errorf(f string, args ...any) { panic(f) }
func (*childTest) FailNow()                     { os.Exit(1) }
func (*childTest) Failed() bool                 { return false }
func (*childTest) Name() string                 { return "child" }
func (*childTest) Fatalf(f string, args ...any) { panic(f) }
func (*childTest) Logf(string, ...any)          {}
func (*childTest) TempDir() string              { d, _ := os.MkdirTemp("", "channel"); return d }
