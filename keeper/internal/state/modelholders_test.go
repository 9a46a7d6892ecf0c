package state

import (
	"slices"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/gpumem"
)

// The steps of holders.

func (w *world) hold(next *State) (string, func()) {
	name := w.name()
	who := withPID(reader, 100+w.Int32N(3))
	held, detached := 0, 0
	for _, h := range w.holds {
		switch {
		case h.pid != who.PID:
			held++
		case h.leased() && h.detached:
			detached++
		case h.leased():
			held++
		}
	}
	held += max(detached-modelLeases, 0)
	v := w.current(name)
	_, _, err := next.Lease(name, 0, who, nil)
	switch {
	case v == nil:
		refused(w, err, NotFound)
		return "idle", nil
	case held >= modelLeases:
		refused(w, err, Quota)
		return "lease quota", nil
	}
	require.NoError(w, err)
	h := &mHold{name: name, n: v.n, part: w.IntN(len(v.parts)), pidfd: w.pidfd(next, who.PID), pid: who.PID}
	h.id, err = next.Hold(name, Holder{Who: who, Version: h.n, Part: h.part, Access: gpumem.ReadOnly, Since: w.now, Pidfd: h.pidfd})
	require.NoError(w, err)
	return "hold", func() {
		w.holds = append(w.holds, h)
		if !w.used[name].IsZero() {
			w.used[name] = w.now
		}
	}
}

// ended is the end of a holder: with a goodbye, or without.
func (w *world) ended(what string, f func(HoldID) error, then func(h *mHold)) (string, func()) {
	if len(w.holds) == 0 {
		refused(w, f(0), NotFound)
		return "idle", nil
	}
	h := w.holds[w.IntN(len(w.holds))]
	require.NoError(w, f(h.id))
	return what, func() {
		w.used[h.name] = time.Time{}
		then(h)
	}
}

func (w *world) release(next *State) (string, func()) {
	return w.ended("release", next.Release, w.gone)
}

func (w *world) gone(h *mHold) {
	w.holds = slices.DeleteFunc(w.holds, func(x *mHold) bool { return x == h })
}

func (w *world) lose(next *State) (string, func()) {
	return w.ended("lose", next.Lose, w.outlives(func(h *mHold) { h.lost = !h.revoked }))
}

func (w *world) revoke(next *State) (string, func()) {
	return w.ended("revoke", next.Revoke, w.outlives(func(h *mHold) { h.lost, h.revoked = false, true }))
}

// outlives is the end of a lease whose process may live.
func (w *world) outlives(note func(*mHold)) func(*mHold) {
	return func(h *mHold) {
		if h.fenced {
			w.gone(h)
			return
		}
		note(h)
		w.holds = slices.DeleteFunc(w.holds, func(x *mHold) bool {
			return x != h && x.lost == h.lost && x.revoked == h.revoked && x.name == h.name && x.n == h.n && x.part == h.part && x.pid == h.pid
		})
	}
}
