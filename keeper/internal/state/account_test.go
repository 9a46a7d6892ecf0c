package state

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/gpumem"
	"github.com/gpufd/gpufd/keeper/api"
)

func TestShare(t *testing.T) {
	for _, c := range []struct {
		most, others uint64
		owner        bool
		want         uint64
	}{
		{800, 0, true, 800}, {800, 300, true, 500}, {800, 900, true, 0},
		{800, 0, false, 350}, {800, 350, false, 175}, {800, 700, false, 0}, {800, 800, false, 0},
	} {
		require.Equal(t, c.want, Share(c.most, c.others, c.owner), c)
	}
}

// everybody allows everything to everybody, except to those of the rules.
func everybody(users ...uint32) Policy {
	p := Policy{Owner: owner.UID}
	for _, u := range users {
		p.Rules = append(p.Rules, Rule{UID: at(u), Allow: []Right{Read, Write, Remove}})
	}
	return p
}

func user(uid uint32) Writer { return Writer{Who: Who{UID: uid, GID: uid, PID: int32(uid)}, Since: t0} }

// fill makes a user book until it may book no more, and returns how often it did.
func fill(t *testing.T, s *State, uid uint32, name string, change ...func(*Booking)) int {
	t.Helper()
	for n := range 100_000 {
		if _, err := s.Book(newBooking(fmt.Sprintf("%s%d", name, n), append(change, by(user(uid)))...)); err != nil {
			refused(t, err, Quota, "the keeper has no room for more")
			return n
		}
	}
	t.Fatal("nothing bounds it")
	return 0
}

// One user's bookings, with labels that JSON makes six times as long, leave the others their room.
func TestRoomIsEachUsersOwn(t *testing.T) {
	s := New(everybody(1, 2))
	s.Bound(Bounds{Room: 1 << 20})
	labels := map[string]string{}
	for i := range MaxLabels {
		labels[fmt.Sprint(i)] = strings.Repeat("<", MaxLabelValue)
	}
	n := fill(t, s, 1, "evil", func(b *Booking) { b.Labels = labels })
	own, others := s.Charged(1)
	require.InDelta(t, 7<<16, own.Room, 60<<10, "half of what is not the owner's, to a booking of 50 KiB")
	require.Zero(t, others)
	require.Greater(t, int(own.Room), n*6*MaxLabels*MaxLabelValue)
	require.Greater(t, fill(t, s, 2, "good"), 300, "half of what is left")
	require.Greater(t, fill(t, s, owner.UID, "own"), 900, "all that is left")
	require.Less(t, s.size, 1<<20)
	s = restarted(t, s, everybody(1, 2))
	for ticket, b := range s.Bookings() {
		if b.By.UID == 1 {
			require.NoError(t, s.Cancel(ticket))
		}
	}
	own, _ = s.Charged(1)
	require.Zero(t, own)
}

// Leases that a reader has lost, with a process for each, do not keep others from a name.
func TestLostLeasesLeaveTheNameToOthers(t *testing.T) {
	s := New(everybody(1, 2))
	s.Bound(Bounds{Room: 1 << 17})
	put(t, s, newBooking("weights", by(user(2))))
	evil := Holder{Who: Who{UID: 1, GID: 1}, Version: 1, Access: gpumem.ReadOnly, Since: t0}
	var err error
	n := 0
	for ; err == nil && n < 10_000; n++ {
		evil.Pidfd = s.NewID()
		if err = s.MayHold("weights", evil); err == nil {
			require.NoError(t, s.Lose(ok(s.Hold("weights", evil))(t)))
		}
	}
	refused(t, err, Quota, "uid 1 would have", "of its record, and may have")
	require.Greater(t, n, 150)
	for i := range 100 {
		h := Holder{Who: Who{UID: 2, GID: 2, PID: int32(i + 1)}, Version: 1, Access: gpumem.ReadOnly, Since: t0, Pidfd: s.NewID()}
		require.NoError(t, s.MayHold("weights", h))
		hold(t, s, "weights", 1, func(x *Holder) { *x = h })
	}
	put(t, s, newBooking("weights", by(user(2))))
	info := ok(s.Stat("weights", user(2).Who))(t)
	require.Len(t, api.Processes(info.Retired[0].Holders), n-1+100)
}

