package channel

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu/cutest"
)

// FAULT 95: a reader of Latest whose claim cannot be is dropped, and others go on.
func TestFault95_NonsenseClaims(t *testing.T) {
	for name, claim := range map[string]uint64{"too far": 9, "huge": 1<<64 - 1, "of no frame": 1 + 7} {
		t.Run(name, func(t *testing.T) {
			ctx, srv := listening(t)
			left := make(chan Gone, 3)
			w := newWriter(t, ctx, srv, 8, 64, OnGone(func(g Gone) { left <- g }))
			liar, other := newest(t, ctx, srv), newest(t, ctx, srv)
			put(t, ctx, w)
			f := requireFrame(t, ctx, other, 1)
			liar.store(offClaim, claim)
			w.mu.Lock()
			w.look()
			w.mu.Unlock()
			require.ErrorIs(t, gone(t, left).Err, ErrCursor)
			<-liar.Done()
			require.ErrorIs(t, errOf(liar.Next(soon(t))), ErrDropped)
			for range 20 {
				put(t, ctx, w)
				requireBytes(t, ctx, f)
			}
			require.NoError(t, other.Release(f))
			requireFrame(t, ctx, other, 21)
		})
	}
}

// FAULT 95: a claim keeps one slot from the writer. A reader that claims one slot after the other, while the writer
// chooses, is dropped.
func TestFault95_ClaimsOneAfterTheOther(t *testing.T) {
	ctx, srv := listening(t)
	left := make(chan Gone, 2)
	w := newWriter(t, ctx, srv, 4, 64, OnGone(func(g Gone) { left <- g }))
	liar := newest(t, ctx, srv)
	for range 4 {
		put(t, ctx, w)
	}
	w.mu.Lock()
	m := w.readers[0]
	next, free := w.pick()
	require.True(t, free)
	liar.store(offClaim, next+1)
	require.True(t, w.isClaimed(next))
	require.Equal(t, 2*m.inSlot[next], m.load(m.at.entryAt(next)+entryStamp), "its frame stays whole")
	another, free := w.pick()
	require.True(t, free)
	require.NotEqual(t, next, another)
	liar.store(offClaim, another+1)
	require.False(t, w.isClaimed(another))
	require.Equal(t, writerRefused, m.load(offWriterState))
	w.mu.Unlock()
	require.ErrorIs(t, gone(t, left).Err, ErrCursor)
	put(t, ctx, w)
}

// A reader that claims a slot which the writer has marked sees that when it looks again, and takes a newer frame.
func TestClaimAndLookAgain(t *testing.T) {
	ctx, srv, w := newChannel(t, 3, 64)
	r := newest(t, ctx, srv)
	put(t, ctx, w)
	first := r.load(offNewest)
	put(t, ctx, w)
	put(t, ctx, w)
	r.store(offNewest, first) // as the reader has loaded it long ago
	slot := ok(w.Acquire(soon(t)))(t)
	require.EqualValues(t, first, slot.Index, "nobody has claimed it")
	var f Frame
	took, err := r.claim(&f)
	require.NoError(t, err)
	require.False(t, took, "the writer has marked it")
	require.Zero(t, r.load(offClaim))
	require.NoError(t, w.Publish(slot, Meta{}))
	require.EqualValues(t, 4, ok(r.Next(soon(t)))(t).Sequence)
}

