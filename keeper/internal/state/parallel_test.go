package state

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// Eight devices of eight parts each, written by a process a device, two versions in turn:
// a reader sees all of one or all of the other, at any moment, and there is never more
// than the two.
func TestTwoVersionsInTurn(t *testing.T) {
	const devices, each = 8, 8
	const parts = devices * each
	p := with(func(r *Rule) { r.Bytes = at(uint64(2 * parts * 100)) })
	s := New(p)
	random := rand.New(rand.NewPCG(1, 1))
	writers := make([]Writer, devices)
	for i := range writers {
		writers[i] = Writer{Who: Who{UID: writer.UID, GID: writer.GID, PID: int32(10 + i)}, Since: t0, Pidfd: s.NewID()}
	}
	var held []HoldID
	for n := uint64(1); n <= 4; n++ {
		id := fmt.Sprintf("step %d", n)
		for i, part := range random.Perm(parts) {
			b := newBooking("model", of(id, part, parts), on(device(part/each)), by(writers[part/each]), expecting(n-1), labelled("step", id))
			v := put(t, s, b)
			require.Equal(t, i == parts-1, v != nil)
			if i == int(n)*8 {
				s = restarted(t, s, p)
			}
			seen, _, err := s.Lease("model", part, reader, nil)
			switch {
			case n == 1 && i < parts-1:
				refused(t, err, NotFound, "being written")
			case i < parts-1:
				require.Equal(t, n-1, seen.N)
			default:
				require.Equal(t, n, seen.N)
			}
		}
		whole, _, err := s.Lease("model", 0, reader, nil)
		require.NoError(t, err)
		for i, p := range whole.Parts {
			require.Equal(t, device(i/each), p.Memory.Device)
			require.Equal(t, id, whole.Labels["step"])
		}
		_, err = s.Book(newBooking("model", of("next", 0, parts)))
		if n > 1 {
			refused(t, err, Quota, "let readers of retired versions go")
			for _, id := range held {
				require.NoError(t, s.Release(id))
			}
		}
		s.Retire(t0)
		require.Len(t, s.Named(), len(s.Pidfds())+parts)
		s.Expire(t0.Add(1 << 40))
		held = held[:0]
		for i := range parts {
			id, _ := hold(t, s, "model", n, func(h *Holder) { h.Part, h.Pidfd = i, 0 })
			held = append(held, id)
		}
	}
}

// Names are apart: transactions of many names that run side by side commit on their own.
func TestManyNames(t *testing.T) {
	s := New(open())
	for part := range 4 {
		for n := range 50 {
			v := put(t, s, newBooking(fmt.Sprintf("n%d", n), of(fmt.Sprint(n), part, 4)))
			require.Equal(t, part == 3, v != nil)
		}
		s = restarted(t, s, open())
	}
	require.Equal(t, 50, s.Len())
}

// A record has bounds, which bookings and holders meet before anything grows without end.
func TestRecordsAreBounded(t *testing.T) {
	s := New(open())
	put(t, s, newBooking("weights"))
	var err error
	for _, some := range []int{1000, 100, 10} {
		err = nil
		for i := 0; err == nil && i < 10_000; i++ {
			r := s.edit("weights")
			for range some {
				r.Holders = append(r.Holders, held{ID: HoldID(s.NewID()), Holder: Holder{Who: reader, Version: 1, Access: 1}})
			}
			err = s.grow(r, reader.UID)
		}
		refused(t, err, Quota, "no room for more")
	}
	more := Holder{Who: reader, Version: 1, Access: 1, Since: t0}
	for i := 0; ; i++ { // one by one
		require.Less(t, i, 20)
		may := s.MayHold("weights", more)
		if _, err = s.Hold("weights", more); err != nil {
			refused(t, may, Quota, "no room for more")
			break
		}
		require.NoError(t, may)
	}
	refused(t, err, Quota, "no room for more")
	s = restarted(t, s, open())
	require.Less(t, s.size, maxRecord)
	s.charged = map[uint32]Charge{5: {Room: maxState}}
	_, err = s.Book(newBooking("other"))
	refused(t, err, Quota, "remove some")
}
