package state

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/gpumem"
)

// withPool gives a state n chunks of 64 bytes.
func withPool(t testing.TB, s *State, n int) []ID {
	t.Helper()
	var ids []ID
	for range n {
		c := Chunk{ID: s.NewID(), Size: 64, Kind: gpumem.Soft}
		require.NoError(t, s.AddChunk(c))
		ids = append(ids, c.ID)
	}
	return ids
}

// parked parks the current version of a name.
func parked(t testing.TB, s *State, name string, by Who) []Parking {
	t.Helper()
	v, plan, err := s.PlanPark(name, 0, by, nil)
	require.NoError(t, err)
	require.NoError(t, s.Park(name, v, by, plan, nil))
	return plan
}

// A version is parked and unparked: what is given up, what is shown, and what readers may have stays the same.
func TestParkAndUnpark(t *testing.T) {
	s := New(open())
	chunks := withPool(t, s, 3)
	put(t, s, newBooking("weights", by(Writer{Who: owner, Since: t0})))
	files := s.get("weights").Current.Parts[0].Files
	before := ok(s.Stat("weights", reader))(t)
	plan := parked(t, s, "weights", writer)
	require.Equal(t, []Parking{{0, chunks[:2]}}, plan, "100 bytes in chunks of 64")
	require.Equal(t, []ID{files}, s.Dropped())
	require.Len(t, s.FreeChunks(), 1)
	s = restarted(t, s, open())
	now := ok(s.Stat("weights", reader))(t)
	require.True(t, now.Parts[0].Parked)
	require.Equal(t, uint64(100), now.ParkedBytes)
	require.Equal(t, uint64(100), s.ParkedBytes())
	require.Zero(t, now.FreesBytes)
	now.Parts[0].Parked, now.ParkedBytes = false, 0
	require.Equal(t, before, now)
	_, p, err := s.Lease("weights", 0, reader, nil)
	require.NoError(t, err, "readers are admitted")
	require.Equal(t, chunks[:2], p.Parked)
	v, again, err := s.PlanPark("weights", 1, writer, nil)
	require.NoError(t, err)
	require.Empty(t, again, "nothing is left to park")
	refused(t, s.Park("weights", v, writer, plan, nil), Conflict, "not on its device")
	refused(t, s.DropChunk(chunks[0]), Conflict, "parked in chunk")

	_, parts, err := s.PlanUnpark("weights", 1)
	require.NoError(t, err)
	require.Equal(t, plan, parts)
	require.NoError(t, s.DrainDevice(device(0), owner, true))
	_, _, err = s.PlanUnpark("weights", 1)
	refused(t, err, Draining, "--undo")
	require.NoError(t, s.DrainDevice(device(0), owner, false))
	_, _, err = s.PlanUnpark("weights", 2)
	refused(t, err, NotFound)
	id := s.NewID()
	refused(t, s.Unpark("weights", 2, []Unparking{{Part: 0, Files: id}}), NotFound)
	refused(t, s.Unpark("weights", 1, []Unparking{{Part: 1, Files: id}}), BadRequest, "is not parked")
	refused(t, s.Unpark("weights", 1, []Unparking{{Part: 0, Files: chunks[2]}}), BadRequest, "in use")
	require.NoError(t, s.Unpark("weights", 1, []Unparking{{Part: 0, Files: id}}))
	require.Empty(t, s.Dropped())
	require.Len(t, s.FreeChunks(), 3)
	require.Equal(t, before, ok(s.Stat("weights", reader))(t))
	require.NoError(t, s.DropChunk(chunks[0]))
	require.Equal(t, chunks[:1], s.Dropped())
	restarted(t, s, open())
}

// A part whose bytes are not what they were stays parked, and is served no more; its chunks are free with its version.
func TestUnparkDamaged(t *testing.T) {
	s := New(open())
	withPool(t, s, 2)
	put(t, s, newBooking("weights", by(Writer{Who: owner, Since: t0})))
	parked(t, s, "weights", writer)
	require.NoError(t, s.Unpark("weights", 1, []Unparking{{Part: 0, Damage: "sums differ"}}))
	_, _, err := s.Lease("weights", 0, reader, nil)
	refused(t, err, IsDamaged, "sums differ")
	_, parts, err := s.PlanUnpark("weights", 1)
	require.NoError(t, err)
	require.Empty(t, parts, "it stays")
	require.Empty(t, s.FreeChunks())
	require.NoError(t, s.Remove("weights", writer))
	s.Retire(t0)
	require.Len(t, s.FreeChunks(), 2)
	restarted(t, s, open())
}

