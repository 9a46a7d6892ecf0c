package channel

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gpufd/gpufd/cu/cutest"
	"github.com/gpufd/gpufd/share"
	"github.com/gpufd/gpufd/sock"
)

// gone waits until the writer has counted a reader out.
func gone(t testing.TB, from <-chan Gone) Gone {
	t.Helper()
	select {
	case g := <-from:
		return g
	case <-soon(t).Done():
		require.FailNow(t, "the reader is not counted out")
		return Gone{}
	}
}

// FAULT 93: a reader is killed while it holds a slot, or stopped. The writer counts the dead one
// out, its slot is free, and another reader misses nothing.
func TestFault93_ReaderKilled(t *testing.T) {
	for _, policy := range []Policy{Block, DropOldest, DropNewest} {
		t.Run(policy.String(), func(t *testing.T) {
			left := make(chan Gone, 1)
			ctx, srv, w := newChannel(t, 3, 64, OnGone(func(g Gone) { left <- g }))
			other := newReader(t, ctx, srv)
			c := start(t, "reader", task{Path: srv.Path(), Policy: policy, Join: Next, StopAt: 1})
			c.says(t)
			put(t, ctx, w)
			require.Equal(t, "has 1", c.says(t))
			require.NoError(t, other.Release(requireFrame(t, ctx, other, 1)))
			killed := time.Now()
			c.kill()
			g := gone(t, left)
			t.Logf("counted out after %s", time.Since(killed))
			var lost *sock.LostError
			require.ErrorAs(t, g.Err, &lost)
			require.Equal(t, 1, w.Readers())
			for n := uint64(2); n <= 20; n++ {
				put(t, ctx, w)
				require.NoError(t, other.Release(requireFrame(t, ctx, other, n)))
			}
			require.Zero(t, other.Stats().Lost)
		})
	}
}

// FAULT 93: the same while the writer waits for it.
func TestFault93_ReaderThatIsWaitedForIsKilled(t *testing.T) {
	ctx, srv, w := newChannel(t, 2, 64)
	c := start(t, "reader", task{Path: srv.Path(), Policy: Block, Join: Next, StopAt: 1})
	c.says(t)
	put(t, ctx, w)
	put(t, ctx, w)
	require.Equal(t, "has 1", c.says(t))
	acquired := make(chan error, 1)
	go func() {
		_, err := w.Acquire(soon(t))
		acquired <- err
	}()
	select {
	case <-acquired:
		require.FailNow(t, "the slot is the reader's")
	case <-time.After(20 * time.Millisecond):
	}
	c.kill()
	require.NoError(t, <-acquired)
}

// FAULT 93: a stopped reader keeps nobody waiting but where it blocks, and that no longer than
// the writer likes.
func TestFault93_ReaderStopped(t *testing.T) {
	left := make(chan Gone, 3)
	ctx, srv, w := newChannel(t, 3, 64, WithDropAfter(50*time.Millisecond), OnGone(func(g Gone) { left <- g }))
	var stopped []*child
	for _, policy := range []Policy{DropOldest, DropNewest, Block} {
		c := start(t, "reader", task{Path: srv.Path(), Policy: policy, Join: Next})
		c.says(t)
		c.stop(t)
		stopped = append(stopped, c)
	}
	for range 50 {
		put(t, ctx, w)
	}
	require.ErrorIs(t, gone(t, left).Err, ErrStalled)
	require.Equal(t, 2, w.Readers(), "those that keep nobody waiting are there")
	for _, c := range stopped {
		c.kill()
	}
}

// FAULT 94: the writer is killed within a frame. That frame is never good, and the error names
// the last whole one; what was whole can be taken.
func TestFault94_WriterKilledWithinAFrame(t *testing.T) {
	for _, policy := range []Policy{Block, DropOldest, DropNewest} {
		t.Run(policy.String(), func(t *testing.T) {
			ctx := cutest.Context(t, cutest.Device(t))
			path := t.TempDir() + "/s"
			// With fewer slots a reader that drops the newest may not get frame 3: it keeps half.
			c := start(t, "writer", task{Path: path, Slots: 8, Size: 4096, Frames: 10, StopAt: 4})
			require.Equal(t, "listening", c.says(t))
			r := ok(Open(soon(t), path, "frames", ctx, WithPolicy(policy)))(t)
			require.Equal(t, "within 4", c.says(t))
			require.NoError(t, r.Release(requireFrame(t, ctx, r, 1)))
			c.kill()
			<-r.Done()
			require.NoError(t, r.Release(requireFrame(t, ctx, r, 2)))
			require.NoError(t, r.Release(requireFrame(t, ctx, r, 3)))
			_, err := r.Next(soon(t))
			var lost *WriterLostError
			require.ErrorAs(t, err, &lost)
			require.ErrorIs(t, err, ErrLost)
			require.EqualValues(t, 3, lost.Last)
			require.NoError(t, r.AwaitFence(soon(t)))
			require.NoError(t, r.Close())
		})
	}
}

