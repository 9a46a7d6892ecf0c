package cases

import (
	"context"
	"io"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/cutest"
)

func TestMain(m *testing.M) { cutest.Main(m, cutest.Children{"closes under a kernel": childClosesNow}) }

// patience is how long anything may take.
const patience = time.Minute

// soon is a deadline for what should happen at once.
func soon(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

func ok[T any](v T, err error) func(t testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		require.NoError(t, err)
		return v
	}
}

func errOf[T any](_ T, err error) error { return err }

// untilEnd returns c, which is closed when t ends.
func untilEnd[C io.Closer](t testing.TB, c C) C {
	t.Helper()
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	return c
}

// within returns what f returns, and fails t if f does not return.
func within(t testing.TB, f func() error) error {
	t.Helper()
	result := make(chan error, 1)
	go func() { result <- f() }()
	select {
	case err := <-result:
		return err
	case <-time.After(patience):
		require.FailNow(t, "it hangs")
		return nil
	}
}

// waits checks that f waits, then that it succeeds once release was called.
func waits(t testing.TB, f func() error, release func()) {
	t.Helper()
	result := make(chan error, 1)
	var early atomic.Bool
	early.Store(true)
	go func() {
		err := f()
		if early.Load() {
			t.Error("it did not wait")
		}
		result <- err
	}()
	time.Sleep(20 * time.Millisecond) // there is no telling but to wait
	early.Store(false)
	release()
	require.NoError(t, within(t, func() error { return <-result }))
}

// device is a device of a driver whose Close of memory waits that long, and its context.
func device(t testing.TB, limit time.Duration) (*cu.Device, *cu.Context) {
	t.Helper()
	dev := cutest.Device(t, cu.WithCloseLimit(limit))
	return dev, cutest.Context(t, dev)
}