// Park names the processes that may have the memory mapped.
func TestParkInTheWay(t *testing.T) {
	s := New(open())
	withPool(t, s, 4)
	put(t, s, newBooking("weights"))
	park := func(soon ...Soon) error {
		_, _, err := s.PlanPark("weights", 0, writer, func() []Soon { return soon })
		return err
	}
	id, _ := hold(t, s, "weights", 1)
	no := refused(t, park(), Conflict, "in use by 1 process")
	require.Equal(t, reader, no.Holders[0].Who)
	require.NoError(t, s.Detach(id))
	require.NoError(t, park())
	require.True(t, ok(s.Stat("weights", reader))(t).Holders[0].Detached)
	require.NoError(t, s.Lose(id))
	require.NoError(t, park(), "it has lost its connection, and none of the memory")
	lost, pidfd := hold(t, s, "weights", 1)
	require.NoError(t, s.Lose(lost))
	refused(t, park(), Conflict)
	s.Fence(pidfd)
	require.NoError(t, park())
	told, _ := hold(t, s, "weights", 1)
	require.NoError(t, s.Revoke(told))
	require.NoError(t, park(), "it was told to let go")
	is := Holder{Who: reader, Version: 1, Access: gpumem.ReadOnly}
	refused(t, park(Soon{"weights", is}), Conflict)
	is.Version = 2
	require.NoError(t, park(Soon{"weights", is}, Soon{"other", is}))
	v, plan, err := s.PlanPark("weights", 0, writer, nil)
	require.NoError(t, err)
	hold(t, s, "weights", 1)
	refused(t, s.Park("weights", v, writer, plan, nil), Conflict, "in use")
}

func TestParkRefuses(t *testing.T) {
	s := New(open())
	put(t, s, newBooking("weights"))
	plan := func(version uint64, by Who) error {
		_, _, err := s.PlanPark("weights", version, by, nil)
		return err
	}
	refused(t, plan(0, reader), Denied)
	refused(t, plan(2, writer), Conflict, "has version 1")
	refused(t, plan(0, writer), NoRoom, "--park-pool")
	require.NoError(t, s.AddChunk(Chunk{ID: s.NewID(), Size: 1000, Kind: gpumem.CUDA}))
	refused(t, plan(0, writer), NoRoom, "no pool", "soft")
	withPool(t, s, 1)
	refused(t, plan(0, writer), NoRoom, "the 64 bytes that are free of the pool's 64")
	withPool(t, s, 1)
	refused(t, plan(0, writer), Quota, "uid 2000 would have 2 of the pool's 3 chunks, and may have 1")
	withPool(t, s, 3)
	require.NoError(t, plan(1, writer))
	require.NoError(t, errOf(s.Report("weights", 1, 0, writer, Quarantined, "so")))
	refused(t, plan(1, writer), IsQuarantined)
	require.NoError(t, errOf(s.Report("weights", 1, 0, writer, Damaged, "so")))
	refused(t, plan(1, writer), IsDamaged)
	for _, c := range []Chunk{{}, {ID: s.get("weights").Current.Parts[0].Files, Size: 64, Kind: gpumem.Soft}, {ID: 999, Size: 64, Kind: gpumem.Soft}, {ID: s.NewID(), Kind: gpumem.Soft}} {
		refused(t, s.AddChunk(c), BadRequest)
	}
}

// Each changes something of a manifest with a parked part.
func TestDecodeRefusesPool(t *testing.T) {
	s := New(open())
	withPool(t, s, 4)
	put(t, s, newBooking("a", by(Writer{Who: owner, Since: t0})))
	put(t, s, newBooking("b", by(Writer{Who: owner, Since: t0})))
	parked(t, s, "a", writer)
	parked(t, s, "b", owner)
	lines := strings.TrimPrefix(string(s.Encode()), firstLine)
	lines = lines[:strings.Index(lines, lastWord)]
	require.NoError(t, errOf(Decode(sealed(lines), open())))
	for words, edit := range map[string][2]string{
		"not in the pool":      {`"parked":[1,2]`, `"parked":[1,99]`},
		"too small":            {`"parked":[1,2]`, `"parked":[1]`},
		"or too small":         {`"parked":[1,2]`, `"parked":[1,1]`},
		"another one is":       {`"parked":[1,2]`, `"parked":[1,3]`},
		"descriptors":          {`"files":0,"parked":[1,2]`, `"files":5,"parked":[1,2]`},
		"of its own":           {`"parked":[1,2],`, ``},
		"of 0 bytes":           {`"size":64`, `"size":0`},
		"twice, or was not":    {`{"id":1,`, `{"id":2,`},
		"pool or too small":    {`{"id":1,"size":64,"kind":2`, `{"id":1,"size":64,"kind":1`},
		"chunks; 1024 are all": {`"pool":[`, `"pool":[` + strings.Repeat("{},", MaxPool)},
	} {
		require.Contains(t, lines, edit[0])
		require.ErrorContains(t, errOf(Decode(sealed(strings.Replace(lines, edit[0], edit[1], 1)), open())), words, "%q", edit)
	}
}

// A reader that has detached from a part that is not good any more does not get it again.
func TestResumeOfABadPart(t *testing.T) {
	for code, to := range map[Code]PartState{IsDamaged: Damaged, IsQuarantined: Quarantined} {
		s := New(open())
		put(t, s, newBooking("a"))
		id, _ := hold(t, s, "a", 1)
		require.NoError(t, s.Detach(id))
		put(t, s, newBooking("a"))
		h := Holder{Who: reader, Version: 1, Access: gpumem.ReadOnly}
		require.NoError(t, s.MayResume("a", h, nil))
		require.NoError(t, errOf(s.Report("a", 1, 0, writer, to, "a test")))
		refused(t, s.MayResume("a", h, nil), code, "version 1")
		h.Part = 7
		refused(t, s.MayResume("a", h, nil), NotFound)
	}
}
