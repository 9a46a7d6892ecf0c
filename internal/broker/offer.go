package broker

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/gpufd/gpufd/internal/wire"
)

// An offer is one from its claim until it has finished. It may be prepared, is published, and
// then loses its name to another before it is over, or does not.
type offer struct {
	id        OfferID
	terms     Terms
	stands    bool // ends only by Retire or Withdraw
	claimed   bool // counts among the makers of its name
	described bool
	published bool
	replaced  bool   // another has its name, or its place
	newer     uint64 // the generation of what took its place, or 0
	over      bool   // withdrawn: its leases end

	places, ended int        // leases: those that count, and those of them that have ended
	number        int        // the last lease's
	live          []*session // whose connections are not over
	behind        []*session // know the memory, and wait for newer
	idleAt        time.Time
	graceAt       time.Time

	awaits  bool     // AwaitWriters waits
	earlier []*offer // those that it waits for
	writers []writer // sessions that are over and may still write
	gaveUp  bool     // fences are waited for no longer
	open    Peers    // may have legacy memory open
	unsure  Peers    // may still write
	doubt   string   // why the first of unsure may, and it cannot be known for how long; or ""
}

func (o *offer) name() string { return o.terms.Record.Name }

// isOf reports whether consumers that have mapped memory of a generation have the offer's.
func (o *offer) isOf(generation uint64) bool {
	return o.terms.Record.Legacy == nil && o.terms.Record.Memory.Generation == generation
}

func (e Claim) apply(b *Broker) {
	o := &offer{id: e.Offer, terms: e.Terms, stands: e.Terms.Resumes}
	switch {
	case b.closed:
		b.do(Taken{Offer: o.id, Closed: true})
		return
	case o.terms.Resumes:
	case b.isTaken(o):
		b.do(Taken{Offer: o.id})
		return
	default:
		n := b.at(o.name())
		o.claimed = true
		n.makers++
	}
	b.offers[o.id] = o
}

// isTaken reports whether an offer cannot have its name, because of one that it does not replace
// or another that is prepared.
func (b *Broker) isTaken(o *offer) bool {
	n := b.names[o.name()]
	return n != nil && (n.current != nil && !o.terms.Replaces || n.prepared != nil && n.prepared != o)
}

func (e Describe) apply(b *Broker) {
	o := b.unpublished(e.Offer)
	if o == nil || o.described {
		return
	}
	e.Record.Name, o.described = o.name(), true
	o.terms.Record, o.terms.Memory = e.Record, e.Memory
	if o.terms.Fence != NoFence {
		b.memory[e.Memory] = append(b.memory[e.Memory], o)
	}
}

// unpublished returns an offer that is neither published nor over, or nil.
func (b *Broker) unpublished(id OfferID) *offer {
	if o := b.offers[id]; o != nil && !o.over && !o.published {
		return o
	}
	return nil
}

func (e Prepare) apply(b *Broker) {
	o := b.unpublished(e.Offer)
	if o == nil || o.terms.Resumes || b.isTaken(o) {
		b.do(Taken{e.Offer, b.closed})
		return
	}
	n := b.at(o.name())
	n.prepared = o
	for _, s := range slices.Clone(n.queue) {
		b.attend(s, nil)
	}
}

func (e Publish) apply(b *Broker) {
	o := b.unpublished(e.Offer)
	if o == nil || !o.terms.Resumes && b.isTaken(o) {
		b.do(Taken{e.Offer, b.closed})
		return
	}
	n := b.at(o.name())
	if e.InOrder && !o.terms.Resumes && n.current != nil && n.current.id > o.id {
		o.replaced = true
		b.end(o, o.endReason(false), false)
		return
	}
	o.published = true
	if o.terms.Resumes {
		n.beside = append(n.beside, o)
		return
	}
	before, waiting := n.current, n.queue
	n.current, n.prepared, n.queue, n.done, n.total = o, nil, nil, 0, 0
	b.doneMaking(o, n)
	for _, s := range o.live {
		if s.state == stateGranted {
			s.state = stateServed
			b.do(Complete{s.id})
		}
	}
	for _, s := range waiting {
		b.attend(s, nil)
	}
	b.idle(o)
	for _, x := range n.beside {
		b.tellNewer(x, o.terms.Record.Memory.Generation)
	}
	if before != nil {
		b.replace(before, o.terms.Record.Memory.Generation)
	}
}

