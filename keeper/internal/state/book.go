package state

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/gpufd/gpufd/internal/plain"
)

// Book announces a part, and returns the ticket with which it is delivered. From now on
// its bytes count against quotas. The state takes over b.By.Pidfd.
//
// Errors: [BadRequest]; [Denied]; [Draining] for the device; [Expired] for a deadline
// that has passed; [Conflict] if another version is current than b.Expect, or if other
// parts of the transaction say otherwise; [Taken] for a part that is booked or has come;
// [Quota].
func (s *State) Book(b Booking) (ticket string, err error) {
	if s == nil {
		return "", errNil()
	}
	s.init()
	b.normalise()
	if err := b.check(); err != nil {
		return "", err
	}
	rule, err := s.mayBook(&b)
	if err != nil {
		return "", err
	}
	r := s.edit(b.Name)
	t, err := r.join(&b)
	if err != nil {
		return "", err
	}
	if err := s.roomFor(rule, &b); err != nil {
		return "", err
	}
	ticket = fmt.Sprintf("t%d", s.NewID())
	t.Bookings = append(t.Bookings, booked{Ticket: ticket, Index: b.Index, Device: b.Device, Kind: b.Kind, Bytes: b.Bytes, By: b.By, At: b.At})
	if err := s.grow(r, b.By.UID); err != nil {
		return "", err
	}
	return ticket, nil
}

// normalise makes b what a manifest can say, and copies what the caller could change.
func (b *Booking) normalise() {
	b.At, b.Deadline, b.By.Since = instant(b.At), instant(b.Deadline), instant(b.By.Since)
	b.By.Fenced = false
	if b.Labels = maps.Clone(b.Labels); len(b.Labels) == 0 {
		b.Labels = nil
	}
	if b.Expect != nil {
		n := *b.Expect
		b.Expect = &n
	}
}

// mayBook returns the rule for a booking that the policy and the name's state allow.
func (s *State) mayBook(b *Booking) (*Rule, error) {
	rule, err := s.policy.allow(b.By.Who, b.Name, Write)
	if err != nil {
		return nil, err
	}
	if slices.Contains(s.draining, b.Device) {
		return nil, fail(Draining, "%s is draining: book on another device, or wait until the keeper's owner ends that (gpufd drain --undo)", b.Device)
	}
	if s.uses(b.By.Pidfd) {
		return nil, fail(BadRequest, "id %d is of a part's descriptors, not of a pidfd", b.By.Pidfd)
	}
	if err := s.get(b.Name).expected(b.Name, b.Expect); err != nil {
		return nil, err
	}
	if other := s.elsewhere(b); other != "" {
		return nil, fail(Conflict, "transaction %q is of name %q, part %d came for %q: the parts of a transaction have one name", b.Transaction, other, b.Index, b.Name)
	}
	return rule, nil
}

// expected compares the current version with what a writer expects.
func (r *record) expected(name string, expect *uint64) error {
	n := r.number()
	if expect == nil || *expect == n {
		return nil
	}
	if n == 0 {
		return fail(Conflict, "%q has no version, and its writer expected version %d: it was removed", name, *expect)
	}
	e := fail(Conflict, "%q has version %d, and its writer expected version %d: read version %d, then decide whether to write", name, n, *expect, n)
	for i := range r.Current.Parts {
		because(e, r.Current.Parts[i].Writer.asHolder(i))
	}
	return e
}

// elsewhere returns another name for which the uid has a transaction of that id.
// Transactions of other uids are none of its business.
func (s *State) elsewhere(b *Booking) string {
	if b.Transaction == "" {
		return ""
	}
	for _, r := range s.records {
		if r.Name != b.Name && slices.ContainsFunc(r.Pending, func(t *transaction) bool { return t.ID == b.Transaction && t.isOf(b.By.UID) }) {
			return r.Name
		}
	}
	return ""
}

func (t *transaction) isOf(uid uint32) bool {
	return slices.ContainsFunc(t.Bookings, func(b booked) bool { return b.By.UID == uid }) ||
		slices.ContainsFunc(t.Delivered, func(p Part) bool { return p.Writer.UID == uid })
}

// join returns the booking's transaction, which is r's and may be changed.
func (r *record) join(b *Booking) (*transaction, error) {
	i := -1
	if b.Transaction != "" {
		i = slices.IndexFunc(r.Pending, func(t *transaction) bool { return t.ID == b.Transaction })
	}
	if i < 0 {
		t := &transaction{ID: b.Transaction, Parts: b.Parts, Labels: b.Labels, Expect: b.Expect, Deadline: b.Deadline}
		r.Pending = append(r.Pending, t)
		return t, nil
	}
	if err := r.Pending[i].fits(b); err != nil {
		return nil, err
	}
	t := r.Pending[i].clone()
	if b.Deadline.After(t.Deadline) {
		t.Deadline = b.Deadline
	}
	r.Pending[i] = t
	return t, nil
}