// Processes of other PID namespaces have no pid here, and count as many as they have pidfds.
func TestHoldersWithoutPIDs(t *testing.T) {
	s := New(open())
	put(t, s, newBooking("weights"))
	var lost []HoldID
	var pidfds []ID
	for range 3 {
		id, pidfd := hold(t, s, "weights", 1, func(h *Holder) { h.PID, h.Access = 0, gpumem.ReadOnly })
		lost, pidfds = append(lost, id), append(pidfds, pidfd)
	}
	twice, _ := hold(t, s, "weights", 1, func(h *Holder) { h.PID, h.Pidfd = 0, pidfds[0] })
	for _, id := range append(lost, twice) {
		require.NoError(t, s.Lose(id))
		s = restarted(t, s, open())
	}
	for left := 3; left > 0; left-- {
		info := ok(s.Stat("weights", reader))(t)
		require.Len(t, info.Holders, left, "one of each process")
		require.Len(t, api.Processes(info.Holders), left)
		require.True(t, s.Fence(pidfds[left-1]))
	}
	info := ok(s.Stat("weights", reader))(t)
	require.Empty(t, info.Holders)
	require.Len(t, api.Processes([]api.Holder{{}, {}, {Process: 5}, {Process: 5}, {Who: reader, Process: 6}, {Who: reader, Process: 7}}), 4)
}

// deliverTable puts one part with a table of that many bytes.
func deliverTable(t *testing.T, s *State, uid uint32, name string, size uint64) error {
	b := newBooking(name, by(user(uid)))
	p := partOf(s, b)
	p.Table, p.TableSize = s.NewID(), size
	ticket := book(t, s, b)
	_, err := s.Deliver(ticket, p, t0)
	if err != nil {
		require.NoError(t, s.Cancel(ticket))
	}
	return err
}

// Tables take memory of the keeper, of which each user has a share, and count in bytes.
func TestTablesAreBounded(t *testing.T) {
	p := everybody(1, 2)
	p.Rules[1].Bytes = at(uint64(150))
	s := New(p)
	s.Bound(Bounds{Tables: 8 << 20})
	require.NoError(t, s.MayBring("a", user(1).Who, 3<<20, 0))
	refused(t, s.MayBring("a", user(1).Who, 3<<20, 1<<20), Quota, "no memory for that table", "4194304", "3670016")
	refused(t, s.MayBring("a", nobody, 1, 0), Denied)
	require.NoError(t, deliverTable(t, s, 1, "a", 3<<20))
	refused(t, deliverTable(t, s, 1, "b", 1<<20), Quota, "no memory for that table")
	refused(t, s.MayBring("b", user(1).Who, 1<<20, 0), Quota)
	refused(t, deliverTable(t, s, 2, "c", 51), Quota, "a table of 51 more", "the 150 bytes of the rule for uid 2")
	refused(t, s.MayBring("c", user(2).Who, 151, 0), Quota)
	require.NoError(t, deliverTable(t, s, 2, "c", 50))
	require.NoError(t, deliverTable(t, s, owner.UID, "d", 4<<20))
	require.NoError(t, s.Remove("a", owner))
	s.Retire(t0)
	require.NoError(t, s.MayBring("b", user(1).Who, 1<<20, 0))
}

// Labels are told to the readers of each part.
func TestLabelsCountForEachPart(t *testing.T) {
	s := New(everybody(1))
	s.Bound(Bounds{Tables: 1600})
	for i := range 3 {
		b := newBooking("a", of("x", i, 4), by(user(1)), labelled("k", strings.Repeat("v", 199)))
		require.NoError(t, errOf(s.Deliver(book(t, s, b), partOf(s, b), t0)))
	}
	b := newBooking("a", of("x", 3, 4), by(user(1)), labelled("k", strings.Repeat("v", 199)))
	_, err := s.Deliver(book(t, s, b), partOf(s, b), t0)
	refused(t, err, Quota, "800 bytes of tables, and may have 700")
}

// Descriptors that the keeper has open for a user are bounded as well.
func TestDescriptorsAreBounded(t *testing.T) {
	s := New(everybody(1))
	s.Bound(Bounds{Files: 400})
	chunks := func(uid uint32, n int) error {
		b := newBooking("a", by(user(uid)))
		part := partOf(s, b)
		part.Memory.Chunks = n
		_, err := s.Deliver(book(t, s, b), part, t0)
		return err
	}
	refused(t, chunks(1, 88), Quota, "uid 1 would have 176, and may have 175", "ulimit")
	require.NoError(t, chunks(1, 87))
	require.NoError(t, chunks(owner.UID, 113))
}

// The records of names with no memory left are bounded, too.
func TestEmptyNamesAreBounded(t *testing.T) {
	s := New(everybody(1))
	s.Bound(Bounds{Room: 1 << 20})
	for i := range 2000 {
		name := fmt.Sprintf("%s%d", strings.Repeat("<", 190), i)
		put(t, s, newBooking(name, by(user(1))))
		require.NoError(t, s.Remove(name, owner))
		s.Retire(t0)
		s.Expire(t0.Add(time.Duration(i)))
	}
	require.LessOrEqual(t, s.size, 1<<17)
	require.Equal(t, fmt.Sprint(uint64(2)), fmt.Sprint(put(t, s, newBooking(fmt.Sprintf("%s%d", strings.Repeat("<", 190), 1999), by(user(1)))).N))
}
