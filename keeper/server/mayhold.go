package server

import (
	"github.com/gpufd/gpufd/keeper/internal/protocol"
	"github.com/gpufd/gpufd/keeper/internal/state"
)

// mayHold returns nil if a reader may have a lease of an offer now. It runs with mu held.
func (s *Server) mayHold(of *offer, h state.Holder) error {
	var err error
	if s.offers[of.as] == of {
		_, _, err = s.state.Lease(of.name, of.part.Index, h.Who, s.holders.soon)
	} else {
		err = s.state.MayResume(of.name, h, s.holders.soon)
	}
	if err == nil {
		err = s.state.MayHold(of.name, h)
	}
	return err
}

// lease returns nil if a client that attaches now is admitted, or else the reason. A reader that
// is refused is not told the reason.
func (c *session) lease(r protocol.Request) error {
	s := c.server
	s.mu.Lock()
	defer s.mu.Unlock()
	v, p, err := s.state.Lease(r.Name, r.Part, c.who, s.holders.soon)
	if err != nil {
		return err
	}
	if o := s.offers[protocol.OfferName(r.Name, p.Index, len(v.Parts))]; s.leaving[o] && s.changeLock.heldLong() {
		return s.undecided(o) // else a reader waits, and gets what there is then
	}
	access, err := parseAccess(r.Access)
	if err == nil {
		err = s.state.MayHold(r.Name, state.Holder{Who: c.who, Version: v.N, Part: p.Index, Access: access})
	}
	return err
}
