package tests

import (
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/cutest"
	"github.com/gpufd/gpufd/share"
)

// The tests here switch a check off that a fault's test relies on, and want that
// test to notice: one that passes all the same proves nothing.

// A witness stands for the test that is to notice. It collects complaints.
type witness struct {
	testing.TB
	complaints []string
	cleanups   []func()
}

// Helper does nothing.
func (w *witness) Helper() {}

// Errorf notes the complaint.
func (w *witness) Errorf(format string, args ...any) {
	w.complaints = append(w.complaints, fmt.Sprintf(format, args...))
}

// Fatalf notes the complaint and ends the test.
func (w *witness) Fatalf(format string, args ...any) {
	w.Errorf(format, args...)
	w.FailNow()
}

// FailNow ends the test.
func (w *witness) FailNow() { runtime.Goexit() }

// Failed reports whether there was a complaint.
func (w *witness) Failed() bool { return len(w.complaints) > 0 }

// Cleanup is for the end of the test.
func (w *witness) Cleanup(f func()) { w.cleanups = append(w.cleanups, f) }

// requireNoticed runs f as a test of its own, and wants it to complain in these
// words.
func requireNoticed(t *testing.T, words string, f func(t testing.TB)) {
	t.Helper()
	w := &witness{TB: t}
	do := func(f func()) {
		done := make(chan struct{})
		go func() { defer close(done); f() }()
		<-done
	}
	do(func() { f(w) })
	for _, c := range slices.Backward(w.cleanups) {
		do(c)
	}
	require.NotEmpty(t, w.complaints, "nobody noticed")
	require.Contains(t, strings.Join(w.complaints, "\n"), words)
}

// TestPlanted_NobodyLooks: a consumer that verifies nothing and says that all is
// well. The test of flipped bits notices on the producer's side.
//
//fault:rows 65
func TestPlanted_NobodyLooks(t *testing.T) {
	requireNoticed(t, "expected: 1\n", func(t testing.TB) {
		s := newScene(t)
		producer := s.flipped(mib, 0, 5, 0)
		att, err := s.attach()
		require.NoError(t, err)
		report(t, att, nil)
		require.NoError(t, att.Close())
		producer.fails(1)
	})
}

// TestPlanted_NobodyIsTold: a consumer that finds wrong data and keeps it to
// itself is not taken for a good one.
func TestPlanted_NobodyIsTold(t *testing.T) {
	requireNoticed(t, "expected: 0\n", func(t testing.TB) {
		s := newScene(t)
		producer := s.serving()
		att, err := s.attach()
		require.NoError(t, err)
		require.NoError(t, att.Close())
		producer.succeeds()
	})
}

// TestPlanted_OtherBit: a bit flipped beside the one that is said to be. The test
// wants the very integer to be named.
//
//fault:rows 65
func TestPlanted_OtherBit(t *testing.T) {
	requireNoticed(t, "index 3", func(t testing.TB) {
		s := newScene(t)
		producer := s.flipped(mib, 0, 12, 0)
		consumer := s.consumer()
		t.Cleanup(func() { consumer.wait(); producer.wait() })
		consumer.fails(1, "first at index 2,")
	})
}

// TestPlanted_Leftovers: a file beside the socket, and device memory that somebody
// keeps. A scene notices either.
func TestPlanted_Leftovers(t *testing.T) {
	t.Run("file", func(t *testing.T) {
		requireNoticed(t, "left in the socket's directory", func(t testing.TB) {
			s := newScene(t)
			require.NoError(t, os.WriteFile(s.socket+".lock", nil, 0o600))
		})
	})
	t.Run("memory", func(t *testing.T) {
		cutest.Alone(t, countsMemory)
		defer shorten()()
		dev := cutest.Device(t)
		ctx := cutest.Context(t, dev)
		var kept *cu.Memory
		requireNoticed(t, "device memory is missing", func(t testing.TB) {
			newScene(t)
			var err error
			kept, err = ctx.Alloc(64 << 20)
			require.NoError(t, err)
		})
		require.NoError(t, kept.Close())
	})
}

// TestPlanted_NoEnd: a program that does not end. Whoever waits for it notices.
func TestPlanted_NoEnd(t *testing.T) {
	requireNoticed(t, "did not end within", func(t testing.TB) {
		producer := newScene(t).serving("-consumers", "0")
		defer shorten()()
		producer.wait()
	})
}

// TestPlanted_StillRunning: a program that its test forgets.
func TestPlanted_StillRunning(t *testing.T) {
	requireNoticed(t, "still running when the test ended", func(t testing.TB) {
		newScene(t).serving("-consumers", "0")
	})
}

// TestPlanted_Crash: a program that dies of a signal, or says why it died on
// several lines, has not failed as it should.
func TestPlanted_Crash(t *testing.T) {
	for _, sig := range []syscall.Signal{syscall.SIGKILL, syscall.SIGQUIT} {
		requireNoticed(t, "expected: 1\n", func(t testing.TB) {
			p := newScene(t).serving()
			p.signal(sig)
			p.fails(1)
		})
	}
}

// TestPlanted_WriterAllowed: what attached read-write can write. The test that
// read-only cannot would notice.
//
//fault:rows 70
func TestPlanted_WriterAllowed(t *testing.T) {
	requireNoticed(t, "CUDA_ERROR_INVALID_VALUE", func(t testing.TB) {
		s := newScene(t)
		producer := s.serving("-access", "rw")
		att, err := s.attach(share.WithAccess(share.ReadWrite))
		require.NoError(t, err)
		t.Cleanup(func() {
			report(t, att, nil)
			require.NoError(t, att.Close())
			producer.succeeds()
		})
		requireReadOnly(t, att)
	})
}

// shorten makes everybody impatient until its result is called.
func shorten() func() {
	before := patience
	patience = before / 60
	return func() { patience = before }
}
