package vmm_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/cutest"
	"github.com/gpufd/gpufd/vmm"
)

// hold keeps a new stream of ctx busy until release is called, or the test ends.
func hold(t testing.TB, ctx *cu.Context) (release func()) {
	t.Helper()
	s, helper := untilEnd(t, ok(ctx.NewStream())(t)), untilEnd(t, ok(ctx.NewStream())(t))
	word := untilEnd(t, ok(ctx.Alloc(4))(t))
	require.NoError(t, cu.Fill(ctx, word.Ptr(), uint32(0), 1))
	require.NoError(t, s.WaitValue32(word.Ptr(), 1, cu.WaitGEQ))
	release = func() {
		t.Helper()
		require.NoError(t, helper.WriteValue32(word.Ptr(), 1, cu.WriteDefault))
	}
	t.Cleanup(release)
	return release
}

// mappings makes one of everything whose Close unmaps.
func mappings(t *testing.T, dev *cu.Device) map[string]interface {
	Close() error
	CloseNow() error
	Ptr() cu.DevicePtr
} {
	t.Helper()
	g, _, err := dev.Granularity(cu.HandleFD)
	require.NoError(t, err)
	buf := untilEnd(t, ok(vmm.New(dev, 4096))(t))
	room := untilEnd(t, ok(vmm.Reserve(dev.Driver(), g))(t))
	m := untilEnd(t, ok(room.Map(0, untilEnd(t, ok(vmm.Create(dev, g))(t))))(t))
	require.NoError(t, m.SetAccess(cu.ReadWrite))
	return map[string]interface {
		Close() error
		CloseNow() error
		Ptr() cu.DevicePtr
	}{"Buffer": buf, "View": untilEnd(t, ok(buf.NewView(cu.ReadWrite))(t)), "Mapping": m}
}

// Close of what is mapped waits for what was queued before it; if it waits in vain nothing has changed.
func TestCloseWaitsForQueuedWork(t *testing.T) {
	dev := cutest.Device(t, cu.WithCloseLimit(20*time.Millisecond))
	ctx := cutest.Context(t, dev)
	all := mappings(t, dev)
	release := hold(t, ctx)
	for name, m := range all {
		p := m.Ptr()
		err := m.Close()
		require.ErrorIs(t, err, vmm.ErrInUse, name)
		require.ErrorIs(t, err, context.DeadlineExceeded, name)
		require.Equal(t, p, m.Ptr(), name)
		require.NotZero(t, p, name)
	}
	release()
	require.NoError(t, dev.Driver().WaitQueued(soon(t)))
	for name, m := range all {
		require.NoError(t, cu.Fill(ctx, m.Ptr(), uint8(7), 4096), name)
		require.NoError(t, m.Close(), name)
		require.Zero(t, m.Ptr(), name)
		require.NoError(t, m.Close(), name)
	}
}

// CloseNow does not wait, for those who know.
func TestCloseNowDoesNotWait(t *testing.T) {
	dev := cutest.Device(t)
	all := mappings(t, dev)
	hold(t, cutest.Context(t, dev))
	for name, m := range all {
		require.NoError(t, m.CloseNow(), name)
		require.Zero(t, m.Ptr(), name)
		require.NoError(t, m.Close(), name)
	}
}

// Release waits as long as its context lasts.
func TestReleaseWaitsUntilItsContextEnds(t *testing.T) {
	dev := cutest.Device(t)
	ctx := cutest.Context(t, dev)
	buf := untilEnd(t, ok(vmm.New(dev, 4096))(t))
	release := hold(t, ctx)
	brief, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
	defer cancel()
	err := buf.Release(brief)
	require.ErrorIs(t, err, vmm.ErrInUse)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.NotZero(t, buf.Ptr())
	require.ErrorIs(t, buf.Release(brief), context.DeadlineExceeded)

	released := make(chan error, 1)
	go func() { released <- buf.Release(soon(t)) }()
	require.NotZero(t, buf.Size()) // others use the buffer meanwhile
	release()
	require.NoError(t, <-released)
	require.Zero(t, buf.Ptr())
}

// A buffer that Unmap has unmapped has no work to wait for.
func TestCloseAfterUnmapDoesNotWait(t *testing.T) {
	dev := cutest.Device(t)
	buf := untilEnd(t, ok(vmm.New(dev, 4096))(t))
	ctx := cutest.Context(t, dev)
	require.NoError(t, buf.Unmap())
	hold(t, ctx)
	require.NoError(t, buf.Close())
}

func TestCloseDuringACapture(t *testing.T) {
	dev := cutest.Device(t)
	ctx := cutest.Context(t, dev)
	s := untilEnd(t, ok(ctx.NewStream())(t))
	all := mappings(t, dev)
	g, err := s.Capture(func() error {
		for name, m := range all {
			err := m.Close()
			require.ErrorIs(t, err, vmm.ErrInUse, name)
			require.ErrorIs(t, err, cu.ErrStreamCaptureUnsupported, name)
		}
		return cu.FillAsync(s, all["Buffer"].Ptr(), uint8(1), 1)
	})
	require.NoError(t, err)
	require.NoError(t, g.Close())
	for name, m := range all {
		require.NoError(t, m.Close(), name)
	}
}

// BenchmarkClose says what Close costs more than CloseNow, with so many idle streams.
func BenchmarkClose(b *testing.B) {
	for _, streams := range []int{1, 16} {
		dev := cutest.Device(b)
		ctx := cutest.Context(b, dev)
		for range streams {
			untilEnd(b, ok(ctx.NewStream())(b))
		}
		for name, end := range map[string]func(*vmm.Buffer) error{"Close": (*vmm.Buffer).Close, "CloseNow": (*vmm.Buffer).CloseNow} {
			b.Run(fmt.Sprintf("%s/%d streams", name, streams), func(b *testing.B) {
				var took time.Duration
				for b.Loop() {
					buf := ok(vmm.New(dev, 4096))(b)
					begun := time.Now()
					require.NoError(b, end(buf))
					took += time.Since(begun)
				}
				b.ReportMetric(float64(took.Nanoseconds())/float64(b.N), "ns/close")
			})
		}
	}
}

// Without a time to wait, what no work uses is closed all the same.
func TestCloseWithoutALimit(t *testing.T) {
	for name, m := range mappings(t, cutest.Device(t, cu.WithCloseLimit(0))) {
		require.NoError(t, m.Close(), name)
	}
}