// FAULT 94: a reader goes on with the writer that starts in place of the dead one.
func TestFault94_ReaderFollowsItsWriter(t *testing.T) {
	ctx := cutest.Context(t, cutest.Device(t))
	path := t.TempDir() + "/s"
	lives := 0
	c := start(t, "writer", task{Path: path, Slots: 4, Size: 64, Frames: 10, StopAt: 3})
	wait, cancel := context.WithCancel(soon(t))
	defer cancel()
	for r, err := range Follow(wait, path, "frames", ctx) {
		if errors.Is(err, context.Canceled) {
			break
		}
		require.NoError(t, err)
		lives++
		require.NoError(t, r.Release(requireFrame(t, ctx, r, 1)))
		require.NoError(t, r.Release(requireFrame(t, ctx, r, 2)))
		if lives == 2 {
			break
		}
		c.kill()
		require.ErrorIs(t, errOf(r.Next(soon(t))), ErrLost)
		c = start(t, "writer", task{Path: path, Slots: 4, Size: 64, Frames: 2})
	}
	require.Equal(t, 2, lives)
}

// FAULT 95: what a reader writes into its cursor that cannot be makes an end of that reader, and
// of no other.
func TestFault95_NonsenseOfAReader(t *testing.T) {
	for name, lie := range map[string]func(r *Reader){
		"backwards": func(r *Reader) { r.store(offReleased, 0) },
		"too far":   func(r *Reader) { r.store(offReleased, 10) },
		"freed":     func(r *Reader) { r.store(offReleased, given) },
		"huge":      func(r *Reader) { r.store(offReleased, 1<<64-1) },
	} {
		for _, c := range []struct {
			policy  Policy
			streams bool
		}{{Block, false}, {Block, true}, {DropOldest, false}, {DropNewest, false}, {Latest, false}} {
			t.Run(fmt.Sprintf("%s, %s, streams %v", name, c.policy, c.streams), func(t *testing.T) {
				ctx, srv := listening(t)
				left := make(chan Gone, 2)
				opts := []WriterOption{OnGone(func(g Gone) { left <- g })}
				if c.streams {
					opts = append(opts, WithStreams())
				}
				w := newWriter(t, ctx, srv, 4, 64, opts...)
				liar, other := newReader(t, ctx, srv, WithPolicy(c.policy)), newReader(t, ctx, srv, WithPolicy(c.policy))
				for n := uint64(1); n <= 5; n++ { // at the fifth the writer has looked at the cursors
					put(t, ctx, w)
					require.NoError(t, liar.Release(requireFrame(t, ctx, liar, n)))
					require.NoError(t, other.Release(requireFrame(t, ctx, other, n)))
				}
				lie(liar)
				for n := uint64(6); n <= 9; n++ { // it looks again within a round of the slots
					put(t, ctx, w)
					require.NoError(t, other.Release(requireFrame(t, ctx, other, n)))
				}
				require.ErrorIs(t, gone(t, left).Err, ErrCursor)
				<-liar.Done()
				require.ErrorIs(t, liar.Err(), ErrDropped)
				require.Equal(t, 1, w.Readers())
				put(t, ctx, w)
				requireFrame(t, ctx, other, 10)
			})
		}
	}
}

// FAULT 95: what a reader says when it joins is checked, too.
func TestFault95_NonsenseOfWhoJoins(t *testing.T) {
	ctx, srv := listening(t)
	left := make(chan Gone, 2)
	newWriter(t, ctx, srv, 4, 64, OnGone(func(g Gone) { left <- g }))
	for _, o := range []*readerOptions{{policy: 5, join: Next}, {policy: 0, join: Next}, {policy: Block, join: 3}} {
		att := ok(share.Attach(soon(t), srv.Path(), "frames", ctx.Device(), o.attaching()))(t)
		require.ErrorIs(t, errOf(join(soon(t), att, ctx, o)), ErrDropped)
		require.ErrorIs(t, gone(t, left).Err, ErrCursor)
		require.NoError(t, att.Close())
	}
}

