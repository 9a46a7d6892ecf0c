package state

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/gpumem"
)

// Quotas count what is kept, retired or current, what is booked, and what has come.
func TestQuotaOfBytes(t *testing.T) {
	p := with(func(r *Rule) { r.Bytes = at(uint64(400)) })
	s := New(p)
	put(t, s, newBooking("a"))
	put(t, s, newBooking("a"))
	hold(t, s, "a", 1)
	s.Retire(t0)
	put(t, s, newBooking("b", of("x", 0, 2)))
	ticket := book(t, s, newBooking("b", of("x", 1, 2)))
	s = restarted(t, s, p)
	_, err := s.Book(newBooking("c", bytesOf(1)))
	e := refused(t, err, Quota, "400 bytes are kept and booked, 1 more", "the 400 bytes of the rule for gid 50")
	require.Equal(t, writer, e.Holders[0].Who)
	require.Len(t, e.Holders, 1, "each process once")
	_, err = s.Book(newBooking("a", bytesOf(1)))
	refused(t, err, Quota)
	require.NoError(t, s.Cancel(ticket))
	_, err = s.Book(newBooking("a", bytesOf(101)))
	refused(t, err, Quota)
	book(t, s, newBooking("c", bytesOf(99)))
	book(t, s, newBooking("c", bytesOf(1)))
	book(t, s, newBooking("own", bytesOf(MaxPart), by(Writer{Who: owner})))
}

func TestQuotaOfNames(t *testing.T) {
	p := with(func(r *Rule) { r.Names = at(2) })
	s := New(p)
	put(t, s, newBooking("a"))
	ticket := book(t, s, newBooking("b"))
	_, err := s.Book(newBooking("c"))
	refused(t, err, Quota, "2 names")
	book(t, s, newBooking("a"))
	require.NoError(t, s.Cancel(ticket))
	put(t, s, newBooking("c"))
	require.NoError(t, s.Remove("c", writer))
	s.Retire(t0)
	put(t, s, newBooking("d"))
	require.Equal(t, 2, s.Len())
}

// Names that another rule decides do not count.
func TestQuotaIsOfItsRule(t *testing.T) {
	p := with(func(r *Rule) { r.Bytes, r.Names = at(uint64(100)), at(1) })
	p.Rules = append(p.Rules, Rule{GID: at(writer.GID), Prefix: "scratch/", Allow: []Right{Write}})
	s := New(p)
	put(t, s, newBooking("scratch/a"))
	put(t, s, newBooking("own", by(Writer{Who: owner})))
	put(t, s, newBooking("a"))
	_, err := s.Book(newBooking("b"))
	refused(t, err, Quota)
	put(t, s, newBooking("scratch/b"))
	_, err = s.Book(newBooking("scratch2", by(Writer{Who: Who{UID: 2001, GID: 50, PID: 9}})))
	refused(t, err, Quota, "bytes")
}

func TestQuotaOfLeases(t *testing.T) {
	p := open()
	p.Rules[1].Leases = at(2)
	s := New(p)
	put(t, s, newBooking("a"))
	put(t, s, newBooking("b"))
	one, _ := hold(t, s, "a", 1)
	two, _ := hold(t, s, "b", 1, func(h *Holder) { h.PID = 33 })
	s = restarted(t, s, p)
	_, _, err := s.Lease("a", -1, reader, nil)
	e := refused(t, err, Quota, "2 leases")
	require.Equal(t, []int32{3, 33}, []int32{e.Holders[0].PID, e.Holders[1].PID})
	require.Equal(t, gpumem.ReadOnly, e.Holders[0].Access)
	_, _, err = s.Lease("a", -1, writer, nil)
	require.NoError(t, err)
	require.NoError(t, s.Lose(one))
	_, _, err = s.Lease("b", -1, withPID(reader, 34), nil)
	refused(t, err, Quota, "lost by processes that still run")
	_, _, err = s.Lease("a", -1, reader, nil)
	require.NoError(t, err, "the process that has lost it takes it up again")
	require.NoError(t, s.Release(two))
	_, _, err = s.Lease("b", -1, withPID(reader, 34), nil)
	require.NoError(t, err)
	soon := Soon{"a", Holder{Who: withPID(reader, 35), Access: gpumem.ReadOnly}}
	_, _, err = s.Lease("b", -1, withPID(reader, 34), func() []Soon { return []Soon{soon} })
	e = refused(t, err, Quota, "2 leases")
	require.Equal(t, int32(35), e.Holders[1].PID)
	soon.Holder.Who = writer
	_, _, err = s.Lease("b", -1, withPID(reader, 34), func() []Soon { return []Soon{soon} })
	require.NoError(t, err, "it is another rule's")
}

// Processes of other PID namespaces have the pid 0: one may come back in the place of one that
// has lost its lease, and no more.
func TestQuotaOfLeasesWithoutPIDs(t *testing.T) {
	p := open()
	p.Rules[1].Leases = at(2)
	s := New(p)
	put(t, s, newBooking("a"))
	pod := withPID(reader, 0)
	for range 2 {
		id, _ := hold(t, s, "a", 1, func(h *Holder) { h.Who = pod })
		require.NoError(t, s.Lose(id))
	}
	_, _, err := s.Lease("a", -1, pod, nil)
	require.NoError(t, err)
	hold(t, s, "a", 1, func(h *Holder) { h.Who = pod })
	_, _, err = s.Lease("a", -1, pod, nil)
	refused(t, err, Quota, "3 leases")
}

func TestErrorsNameFew(t *testing.T) {
	s := New(with(func(r *Rule) { r.Bytes = at(uint64(100)) }))
	for pid := range int32(30) {
		book(t, s, newBooking("a", bytesOf(1), by(Writer{Who: Who{GID: 50, PID: pid}})))
	}
	_, err := s.Book(newBooking("a"))
	require.Len(t, refused(t, err, Quota).Holders, maxNamed)
}

func TestSumsStayAtTheLargest(t *testing.T) {
	require.EqualValues(t, uint64(1<<64-1), plus(1<<63, 1<<63+5))
	require.EqualValues(t, uint64(1<<64-1), plus(1<<63, 1<<63-1))
}

// A process has a lease in the place of each from which it has detached, and may have each twice for a while. For others
// they count.
func TestQuotaOfLeasesOfADetachedProcess(t *testing.T) {
	p := open()
	p.Rules[1].Leases = at(2)
	s := New(p)
	put(t, s, newBooking("a"))
	for range 2 {
		id, _ := hold(t, s, "a", 1)
		require.NoError(t, s.Detach(id))
	}
	for range 2 {
		_, _, err := s.Lease("a", -1, withPID(reader, 34), nil)
		refused(t, err, Quota)
		_, _, err = s.Lease("a", -1, reader, nil)
		require.NoError(t, err)
		hold(t, s, "a", 1)
	}
	_, _, err := s.Lease("a", -1, reader, nil)
	refused(t, err, Quota, "4 leases")
}