// doneMaking notes that an offer is published, or has failed.
func (b *Broker) doneMaking(o *offer, n *name) {
	o.claimed = false
	if n.makers--; n.makers == 0 {
		n.done, n.total = 0, 0
	}
}

// replace takes an offer's name away. Its leases go on.
func (b *Broker) replace(o *offer, by uint64) {
	o.replaced, o.newer = true, by
	b.do(Replaced{o.id})
	b.wakeBehind(o)
	b.tellNewer(o, by)
	if o.terms.Grace > 0 {
		o.graceAt = b.now.Add(o.terms.Grace)
		b.do(Timer{o.id, o.graceAt})
	}
	b.endIfDone(o)
}

// tellNewer tells the sessions that have an offer's memory that other memory has its place.
func (b *Broker) tellNewer(o *offer, by uint64) {
	for _, s := range o.live {
		if s.state != stateOver {
			b.do(Newer{s.id, by})
		}
	}
}

// newerThan returns the generation of the memory that has the place of an offer's, or 0.
func (b *Broker) newerThan(o *offer) uint64 {
	if n := b.names[o.name()]; n != nil && n.current != nil && n.current != o && o.published {
		return n.current.terms.Record.Memory.Generation
	}
	return o.newer
}

func (e Supersede) apply(b *Broker) {
	o := b.offers[e.Offer]
	if o == nil || o.over {
		return
	}
	o.newer = e.By
	if n := b.names[o.name()]; n != nil && n.current == o {
		n.current = nil
		b.tidy(o.name())
		b.replace(o, e.By)
		return
	}
	b.tellNewer(o, e.By)
}

func (e Retire) apply(b *Broker) {
	if o := b.offers[e.Offer]; o != nil && (o.terms.Resumes || o.replaced) {
		o.stands, o.replaced = false, true
		b.endIfDone(o)
	}
}

func (e Withdraw) apply(b *Broker) {
	if o := b.offers[e.Offer]; o != nil && !o.over {
		b.end(o, o.endReason(e.Restarting), false)
	}
}

// endReason returns why leases end with their offer.
func (o *offer) endReason(restarting bool) Reason {
	switch {
	case restarting:
		return Restarting
	case o.replaced:
		return Superseded
	}
	return Withdrawn
}

// end ends an offer: its name is free, and its leases end.
func (b *Broker) end(o *offer, why Reason, idle bool) {
	o.over, o.awaits = true, false
	b.do(Over{o.id, why, idle})
	b.unname(o)
	b.wakeBehind(o)
	for _, s := range slices.Clone(o.live) {
		b.leave(s, why)
	}
	b.finish(o)
}

// unname takes an offer off its name. If it was the last that was being made, those who wait
// for it are refused.
func (b *Broker) unname(o *offer) {
	n := b.names[o.name()]
	if n == nil {
		return
	}
	n.beside = without(n.beside, o)
	if n.current == o {
		n.current = nil
	}
	if n.prepared == o {
		n.prepared = nil
	}
	if o.claimed {
		b.doneMaking(o, n)
	}
	if n.makers == 0 {
		for _, s := range slices.Clone(n.queue) {
			text := o.name()
			if b.opts.Hides {
				text = s.want.Name
			}
			b.refuse(s, b.noOffer(text))
		}
	}
	b.tidy(o.name())
}

// wakeBehind attends the sessions again that wait behind an offer.
func (b *Broker) wakeBehind(o *offer) {
	for _, s := range slices.Clone(o.behind) {
		b.attend(s, nil)
	}
}

// endIfDone ends an offer whose last lease has ended, or whose name is another's and that has none.
func (b *Broker) endIfDone(o *offer) {
	t, active := o.terms, o.places-o.ended
	switch {
	case o.over:
		b.finish(o)
	case o.stands || !o.published:
	case t.Leases > 0 && o.ended >= t.Leases, o.replaced && active == 0:
		b.end(o, o.endReason(false), false)
	default:
		b.idle(o)
	}
}

