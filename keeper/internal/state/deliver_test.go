package state

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/gpumem"
)

func TestVersionsCountCommits(t *testing.T) {
	s := New(open())
	first := newBooking("weights", labelled("n", "first"))
	early := book(t, s, first)
	for n := range uint64(3) {
		v := put(t, s, newBooking("weights"))
		require.Equal(t, n+1, v.N)
		require.Equal(t, t0, v.Committed)
	}
	v := ok(s.Deliver(early, partOf(s, first), t0.Add(time.Second)))(t)
	require.EqualValues(t, 4, v.N, "the order is that of the commits")
	require.Equal(t, OK, v.Parts[0].State)
	require.Equal(t, writer, v.Parts[0].Writer.Who)
	require.NoError(t, s.Remove("weights", writer))
	s.Retire(t0)
	s = restarted(t, s, open())
	require.EqualValues(t, 5, put(t, s, newBooking("weights")).N, "no number comes twice")
	require.EqualValues(t, 1, put(t, s, newBooking("biases")).N)
}

// The last part publishes all, whichever it is and whichever process delivers it.
func TestLastPartCommits(t *testing.T) {
	s := New(open())
	put(t, s, newBooking("weights"))
	for _, i := range []int{2, 0, 3} {
		require.Nil(t, put(t, s, newBooking("weights", of("x", i, 4), on(device(i)))))
		v, p, err := s.Lease("weights", -1, reader, nil)
		require.NoError(t, err)
		require.EqualValues(t, 1, v.N)
		require.Equal(t, 0, p.Index)
		s = restarted(t, s, open())
	}
	v := put(t, s, newBooking("weights", of("x", 1, 4), on(device(1)), by(Writer{Who: Who{UID: 2001, GID: 50, PID: 22}})))
	require.EqualValues(t, 2, v.N)
	for i, p := range v.Parts {
		require.Equal(t, i, p.Index)
		require.Equal(t, device(i), p.Memory.Device)
	}
	require.Regexp(t, "^gpufd-v1:[0-9a-f]{64}$", v.Digest)
	require.Equal(t, digestOf(v.Parts), v.Digest)
	require.NotEqual(t, digestOf(v.Parts[:3]), v.Digest)
	require.Empty(t, s.get("weights").Pending)
}

func TestDeliverRefusesAnotherPart(t *testing.T) {
	for words, change := range map[string]func(s *State, p *Part){
		"part 1 was":       func(_ *State, p *Part) { p.Index = 1 },
		"has 99 bytes":     func(_ *State, p *Part) { p.Bytes = 99 },
		"in memory of 101": func(_ *State, p *Part) { p.Memory.Size = 101 },
		"is on GPU-":       func(_ *State, p *Part) { p.Memory.Device = device(9) },
		"(cuda)":           func(_ *State, p *Part) { p.Memory.Kind = gpumem.CUDA },
		"of its own":       func(_ *State, p *Part) { p.Files = 0 },
		"no descriptors":   func(_ *State, p *Part) { p.Table, p.TableSize = p.Files, 1 },
		"table 0 of":       func(_ *State, p *Part) { p.TableSize = 1 },
		"of 0 bytes":       func(s *State, p *Part) { p.Table = s.NewID() },
		"digest \"\"":      func(_ *State, p *Part) { p.Digest = "" },
		"digest \"gpufd-d": func(_ *State, p *Part) { p.Digest += "0" },
		"lower case":       func(_ *State, p *Part) { p.Digest = "gpufd-d1:0000000000000000000000000000000A" },
		"layout \"gpufd-d": func(_ *State, p *Part) { p.Layout = p.Digest },
		"gpufd-l1:":        func(_ *State, p *Part) { p.Layout = "gpufd-l1:0000000000000000000000000000000A" },
		"not made with":    func(_ *State, p *Part) { p.Files += 100 },
		"in use":           func(_ *State, p *Part) { p.Files = 1 },
		"id 2 of part":     func(_ *State, p *Part) { p.Table, p.TableSize = 2, 1 },
	} {
		s := New(open())
		held := newBooking("held") // its pidfd is id 1
		held.By.Pidfd = s.NewID()
		put(t, s, held) // its files are id 3, its ticket is 2
		ticket := book(t, s, newBooking("weights"))
		p := partOf(s, newBooking("weights"))
		change(s, &p)
		if words == "id 2 of part" {
			p.Table = s.get("held").Current.Parts[0].Files
			words = "of part 0"
		}
		before := string(s.Encode())
		_, err := s.Deliver(ticket, p, t0)
		refused(t, err, BadRequest, words)
		require.Equal(t, before, string(s.Encode()))
		require.Empty(t, s.Dropped(), "its descriptors are the caller's")
	}
}

func TestDeliverTooLate(t *testing.T) {
	s := New(open())
	b := newBooking("weights", until(t0.Add(time.Minute)))
	ticket := book(t, s, b)
	_, err := s.Deliver(ticket, partOf(s, b), b.Deadline)
	refused(t, err, Expired, "book the part anew")
	require.True(t, s.Expire(b.Deadline))
	_, err = s.Deliver(ticket, partOf(s, b), t0)
	refused(t, err, NotFound, "book it anew")
}

// The policy of the day counts, not that of the booking.
func TestDeliverAsksThePolicy(t *testing.T) {
	s := New(open())
	ticket := book(t, s, newBooking("weights"))
	s = restarted(t, s, DefaultPolicy(owner.UID))
	_, err := s.Deliver(ticket, partOf(s, newBooking("weights")), t0)
	refused(t, err, Denied)
}

// Expect is compared when a part is booked and when the last has come, and a commit that
// fails leaves nothing of its transaction.
func TestCompareAndSwap(t *testing.T) {
	s := New(open())
	_, err := s.Book(newBooking("weights", expecting(1)))
	refused(t, err, Conflict, "has no version")
	put(t, s, newBooking("weights", expecting(0)))
	_, err = s.Book(newBooking("weights", expecting(0)))
	e := refused(t, err, Conflict, "has version 1", "expected version 0")
	require.Equal(t, writer, e.Holders[0].Who)

	part := newBooking("weights", of("x", 0, 2), expecting(1))
	part.By.Pidfd = s.NewID()
	ticket := book(t, s, part)
	come := partOf(s, part)
	require.NoError(t, errOf(s.Deliver(ticket, come, t0)))
	part.Index = 1
	ticket = book(t, s, part)
	require.EqualValues(t, 2, put(t, s, newBooking("weights", expecting(1))).N)
	s.Dropped()
	late := partOf(s, part)
	_, err = s.Deliver(ticket, late, t0)
	require.True(t, refused(t, err, Conflict, "has version 2").Changed)
	require.Equal(t, []ID{part.By.Pidfd, come.Files}, s.Dropped(), "but for the last part, which is the caller's")
	require.Empty(t, s.Bookings())
	require.EqualValues(t, 2, s.get("weights").number())
}
