package state

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/gpumem"
)

// The parts that have come of a transaction stay until its deadline, and no longer.
func TestTransactionsExpire(t *testing.T) {
	s := New(open())
	come := newBooking("weights", of("x", 0, 3))
	come.By.Pidfd = s.NewID()
	put(t, s, come)
	files := s.get("weights").Pending[0].Delivered[0].Files
	book(t, s, newBooking("weights", of("x", 1, 3), until(come.Deadline.Add(time.Second))))
	book(t, s, newBooking("other"))
	require.False(t, s.Expire(come.Deadline), "the latest deadline counts")
	s = restarted(t, s, open())
	require.True(t, s.Expire(come.Deadline.Add(time.Second)))
	require.Equal(t, []ID{come.By.Pidfd, files}, s.Dropped())
	require.Len(t, s.Bookings(), 1, "what has no deadline stays")
	require.False(t, s.Expire(come.Deadline.Add(1000*time.Hour)))
	require.Empty(t, s.Dropped())
}

// A name goes when nobody has leased or written it for as long as its writer's rule says.
func TestNamesExpire(t *testing.T) {
	p := with(func(r *Rule) { r.Expiry = Duration(time.Hour) })
	s := New(p)
	put(t, s, newBooking("weights"))
	put(t, s, newBooking("own", by(Writer{Who: owner})))
	after := func(d time.Duration) time.Time { return t0.Add(d) }
	require.False(t, s.Expire(after(59*time.Minute)))
	id, _ := hold(t, s, "weights", 1, func(h *Holder) { h.Since = after(30 * time.Minute) })
	require.False(t, s.Expire(after(3*time.Hour)), "it is leased")
	s = restarted(t, s, p)
	require.NoError(t, s.Release(id))
	require.True(t, s.Expire(after(4*time.Hour)), "the time of the release is noted")
	require.False(t, s.Expire(after(5*time.Hour-1)))
	ticket := book(t, s, newBooking("weights", until(after(9*time.Hour))))
	require.False(t, s.Expire(after(6*time.Hour)), "it is being written")
	require.NoError(t, s.Cancel(ticket))
	require.Equal(t, 2, s.Len())
	require.True(t, s.Expire(after(6*time.Hour)))
	require.Equal(t, 1, s.Len())
	require.True(t, s.Retire(after(6*time.Hour)))
	require.Len(t, s.Dropped(), 2, "files, and the pidfd of the holder")
	require.EqualValues(t, 2, put(t, s, newBooking("weights")).N)
}

// A lost holder is no lease: it keeps the version, not the name.
func TestLostHoldersDoNotKeepNames(t *testing.T) {
	s := New(with(func(r *Rule) { r.Expiry = Duration(time.Hour) }))
	put(t, s, newBooking("weights"))
	id, _ := hold(t, s, "weights", 1)
	require.NoError(t, s.Lose(id))
	require.True(t, s.Expire(t0))
	require.True(t, s.Expire(t0.Add(time.Hour)))
	require.Zero(t, s.Len())
	s.Retire(t0.Add(time.Hour))
	require.Len(t, s.get("weights").Retired, 1)
}

// A retired version stays for its holders, until the grace is over.
func TestRetire(t *testing.T) {
	p := open()
	p.Grace = Duration(time.Minute)
	s := New(p)
	put(t, s, newBooking("weights"))
	id, _ := hold(t, s, "weights", 1)
	first := s.get("weights").Current.Parts[0].Files
	put(t, s, newBooking("weights"))
	second := s.get("weights").Current.Parts[0].Files
	put(t, s, newBooking("weights"))
	s = restarted(t, s, p)
	require.True(t, s.Retire(t0))
	require.Equal(t, []ID{second}, s.Dropped(), "nobody holds it")
	require.False(t, s.Retire(t0.Add(time.Minute-1)))
	late := s.Clone()
	require.NoError(t, s.Release(id))
	require.True(t, s.Retire(t0.Add(time.Minute-1)))
	require.Contains(t, s.Dropped(), first)

	require.True(t, late.Retire(t0.Add(time.Minute)))
	require.Contains(t, late.Dropped(), first)
	refused(t, late.Release(id), NotFound, "its version was dropped")
	_, err := late.Hold("weights", Holder{Who: reader, Version: 1, Access: gpumem.ReadOnly})
	refused(t, err, NotFound)
}

// Without a grace, a holder may stay.
func TestRetireWithoutGrace(t *testing.T) {
	s := New(open())
	put(t, s, newBooking("weights"))
	hold(t, s, "weights", 1)
	require.NoError(t, s.Remove("weights", writer))
	require.True(t, s.Retire(t0), "the time of the removal is noted")
	require.Equal(t, t0, s.get("weights").Retired[0].Retired)
	require.False(t, s.Retire(t0.Add(1e6*time.Hour)))
	hold(t, s, "weights", 1)
}

