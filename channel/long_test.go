package channel

import (
	"cmp"
	"flag"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
)

var (
	paceFor  = flag.Duration("pace", 0, "how long TestPace runs, timed; 0 is a moment, not timed")
	killsFor = flag.Duration("kills", 0, "how long TestKills runs, timed; 0 is a moment, not timed")
)

// ended reads what a reader says at its end.
func ended(t *testing.T, c *child) (received, lost uint64) {
	t.Helper()
	var passed uint64
	line := c.says(t)
	require.NoError(t, errOf(fmt.Sscanf(line, "received %d lost %d passed %d", &received, &lost, &passed)), line)
	c.end(t)
	return received, lost
}

// A pace of 10,000 frames a second, in block: -pace 5m is 3,000,000 of them. The
// reader is another process and checks each frame's sequence and bytes.
func TestPace(t *testing.T) {
	run, rate := cmp.Or(*paceFor, 300*time.Millisecond), 10_000.0
	timed := *paceFor > 0
	if !timed {
		rate = 1000 // a machine may be busy
	}
	frames := uint64(run.Seconds() * rate)
	ctx, srv := listening(t)
	w := ok(NewWriter(soon(t), ctx, srv, "frames", 64, 256))(t)
	c := start(t, "reader", task{Path: srv.Path(), Policy: Block, Join: Next})
	require.Equal(t, "joined 1", c.says(t))
	b := make([]byte, w.SlotSize())
	begin, wait := time.Now(), soonFor(t, 2*run+time.Minute)
	for n := uint64(1); n <= frames; n++ {
		for due := begin.Add(time.Duration(float64(n-1) / rate * float64(time.Second))); time.Now().Before(due); {
			time.Sleep(time.Until(due))
		}
		s := ok(w.Acquire(wait))(t)
		pattern(b, n)
		require.NoError(t, cu.CopyToDevice(ctx, s.Ptr(), b))
		require.NoError(t, w.Publish(s, Meta{}))
	}
	took := time.Since(begin)
	stats := w.Stats()
	require.NoError(t, w.Close())
	received, lost := ended(t, c)
	require.Equal(t, []uint64{frames, 0}, []uint64{received, lost})
	t.Logf("%d frames in %s, each one's sequence and bytes checked; the longest wait for a slot was %s", frames, took, stats.MaxStall)
	if timed {
		require.InEpsilon(t, run.Seconds(), took.Seconds(), 0.01)
	}
}

// One of four readers is killed every second (-kills 2m), once it has joined, and
// another takes its place; each is counted out, within 10 ms where the run is timed, and the other
// three miss nothing.
func TestKills(t *testing.T) {
	run, timed := cmp.Or(*killsFor, 500*time.Millisecond), *killsFor > 0
	pause := min(time.Second, run/3)
	ctx, srv := listening(t)
	left := make(chan Gone, 1000)
	w := ok(NewWriter(soon(t), ctx, srv, "frames", 8, 256, OnGone(func(g Gone) { left <- g })))(t)
	reader := task{Path: srv.Path(), Policy: Block, Join: Next}
	var others []*child
	for range 3 {
		c := start(t, "reader", reader)
		require.Equal(t, "joined 1", c.says(t))
		others = append(others, c)
	}
	b, wait := make([]byte, w.SlotSize()), soonFor(t, 2*run+time.Minute)
	victim, kills, longest := start(t, "reader", reader), 0, time.Duration(0)
	var out []time.Duration // how long each took to be counted out
	begin := time.Now()
	for next := begin.Add(pause); time.Since(begin) < run; {
		if time.Now().After(next) {
			next = next.Add(pause)
			require.Contains(t, victim.says(t), "joined ")
			at := time.Now()
			require.NoError(t, victim.cmd.Process.Kill())
			for w.Readers() > 3 {
				require.Less(t, time.Since(at), time.Minute)
				time.Sleep(50 * time.Microsecond)
			}
			out = append(out, time.Since(at))
			victim.kill()
			kills++
			victim = start(t, "reader", reader)
		}
		at := time.Now()
		s := ok(w.Acquire(wait))(t)
		longest = max(longest, time.Since(at))
		pattern(b, s.Sequence)
		require.NoError(t, cu.CopyToDevice(ctx, s.Ptr(), b))
		require.NoError(t, w.Publish(s, Meta{}))
	}
	victim.kill()
	frames := w.Last()
	require.NoError(t, w.Close())
	for _, c := range others {
		received, lost := ended(t, c)
		require.Equal(t, []uint64{frames, 0}, []uint64{received, lost})
	}
	require.GreaterOrEqual(t, len(left), 3+kills, "each that was killed is counted out, and the three at the end")
	require.InDelta(t, float64(run/pause), kills, max(2, float64(run/pause)/10))
	slices.Sort(out)
	t.Logf("%d frames; %d readers were killed, and counted out after %s at the median and %s at most; the longest wait for a slot was %s",
		frames, kills, out[len(out)/2], out[len(out)-1], longest)
	if timed {
		require.LessOrEqual(t, out[len(out)-1], 10*time.Millisecond)
	}
}
