package serve

import (
	"fmt"
	"strings"

	"github.com/gpufd/gpufd/gpumem"
	"github.com/gpufd/gpufd/internal/broker"
	"github.com/gpufd/gpufd/internal/wire"
)

// consult asks the application whether the peer gets an offer.
func (x *session) consult(id broker.OfferID) broker.Answer {
	s := x.server
	s.mu.Lock()
	o := s.offerings[id]
	s.mu.Unlock()
	answer := broker.Answer{Session: x.id, Offer: id}
	switch {
	case o == nil: // it is over, and another is asked about
	case x.want.Name == "" && x.mayAsk(o.Record.Name, x.want.Access) != nil:
		answer.Hidden = true
	default:
		var err error
		if !x.mayAsked {
			err = x.mayAsk(x.want.Name, x.want.Access)
		}
		if x.mayAsked = false; err == nil {
			err = x.allows(o, o.seeks(x.want)) // also if it waits for newer: the wait itself would tell it a generation
		}
		s.mu.Lock()
		x.denied, answer.Denied = err, err != nil
		s.mu.Unlock()
	}
	return answer
}

// seeks returns the access that a consumer gets to an offer. It is 0 if the consumer reattaches other memory, and is only to
// learn that the name stands for this.
func (o *Offering) seeks(want wire.Attach) gpumem.Access {
	if want.Reattach != 0 && want.After == 0 && want.Reattach != o.Record.Memory.Generation {
		return 0
	}
	return o.gives(want)
}

// mayAsk asks the application, if it wants that, whether the peer may ask for a name with that access.
func (x *session) mayAsk(name string, access gpumem.Access) error {
	f := x.server.opts.AllowName
	if f == nil || name == "" {
		return nil
	}
	if err := f(x.transport.Conn.Peer(), name, access); err != nil {
		return deniedError{err}
	}
	return nil
}

// allows asks the application, if it decides, whether the peer gets the offer; with access 0,
// whether the peer may know of it.
func (x *session) allows(o *Offering, access gpumem.Access) error {
	if x.server.opts.Allow == nil {
		return nil
	}
	if x.server.opts.Reassures {
		defer x.reassure()()
	}
	if err := x.server.opts.Allow(x.transport.Conn.Peer(), o.described(x.want), access); err != nil {
		return deniedError{err}
	}
	return nil
}

// A deniedError is an error of Options.Allow, which the peer does not see, but for a [Told] in it.
type deniedError struct{ error }

// Told is an error of Options.Allow that the peer is told.
type Told struct{ wire.Refuse }

func (e deniedError) Unwrap() error { return e.error }

// notAllowed is what the peer is told instead.
var notAllowed = wire.Refuse{Code: wire.RefusedPolicy, Text: "the producer does not admit you"}

// namesParts refuses a name that is not offered for another reason, if there is one: the application
// offers parts of what has that name.
func (x *session) namesParts(err error) error {
	no, refused := err.(wire.Refuse)
	if x.server.opts.Parts == nil || !refused || no.Code != wire.RefusedName || x.want.Name == "" || x.server.ctx.Err() != nil {
		return err
	}
	parts := x.server.opts.Parts(x.transport.Conn.Peer(), x.want.Name)
	if len(parts) == 0 {
		return err
	}
	more := ""
	if len(parts) > maxNamed {
		more = fmt.Sprintf(" and %d more", len(parts)-maxNamed)
	}
	return wire.Refuse{Code: wire.RefusedParts, Text: fmt.Sprintf("%s has parts %s%s; ask for one of them, or for all", x.want.Name, strings.Join(parts[:min(len(parts), maxNamed)], ", "), more)}
}
