package state

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/gpumem"
)

// Invariant 2, of the caller: a nil or zero State is an empty one, and nothing panics.
func TestNilAndZero(t *testing.T) {
	root := Who{}
	for name, s := range map[string]*State{"nil": nil, "zero": {}, "of nil": (*State)(nil).Clone(), "new": New(Policy{})} {
		require.NotEmpty(t, s.Encode(), name)
		require.Empty(t, s.Named())
		require.Empty(t, s.Dropped())
		require.Empty(t, s.Bookings())
		require.Empty(t, s.Pidfds())
		require.Empty(t, s.List(root))
		require.Zero(t, s.Len()+s.Delivered("x", "y"))
		require.False(t, s.Expire(t0) || s.Retire(t0) || s.Fence(1))
		s.Current(func(string, *Version) { t.Error("there is none") })
		s.Holds(func(HoldID, string, Holder) { t.Error("there is none") })
		_, _, err := s.Lease("x", -1, root, nil)
		refused(t, err, NotFound)
		_, _, err = s.Lease("x", -1, nobody, nil)
		refused(t, err, Denied)
		_, err = s.Stat("x", root)
		refused(t, err, NotFound)
		refused(t, s.Remove("x", root), NotFound)
		refused(t, s.Drain("x", root, true), NotFound)
		refused(t, s.Cancel("t1"), NotFound)
		refused(t, s.Release(1), NotFound)
		refused(t, s.Lose(1), NotFound)
		_, err = s.Renew("t1", root, t0)
		refused(t, err, NotFound)
		_, err = s.Deliver("t1", Part{}, t0)
		refused(t, err, NotFound)
		_, err = s.Report("x", 1, 0, root, Damaged, "")
		refused(t, err, NotFound)
		require.Error(t, errOf(s.Hold("x", Holder{Access: gpumem.ReadOnly})))
		_, err = s.Book(Booking{})
		refused(t, err, BadRequest)
		require.Error(t, errOf(s.Book(newBooking("x", by(Writer{Who: nobody})))))
		if s == nil {
			require.Zero(t, s.NewID())
			require.Error(t, s.DrainDevice(gpumem.UUID{}, root, true))
			continue
		}
		require.EqualValues(t, 1, s.NewID())
		require.NoError(t, s.DrainDevice(gpumem.UUID{}, root, true))
		require.NotEmpty(t, book(t, s.Clone(), newBooking("x", by(Writer{Who: root}), on(device(1)))))
	}
	var zero State
	require.EqualValues(t, 1, put(t, &zero, newBooking("x", by(Writer{Who: root}))).N)
	require.Error(t, errOf(Decode(nil, Policy{})))
}
