package broker

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/gpufd/gpufd/gpumem"
	"github.com/gpufd/gpufd/internal/plain"
	"github.com/gpufd/gpufd/internal/wire"
)

// A session is one consumer's connection.
type session struct {
	id        SessionID
	peer      Peer
	process   ProcessID
	doubt     string // why the end of its process cannot be known, or ""
	want      wire.Attach
	state     sessionState
	wasServed bool      // it was told that the data is there, before it ended
	told      time.Time // when it last heard of progress

	asked    *offer // the application is being asked about, or nil
	waitsFor string // the name in whose queue it is, or was before it was asked about; or ""
	knows    *offer // behind which it waits, or nil
	lease    *offer // of which it has a lease, or nil

	heir *session // reattached, and has its place with it, or nil
	from *session // whose heir it is, or nil
}

// A sessionState says how far a session is. The first three have no lease.
type sessionState int

const (
	stateAsking  sessionState = iota // the application is asked
	stateQueued                      // waits for the offer of a name
	stateBehind                      // waits for newer memory than that of an offer
	stateGranted                     // has a lease, and waits for the data
	stateServed                      // was told that the data is there
	stateMapped                      // has mapped the memory
	stateOver                        // End was returned
)

func (e Ask) apply(b *Broker) {
	s := &session{id: e.Session, peer: e.Peer, process: e.Process, doubt: e.Doubt, want: e.Want}
	b.sessions[s.id] = s
	b.use(s.process)
	if b.closed {
		b.refuse(s, refusedClosed)
		return
	}
	b.attend(s, nil)
}

func (e Answer) apply(b *Broker) {
	s := b.sessions[e.Session]
	if s == nil || s.state != stateAsking || s.asked == nil || s.asked.id != e.Offer {
		return
	}
	allowed := s.asked
	s.asked = nil
	switch {
	case e.Hidden:
		b.refuse(s, b.noOffer(""))
	case e.Denied:
		b.forget(s)
		b.do(Refuse{Session: s.id, Denied: true})
	default:
		b.attend(s, allowed)
	}
}

// attend finds what a session without a lease gets now. allowed is the offer that the
// application has just admitted it to, or nil.
func (b *Broker) attend(s *session, allowed *offer) {
	text := b.nameFor(s)
	o := b.find(s, text)
	b.leaveLines(s)
	n := b.names[text]
	about := o // in place of memory to reattach that is not there: what has its name, of which not everybody may learn
	if o == nil && n != nil {
		about = cmp.Or(n.current, n.prepared)
	}
	switch {
	case about != nil && b.opts.Consults && about != allowed:
		s.state, s.asked = stateAsking, about
		b.do(Consult{s.id, about.id})
	case s.wantsExactly() && o == nil && about != nil:
		b.refuse(s, wire.Refuse{Code: wire.RefusedStale, Text: fmt.Sprintf("%q is not the memory of generation %d any more; attach anew", text, s.want.Reattach)})
	case s.wantsExactly() && o == nil:
		b.refuse(s, b.noOffer(s.want.Name))
	case o != nil && s.knowsOf(o):
		s.state, s.knows = stateBehind, o
		o.behind = append(o.behind, s)
		b.wait(s, o.name())
	case o != nil:
		b.grant(s, o)
	case n != nil && n.makers > 0:
		s.state, s.waitsFor = stateQueued, text
		n.queue = append(n.queue, s)
		b.wait(s, text)
	default:
		b.refuse(s, b.noOffer(s.want.Name))
	}
}

// wait lets a session wait for the next offer of a name.
func (b *Broker) wait(s *session, text string) {
	b.do(Wait{s.id})
	if n := b.names[text]; n != nil && n.makers > 0 {
		b.report(s, n)
	}
}

// find returns the offer that a session gets that means a name, or nil.
func (b *Broker) find(s *session, text string) *offer {
	if s.want.Reattach != 0 {
		if o := b.findAgain(s, text); s.wantsExactly() || o != nil && b.newerThan(o) == 0 {
			return o
		}
	}
	if n := b.names[s.want.Name]; n != nil && s.want.Resume != 0 {
		for _, o := range n.beside {
			if o.isOf(s.want.Resume) {
				return o
			}
		}
	}
	n := b.names[text]
	if n == nil {
		return nil
	}
	return cmp.Or(n.current, n.prepared)
}