// FAULT 95: nonsense of a writer is an error of a reader of Latest, and not a hang.
func TestFault95_NonsenseToLatest(t *testing.T) {
	entry := func(m *member) int { return m.at.entryAt(m.load(offNewest)) }
	for name, lie := range map[string]func(m *member){
		"backwards":       func(m *member) { m.store(offPublished, 1) },
		"freed":           func(m *member) { m.store(offPublished, given) },
		"no such slot":    func(m *member) { m.store(offNewest, 4) },
		"another slot":    func(m *member) { m.store(entry(m)+entrySlot, 0) },
		"old number":      func(m *member) { m.store(entry(m)+entryStamp, 4) },
		"old sequence":    func(m *member) { m.store(entry(m)+entrySequence, 2) },
		"too many bytes":  func(m *member) { m.store(entry(m)+entryBytes, 65) },
		"too much of own": func(m *member) { m.store(entry(m)+entryLength, MaxUser+1) },
	} {
		t.Run(name, func(t *testing.T) {
			ctx, srv, w := newChannel(t, 4, 64)
			r := newest(t, ctx, srv)
			put(t, ctx, w)
			put(t, ctx, w)
			require.NoError(t, r.Release(requireFrame(t, ctx, r, 2)))
			put(t, ctx, w)
			w.mu.Lock()
			lie(w.readers[0])
			w.mu.Unlock()
			require.ErrorIs(t, errOf(r.Next(soon(t))), ErrCursor)
			require.Zero(t, r.load(offClaim))
		})
	}
}

// FAULT 95: a writer that never lets a frame be whole keeps Next no longer than its context.
func TestFault95_NextEndsWithItsContext(t *testing.T) {
	ctx, srv, w := newChannel(t, 4, 64)
	r := newest(t, ctx, srv)
	put(t, ctx, w)
	r.store(r.entryAt(r.load(offNewest))+entryStamp, 3)
	brief, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer cancel()
	require.ErrorIs(t, errOf(r.Next(brief)), context.DeadlineExceeded)
}

// A reader of Latest that was dropped, or whose lease has ended, gets nothing more, and what it holds is not kept.
func TestLatestIsDropped(t *testing.T) {
	ctx, srv := listening(t)
	left := make(chan Gone, 1)
	w := newWriter(t, ctx, srv, 3, 64, OnGone(func(g Gone) { left <- g }))
	r := newest(t, ctx, srv)
	put(t, ctx, w)
	f := requireFrame(t, ctx, r, 1)
	w.mu.Lock()
	w.drop(w.readers[0], writerDropped, ErrStalled)
	w.mu.Unlock()
	require.ErrorIs(t, gone(t, left).Err, ErrStalled)
	require.ErrorIs(t, r.Whole(f), ErrDropped)
	require.ErrorIs(t, r.Release(f), ErrDropped)
	require.ErrorIs(t, errOf(r.Next(soon(t))), ErrDropped)
}

// A writer that dies leaves the newest frame, which its reader takes once: also the one that was whole when the writer
// died, just before it said so.
//
//fault:rows 94
func TestLatestOfADeadWriter(t *testing.T) {
	for name, last := range map[string]uint64{"said": 5, "not said": 6} {
		t.Run(name, func(t *testing.T) {
			ctx := cutest.Context(t, cutest.Device(t))
			path := t.TempDir() + "/s"
			c := start(t, "writer", task{Path: path, Slots: 4, Size: 4096, Frames: 10, StopAt: 6})
			require.Equal(t, "listening", c.says(t))
			r := ok(Open(soon(t), path, "frames", ctx, WithPolicy(Latest)))(t)
			defer func() { require.NoError(t, r.Close()) }()
			require.Equal(t, "within 6", c.says(t))
			if last == 6 {
				slot := (r.load(offNewest) + 1) % 4 // which the writer has taken
				at := r.entryAt(slot)
				require.EqualValues(t, 1, r.load(at+entryStamp)%2, "it was marked")
				r.store(at+entrySequence, 6)
				r.store(at+entryStamp, 12)
			}
			c.kill()
			<-r.Done()
			f := ok(r.Next(soon(t)))(t)
			require.Equal(t, last, f.Sequence)
			if last == 5 {
				requireBytes(t, ctx, f)
			}
			require.NoError(t, r.Release(f))
			_, err := r.Next(soon(t))
			var lost *WriterLostError
			require.ErrorAs(t, err, &lost)
			require.Equal(t, last, lost.Last)
		})
	}
}
