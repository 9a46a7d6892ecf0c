package share

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/internal/plain"
	"github.com/gpufd/gpufd/internal/wire"
	"github.com/gpufd/gpufd/sock"
)

// A visitor is a peer that has connected and has no lease yet.
type visitor struct {
	transport *transport
	server    *Server
	watch     *watch // of its process, or nil
	unwatched error  // why watch is nil
	want      wire.Attach
	lists     bool   // it wants only a list of the offers
	settled   func() // says that it has a lease or waits for one, or has left; may be called again
}

// talk reads what the peer wants, and serves it.
func (v *visitor) talk() {
	defer v.settled()
	err := v.hearWish()
	switch {
	case err == nil && v.lists:
		err = v.sayList()
	case err == nil:
		err = errOffered
	case errors.Is(err, v.server.ctx.Err()) && !errors.Is(err, ErrTimeout):
		err = errors.Join(errSilent, err)
	}
	for errors.Is(err, errOffered) {
		err = v.attend()
	}
	if err != nil {
		v.turnAway(err)
	}
}

// errOffered tells a visitor to ask again, because there is an offer, or another one.
var errOffered = errors.New("share: there is an offer now")

// errSilent says that the server was closed before a peer had said what it wants.
var errSilent = errors.New("share: closed before the peer had said what it wants")

// hearWish reads what the peer wants.
func (v *visitor) hearWish() error {
	m, files, err := v.transport.receive(v.server.ctx, false)
	if err != nil {
		return err
	}
	switch m := m.(type) {
	case wire.Attach:
		v.want = m
	case wire.List:
		v.lists = true
	default:
		err = unexpected(m, "where a wish to attach belongs")
	}
	return errors.Join(err, sock.CloseFiles(files))
}

// attend serves the peer until it has gone. The error is why to turn it away, or
// errOffered.
func (v *visitor) attend() error {
	allowed, err := v.authorize()
	if err != nil {
		return err
	}
	lease, w, err := v.enlist(allowed)
	if err != nil {
		return v.namesParts(err)
	}
	if lease != nil {
		lease.begin()
	}
	v.settled() // not before: whoever hands over has heard of each lease
	switch {
	case w == nil:
		lease.run()
		return nil
	case lease != nil:
		w.deliver()
	}
	return w.wait()
}

// authorize asks the application about the offering that the peer wants, if it is there,
// and returns that offering.
func (v *visitor) authorize() (*offering, error) {
	s := v.server
	if err := v.mayAsk(v.want.Name, v.want.Access); err != nil {
		return nil, err
	}
	if !s.opts.asks() {
		return nil, nil
	}
	s.mu.Lock()
	o, _ := s.lookup(v.want)
	s.mu.Unlock()
	if o != nil && v.want.Name == "" && v.mayAsk(o.record.Name, v.want.Access) != nil {
		return nil, s.noOffer("") // as if there were none
	}
	if o == nil {
		return nil, nil
	}
	return o, v.allows(o, o.gives(v.want)) // also if it waits for newer: the wait itself would tell it a generation
}

// mayAsk asks the application, if it wants that, whether the peer may ask for a name with that access.
func (v *visitor) mayAsk(name string, access cu.Access) error {
	f := v.server.opts.allowName
	if f == nil || name == "" {
		return nil
	}
	if err := f(v.transport.conn.Peer(), name, access); err != nil {
		return deniedError{err}
	}
	return nil
}

// allows asks the application, if it decides, whether the peer gets the offer; with access 0,
// whether the peer may know of it.
func (v *visitor) allows(o *offering, access cu.Access) error {
	if v.server.opts.allow == nil {
		return nil
	}
	would := Offer{
		Name: o.record.Name, Descriptor: o.record.Memory, Access: access, Data: bytes.Clone(o.record.Data), Legacy: cloneHandle(o.record.Legacy),
		Producer: sock.Peer{UID: uint32(os.Geteuid()), GID: uint32(os.Getegid()), PID: int32(os.Getpid())},
	}
	if err := v.server.opts.allow(v.transport.conn.Peer(), would); err != nil {
		return deniedError{err}
	}
	return nil
}

// A deniedError is an error of WithAuthorize's function, which the peer does not see.
type deniedError struct{ error }

func (e deniedError) Unwrap() error { return e.error }

// notAllowed is what the peer is told instead.
var notAllowed = wire.Refuse{Code: RefusedPolicy, Text: "the producer does not admit you"}

// enlist makes a lease if the peer's offer is there, or a waiter if it is expected. If
// the offer is prepared, it returns both: the descriptors are to be sent. If the application
// decides and was not asked about this offer, the error is errOffered.
func (v *visitor) enlist(allowed *offering) (*Lease, *waiter, error) {
	s := v.server
	s.mu.Lock()
	defer s.mu.Unlock()
	o, e := s.lookup(v.want)
	switch {
	case o != nil && s.opts.asks() && o != allowed:
		return nil, nil, errOffered
	case v.knows(o):
		return nil, o.queueBehind(v), nil
	case e != nil:
		return s.queue(v, e)
	case o != nil:
		lease, err := o.admit(v)
		return lease, nil, err
	}
	return nil, nil, s.noOffer(v.want.Name)
}

