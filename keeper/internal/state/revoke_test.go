package state

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/gpumem"
)

// A holder that was told to let go is shown until its process has died, and keeps nothing:
// neither the version, nor a place among the leases.
func TestRevoked(t *testing.T) {
	p := open()
	p.Rules[1].Leases = at(1)
	s := New(p)
	v := put(t, s, newBooking("x", bytesOf(5000)))
	id, pidfd := hold(t, s, "x", 1)
	require.NoError(t, s.Remove("x", owner))
	require.NoError(t, s.Revoke(id))
	s.Retire(t0)
	require.Contains(t, s.Dropped(), v.Parts[0].Files, "the keeper gives the descriptors up")
	s = restarted(t, s, p)
	require.NoError(t, s.Lose(id), "as a keeper does that begins")
	s.Retire(t0)
	s.Expire(t0.Add(2 * recordAge))

	info := ok(s.Stat("x", reader))(t)
	require.Equal(t, "removed", info.State)
	require.Zero(t, info.Bytes)
	require.Len(t, info.Retired, 1)
	gone := info.Retired[0]
	require.Equal(t, RetiredInfo{Version: 1, Bytes: 5000, Gone: true, Parts: []PartOn{{Device: device(0).String(), Bytes: 5000}}, Holders: gone.Holders}, gone)
	require.Len(t, gone.Holders, 1)
	h := gone.Holders[0]
	require.Equal(t, []any{reader.PID, gpumem.ReadOnly, false, true, false}, []any{h.PID, h.Access, h.Fenced, h.Revoked, h.Lost})

	put(t, s, newBooking("x"))
	_, _, err := s.Lease("x", 0, reader, nil)
	require.NoError(t, err, "it counts for no quota")
	info = ok(s.Stat("x", reader))(t)
	require.Empty(t, info.Holders)
	require.Equal(t, uint64(2), info.Version)
	require.Zero(t, info.FreesBytes, "its writer is not fenced")

	require.True(t, s.Fence(pidfd))
	require.Contains(t, s.Dropped(), pidfd)
	require.NoError(t, s.Remove("x", owner))
	s.Retire(t0)
	_, err = s.Stat("x", owner)
	refused(t, err, NotFound)
}

// A reader that got a lease at the moment when its version was dropped is shown as one that
// was told to let go.
func TestHoldGone(t *testing.T) {
	s := New(open())
	of := PartOn{Device: device(0).String(), Bytes: 100}
	h := Holder{Who: reader, Version: 1, Access: gpumem.ReadOnly, Since: t0, Pidfd: s.NewID()}
	holdGone := func(name string, h Holder) error {
		_, err := s.HoldGone(name, h, of)
		return err
	}
	refused(t, holdGone("x", h), NotFound)
	put(t, s, newBooking("x"))
	refused(t, holdGone("x", h), NotFound)
	put(t, s, newBooking("x"))
	s.Retire(t0)
	later, unheard, odd := h, h, h
	later.Version, unheard.Pidfd, odd.Access = 3, 0, 7
	refused(t, holdGone("x", later), NotFound)
	refused(t, holdGone("x", unheard), NotFound)
	refused(t, holdGone("x", odd), BadRequest)
	id := ok(s.HoldGone("x", h, of))(t)
	s = restarted(t, s, open())
	s.Retire(t0)
	info := ok(s.Stat("x", owner))(t)
	require.Len(t, info.Retired, 1)
	gone := info.Retired[0]
	require.Equal(t, RetiredInfo{Version: 1, Bytes: 100, Gone: true, Parts: []PartOn{of}, Holders: gone.Holders}, gone)
	require.True(t, gone.Holders[0].Revoked)
	require.NoError(t, s.Release(id))
	require.Contains(t, s.Dropped(), h.Pidfd)
	require.Error(t, errOf((*State)(nil).HoldGone("x", h, of)))
}

// Those of the current version are holders of it, and its bytes are not free.
func TestRevokedOfTheCurrentVersion(t *testing.T) {
	s := New(open())
	w := Writer{Who: writer, Since: t0, Pidfd: s.NewID()}
	put(t, s, newBooking("x", by(w)))
	s.Fence(w.Pidfd)
	id, pidfd := hold(t, s, "x", 1)
	unknown, _ := hold(t, s, "x", 1, func(h *Holder) { h.Pidfd = 0 })
	require.NoError(t, s.Revoke(unknown), "nobody would hear of its end")
	require.NoError(t, s.Revoke(id))
	require.NoError(t, s.Revoke(id), "again")
	info := ok(s.Stat("x", owner))(t)
	require.Len(t, info.Holders, 1)
	require.True(t, info.Holders[0].Revoked)
	require.Zero(t, info.FreesBytes)
	require.True(t, s.Fence(pidfd))
	info = ok(s.Stat("x", owner))(t)
	require.Empty(t, info.Holders)
	require.Equal(t, uint64(100), info.FreesBytes)
	refused(t, s.Revoke(id), NotFound)
}