// idle begins the time that an offer without leases goes on.
func (b *Broker) idle(o *offer) {
	if o.terms.Idle > 0 && o.places == o.ended {
		o.idleAt = b.now.Add(o.terms.Idle)
		b.do(Timer{o.id, o.idleAt})
	}
}

func (e Tick) apply(b *Broker) {
	o := b.offers[e.Offer]
	if o == nil || o.over || !o.published {
		return
	}
	switch {
	case o.terms.Grace > 0 && o.replaced && !b.now.Before(o.graceAt):
		b.end(o, o.endReason(false), false)
	case o.terms.Idle > 0 && o.places == o.ended && !b.now.Before(o.idleAt):
		b.end(o, o.endReason(false), true)
	}
}

// There returns the records of what is offered or prepared, by name, and whether each is
// published.
func (b *Broker) There() (all []Listed) {
	for text, n := range b.names {
		if o := cmp.Or(n.current, n.prepared); o != nil {
			all = append(all, Listed{text, o.id, o.terms.Record, o.published})
		}
	}
	slices.SortFunc(all, func(a, b Listed) int { return strings.Compare(a.Name, b.Name) })
	return all
}

// A Listed is an offer that stands for a name.
type Listed struct {
	Name      string
	Offer     OfferID
	Record    wire.Offer
	Published bool
}

// Named returns the offer that stands for a name, or is prepared for it, or 0.
func (b *Broker) Named(text string) OfferID {
	if n := b.names[text]; n != nil {
		if o := cmp.Or(n.current, n.prepared); o != nil {
			return o.id
		}
	}
	return 0
}

// Leases returns the sessions that have leases of an offer, in the order of their numbers.
func (b *Broker) Leases(id OfferID) (all []SessionID) {
	if o := b.offers[id]; o != nil {
		for _, s := range o.live {
			all = append(all, s.id)
		}
	}
	return all
}

// LeaseCount returns how many leases an offer has.
func (b *Broker) LeaseCount(id OfferID) int {
	if o := b.offers[id]; o != nil {
		return len(o.live)
	}
	return 0
}

// maxNamed is how many offers a refusal names.
const maxNamed = 10

// noOffer refuses a session whose offer is not there. If it asked for the only offer and there
// are several, the refusal names them, unless the application hides them.
func (b *Broker) noOffer(text string) wire.Refuse {
	no := wire.Refuse{Code: wire.RefusedName, Text: fmt.Sprintf("there is no offer %q here", text)}
	if text != "" {
		return no
	}
	no.Text = "there is not exactly one offer here; ask for one by its name"
	there := b.There()
	if b.opts.Hides || len(there) == 0 {
		return no
	}
	var names []string
	for _, l := range there[:min(len(there), maxNamed)] {
		names = append(names, fmt.Sprintf("%q", l.Name))
	}
	no.Text += ": " + strings.Join(names, ", ")
	if more := len(there) - len(names); more > 0 {
		no.Text += fmt.Sprintf(" and %d more", more)
	}
	return no
}

// sorted returns the keys of a map in order, so that the same events give the same actions.
func sorted[K cmp.Ordered, V any](m map[K]V) []K { return slices.Sorted(maps.Keys(m)) }

// A Waiter is a session that waits for an offer.
type Waiter struct {
	Session SessionID
	Knows   OfferID // waits for newer memory than that offer's; 0: for any
}

// Waiting returns the sessions that wait for an offer, oldest first.
func (b *Broker) Waiting() (all []Waiter) {
	for _, id := range sorted(b.sessions) {
		switch s := b.sessions[id]; s.state {
		case stateQueued:
			all = append(all, Waiter{Session: id})
		case stateBehind:
			all = append(all, Waiter{id, s.knows.id})
		}
	}
	return all
}

// Offers returns how many offers there are, with those that are over but have leases or fences.
func (b *Broker) Offers() int { return len(b.offers) }

// Knows reports whether a name stands for anything, or is expected to.
func (b *Broker) Knows(text string) bool { return b.names[text] != nil }
