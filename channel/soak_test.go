package channel

import (
	"fmt"
	"math/rand/v2"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/cutest"
)

// soakFrames is how many frames the soak has: GPUFD_SOAK=1 asks for the long form.
func soakFrames() uint64 {
	switch long := os.Getenv("GPUFD_SOAK") == "1"; {
	case long && cutest.Emulated():
		return 20_000
	case long:
		return 1_000_000
	case cutest.Emulated():
		return 500
	}
	return 5_000
}

// Frames by the million, to readers of every policy that stall at random, and to one that is
// killed again and again. Each frame's bytes are checked; each one is taken, or counted as lost. A reader of Latest
// checks the bytes again before it releases them, and says how old the frames are that Next gives.
//
//fault:rows 93
func TestSoak(t *testing.T) {
	ctx, srv := listening(t)
	w := ok(NewWriter(soon(t), ctx, srv, "frames", 8, 256))(t)
	frames, rng := soakFrames(), newRandom(uint64(time.Now().UnixNano()))
	var readers []*child
	for i, p := range []Policy{Block, Block, DropOldest, DropNewest, Latest} {
		c := start(t, "reader", task{Path: srv.Path(), Policy: p, Join: Next, Stall: time.Duration(i) * time.Millisecond, Holds: i % 3, Seed: rng.Uint64()})
		require.Equal(t, "joined 1", c.says(t))
		readers = append(readers, c)
	}
	var victim *child
	publish(t, ctx, w, frames, func(n uint64) {
		if round := max(1, frames/50); n%round == 0 {
			if victim != nil {
				victim.kill()
			}
			victim = start(t, "reader", task{Path: srv.Path(), Policy: Policy(1 + n/round%4), Join: Join(1 + n/round/4%2), Seed: n, Holds: 3})
		}
	})
	if victim != nil {
		victim.kill()
	}
	require.NoError(t, w.Close())
	for i, c := range readers {
		var received, lost, passed uint64
		require.NoError(t, errOf(fmt.Sscanf(c.says(t), "received %d lost %d passed %d", &received, &lost, &passed)))
		t.Logf("reader %d: received %d, lost %d, passed by %d times", i, received, lost, passed)
		require.Equal(t, frames, received+lost)
		if i < 2 {
			require.Zero(t, lost)
		}
		if i != 2 {
			require.Zero(t, passed)
		}
		if i == 4 {
			t.Log("latest: ", c.says(t))
		}
		c.end(t)
	}
}

// publish publishes frames with their patterns, and calls f before each.
func publish(t *testing.T, ctx *cu.Context, w *Writer, frames uint64, f func(n uint64)) {
	t.Helper()
	b := make([]byte, w.SlotSize())
	for n := uint64(1); n <= frames; n++ {
		f(n)
		s := ok(w.Acquire(soon(t)))(t)
		require.Equal(t, n, s.Sequence)
		pattern(b, n)
		require.NoError(t, cu.CopyToDevice(ctx, s.Ptr(), b))
		require.NoError(t, w.Publish(s, Meta{}))
		if rand.IntN(1000) == 0 {
			time.Sleep(time.Duration(rand.Int64N(int64(time.Millisecond))))
		}
	}
}