// fits returns an error unless the part is free and agrees with the others of its transaction.
func (t *transaction) fits(b *Booking) error {
	sameExpect := t.Expect == nil && b.Expect == nil || t.Expect != nil && b.Expect != nil && *t.Expect == *b.Expect
	switch {
	case !b.At.Before(t.Deadline):
		return fail(Expired, "the deadline %s of transaction %q has passed: begin another", stamp(t.Deadline), t.ID)
	case t.Parts != b.Parts:
		return fail(Conflict, "transaction %q has %s, and part %d came for %d", t.ID, plain.Count(t.Parts, "part"), b.Index, b.Parts)
	case !maps.Equal(t.Labels, b.Labels):
		return fail(Conflict, "transaction %q has other labels than part %d: give all parts the same", t.ID, b.Index)
	case !sameExpect:
		return fail(Conflict, "transaction %q expects another version than part %d: give all parts the same", t.ID, b.Index)
	}
	for _, x := range t.Bookings {
		if x.Index == b.Index {
			return because(fail(Taken, "part %d of transaction %q is booked by %s: it is free again when that process or its ticket has ended", b.Index, t.ID, x.By), x.By.asHolder(x.Index))
		}
	}
	for i := range t.Delivered {
		if w := t.Delivered[i].Writer; t.Delivered[i].Index == b.Index {
			return because(fail(Taken, "part %d of transaction %q was delivered by %s: deliver the others, or begin another transaction", b.Index, t.ID, w), w.asHolder(b.Index))
		}
	}
	return nil
}

// open returns a copy of the record that has a ticket's booking, and of its transaction
// in there, with the booking's place in that. All are nil if there is no such ticket.
func (s *State) open(ticket string) (*record, *transaction, int) {
	r, n, i := s.lookup(ticket)
	if r == nil {
		return nil, nil, 0
	}
	r = r.clone()
	r.Pending[n] = r.Pending[n].clone()
	return r, r.Pending[n], i
}

// lookup finds a ticket's booking: i of transaction n.
func (s *State) lookup(ticket string) (r *record, n, i int) {
	for _, r := range s.all() {
		for n, t := range r.Pending {
			if i := slices.IndexFunc(t.Bookings, func(b booked) bool { return b.Ticket == ticket }); i >= 0 {
				return r, n, i
			}
		}
	}
	return nil, 0, 0
}

func noTicket(ticket string) *Error {
	return fail(NotFound, "there is no ticket %.40q: its part was delivered or given up, or its deadline has passed; book it anew", ticket)
}

// Renew resumes a booking after the keeper or the writer's connection was lost, and gives
// its transaction a later deadline. It is for the uid that booked: a ticket is no secret.
//
// Errors: [NotFound] for a ticket that is over; [Denied] for another uid.
func (s *State) Renew(ticket string, by Who, deadline time.Time) (Booking, error) {
	r, t, i := s.open(ticket)
	switch {
	case r == nil:
		return Booking{}, noTicket(ticket)
	case t.Bookings[i].By.UID != by.UID:
		return Booking{}, fail(Denied, "ticket %s is of uid %d, not of %s", ticket, t.Bookings[i].By.UID, by)
	}
	if deadline = instant(deadline); t.ID == "" && deadline.IsZero() || deadline.After(t.Deadline) && !t.Deadline.IsZero() {
		t.Deadline = deadline
	}
	s.put(r)
	return r.booking(t, &t.Bookings[i]), nil
}

// booking returns what was booked.
func (r *record) booking(t *transaction, b *booked) Booking {
	return Booking{Name: r.Name, Transaction: t.ID, Parts: t.Parts, Index: b.Index, Device: b.Device, Kind: b.Kind, Bytes: b.Bytes,
		Labels: t.Labels, Expect: t.Expect, By: b.By, At: b.At, Deadline: t.Deadline}
}

// Bookings returns what is booked and has not come, by ticket.
func (s *State) Bookings() map[string]Booking {
	all := map[string]Booking{}
	for _, r := range s.all() {
		for _, t := range r.Pending {
			for i := range t.Bookings {
				all[strings.Clone(t.Bookings[i].Ticket)] = r.booking(t, &t.Bookings[i])
			}
		}
	}
	return all
}

// Cancel gives up a booking: its writer does not want it any more, or has died. The
// delivered parts of its transaction stay until the deadline, and the part may be booked
// again.
//
// Errors: [NotFound].
func (s *State) Cancel(ticket string) error {
	r, t, i := s.open(ticket)
	if r == nil {
		return noTicket(ticket)
	}
	r.cancel(t, func(b booked) bool { return b.Ticket == t.Bookings[i].Ticket })
	s.put(r)
	return nil
}

// cancel gives up bookings of a transaction of r's that may be changed, and the transaction if nothing
// is left of it, or if nobody else knows it and could deliver the rest.
func (r *record) cancel(t *transaction, which func(booked) bool) {
	t.Bookings = slices.DeleteFunc(t.Bookings, which)
	if len(t.Bookings) == 0 && (len(t.Delivered) == 0 || strings.HasPrefix(t.ID, Private)) {
		r.drop(t)
	}
}