// findAgain returns the offer of the memory that a session wants again, or nil: one of which its process has a
// lease, or else the last.
func (b *Broker) findAgain(s *session, text string) (found *offer) {
	for _, o := range b.offers {
		there := o.published || b.names[text] != nil && b.names[text].prepared == o
		if o.name() != text || o.over || !there || !o.isOf(s.want.Reattach) {
			continue
		}
		if found == nil || o.isBetterFor(s, found) {
			found = o
		}
	}
	return found
}

// wantsExactly reports whether a session reattaches, and takes no newer memory instead.
func (s *session) wantsExactly() bool { return s.want.Reattach != 0 && s.want.After == 0 }

// isBetterFor reports whether a session that reattaches gets an offer rather than another of the same memory.
func (o *offer) isBetterFor(s *session, other *offer) bool {
	if mine, others := o.leaseOf(s) != nil, other.leaseOf(s) != nil; mine != others {
		return mine
	}
	return o.id > other.id
}

// leaseOf returns a session of the same process as s that has a lease, and whose place nobody has taken over, or
// nil. That it has detached may not have been heard yet: it was said over another connection.
func (o *offer) leaseOf(s *session) *session {
	for _, x := range o.live {
		if x.state != stateOver && x.heir == nil && x.isOfProcessOf(s) {
			return x
		}
	}
	return nil
}

func (s *session) isOfProcessOf(x *session) bool {
	return s.process == x.process && (s.process != 0 || s.peer == x.peer && s.peer.PID != 0)
}

// nameFor returns the name that a session means: the only one, if it says none. One that has
// waited for that goes on to mean it, unless another offer has been published.
func (b *Broker) nameFor(s *session) string {
	if s.want.Name != "" {
		return s.want.Name
	}
	var published, expected []string
	for text, n := range b.names {
		if n.current != nil {
			published = append(published, text)
		}
		if n.makers > 0 {
			expected = append(expected, text)
		}
	}
	switch {
	case len(published) == 1 && (s.waitsFor == "" || s.waitsFor == published[0]):
		return published[0]
	case len(published) == 0 && s.waitsFor != "":
		return s.waitsFor
	case len(published) == 0 && len(expected) == 1:
		return expected[0]
	}
	return ""
}

// knowsOf reports whether an offer's memory is no newer than what a session has.
func (s *session) knowsOf(o *offer) bool {
	return s.want.Reattach == 0 && s.want.After > 0 && o.terms.Record.Memory.Generation <= s.want.After
}

// leaveLines takes a session out of where it waits.
func (b *Broker) leaveLines(s *session) {
	if n := b.names[s.waitsFor]; n != nil {
		n.queue = without(n.queue, s)
	}
	if s.knows != nil {
		s.knows.behind = without(s.knows.behind, s)
	}
	s.knows, s.asked = nil, nil
}

// grant gives a session a lease, if the offer fits what it wants.
func (b *Broker) grant(s *session, o *offer) {
	var from *session
	if s.want.Reattach != 0 && o.isOf(s.want.Reattach) {
		from = o.leaseOf(s)
	}
	if no := o.misfit(s.want, from != nil); no.Code != 0 {
		b.refuse(s, no)
		return
	}
	if s.from = from; from != nil {
		from.heir = s
	} else {
		o.places++
	}
	o.number++
	o.live = append(o.live, s)
	s.lease, s.state = o, stateServed
	if !o.published {
		s.state = stateGranted
	}
	b.do(Grant{s.id, o.id, o.number, !o.published})
	if by := b.newerThan(o); by != 0 {
		b.do(Newer{s.id, by})
	}
}

