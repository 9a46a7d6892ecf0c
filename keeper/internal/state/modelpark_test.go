package state

import (
	"slices"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/gpumem"
)

// The steps of parking.

// modelChunk is the size of a chunk: the largest part takes three.
const modelChunk = 50

func (m *model) freeChunks() int {
	taken := 0
	m.parts(func(_ string, p *mPart) { taken += len(p.parked) })
	return len(m.pool) - taken
}

// growOrShrink changes the pool.
func (w *world) growOrShrink(next *State) (string, func()) {
	if len(w.model.pool) < 3 || len(w.model.pool) < 12 && w.IntN(2) == 0 {
		c := Chunk{ID: w.keep(next), Size: modelChunk, Kind: gpumem.Soft}
		require.NoError(w, next.AddChunk(c))
		return "grow", func() { w.model.pool = append(w.model.pool, c.ID) }
	}
	id := w.model.pool[w.IntN(len(w.model.pool))]
	used := false
	w.parts(func(_ string, p *mPart) { used = used || slices.Contains(p.parked, id) })
	err := next.DropChunk(id)
	if used {
		refused(w, err, Conflict)
		return "shrink conflict", nil
	}
	require.NoError(w, err)
	return "shrink", func() {
		w.model.pool = slices.DeleteFunc(slices.Clone(w.model.pool), func(x ID) bool { return x == id })
	}
}

// mayPark returns what should become of parking a version.
func (w *world) mayPark(v *mVersion) Code {
	if slices.ContainsFunc(w.holds, func(h *mHold) bool { return h.name == v.name && h.n == v.n && !h.detached && !h.fenced && !h.revoked }) {
		return Conflict
	}
	need, of := 0, map[uint32]int{}
	for _, p := range v.parts {
		if len(p.parked) == 0 {
			n := int((p.bytes + modelChunk - 1) / modelChunk)
			need += n
			of[p.uid] += n
		}
	}
	if need > w.freeChunks() {
		return NoRoom
	}
	for uid, more := range of {
		own, others := uint64(more), uint64(0)
		w.parts(func(_ string, p *mPart) {
			if p.uid == uid {
				own += uint64(len(p.parked))
			} else {
				others += uint64(len(p.parked))
			}
		})
		if own > Share(uint64(len(w.model.pool)), others, uid == owner.UID) {
			return Quota
		}
	}
	return ""
}

func (w *world) park(next *State) (string, func()) {
	name := w.name()
	v := w.current(name)
	is, plan, err := next.PlanPark(name, 0, owner, nil)
	if v == nil {
		refused(w, err, NotFound)
		return "park not-found", nil
	}
	if code := w.mayPark(v); code != "" {
		require.Equal(w, code, CodeOf(err), err)
		return "park " + string(code), nil
	}
	require.NoError(w, err)
	require.NoError(w, next.Park(name, is, owner, plan, nil))
	if len(plan) == 0 {
		return "idle", func() {}
	}
	return "park", func() {
		for _, m := range plan {
			p := v.parts[m.Part]
			p.files, p.parked = 0, m.Chunks
		}
	}
}

func (w *world) unpark(next *State) (string, func()) {
	i := slices.IndexFunc(w.versions, func(v *mVersion) bool {
		return slices.ContainsFunc(v.parts, func(p *mPart) bool { return len(p.parked) > 0 })
	})
	if i < 0 {
		return "idle", nil
	}
	v := w.versions[i]
	var all []Unparking
	for i, p := range v.parts {
		if len(p.parked) > 0 {
			all = append(all, Unparking{Part: i, Files: w.keep(next)})
		}
	}
	require.NoError(w, next.Unpark(v.name, v.n, all))
	return "unpark", func() {
		for _, m := range all {
			p := v.parts[m.Part]
			p.files, p.parked = m.Files, nil
		}
	}
}

func (w *world) detach(next *State) (string, func()) {
	if len(w.holds) == 0 {
		refused(w, next.Detach(0), NotFound)
		return "idle", nil
	}
	h := w.holds[w.IntN(len(w.holds))]
	require.NoError(w, next.Detach(h.id))
	return "detach", func() { h.detached = true }
}
