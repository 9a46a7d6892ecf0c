package state

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

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
	_, _, err = s.Lease("weights", -1, reader)
	require.NoError(t, err, "draining was the removed name's")
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
