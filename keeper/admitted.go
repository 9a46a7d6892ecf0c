package keeper

import (
	"maps"
	"slices"
	"time"

	"github.com/gpufd/gpufd/keeper/internal/state"
)

// An admission is a reader that was let in and has no lease yet: it counts against the quota
// of leases all the same.
type admission struct {
	offer  *offer
	holder state.Holder
}

func (a admission) isOver() bool { return time.Since(a.holder.Since) > patience } // its reader has gone

// admit notes a reader that is let in.
func (h *holders) admit(o *offer, as state.Holder) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.admitted = append(slices.DeleteFunc(h.admitted, admission.isOver), admission{o, as})
}

// arrived notes that a reader has its lease. The two count once.
func (h *holders) arrived(e *holder) {
	who := e.holder().Who
	h.mu.Lock()
	defer h.mu.Unlock()
	h.pending[e] = true
	i := slices.IndexFunc(h.admitted, func(a admission) bool { return a.offer.as == e.offer.as && a.holder.Who == who })
	if i >= 0 {
		h.admitted = slices.Delete(h.admitted, i, i+1)
	}
}

// mayHold says whether a reader may have a lease of an offer now. It runs with mu held.
func (s *Server) mayHold(of *offer, h state.Holder) error {
	next := s.withUnknown(of.name, h.Who)
	var err error
	if s.offers[of.as] == of {
		_, _, err = next.Lease(of.name, of.part.Index, h.Who)
	} else {
		err = next.MayResume(of.name, h)
	}
	if err == nil {
		err = next.MayHold(of.name, h)
	}
	return err
}

// withUnknown is the state to ask about a lease: where leases are limited, a copy that knows
// all of them. It runs with mu held.
func (s *Server) withUnknown(name string, who state.Who) *state.State {
	if !s.state.LimitsLeases(name, who) {
		return s.state
	}
	next := s.state.Clone()
	s.addUnknown(next)
	return next
}

// addUnknown tells next of the leases that the state will know soon. A lease that next
// refuses, the state will refuse as well. It runs with mu held.
func (s *Server) addUnknown(next *state.State) {
	s.holders.mu.Lock()
	defer s.holders.mu.Unlock()
	unknown := maps.Clone(s.holders.pending)
	maps.Copy(unknown, s.holders.taken)
	for e := range unknown {
		if e.id == 0 && !e.isOver() {
			_, _ = next.Hold(e.offer.name, e.holder())
		}
	}
	for _, a := range s.holders.admitted {
		if !a.isOver() {
			_, _ = next.Hold(a.offer.name, a.holder)
		}
	}
}

// lease says whether a client that attaches now is admitted, and if not, why. A reader
// that is refused is not told the reason.
func (c *session) lease(r request) error {
	c.server.mu.Lock()
	defer c.server.mu.Unlock()
	next := c.server.withUnknown(r.Name, c.who)
	v, p, err := next.Lease(r.Name, r.Part, c.who)
	if err != nil {
		return err
	}
	if o := c.server.offers[OfferName(r.Name, p.Index, len(v.Parts))]; c.server.leaving[o] && c.server.turn.isLong() {
		return c.server.undecided(o) // else a reader waits, and gets what there is then
	}
	access, err := parseAccess(r.Access)
	if err == nil {
		err = next.MayHold(r.Name, state.Holder{Who: c.who, Version: v.N, Part: p.Index, Access: access})
	}
	return err
}
