package cases

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/channel"
	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/share"
)

// frameSize is that of a frame, each byte of which is its sequence number's last.
const frameSize = 1000

// A reader that is much slower than its writer and wants the newest frame gets it, and has it to itself until
// Release. Nobody waits for the reader.
func TestFault98_Newest(t *testing.T) {
	for _, slots := range []int{2, 3, 4, 8, 32} {
		t.Run(fmt.Sprint(slots, " slots"), func(t *testing.T) {
			_, ctx := device(t, patience)
			srv := untilEnd(t, ok(share.Listen(filepath.Join(t.TempDir(), "s"), nil))(t))
			w := untilEnd(t, ok(channel.NewWriter(soon(t), ctx, srv, "cam", slots, frameSize))(t))
			r, err := channel.Open(soon(t), srv.Path(), "cam", ctx, channel.WithPolicy(channel.Latest))
			if slots == 2 {
				require.ErrorIs(t, err, channel.ErrPolicy)
				require.ErrorContains(t, err, "latest")
				return
			}
			r = untilEnd(t, ok(r, err)(t))
			stop := films(t, ctx, w)
			for range 10 {
				last := w.Last()
				f := ok(r.Next(soon(t)))(t)
				require.GreaterOrEqual(t, f.Sequence, last)
				requireWhole(t, ctx, f)
				require.Eventually(t, func() bool { return w.Last() > f.Sequence+uint64(slots) }, patience, time.Millisecond, "the writer goes on")
				requireWhole(t, ctx, f)
				require.NoError(t, r.Whole(f))
				require.NoError(t, r.Release(f))
			}
			stop()
			require.Zero(t, r.Stats().Passed)
			require.EqualValues(t, 10, r.Stats().Received)
		})
	}
}

// films publishes a thousand frames a second until stop is called, or t ends.
func films(t testing.TB, ctx *cu.Context, w *channel.Writer) (stop func()) {
	t.Helper()
	life, cancel := context.WithCancel(soon(t))
	ended := make(chan error, 1)
	go func() {
		tick := time.NewTicker(time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-life.Done():
				ended <- nil
				return
			case <-tick.C:
			}
			if err := film(life, ctx, w); err != nil && !errors.Is(err, context.Canceled) {
				ended <- err
				return
			}
		}
	}()
	stopped := false
	stop = func() {
		t.Helper()
		cancel()
		if !stopped {
			stopped = true
			require.NoError(t, <-ended)
		}
	}
	t.Cleanup(stop)
	return stop
}

// film publishes a frame.
func film(life context.Context, ctx *cu.Context, w *channel.Writer) error {
	slot, err := w.Acquire(life)
	if err != nil {
		return err
	}
	if err := cu.Fill(ctx, slot, uint8(slot.Sequence), slot.Size()); err != nil {
		return err
	}
	return w.Publish(slot, channel.Meta{})
}

// requireWhole checks the bytes of a frame.
func requireWhole(t testing.TB, ctx *cu.Context, f channel.Frame) {
	t.Helper()
	got, want := make([]byte, f.Size()), make([]byte, frameSize)
	require.NoError(t, cu.CopyToHost(ctx, got, f))
	for i := range want {
		want[i] = uint8(f.Sequence)
	}
	require.Equal(t, want, got, "frame %d", f.Sequence)
}
