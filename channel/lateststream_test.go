package channel

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/kernels"
)

// In a channel for streams a reader of Latest blocks, takes the newest frame, and gives back what it skips at once.
func TestLatestInAChannelForStreams(t *testing.T) {
	ctx, srv, w := newChannel(t, 4, 64, WithStreams())
	r, s := newest(t, ctx, srv), newStream(t, ctx)
	for range 3 {
		put(t, ctx, w)
	}
	f := requireFrame(t, ctx, r, 3)
	require.ErrorIs(t, errOf(r.Next(soon(t))), ErrOrder, "one frame is held")
	for range 3 { // in the slots of those that were skipped
		slot := ok(w.AcquireOn(s))(t)
		require.NoError(t, cu.FillAsync(s, slot.Ptr(), uint8(slot.Sequence), slot.Size()))
		require.NoError(t, w.PublishOn(s, slot, Meta{}))
	}
	require.NoError(t, s.Synchronize(soon(t)))
	requireBytes(t, ctx, f)
	require.NoError(t, r.Release(f))
	require.EqualValues(t, 6, ok(r.Next(soon(t)))(t).Sequence)
	require.EqualValues(t, 4, r.Stats().Lost)
}

// A stream of a reader of Latest gets the frame that is the newest when NextOn is called, or the next.
func TestLatestOnAStream(t *testing.T) {
	ctx, srv, w := newChannel(t, 4, 64, WithStreams())
	r, s := newest(t, ctx, srv), newStream(t, ctx)
	for _, c := range []struct{ puts, want uint64 }{{3, 3}, {2, 5}, {1, 6}, {3, 9}} {
		for range c.puts {
			put(t, ctx, w)
		}
		f := ok(r.NextOn(s))(t)
		require.Equal(t, c.want, f.Sequence)
		require.ErrorIs(t, errOf(r.NextOn(s)), ErrOrder, "one frame is held")
		b := pinned(t, ctx, 64)
		require.NoError(t, cu.CopyToHostAsync(s, b, f.Ptr()))
		require.NoError(t, r.ReleaseOn(s, f))
		require.NoError(t, s.Synchronize(soon(t)))
		require.NoError(t, checkPattern(b, c.want))
		require.NoError(t, r.Check(f))
	}
	f := ok(r.NextOn(s))(t)
	require.EqualValues(t, 10, f.Sequence, "the next one, for which the stream waits")
	put(t, ctx, w)
	require.NoError(t, s.Synchronize(soon(t)))
	put(t, ctx, w)
	require.NoError(t, r.ReleaseOn(s, f))
	f = ok(r.Next(soon(t)))(t) // the host takes one while a release of the stream is under way, or done
	require.EqualValues(t, 11, f.Sequence)
	require.NoError(t, s.Synchronize(soon(t)))
	require.NoError(t, r.Release(f))
	require.EqualValues(t, 11, r.load(offReleased))
}

// A reader of Latest does not overtake the release of its stream: what it skips meanwhile is given back with the frame
// that it takes.
func TestLatestSkipsBehindItsStream(t *testing.T) {
	ctx, srv, w := newChannel(t, 8, 64, WithStreams())
	r, s, other := newest(t, ctx, srv), newStream(t, ctx), newStream(t, ctx)
	word := ok(ctx.Alloc(8))(t)
	defer func() { require.NoError(t, word.Close()) }()
	require.NoError(t, other.WriteValue32(word.Ptr(), 0, cu.WriteDefault))
	require.NoError(t, other.Synchronize(soon(t)))
	put(t, ctx, w)
	f := ok(r.NextOn(s))(t)
	require.NoError(t, s.WaitValue32(word.Ptr(), 1, cu.WaitEQ)) // work with the frame, which takes a while
	require.NoError(t, r.ReleaseOn(s, f))
	for range 4 {
		put(t, ctx, w)
	}
	f = requireFrame(t, ctx, r, 5)
	require.Zero(t, r.load(offReleased))
	require.ErrorIs(t, r.Release(f), ErrOrder, "the stream has one to release")
	require.NoError(t, other.WriteValue32(word.Ptr(), 1, cu.WriteDefault))
	require.NoError(t, s.Synchronize(soon(t)))
	require.EqualValues(t, 1, r.load(offReleased))
	require.NoError(t, r.Release(f))
	require.EqualValues(t, 5, r.load(offReleased))
	for range 8 { // in all slots
		put(t, ctx, w)
	}
	requireFrame(t, ctx, r, 13)
}

