package cases

import (
	"context"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/channel"
	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/kernels"
	"github.com/gpufd/gpufd/share"
)

// A program that defers Close of a reader, of a stream and of memory closes the memory first, while the stream
// waits for a frame. It gets an error in the time that is set, or the memory is closed if the frame comes.
func TestCancels(t *testing.T) {
	for name, comes := range map[string]bool{"the frame comes": true, "the frame does not come": false} {
		t.Run(name, func(t *testing.T) {
			limit := 50 * time.Millisecond
			if comes {
				limit = 5 * patience
			}
			_, ctx := device(t, limit)
			srv := untilEnd(t, ok(share.Listen(filepath.Join(t.TempDir(), "s"), nil))(t))
			w := untilEnd(t, ok(channel.NewWriter(soon(t), ctx, srv, "cam", 4, 4096, channel.WithStreams()))(t))
			add := adder(t, ctx)
			r := untilEnd(t, ok(channel.Open(soon(t), srv.Path(), "cam", ctx))(t))
			s := newStream(t, ctx)
			out := untilEnd(t, ok(ctx.Alloc(4096))(t))
			for range 3 {
				f := ok(r.NextOn(s))(t)
				require.NoError(t, add(s, f, f, out))
				require.NoError(t, r.ReleaseOn(s, f))
			}
			if comes {
				waits(t, out.Close, func() { publish(t, w, 3) })
			} else {
				err := within(t, out.Close)
				require.ErrorIs(t, err, cu.ErrInUse)
				require.ErrorIs(t, err, context.DeadlineExceeded)
			}
			require.NoError(t, within(t, s.Close))
			require.NoError(t, within(t, r.Close))
			require.NoError(t, within(t, out.Close), "nobody waits any more")
			requireAlive(t, ctx)
		})
	}
}

func publish(t testing.TB, w *channel.Writer, n int) {
	t.Helper()
	for range n {
		slot := ok(w.Acquire(soon(t)))(t)
		require.NoError(t, w.Publish(slot, channel.Meta{}))
	}
}

// adder returns what launches a kernel that adds 1024 numbers. It has been loaded.
func adder(t testing.TB, ctx *cu.Context) func(s *cu.Stream, a, b, sums cu.Pointer) error {
	t.Helper()
	mod := untilEnd(t, ok(ctx.LoadModule([]byte(kernels.Vector)))(t))
	f := ok(mod.Function("vector_add"))(t)
	add := func(s *cu.Stream, a, b, sums cu.Pointer) error {
		return f.Launch(s, cu.LaunchConfig{Grid: cu.Dim3{X: 4}, Block: cu.Dim3{X: 256}}, a, b, sums, uint64(1024))
	}
	s, m := ok(ctx.NewStream())(t), ok(ctx.Alloc(4096))(t)
	require.NoError(t, add(s, m, m, m))
	require.NoError(t, s.Synchronize(soon(t)))
	require.NoError(t, s.Close())
	require.NoError(t, m.Close())
	return add
}
