package state

import (
	"fmt"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
)

// kept is a state of so many names of so many parts, with a holder each, and the booking
// that made them.
func kept(t testing.TB, names, parts int) (*State, Booking) {
	p := with(func(r *Rule) { r.Bytes, r.Names = at(uint64(1<<50)), at(1<<20) })
	s := New(p)
	var b Booking
	for n := range names {
		name := fmt.Sprintf("models/name-%04d", n)
		for i := range parts {
			b = newBooking(name, of("x", i, parts), on(device(i%8)), labelled("step", "7"))
			b.By.Pidfd = s.NewID()
			put(t, s, b)
		}
		hold(t, s, name, 1)
	}
	s.Dropped()
	return s, b
}

// The cost of a change among 1,000 names, as a keeper makes it, until the manifest can be
// swapped in.
func BenchmarkChange(b *testing.B) {
	for _, parts := range []int{1, 8} {
		b.Run(fmt.Sprintf("1000 names of %d parts", parts), func(b *testing.B) {
			s, _ := kept(b, 1000, parts)
			b.ReportAllocs()
			for b.Loop() {
				next := s.Clone()
				booking := newBooking("models/name-0500")
				ticket := book(b, next, booking)
				v := ok(next.Deliver(ticket, partOf(next, booking), t0))(b)
				require.EqualValues(b, 2, v.N)
				next.Retire(t0)
				b.SetBytes(int64(len(next.Encode())))
				next.Dropped()
			}
		})
	}
}

// A lease begins and ends among 1,000 names.
func BenchmarkHold(b *testing.B) {
	s, _ := kept(b, 1000, 1)
	b.ReportAllocs()
	for b.Loop() {
		next := s.Clone()
		_, _, err := next.Lease("models/name-0500", -1, reader, nil)
		require.NoError(b, err)
		id, _ := hold(b, next, "models/name-0500", 1)
		next.Encode()
		require.NoError(b, next.Release(id))
		next.Encode()
		next.Dropped()
	}
}

func BenchmarkDecode(b *testing.B) {
	s, _ := kept(b, 1000, 1)
	text := s.Encode()
	b.SetBytes(int64(len(text)))
	for b.Loop() {
		require.NoError(b, errOf(Decode(text, open())))
	}
}

// A keeper of 1,000 names has 20 MiB for all that it does: its state, a manifest, and a
// clone that is being made.
func TestMemoryOfAThousandNames(t *testing.T) {
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	s, b := kept(t, 1000, 1)
	next := s.Clone()
	put(t, next, newBooking(b.Name))
	text := next.Encode()
	runtime.GC()
	runtime.ReadMemStats(&after)
	require.Less(t, int64(after.HeapAlloc)-int64(before.HeapAlloc), int64(6<<20))
	runtime.KeepAlive([]any{s, next, text})
	t.Logf("%d bytes, of which the manifest has %d", int64(after.HeapAlloc)-int64(before.HeapAlloc), len(text))
}

// A clone shares what does not change, and what it changes the original keeps.
func TestClonesShare(t *testing.T) {
	s, b := kept(t, 100, 1)
	before := s.List(owner)
	next := s.Clone()
	put(t, next, newBooking(b.Name))
	require.NoError(t, next.DrainDevice(device(1), owner, true))
	changed := 0
	for i, r := range next.records {
		if r != s.records[i] {
			changed++
		}
	}
	require.Equal(t, 1, changed)
	require.NotEqual(t, s.NewID(), next.NewID(), "of a clone that is thrown away, too, ids are not given again")
	require.True(t, next.Fence(b.By.Pidfd))
	require.NoError(t, next.Remove(b.Name, writer))
	require.NoError(t, next.Remove("models/name-0000", writer))
	next.Retire(t0)
	require.NotEmpty(t, next.Dropped())
	require.Equal(t, before, restarted(t, s, open()).List(owner))
	require.Empty(t, s.Dropped())
}
