package server

import (
	"time"

	"github.com/gpufd/gpufd/internal/wire"
	"github.com/gpufd/gpufd/keeper/internal/protocol"
	"github.com/gpufd/gpufd/keeper/internal/state"
)

// Readers of a retired version that have lost their connection, because the keeper died for
// instance, may resume their lease: the parts are offered to readers that have them mapped
// already. The name is the current version's.

// reconcileResumable offers retired parts to the readers that may come back for them, and to
// nobody else. It runs with mu held.
func (s *Server) reconcileResumable() {
	want := map[state.ID]bool{}
	s.state.Awaited(func(name string, v *state.Version, p *state.Part) {
		want[p.Files] = true
		if s.resumable[p.Files] != nil {
			return
		}
		o, err := s.offerPart(name, protocol.OfferName(name, p.Index, len(v.Parts)), v, p, true)
		if err != nil {
			s.log("version %d of %s is kept and cannot be offered to those who had it: %v", v.N, name, err)
			return
		}
		if next := s.state.Next(name, v.N); next != nil {
			o.offering.Supersede(next.Parts[0].Memory.Generation)
		}
		s.resumable[p.Files] = o
	})
	for id, o := range s.resumable {
		if !want[id] {
			delete(s.resumable, id)
			o.offering.Retire()
		}
	}
}

// offerOf returns the offer that a reader is about to get: the one for readers that resume,
// or the one that has the name. If that has changed since the reader asked, the broker asks again. It runs with mu held.
func (s *Server) offerOf(o wire.Offer) *offer {
	for _, of := range s.resumable {
		if of.as == o.Name && of.part.Memory.Generation == o.Memory.Generation {
			return of
		}
	}
	return s.offers[o.Name]
}

// revokeUnresumed revokes in next the leases that readers did not resume within Grace after a
// restart. The readers keep what they have mapped, so they are shown until their processes have
// died.
func (s *Server) revokeUnresumed(next *state.State, now time.Time) (changed bool) {
	if len(s.unresumed) == 0 || now.Before(s.since.Add(s.opts.Grace)) {
		return false
	}
	lost := map[state.HoldID]bool{}
	next.Holds(func(id state.HoldID, _ string, h state.Holder) { lost[id] = h.Lost })
	for _, id := range s.unresumed {
		if lost[id] && next.Revoke(id) == nil {
			changed = true
		}
	}
	if !changed {
		s.unresumed = nil
	}
	return changed
}
