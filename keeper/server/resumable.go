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
	want := map[partKey]bool{}
	s.state.Awaited(func(name string, v *state.Version, p *state.Part) {
		key := partKey{name, v.N, p.Index}
		want[key] = true
		if o := s.resumable[key]; o != nil {
			s.supply(o, p)
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
		s.resumable[key] = o
	})
	for key, o := range s.resumable {
		if !want[key] {
			delete(s.resumable, key)
			s.past = append(s.past, o)
			o.offering.Retire()
		}
	}
}

// offerOf returns the offer that a reader is about to get: the one for readers that resume, one that was replaced and
// that a process of the reader's user has detached from, or the one that has the name. If that has changed since the
// reader asked, the broker asks again, but gives a reader that reattaches what it wants: began ends such a lease. It
// runs with mu held.
func (s *Server) offerOf(o wire.Offer, who state.Who) *offer {
	is := func(of *offer) bool { return of.as == o.Name && of.part.Memory.Generation == o.Memory.Generation }
	for _, of := range s.resumable {
		if is(of) {
			return of
		}
	}
	current := s.offers[o.Name]
	if current != nil && is(current) {
		return current
	}
	for _, of := range s.past {
		h := state.Holder{Who: who, Version: of.version, Part: of.part.Index}
		if is(of) && state.CodeOf(s.state.MayResume(of.name, h, nil)) != state.NotFound {
			return of
		}
	}
	return current
}

// isReplaced reports whether an offer has not its name any more.
func (s *Server) isReplaced(of *offer) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.offers != nil && s.offers[of.as] != of
}

// pastOf returns the replaced offer that a reader asks for, or nil. It runs with mu held.
func (s *Server) pastOf(o wire.Offer) *offer {
	for _, of := range s.past {
		if of.as == o.Name && of.part.Memory.Generation == o.Memory.Generation {
			return of
		}
	}
	return nil
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