// namesParts refuses a name that is not offered for another reason, if there is one: the application
// offers parts of what has that name.
func (v *visitor) namesParts(err error) error {
	var no wire.Refuse
	if v.server.opts.parts == nil || !errors.As(err, &no) || no.Code != RefusedName {
		return err
	}
	parts := v.server.opts.parts(v.transport.conn.Peer(), v.want.Name)
	if len(parts) == 0 {
		return err
	}
	more := ""
	if len(parts) > maxNamed {
		more = fmt.Sprintf(" and %d more", len(parts)-maxNamed)
	}
	return wire.Refuse{Code: RefusedParts, Text: fmt.Sprintf("%s has parts %s%s; ask for one of them, or for all", v.want.Name, strings.Join(parts[:min(len(parts), maxNamed)], ", "), more)}
}

// lookup finds the offer that a consumer wants: the one to resume, the one of that name, or
// the only one if the name is "". It also returns the expectation, if the data is not there
// yet. It runs with mu held.
func (s *Server) lookup(want wire.Attach) (*offering, *expectation) {
	name := want.Name
	if o := s.resumable(want); o != nil {
		return o, nil
	}
	if name == "" {
		name = s.onlyName()
	}
	o, e := s.offers[name], s.expected[name]
	if e == nil || o != nil && !o.isOver() {
		return o, nil
	}
	return e.prepared, e
}

// onlyName returns the name of the only offer; if there is no offer, that of the only
// expected one; else "". It runs with mu held.
func (s *Server) onlyName() string {
	switch {
	case len(s.offers) == 1:
		for name := range s.offers {
			return name
		}
	case len(s.offers) == 0 && len(s.expected) == 1:
		for name := range s.expected {
			return name
		}
	}
	return ""
}

// turnAway ends a conversation that led to no lease, and says why.
func (v *visitor) turnAway(err error) {
	var no wire.Refuse
	var denied deniedError
	last := refusal(err)
	switch {
	case errors.As(err, &denied): // whatever the application said
		last = notAllowed
	case errors.As(err, &no):
		err = no
	case errors.Is(err, errSilent):
		last = wire.Refuse{Code: RefusedName, Text: "the producer has ended, and you had not said what you want"}
	case v.server.ctx.Err() != nil && !errors.Is(err, ErrTimeout):
		last = wire.Refuse{Code: RefusedName, Text: "the producer ended before its offer was ready"}
	}
	v.server.tell(Event{Kind: PeerRefused, Peer: v.transport.conn.Peer(), Err: err})
	if denied.error != nil || !isGone(err) && !errors.Is(err, ErrVerdict) {
		_ = v.transport.close(last, v.transport.farewell())
	}
}

// admit makes a lease if the offer fits what the consumer wants, else a refusal. It runs
// with mu held.
func (o *offering) admit(v *visitor) (*Lease, error) {
	no := func(code RefusalCode, format string, a ...any) (*Lease, error) {
		return nil, wire.Refuse{Code: code, Text: fmt.Sprintf(format, a...)}
	}
	r, want := o.record, v.want
	switch {
	case want.Driver != r.Memory.Kind:
		return no(RefusedKind, "the producer uses the %s driver and the consumer %s; run both with the same --driver", r.Memory.Kind, want.Driver)
	case want.Access > r.Access:
		return no(RefusedAccess, "%q is offered %s, and %s was asked for", r.Name, r.Access, want.Access)
	case !o.resumable(want):
		return no(RefusedStale, "%q is not the memory of generation %d that you have mapped; attach anew", r.Name, want.Resume)
	case r.Legacy != nil && want.Capabilities&wire.TakesLegacy == 0:
		return no(RefusedUnsupported, "%q is offered by a %s handle, and you did not say that you take such", r.Name, HandleLegacy)
	case r.DataSize > 0 && want.Capabilities&wire.TakesData == 0:
		return no(RefusedUnsupported, "%q has %d bytes of application data, and you did not say that you take more than %d", r.Name, r.DataSize, wire.MaxData)
	case r.CursorSize > 0 && want.Capabilities&wire.TakesCursors == 0:
		return no(RefusedUnsupported, "%q gives each consumer cursors (field 5, a channel's), and you did not say that you take them", r.Name)
	case o.opts.leases > 0 && o.begun >= o.opts.leases:
		return no(RefusedBusy, "%q has all it waits for: %s", r.Name, plain.Count(o.opts.leases, "consumer"))
	}
	o.begun++
	o.numbered++
	o.work.Add(1)
	o.moved()
	l := newLease(o, v)
	o.live = append(o.live, l)
	return l, nil
}

// wait reads until the consumer says something: the answer to an offer that it was sent
// meanwhile, or something out of turn. The error is why to turn it away, or errOffered.
func (w *waiter) wait() error {
	defer w.stop(nil)
	m, files, err := w.visitor.transport.receive(w.ctx, true)
	_ = sock.CloseFiles(files)
	if errors.Is(err, context.Canceled) {
		err = context.Cause(w.ctx) // what stop was called with
	}
	if w.leave() != nil {
		w.goOn(m, err)
		return nil
	}
	if err != nil {
		return err
	}
	if v, ok := m.(wire.Verdict); ok && !v.OK { // it cannot attach
		return faultOf(v)
	}
	return unexpected(m, "from a consumer that waits for an offer")
}