// FAULT 95: nonsense of a writer is an error of its readers, and not a hang.
func TestFault95_NonsenseOfAWriter(t *testing.T) {
	for name, lie := range map[string]func(m *member){
		"backwards":       func(m *member) { m.store(offPublished, 1) },
		"too far":         func(m *member) { m.store(offPublished, 7) },
		"freed":           func(m *member) { m.store(offPublished, given) },
		"not whole":       func(m *member) { m.store(m.at.entry(3)+entryStamp, 5) },
		"no such slot":    func(m *member) { m.store(m.at.entry(3)+entrySlot, 4) },
		"held slot":       func(m *member) { m.store(m.at.entry(3)+entrySlot, m.load(m.at.entry(2)+entrySlot)) },
		"old sequence":    func(m *member) { m.store(m.at.entry(3)+entrySequence, 2) },
		"too many bytes":  func(m *member) { m.store(m.at.entry(3)+entryBytes, 65) },
		"too much of own": func(m *member) { m.store(m.at.entry(3)+entryLength, MaxUser+1) },
	} {
		t.Run(name, func(t *testing.T) {
			ctx, w, r := newPair(t, 4, 64)
			for range 3 {
				put(t, ctx, w)
			}
			requireFrame(t, ctx, r, 1)
			requireFrame(t, ctx, r, 2)
			w.mu.Lock()
			lie(w.readers[0])
			w.mu.Unlock()
			_, err := r.Next(soon(t))
			if name == "backwards" || name == "too far" || name == "freed" { // frame 3 is there, whatever its number
				require.NoError(t, err)
				_, err = r.Next(soon(t))
			}
			require.ErrorIs(t, err, ErrCursor)
		})
	}
}

// FAULT 95: nonsense of a writer is an error of readers by streams, too, whether the writer lives or
// was killed. The stream goes on, whatever it is told.
func TestFault95_NonsenseToStreams(t *testing.T) {
	for name, published := range map[string]uint64{"backwards": 1, "too far": 5, "far too far": 1e15, "freed": given, "huge": 1<<64 - 1} {
		for _, killed := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, killed %v", name, killed), func(t *testing.T) {
				ctx := cutest.Context(t, cutest.Device(t))
				path := t.TempDir() + "/s"
				c := start(t, "writer", task{Path: path, Slots: 4, Size: 64, Frames: 10, StopAt: 3, Streams: true})
				require.Equal(t, "listening", c.says(t))
				r := ok(Open(soon(t), path, "frames", ctx))(t)
				s := newStream(t, ctx)
				f := ok(r.NextOn(s))(t)
				require.Equal(t, "within 3", c.says(t))
				require.NoError(t, s.Synchronize(soon(t)))
				require.NoError(t, r.Check(f))
				r.store(offPublished, published)
				if killed {
					c.kill()
					<-r.Done()
					if name != "backwards" { // which only who has looked before knows
						require.ErrorIs(t, r.Err(), ErrCursor)
					}
				}
				require.ErrorIs(t, r.Check(f), ErrCursor)
				require.ErrorIs(t, errOf(r.NextOn(s)), ErrCursor)
				require.NoError(t, r.Close())
			})
		}
	}
}

// A stream may release frames ahead, which the writer has not given yet: that is no nonsense.
func TestStreamReleasesAhead(t *testing.T) {
	ctx, w, r := newPair(t, 2, 64, WithStreams())
	s := newStream(t, ctx)
	put(t, ctx, w)
	var frames []Frame
	for range 6 {
		f := ok(r.NextOn(s))(t)
		require.NoError(t, r.ReleaseOn(s, f))
		require.NoError(t, r.Check(f))
		frames = append(frames, f)
	}
	for range 5 {
		put(t, ctx, w)
	}
	require.NoError(t, s.Synchronize(soon(t)))
	for _, f := range frames {
		require.NoError(t, r.Check(f))
	}
}

// The writer is stopped between a frame and its number. A reader that has the frame may ask for the
// next one as often as it likes.
func TestWriterStoppedBeforeTheNumber(t *testing.T) {
	ctx, w, r := newPair(t, 4, 64)
	put(t, ctx, w)
	w.mu.Lock()
	w.readers[0].store(offPublished, 0)
	w.mu.Unlock()
	require.NoError(t, r.Release(requireFrame(t, ctx, r, 1)))
	over, cancel := context.WithCancel(context.Background())
	cancel()
	for range 3 {
		require.ErrorIs(t, errOf(r.Next(over)), context.Canceled)
	}
	put(t, ctx, w)
	require.NoError(t, r.Release(requireFrame(t, ctx, r, 2)))
}

// FAULT 95: the head of the cursors is a peer's, too.
func TestFault95_HeadOfTheCursors(t *testing.T) {
	ctx, srv := listening(t)
	newWriter(t, ctx, srv, 4, 64)
	for _, lie := range []struct {
		off int
		v   uint64
	}{{offMagic, 1}, {offVersion, 2}, {offSlots, 5}, {offSlots, 0}, {offSlotSize, 0}, {offStride, 1 << 40}, {offFlags, flagStreams | flagAnyOrder}, {offFlags, 4}, {offGeneration, 1}} {
		att := ok(share.Attach(soon(t), srv.Path(), "frames", ctx.Device(), &share.AttachOptions{MaxCursors: maxCursorSize}))(t)
		w := ok(mapWords(att.Cursors().Fd(), 8192))(t)
		w.store(lie.off, lie.v)
		o := ok(newReaderOptions(nil))(t)
		require.ErrorIs(t, errOf(join(soon(t), att, ctx, o)), ErrCursor, "%#x is %d", lie.off, lie.v)
		require.NoError(t, att.Close())
		require.NoError(t, unix.Munmap(w.b))
	}
}
