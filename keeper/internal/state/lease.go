package state

import (
	"math"
	"slices"
	"time"

	"github.com/gpufd/gpufd/gpumem"
)

// Lease returns the version and the part that a process may have a lease of now: part -1
// stands for the only part. soon returns leases that the state does not know yet, and is called only
// where they count; nil is none. Lease changes nothing: [State.Hold] records the lease.
//
// Errors: [Denied]; [NotFound]; [BadRequest] for part -1 of several; [Draining], of the
// name or the part's device; [IsDamaged] and [IsQuarantined]; [Quota].
func (s *State) Lease(name string, part int, by Who, soon func() []Soon) (*Version, *Part, error) {
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
	if err := s.roomForLease(rule, by, soon); err != nil {
		return nil, nil, err
	}
	return r.Current, p, nil
}

// MayAsk returns nil if a process may ask for a name with that access, kept or not.
//
// Errors: [Denied]; [BadRequest] for another access.
func (s *State) MayAsk(name string, by Who, access gpumem.Access) error {
	if _, err := s.rules().allow(by, name, Read); err != nil {
		return err
	}
	return s.mayHave(name, Holder{Who: by, Access: access})
}

// MayResume returns nil if a process may resume a lease of a version that is retired, or attach again to
// what it had detached from: a process of its uid has lost a lease or has detached, and may be the same.
//
// Errors: [Denied]; [NotFound]; [IsDamaged] and [IsQuarantined]; [Quota].
func (s *State) MayResume(name string, h Holder, soon func() []Soon) error {
	rule, err := s.rules().allow(h.Who, name, Read)
	if err != nil {
		return err
	}
	r := s.get(name)
	lost := func(x held) bool {
		return (x.Holder.Lost || x.Holder.Detached) && x.Holder.UID == h.UID && x.Holder.Version == h.Version && x.Holder.Part == h.Part
	}
	v := r.version(h.Version)
	if v == nil || h.Part < 0 || h.Part >= len(v.Parts) || !slices.ContainsFunc(r.Holders, lost) {
		return fail(NotFound, "uid %d has lost no lease of part %d of version %d of %q: attach to the current version", h.UID, h.Part, h.Version, name)
	}
	if err := isGood(name, v, &v.Parts[h.Part]); err != nil {
		return err
	}
	return s.roomForLease(rule, h.Who, soon)
}

// Awaited calls f with each good part of a retired version if a process has lost a lease
// of it and may come back. Names that were removed are not among them.
func (s *State) Awaited(f func(name string, v *Version, p *Part)) {
	for _, r := range s.all() {
		if r.Current == nil {
			continue
		}
		for _, v := range r.Retired {
			for i := range v.Parts {
				lost := func(h held) bool { return h.Holder.Lost && h.Holder.Version == v.N && h.Holder.Part == i }
				if v.Parts[i].State == OK && slices.ContainsFunc(r.Holders, lost) {
					f(r.Name, v, &v.Parts[i])
				}
			}
		}
	}
}