// Readers that drop are refused in a channel for streams, by name, and so are streams of a reader of Latest elsewhere.
func TestRefusedInAChannelForStreams(t *testing.T) {
	ctx, srv, _ := newChannel(t, 4, 64, WithStreams())
	for _, p := range []Policy{DropOldest, DropNewest} {
		_, err := Open(soon(t), srv.Path(), "frames", ctx, WithPolicy(p))
		require.ErrorIs(t, err, ErrPolicy)
		require.ErrorContains(t, err, p.String())
		require.ErrorContains(t, err, "before anybody knows")
	}
	ctx, srv, _ = newChannel(t, 4, 64)
	_, err := newest(t, ctx, srv).NextOn(newStream(t, ctx))
	require.ErrorIs(t, err, ErrPolicy)
	require.ErrorContains(t, err, "latest")
}

// Close of a reader whose stream waits for a frame that is not there does not wait for it. The work with frames that are
// there is done first.
func TestReaderCloseFreesAtOnce(t *testing.T) {
	for name, c := range map[string]struct{ published, taken int }{
		"no stream":               {2, 0},
		"all frames there":        {2, 2},
		"more frames than taken":  {3, 1},
		"one does not come":       {0, 1},
		"the second is not there": {1, 2},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, srv, w := newChannel(t, 4, 64, WithStreams())
			s := newStream(t, ctx)
			host := pinned(t, ctx, 4*64)
			var took []time.Duration // of a few tries the shortest: the machine may stop for a while
			for range 5 {
				r := ok(Open(soon(t), srv.Path(), "frames", ctx))(t)
				before := w.Last()
				for range c.published {
					put(t, ctx, w)
				}
				for i := range c.taken {
					f := ok(r.NextOn(s))(t)
					require.NoError(t, cu.CopyToHostAsync(s, host[i*64:][:64], f.Ptr()))
					require.NoError(t, r.ReleaseOn(s, f))
				}
				begin := time.Now()
				require.NoError(t, r.Close())
				took = append(took, time.Since(begin))
				for i := range min(c.taken, c.published) {
					require.NoError(t, checkPattern(host[i*64:][:64], before+uint64(i)+1))
				}
				if took[len(took)-1] < closeLimit/2 {
					return
				}
			}
			require.Fail(t, "Close waits", "%v", took)
		})
	}
}

// A frame and a slot are arguments of launches.
func TestFramesAreArguments(t *testing.T) {
	ctx, w, r := newPair(t, 2, 4096)
	mod := ok(ctx.LoadModule([]byte(kernels.Pattern)))(t)
	defer func() { require.NoError(t, mod.Close()) }()
	fill := ok(mod.Function("pattern_fill"))(t)
	s := newStream(t, ctx)
	launch := func(memory any) error {
		return fill.Launch(s, cu.LaunchConfig{Grid: cu.Dim3{X: 1}, Block: cu.Dim3{X: 64}}, memory, uint64(1024), uint64(0), uint32(15))
	}
	slot := ok(w.Acquire(soon(t)))(t)
	require.NoError(t, launch(slot))
	require.NoError(t, s.Synchronize(soon(t)))
	require.NoError(t, w.Publish(slot, Meta{}))
	f := ok(r.Next(soon(t)))(t)
	got, want := make([]byte, 1024), make([]byte, 1024)
	require.NoError(t, cu.CopyToHost(ctx, got, f.Ptr()))
	require.NoError(t, cu.CopyToHost(ctx, want, slot.Ptr()))
	require.Equal(t, want, got)
	require.NotEqual(t, make([]byte, 1024), got)
	require.Zero(t, Frame{}.Ptr())
	require.Zero(t, Slot{}.Ptr())
	require.ErrorIs(t, launch(Frame{}), cu.ErrClosed, "the zero Frame is no memory")
}
