package app

import (
	"bytes"
	"context"
	"math"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/internal/cli"
)

// A program without a sign of life is late after so many ticks. A wait for others
// has bounds of its own, and a program that was told to end has none of that. The first
// tick may come at once, and what may take guardTicks periods is not late after them.
func TestGuard(t *testing.T) {
	const late = guardTicks + 1
	ticks := func(g *guard) (n int) {
		for late := false; !late && n < 2*guardTicks; n++ {
			late, _ = g.tick()
		}
		return n
	}
	g := &guard{}
	require.Equal(t, late, ticks(g))
	g.alive()
	require.Equal(t, late, ticks(g))

	g = &guard{}
	over, again := g.wait(), g.wait()
	require.Equal(t, 2*guardTicks, ticks(g), "it waits for others")
	over()
	over() // once
	require.Equal(t, 2*guardTicks, ticks(g), "the other one does")
	again()
	require.Equal(t, late, ticks(g))

	g = &guard{}
	g.wait()
	require.False(t, g.end())
	g.tick()
	g.alive()
	require.Equal(t, late-1, ticks(g), "it was told to end")
	require.True(t, g.end())
}

func TestAllowance(t *testing.T) {
	for timeout, want := range map[time.Duration]time.Duration{
		-time.Hour: 3 * time.Second, time.Second: 4 * time.Second, 30 * time.Second: 33 * time.Second,
		math.MaxInt64: maxTimeout + 3*time.Second,
	} {
		require.Equal(t, want, allowance(timeout))
	}
}

// The same signal within half a second is one: timeout(1) sends it twice.
func TestSameSignalTwiceIsOne(t *testing.T) {
	now := time.Now()
	for _, c := range []struct {
		later time.Duration
		s     os.Signal
		again bool
	}{
		{0, syscall.SIGTERM, false},
		{oneSignal - 1, syscall.SIGTERM, false},
		{oneSignal, syscall.SIGTERM, true},
		{0, syscall.SIGINT, true},
	} {
		var came Signals
		require.False(t, came.Again(syscall.SIGTERM, now))
		require.Equal(t, c.again, came.Again(c.s, now.Add(c.later)), c)
	}
	var came Signals
	for i := range 6 { // one that comes again and again is not put off for ever
		require.Equal(t, i == 5, came.Again(syscall.SIGTERM, now.Add(time.Duration(i)*oneSignal/5)))
	}
}

// A second signal ends a program that hangs, and removes what it would leave; what was
// removed before is left alone.
//
//fault:rows 74
func TestSecondSignalEndsWhatHangs(t *testing.T) {
	t.Setenv("GPUFD_DRIVER", "soft")
	dir := t.TempDir()
	left, kept := filepath.Join(dir, "left"), filepath.Join(dir, "kept")
	for _, name := range []string{left, kept} {
		require.NoError(t, os.WriteFile(name, nil, 0o600))
	}
	var out, errs bytes.Buffer
	a := New("prog", "hangs.", &out)
	exited := make(chan int, 1)
	a.ending.exit = func(code int) { exited <- code }
	hangs := make(chan struct{})
	ended := make(chan int, 1)
	go func() {
		ended <- a.run([]string{"-json"}, &errs, func(ctx context.Context) error {
			a.OnAbort(func() { _ = os.Remove(kept) })() // there is nothing to remove any more
			a.OnAbort(func() {
				_ = os.Remove(left)
				<-hangs // it is not waited for
			})
			if err := syscall.Kill(os.Getpid(), syscall.SIGTERM); err != nil {
				return err
			}
			<-ctx.Done()
			if err := syscall.Kill(os.Getpid(), syscall.SIGINT); err != nil {
				return err
			}
			<-hangs
			return nil
		})
	}()
	require.Equal(t, cli.ExitFailed, <-exited)
	require.Regexp(t, `^prog: interrupt came a second time: ended at once, [^\n]+\n$`, errs.String())
	all := objects(t, out.String())
	require.EqualValues(t, cli.ExitFailed, all[len(all)-1]["exit"])
	close(hangs)
	require.Equal(t, cli.ExitFailed, <-ended, "an orderly end meanwhile does not change it")
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, entries, 1)
	require.Equal(t, "kept", entries[0].Name())
}

// A program whose last lines nobody reads has not said what it has to, and fails.
//
//fault:rows 73
func TestUnreadOutputIsAFailure(t *testing.T) {
	t.Setenv("GPUFD_DRIVER", "soft")
	out := newGate()
	var errs bytes.Buffer
	a := New("prog", "talks.", out)
	require.Equal(t, cli.ExitFailed, a.run([]string{"-json"}, &errs, func(context.Context) error { return nil }))
	require.Equal(t, "prog: writing the output: nobody reads the last lines\n", errs.String())
	close(out.opened)
	require.True(t, a.lines.drain(time.Minute, nil))
	require.Contains(t, out.out.String(), `"event":"result"`)
}

// A second signal ends the wait for a reader of the last lines.
func TestSecondSignalEndsTheWaitForAReader(t *testing.T) {
	t.Setenv("GPUFD_DRIVER", "soft")
	out := newGate()
	defer close(out.opened)
	var errs bytes.Buffer
	a := New("prog", "talks.", out)
	a.ending.drain = time.Hour
	ended := make(chan int, 1)
	go func() {
		ended <- a.run([]string{"-json"}, &errs, func(ctx context.Context) error {
			if err := syscall.Kill(os.Getpid(), syscall.SIGTERM); err != nil {
				return err
			}
			<-ctx.Done()
			return nil
		})
	}()
	<-out.entered
	require.Eventually(t, a.lines.isUnbound, time.Minute, time.Millisecond, "it comes to its end")
	require.NoError(t, syscall.Kill(os.Getpid(), syscall.SIGINT))
	require.Equal(t, cli.ExitFailed, <-ended)
	require.Equal(t, "prog: writing the output: nobody reads the last lines\n", errs.String())
}