// noVersion names the processes that are writing a name without a version.
func noVersion(name string, r *record) error {
	if r == nil || len(r.Pending) == 0 {
		return fail(NotFound, "%q is not kept here", name)
	}
	return because(fail(NotFound, "%q is not kept here yet: it is being written", name), r.writers()...)
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

// mayServe returns an error unless a part is good, and its name and device are not draining.
func (s *State) mayServe(r *record, p *Part) error {
	switch {
	case r.Draining:
		return fail(Draining, "%q is draining and takes no new leases; a user who may write or remove it can end that (gpufd drain --undo)", r.Name)
	case slices.Contains(s.draining, p.Memory.Device):
		return fail(Draining, "part %d of %q is on %s, which is draining and takes no new leases; the keeper's owner can end that (gpufd drain --undo)", p.Index, r.Name, p.Memory.Device)
	}
	return isGood(r.Name, r.Current, p)
}

// isGood returns an error unless a part of a version is good.
func isGood(name string, v *Version, p *Part) error {
	switch p.State {
	case OK:
		return nil
	case Damaged:
		return because(fail(IsDamaged, "part %d of %q, version %d, is damaged (%s): its writer has to put another version", p.Index, name, v.N, p.Reason), p.Writer.asHolder(p.Index))
	}
	return because(fail(IsQuarantined, "part %d of %q, version %d, is quarantined (%s): a user who may remove it can end that (gpufd quarantine --undo), or put another version", p.Index, name, v.N, p.Reason), p.Writer.asHolder(p.Index))
}

// Hold records that a process has a lease of part h.Part of version h.Version, which may be
// retired meanwhile but is kept. The version stays until it is released. The state takes
// over h.Pidfd. Lease has checked the quota of leases before: here the lease exists.
//
// Errors: [NotFound]; [BadRequest]; [Denied] for a lease that writes, if the process may
// not; [Quota] if the manifest has no room for more holders.
func (s *State) Hold(name string, h Holder) (HoldID, error) {
	if s == nil {
		return 0, errNil()
	}
	s.init()
	if err := s.checkHold(name, h); err != nil {
		return 0, err
	}
	return s.hold(name, held{Holder: h})
}

// HoldGone records that a process has a lease of part h.Part of version h.Version, which was
// dropped at the moment when the process got the lease; of is that part. It is shown as one
// that was told to let go, and keeps nothing. The state takes over h.Pidfd.
//
// Errors: those of Hold; [NotFound] also without a pidfd, for nobody would notice its end.
func (s *State) HoldGone(name string, h Holder, of PartOn) (HoldID, error) {
	if s == nil {
		return 0, errNil()
	}
	s.init()
	if err := s.mayHave(name, h); err != nil {
		return 0, err
	}
	if r := s.get(name); r == nil || h.Pidfd == 0 || h.Version == 0 || h.Version > r.Last || r.version(h.Version) != nil {
		return 0, fail(NotFound, "version %d of %q is not one that was dropped", h.Version, name)
	}
	of.Part = h.Part
	return s.hold(name, held{Holder: h, Of: &of})
}

// MayHold returns the error that Hold would return now, and changes nothing. It takes the line of
// the holder for as long as it may become. Unlike Hold it does not write the name's record again, which takes long if there are many holders.
func (s *State) MayHold(name string, h Holder) error {
	if s == nil {
		return errNil()
	}
	if err := s.checkHold(name, h); err != nil {
		return err
	}
	line := held{ID: math.MaxUint64, Holder: h}
	line.Holder.Since, line.Holder.Pidfd = instant(h.Since), math.MaxUint64 // as long as it may become
	more := Charge{Room: uint64(len(appendLine(nil, wordHolder, &line)) + len(time.RFC3339Nano)), Files: filesOfEach}
	all := s.chargesOf(name)
	now := all[h.UID].plus(more)
	if err := s.affordRoom(name, h.UID, now.Room, all); err != nil {
		return err
	}
	return s.affordKept(name, h.UID, now)
}

// checkHold returns nil if a lease makes sense and its process may have it.
func (s *State) checkHold(name string, h Holder) error {
	if err := s.mayHave(name, h); err != nil {
		return err
	}
	v := s.get(name).version(h.Version)
	if v == nil {
		return fail(NotFound, "version %d of %q is not kept any more: ask for the current one", h.Version, name)
	}
	if h.Part < 0 || h.Part >= len(v.Parts) {
		return fail(NotFound, "version %d of %q has no part %d", h.Version, name, h.Part)
	}
	return nil
}

// mayHave returns nil if a process may have a lease, of any version.
func (s *State) mayHave(name string, h Holder) error {
	right := Read
	switch h.Access {
	case gpumem.ReadOnly:
	case gpumem.ReadWrite:
		right = Write
	default:
		return fail(BadRequest, "a lease with access %d; %s and %s are known", uint32(h.Access), gpumem.ReadOnly, gpumem.ReadWrite)
	}
	if _, err := s.rules().allow(h.Who, name, right); err != nil {
		return err
	}
	if s.uses(h.Pidfd) {
		return fail(BadRequest, "id %d is of a part's descriptors, not of a pidfd", h.Pidfd)
	}
	return nil
}

func (s *State) hold(name string, h held) (HoldID, error) {
	h.Holder.Since, h.Holder.Fenced, h.Holder.Lost, h.Holder.Revoked = instant(h.Holder.Since), false, false, h.Of != nil
	r := s.edit(name)
	h.ID = HoldID(s.NewID())
	r.Holders = append(r.Holders, h)
	if h.Holder.Since.After(r.Used) && !r.Used.IsZero() {
		r.Used = h.Holder.Since
	}
	if err := s.grow(r, h.Holder.UID); err != nil {
		return 0, err
	}
	return h.ID, nil
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

// Lose records that the connection of a holder has ended without a goodbye. The
// holder is gone if its process has ended, or if it has no pidfd to tell. Otherwise
// it stays until it is fenced. If one process has several lost leases of the same
// part, all but the last are forgotten.
//
// Errors: [NotFound], as of Release.
func (s *State) Lose(id HoldID) error {
	return s.outlive(id, func(_ *record, h *held) { h.Holder.Lost = !h.Holder.Revoked })
}

// Revoke records that a holder was told to release the memory: it may still have it mapped.
// It stays as after Lose, and keeps no version: the memory is its own alone.
//
// Errors: [NotFound], as of Release.
func (s *State) Revoke(id HoldID) error {
	return s.outlive(id, func(r *record, h *held) {
		h.Holder.Revoked, h.Holder.Lost = true, false
		if v := r.version(h.Holder.Version); v != nil && h.Of == nil {
			of := v.Parts[h.Holder.Part].on()
			of.Parked = false // it may have the memory of the device
			h.Of = &of
		}
	})
}

// outlive records how a lease has ended if its holder's process may still live.
func (s *State) outlive(id HoldID, note func(*record, *held)) error {
	r, i := s.holder(id)
	if r == nil {
		return noHolder(id)
	}
	if h := r.Holders[i].Holder; h.Fenced || h.Pidfd == 0 {
		r.forget(i)
		s.put(r)
		return nil
	}
	note(r, &r.Holders[i])
	last := r.Holders[i].Holder
	r.Holders = slices.DeleteFunc(r.Holders, func(h held) bool { return h.ID != id && h.Holder.same(last) })
	r.Used = time.Time{}
	s.put(r)
	return nil
}

// same reports whether both are leases of one process for the same thing that have ended in
// the same way.
func (h Holder) same(o Holder) bool {
	return !h.leased() && h.Lost == o.Lost && h.Revoked == o.Revoked && h.IsProcess(o) && h.Version == o.Version && h.Part == o.Part && h.Access == o.Access
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
