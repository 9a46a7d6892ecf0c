package state

import (
	"cmp"
	"crypto/sha256"
	"fmt"
	"slices"
	"time"
)

// Deliver takes over a part that was booked: its descriptors are in the store under
// p.Files and p.Table. The part's writer is the process that booked it, and its state is
// OK, and it is not parked: those fields of p are ignored. The last part of a version commits it, and Deliver
// returns the version.
//
// Errors: [NotFound] for a ticket that is over; [BadRequest] for a part that is not the
// one that was booked, or ids that are not new; [Denied]; [Expired]; [Quota] for its table; [Conflict] if another
// version is current than was expected. With the last, the transaction is dropped, with
// the parts that have come: the state has changed ([Error.Changed]). [State.Outcome] returns
// the outcome of a ticket later.
func (s *State) Deliver(ticket string, p Part, at time.Time) (committed *Version, err error) {
	r, t, i := s.open(ticket)
	if r == nil {
		return nil, noTicket(ticket)
	}
	b := t.Bookings[i]
	at = instant(at)
	if !t.Deadline.IsZero() && !at.Before(t.Deadline) {
		return nil, fail(Expired, "the deadline %s of ticket %s has passed: book the part anew", stamp(t.Deadline), ticket)
	}
	p.Parked = nil
	if err := s.mayDeliver(r.Name, &b, &p); err != nil {
		return nil, err
	}
	p.State, p.Reason, p.Reports, p.Writer, p.Ticket = OK, "", 0, b.By, ticket
	t.Bookings = slices.Delete(t.Bookings, i, i+1)
	t.Delivered = append(t.Delivered, p)
	slices.SortFunc(t.Delivered, func(a, b Part) int { return cmp.Compare(a.Index, b.Index) })
	r.encode()
	if err := s.affordKept(r.Name, p.Writer.UID, r.charges[p.Writer.UID]); err != nil {
		return nil, err
	}
	if len(t.Delivered) < t.Parts {
		s.replace(r)
		return nil, nil
	}
	return s.commit(r, t, at)
}

func (s *State) mayDeliver(name string, b *booked, p *Part) error {
	if err := p.check(b); err != nil {
		return err
	}
	for _, id := range []ID{p.Files, p.Table} {
		if id > ID(s.ids.Load()) || s.named(id) {
			return fail(BadRequest, "id %d of part %d was not made with NewID, or is in use", id, p.Index)
		}
	}
	rule, err := s.policy.allow(b.By.Who, name, Write)
	if err != nil {
		return err
	}
	return s.roomForTable(rule, p.TableSize)
}

// named reports whether the state names the id, which is not 0.
func (s *State) named(id ID) (found bool) { return s.has(id, func(bool) bool { return true }) }

// uses reports whether the id is that of a part's descriptors.
func (s *State) uses(id ID) bool { return s.has(id, func(pidfd bool) bool { return !pidfd }) }

func (s *State) has(id ID, kind func(pidfd bool) bool) (found bool) {
	if id == 0 {
		return false
	}
	found = s.isChunk(id) && kind(false)
	for _, r := range s.records {
		r.ids(func(x ID, pidfd bool) { found = found || x == id && kind(pidfd) })
	}
	return found
}

// commit publishes the parts of a transaction of r's that have all come.
func (s *State) commit(r *record, t *transaction, at time.Time) (*Version, error) {
	r.drop(t)
	if err := r.expected(r.Name, t.Expect); err != nil {
		s.put(r)
		e, _ := err.(*Error)
		e.Changed = true
		return nil, e
	}
	r.retire(at)
	r.Last++
	r.Current = &Version{N: r.Last, Committed: at, Labels: t.Labels, Parts: t.Delivered, Digest: digestOf(t.Delivered)}
	r.Used = at
	s.remember(r.Current)
	s.put(r)
	return r.Current, nil
}

// digestOf returns the digest of a version: SHA-256 of its parts' digests, in the order of
// the parts, with a newline after each.
func digestOf(parts []Part) string {
	h := sha256.New()
	for i := range parts {
		fmt.Fprintln(h, parts[i].Digest)
	}
	return fmt.Sprintf("gpufd-v1:%x", h.Sum(nil))
}

// Delivered returns how many parts of a transaction have come and are not published.
func (s *State) Delivered(name, transaction string) int {
	r := s.get(name)
	if r == nil || transaction == "" {
		return 0
	}
	for _, t := range r.Pending {
		if t.ID == transaction {
			return len(t.Delivered)
		}
	}
	return 0
}
