package state

import (
	"slices"
	"time"

	"github.com/gpufd/gpufd/cu"
)

// Lease says whether a process may have a lease of a part now, and of which: part -1 is
// the only one. It changes nothing: [State.Hold] notes the lease.
//
// Errors: [Denied]; [NotFound]; [BadRequest] for part -1 of several; [Draining], of the
// name or the part's device; [IsDamaged] and [IsQuarantined]; [Quota].
func (s *State) Lease(name string, part int, by Who) (*Version, *Part, error) {
	rule, err := s.rules().allow(by, name, Read)
	if err != nil {
		return nil, nil, err
	}
	r := s.get(name)
	if r == nil || r.Current == nil {
		return nil, nil, noVersion(name, r)
	}
	p, err := r.Current.part(name, part)
	if err != nil {
		return nil, nil, err
	}
	if err := s.mayServe(r, p); err != nil {
		return nil, nil, err
	}
	if err := s.roomForLease(rule); err != nil {
		return nil, nil, err
	}
	return r.Current, p, nil
}

// noVersion says who is about to write a name that has no version.
func noVersion(name string, r *record) error {
	if r == nil || len(r.Pending) == 0 {
		return fail(NotFound, "%q is not kept here: list what is", name)
	}
	return fail(NotFound, "%q is not kept here yet: it is being written", name).because(r.writers()...)
}

// part returns the part of an index, or the only one for -1.
func (v *Version) part(name string, i int) (*Part, error) {
	switch {
	case i == -1 && len(v.Parts) == 1:
		return &v.Parts[0], nil
	case i == -1:
		return nil, fail(BadRequest, "version %d of %q has %d parts: ask for one, from 0 to %d", v.N, name, len(v.Parts), len(v.Parts)-1)
	case i < 0 || i >= len(v.Parts):
		return nil, fail(NotFound, "version %d of %q has no part %d: its parts are 0 to %d", v.N, name, i, len(v.Parts)-1)
	}
	return &v.Parts[i], nil
}

// mayServe wants a part that is good, of what is not to be freed.
func (s *State) mayServe(r *record, p *Part) error {
	switch {
	case r.Draining:
		return fail(Draining, "%q is draining: there are no new leases until somebody who may write it takes that back", r.Name)
	case slices.Contains(s.draining, p.Memory.Device):
		return fail(Draining, "part %d of %q is on %s, which is draining: there are no new leases until the keeper's owner takes that back", p.Index, r.Name, p.Memory.Device)
	case p.State == Damaged:
		return fail(IsDamaged, "part %d of %q, version %d, is damaged (%s): its writer has to put another version", p.Index, r.Name, r.Current.N, p.Reason).because(p.Writer.asHolder(p.Index))
	case p.State != OK:
		return fail(IsQuarantined, "part %d of %q, version %d, is quarantined (%s): somebody who may write it reports it ok, or puts another version", p.Index, r.Name, r.Current.N, p.Reason).because(p.Writer.asHolder(p.Index))
	}
	return nil
}

// Hold notes that a process has a lease of part h.Part of version h.Version, which may be
// retired meanwhile but is kept. The version stays until it is released. The state takes
// over h.Pidfd. Quotas are those of Lease.
//
// Errors: [NotFound]; [BadRequest]; [Denied] for a lease that writes, of somebody who may
// not; [Quota] if there are too many holders.
func (s *State) Hold(name string, h Holder) (HoldID, error) {
	if s == nil {
		return 0, errNil()
	}
	s.init()
	right := Read
	switch h.Access {
	case cu.ReadOnly:
	case cu.ReadWrite:
		right = Write
	default:
		return 0, fail(BadRequest, "a lease with access %d; %s and %s are known", uint32(h.Access), cu.ReadOnly, cu.ReadWrite)
	}
	if _, err := s.policy.allow(h.Who, name, right); err != nil {
		return 0, err
	}
	v := s.get(name).version(h.Version)
	if v == nil {
		return 0, fail(NotFound, "version %d of %q is not kept any more: ask for the current one", h.Version, name)
	}
	if h.Part < 0 || h.Part >= len(v.Parts) {
		return 0, fail(NotFound, "version %d of %q has no part %d", h.Version, name, h.Part)
	}
	if s.uses(h.Pidfd) {
		return 0, fail(BadRequest, "id %d is of a part's descriptors, not of a pidfd", h.Pidfd)
	}
	return s.hold(name, h)
}

func (s *State) hold(name string, h Holder) (HoldID, error) {
	h.Since, h.Fenced, h.Lost = instant(h.Since), false, false
	r := s.edit(name)
	id := HoldID(s.NewID())
	r.Holders = append(r.Holders, held{ID: id, Holder: h})
	if h.Since.After(r.Used) && !r.Used.IsZero() {
		r.Used = h.Since
	}
	if err := s.grow(r); err != nil {
		return 0, err
	}
	return id, nil
}

// Release forgets a holder that said goodbye: it has synchronised and unmapped.
//
// Errors: [NotFound] for one that has gone, also with its version.
func (s *State) Release(id HoldID) error {
	r, i := s.holder(id)
	if r == nil {
		return noHolder(id)
	}
	r.forget(i)
	s.put(r)
	return nil
}

// Lose notes that the connection of a holder has ended without a goodbye. One whose
// process has ended, or that has no pidfd which could tell, has gone. Another stays
// until it is fenced. Of several that are lost of one process, all but the last are
// forgotten if they had the same part.
//
// Errors: [NotFound], as of Release.
func (s *State) Lose(id HoldID) error {
	r, i := s.holder(id)
	if r == nil {
		return noHolder(id)
	}
	if h := r.Holders[i].Holder; h.Fenced || h.Pidfd == 0 {
		r.forget(i)
		s.put(r)
		return nil
	}
	r.Holders[i].Holder.Lost = true
	last := r.Holders[i].Holder
	r.Holders = slices.DeleteFunc(r.Holders, func(h held) bool { return h.ID != id && h.Holder.same(last) })
	r.Used = time.Time{}
	s.put(r)
	return nil
}

// same says whether both are lost leases of one process for the same thing.
func (h Holder) same(o Holder) bool {
	return h.Lost && o.Lost && h.Who == o.Who && h.Version == o.Version && h.Part == o.Part && h.Access == o.Access
}

// forget removes a holder, at a time that the next Expire notes.
func (r *record) forget(i int) {
	r.Holders = slices.Delete(r.Holders, i, i+1)
	r.Used = time.Time{}
}

// holder returns a copy of the record that has the holder, and the holder's place there.
func (s *State) holder(id HoldID) (*record, int) {
	for _, r := range s.all() {
		if i := slices.IndexFunc(r.Holders, func(h held) bool { return h.ID == id }); i >= 0 {
			return r.clone(), i
		}
	}
	return nil, 0
}

func noHolder(id HoldID) error {
	return fail(NotFound, "there is no holder %d: it was released, or its version was dropped", id)
}

// Holds calls f with each holder and the name of what it holds.
func (s *State) Holds(f func(id HoldID, name string, h Holder)) {
	for _, r := range s.all() {
		for _, h := range r.Holders {
			f(h.ID, r.Name, h.Holder)
		}
	}
}

// Pidfds returns the pidfds of all writers and holders that are not fenced, ascending:
// after a restart the keeper waits for these processes to end.
func (s *State) Pidfds() (ids []ID) {
	for _, r := range s.all() {
		r.ids(func(id ID, pidfd bool) {
			if pidfd {
				ids = append(ids, id)
			}
		})
	}
	slices.Sort(ids)
	return slices.Compact(ids)
}