// misfit returns why a consumer, which may have a place already, cannot have an offer, or a zero Refuse.
func (o *offer) misfit(want wire.Attach, placed bool) wire.Refuse {
	no := func(code wire.RefusalCode, format string, a ...any) wire.Refuse {
		return wire.Refuse{Code: code, Text: fmt.Sprintf(format, a...)}
	}
	r := o.terms.Record
	switch {
	case want.Driver != r.Memory.Kind:
		return no(wire.RefusedKind, "the producer uses the %s driver and the consumer %s; run both with the same --driver", r.Memory.Kind, want.Driver)
	case want.Access > r.Access:
		return no(wire.RefusedAccess, "%q is offered %s, and %s was asked for", r.Name, r.Access, want.Access)
	case want.Resume != 0 && !o.isOf(want.Resume):
		return no(wire.RefusedStale, "%q is not the memory of generation %d that you have mapped; attach anew", r.Name, want.Resume)
	case r.Legacy != nil && want.Capabilities&wire.TakesLegacy == 0:
		return no(wire.RefusedUnsupported, "%q is offered by a legacy handle, and you did not say that you take such", r.Name)
	case r.DataSize > 0 && want.Capabilities&wire.TakesData == 0:
		return no(wire.RefusedUnsupported, "%q has %d bytes of application data, and you did not say that you take more than %d", r.Name, r.DataSize, wire.MaxData)
	case r.CursorSize > 0 && want.Capabilities&wire.TakesCursors == 0:
		return no(wire.RefusedUnsupported, "%q gives each consumer cursors (field 5, a channel's), and you did not say that you take them", r.Name)
	case o.terms.Leases > 0 && o.places >= o.terms.Leases && !placed:
		return no(wire.RefusedBusy, "%q has all it waits for: %s", r.Name, plain.Count(o.terms.Leases, "consumer"))
	}
	return wire.Refuse{}
}

// refuse ends a session without a lease.
func (b *Broker) refuse(s *session, no wire.Refuse) {
	b.forget(s)
	b.do(Refuse{Session: s.id, Because: no})
}

// forget drops a session without a lease.
func (b *Broker) forget(s *session) {
	b.leaveLines(s)
	b.drop(s)
}

func (b *Broker) drop(s *session) {
	delete(b.sessions, s.id)
	b.unuse(s.process)
}

func (e Map) apply(b *Broker) {
	s := b.sessions[e.Session]
	switch {
	case s == nil || s.state == stateOver:
	case s.state == stateServed && e.Generation == s.lease.terms.Record.Memory.Generation:
		s.state = stateMapped
		b.do(Confirm{s.id})
	default:
		b.leave(s, Failed)
	}
}

func (e Detach) apply(b *Broker) {
	if s := b.sessions[e.Session]; s != nil && !s.mayDetach() {
		b.leave(s, Failed)
	}
}

// mayDetach reports whether a session may say that it has detached.
func (s *session) mayDetach() bool {
	return s.state == stateMapped && s.lease.gives(s.want) == gpumem.ReadOnly && s.lease.terms.Record.CursorSize == 0
}

func (e Revoke) apply(b *Broker) {
	if s := b.sessions[e.Session]; s != nil && s.lease != nil {
		b.leave(s, Revoked)
	}
}

func (e Leave) apply(b *Broker) {
	if s := b.sessions[e.Session]; s != nil {
		b.leave(s, e.Reason)
	}
}

// leave ends a session, unless it has ended.
func (b *Broker) leave(s *session, why Reason) {
	if s.state == stateOver {
		return
	}
	was := s.state
	s.state, s.wasServed = stateOver, was >= stateServed
	b.do(End{s.id, why, s.wasServed, was == stateMapped})
	if s.lease == nil {
		b.forget(s)
	}
}

func (e Gone) apply(b *Broker) {
	s := b.sessions[e.Session]
	if s == nil || s.state != stateOver {
		return
	}
	o := s.lease
	o.live = without(o.live, s)
	switch {
	case s.bequeath(): // the process has the place
	case s.wasServed:
		o.ended++
	default:
		o.places-- // it leaves its place to another consumer
	}
	if e.Open {
		o.open.add(s.peer)
	}
	b.awaitWriter(o, s, e)
	b.drop(s)
	b.endIfDone(o)
}

// bequeath leaves the place of a session to those of its process that have it, too, and reports whether there are any.
func (s *session) bequeath() bool {
	if s.heir != nil {
		s.heir.from = s.from
	}
	if s.from != nil {
		s.from.heir = s.heir
	}
	return s.heir != nil || s.from != nil
}

func without[T comparable](all []T, one T) []T {
	return slices.DeleteFunc(all, func(x T) bool { return x == one })
}

// gives returns the access that a session has.
func (o *offer) gives(want wire.Attach) gpumem.Access {
	if o.terms.Record.Legacy != nil {
		return gpumem.ReadWrite // nothing can keep it from writing
	}
	return want.Access
}
