package channel

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// The entry at Meta says the same as the frame.
func TestDecodeEntry(t *testing.T) {
	ctx, srv, w := newChannel(t, 4, 64)
	for n := range uint64(6) {
		r := newReader(t, ctx, srv, WithPolicy([]Policy{DropOldest, Latest}[n%2]))
		s := ok(w.Acquire(soon(t)))(t)
		require.NoError(t, w.Publish(s, Meta{Time: 5, Size: 60 - n, User: []byte("nine more")[:n]}))
		f := ok(r.Next(soon(t)))(t)
		require.Equal(t, Entry{Sequence: f.Sequence, Index: f.Index, Size: 60 - n, Time: 5, User: f.User()}, entryIn(t, ctx, f))
		require.NoError(t, r.Close())
	}
}

// Bytes that are no entry are refused.
func TestDecodeEntryRefuses(t *testing.T) {
	whole := func() words {
		w := words{make([]byte, EntrySize)}
		w.store(entryStamp, 4)
		w.store(entrySequence, 7)
		w.store(entryLength, MaxUser)
		return w
	}
	e := ok(DecodeEntry(whole().b))(t)
	require.EqualValues(t, 7, e.Sequence)
	require.Len(t, e.User, MaxUser)
	e.User[0]++
	require.Zero(t, whole().load(entryUser), "a copy")
	for name, spoil := range map[string]func(w *words){
		"too short":        func(w *words) { w.b = w.b[:EntrySize-1] },
		"nothing":          func(w *words) { w.b = nil },
		"of no frame":      func(w *words) { w.store(entryStamp, 0) },
		"not whole":        func(w *words) { w.store(entryStamp, 3) },
		"no such slot":     func(w *words) { w.store(entrySlot, MaxSlots) },
		"a huge slot":      func(w *words) { w.store(entrySlot, 1<<64-1) },
		"too much of own":  func(w *words) { w.store(entryLength, MaxUser+1) },
		"far too much own": func(w *words) { w.store(entryLength, 1<<64-1) },
	} {
		w := whole()
		spoil(&w)
		require.ErrorIs(t, errOf(DecodeEntry(w.b)), ErrCursor, name)
	}
}

// Now is the clock of frames, in this process and in any other.
func TestNow(t *testing.T) {
	monotonic := func() int64 {
		var at unix.Timespec
		require.NoError(t, unix.ClockGettime(unix.CLOCK_MONOTONIC, &at))
		return at.Nano()
	}
	before := monotonic()
	now := Now()
	after := monotonic()
	const slack = int64(time.Millisecond) // the clocks are read one after the other when the program begins
	require.GreaterOrEqual(t, now, before-slack)
	require.LessOrEqual(t, now, after+slack)
	ctx, w, r := newPair(t, 2, 64)
	put(t, ctx, w)
	f := ok(r.Next(soon(t)))(t)
	require.LessOrEqual(t, f.Time, Now())
	require.GreaterOrEqual(t, f.Time, now)
}