func TestRemove(t *testing.T) {
	s := New(open())
	refused(t, s.Remove("weights", writer), NotFound)
	put(t, s, newBooking("weights"))
	files := s.get("weights").Current.Parts[0].Files
	refused(t, s.Remove("weights", reader), Denied, "may not remove")
	ticket := book(t, s, newBooking("weights"))
	swap := book(t, s, newBooking("weights", expecting(1)))
	require.NoError(t, s.Drain("weights", writer, true))
	require.NoError(t, s.Remove("weights", writer))
	refused(t, s.Remove("weights", writer), NotFound, "being written")
	require.True(t, s.Retire(t0))
	require.Equal(t, []ID{files}, s.Dropped())
	_, err := s.Deliver(swap, partOf(s, newBooking("weights")), t0)
	refused(t, err, Conflict, "was removed")
	v := ok(s.Deliver(ticket, partOf(s, newBooking("weights")), t0))(t)
	require.EqualValues(t, 2, v.N)
	_, _, err = s.Lease("weights", -1, reader, nil)
	require.NoError(t, err, "draining was the removed name's")
}

// The number of the last version is known for a day after nothing else was left, of a
// bounded number of names.
func TestRecordsOfRemovedNames(t *testing.T) {
	s := New(open())
	put(t, s, newBooking("weights"))
	require.NoError(t, s.Remove("weights", writer))
	require.True(t, s.Retire(t0))
	require.True(t, s.Expire(t0), "the time is noted")
	require.False(t, s.Expire(t0.Add(recordAge-1)))
	s = restarted(t, s, open())
	require.EqualValues(t, 2, put(t, s, newBooking("weights")).N)
	require.NoError(t, s.Remove("weights", writer))
	s.Retire(t0)
	s.Expire(t0.Add(time.Hour))
	require.True(t, s.Expire(t0.Add(time.Hour+recordAge)))
	require.Empty(t, s.records)
	require.EqualValues(t, 1, put(t, s, newBooking("weights")).N)
}

func TestFewRecordsOfRemovedNames(t *testing.T) {
	s := New(open())
	for i := range maxRecords + 3 {
		name := fmt.Sprintf("n%d", i)
		put(t, s, newBooking(name))
		require.NoError(t, s.Remove(name, writer))
		if i < 3 {
			s.Retire(t0)
			s.Expire(t0.Add(time.Duration(i) * time.Second))
		}
	}
	s.Retire(t0)
	require.True(t, s.Expire(t0.Add(time.Hour)))
	require.Len(t, s.records, maxRecords)
	for i := range 3 {
		require.Nil(t, s.get(fmt.Sprintf("n%d", i)), "the oldest went")
	}
	require.False(t, s.Expire(t0.Add(time.Hour)))
}

// The end of a process fences what it wrote, and gives up what it had booked.
func TestFence(t *testing.T) {
	s := New(open())
	w := Writer{Who: writer, Since: t0, Pidfd: s.NewID()}
	other := Writer{Who: writer, Since: t0, Pidfd: s.NewID()}
	put(t, s, newBooking("a", by(w)))
	put(t, s, newBooking("a", by(w)))
	hold(t, s, "a", 1)
	put(t, s, newBooking("b", of("x", 0, 3), by(w)))
	put(t, s, newBooking("b", of("x", 1, 3), by(other)))
	book(t, s, newBooking("b", of("x", 2, 3), by(w)))
	book(t, s, newBooking("c", by(w)))
	kept := book(t, s, newBooking("c", by(other)))
	require.False(t, s.Fence(0))
	require.False(t, s.Fence(99))
	require.True(t, s.Fence(w.Pidfd))
	require.Equal(t, []ID{w.Pidfd}, s.Dropped())
	s = restarted(t, s, open())
	a, b := s.get("a"), s.get("b").Pending[0]
	for _, p := range []Part{a.Current.Parts[0], a.Retired[0].Parts[0], b.Delivered[0]} {
		require.Equal(t, Writer{Who: writer, Since: t0, Fenced: true}, p.Writer)
	}
	require.Equal(t, other, b.Delivered[1].Writer)
	require.Empty(t, b.Bookings)
	require.Len(t, s.Bookings(), 1)
	require.Contains(t, s.Bookings(), kept)
	require.Contains(t, s.Pidfds(), other.Pidfd)
	require.NotContains(t, s.Pidfds(), w.Pidfd)
}
