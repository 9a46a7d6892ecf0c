package state

import (
	"bytes"
	"slices"
	"strings"
	"time"

	"github.com/gpufd/gpufd/gpumem"
)

// Remove retires the current version of a name: readers that have it keep it, and new ones
// do not get it. Writers of the name go on, and their version will be the next.
//
// Errors: [Denied]; [NotFound].
func (s *State) Remove(name string, by Who) error {
	if _, err := s.rules().allow(by, name, Remove); err != nil {
		return err
	}
	r := s.get(name)
	if r == nil || r.Current == nil {
		return noVersion(name, r)
	}
	r = r.clone()
	r.remove()
	s.put(r)
	return nil
}

// remove retires the current version, at a time that the next Retire notes.
func (r *record) remove() {
	r.retire(time.Time{})
	r.Draining = false
}

// Drain makes a name refuse new leases, or admit them again. Its versions can still be
// replaced: the new one is drained, too. Remove ends it.
//
// Errors: [Denied] to processes that may neither write nor remove the name; [NotFound].
func (s *State) Drain(name string, by Who, on bool) error {
	if _, err := s.rules().allow(by, name, Write, Remove); err != nil {
		return err
	}
	r := s.get(name)
	if r == nil || r.Current == nil {
		return noVersion(name, r)
	}
	r = r.clone()
	r.Draining = on
	s.put(r)
	return nil
}

// maxDraining bounds the devices that are draining.
const maxDraining = 256

// DrainDevice makes a device refuse new leases and bookings, or admit them again. Parts
// that were booked there may still be delivered.
//
// Errors: [Denied] to all but the keeper's own uid; [BadRequest] for too many devices.
func (s *State) DrainDevice(dev gpumem.UUID, by Who, on bool) error {
	if s == nil {
		return errNil()
	}
	s.init()
	if by.UID != s.policy.Owner {
		return fail(Denied, "%s may not drain devices: only uid %d may, which the keeper runs as", by, s.policy.Owner)
	}
	i, found := slices.BinarySearchFunc(s.draining, dev, func(a, b gpumem.UUID) int { return bytes.Compare(a[:], b[:]) })
	switch {
	case on && !found && len(s.draining) == maxDraining:
		return fail(BadRequest, "%d devices are draining already", maxDraining)
	case on && !found:
		s.draining = slices.Insert(slices.Clone(s.draining), i, dev)
	case !on && found:
		s.draining = slices.Delete(slices.Clone(s.draining), i, i+1)
	}
	return nil
}

// Report records a process's verdict on a part's bytes. If the process may write or remove
// the name, the verdict applies: a part that it finds [Damaged] or [Quarantined] is served no
// more. If it may only read the name, the report is counted and shown. [OK] ends a
// quarantine, and takes the right to remove the name: the right to write it is not enough.
// Only another version ends damage.
//
// Errors: [BadRequest]; [Denied]; [NotFound], also of a version that is not kept any more;
// [IsDamaged] for a damaged part that is said to be OK.
func (s *State) Report(name string, version uint64, part int, by Who, verdict PartState, reason string) (counted bool, err error) {
	rule, err := s.rules().allow(by, name, Write, Remove, Read)
	if err != nil {
		return false, err
	}
	if verdict != OK && verdict != Damaged && verdict != Quarantined {
		return false, fail(BadRequest, "verdict %.40q; %q, %q and %q are known", verdict, OK, Damaged, Quarantined)
	}
	if err := checkText("reason", reason, MaxReason); err != nil {
		return false, err
	}
	r := s.get(name)
	v := r.version(version)
	if v == nil || part < 0 || part >= len(v.Parts) {
		return false, fail(NotFound, "part %d of version %d of %q is not kept", part, version, name)
	}
	counted = allows(rule, Write, Remove)
	if verdict == OK {
		if err := s.mayClear(name, v, part, by); err != nil {
			return false, err
		}
	}
	r, v = r.clone(), v.clone()
	v.Parts[part].judge(counted, verdict, reason)
	r.swap(v)
	s.put(r)
	return counted, nil
}

// mayClear returns nil if a process may end the quarantine of a part.
func (s *State) mayClear(name string, v *Version, part int, by Who) error {
	if _, err := s.rules().allow(by, name, Remove); err != nil {
		return err
	}
	if p := &v.Parts[part]; p.State == Damaged {
		return fail(IsDamaged, "part %d of version %d of %q is damaged for good (%s): put another version", part, v.N, name, p.Reason)
	}
	return nil
}

// judge applies a report.
func (p *Part) judge(counted bool, verdict PartState, reason string) {
	switch {
	case !counted && p.Reports < maxReports:
		p.Reports++
	case !counted || p.State == Damaged:
	case verdict == OK:
		p.State, p.Reason = OK, ""
	case p.State != verdict:
		p.State, p.Reason = verdict, reason
	}
}

// maxReports is how many reports are counted.
const maxReports = 1_000_000

// swap replaces the version of v's number by v.
func (r *record) swap(v *Version) {
	if r.number() == v.N {
		r.Current = v
		return
	}
	for i := range r.Retired {
		if r.Retired[i].N == v.N {
			r.Retired[i] = v
		}
	}
}

// Fence records that the process of a pidfd has ended, and reports whether that changed
// anything. The process cannot write any more: its parts are fenced. Its bookings are
// given up, with what has come of a [Private] transaction. If it is a holder it is
// fenced, and gone if it is lost or revoked as well. The pidfd is among the next Dropped.
func (s *State) Fence(pidfd ID) (changed bool) {
	if pidfd == 0 {
		return false
	}
	for _, r := range slices.Clone(s.all()) {
		found := false
		r.ids(func(id ID, is bool) { found = found || is && id == pidfd })
		if found {
			r = r.clone()
			r.fence(pidfd)
			s.put(r)
			changed = true
		}
	}
	return changed
}

func (r *record) fence(pidfd ID) {
	for _, v := range slices.Clone(r.versions()) {
		v = v.clone()
		fenceParts(v.Parts, pidfd)
		r.swap(v)
	}
	for i, t := range slices.Clone(r.Pending) {
		t = t.clone()
		r.Pending[i] = t
		fenceParts(t.Delivered, pidfd)
	}
	for _, t := range slices.Clone(r.Pending) {
		r.cancel(t, func(b booked) bool { return b.By.Pidfd == pidfd })
	}
	r.Pending = slices.DeleteFunc(r.Pending, (*transaction).orphaned)
	for i := range r.Holders {
		if h := &r.Holders[i].Holder; h.Pidfd == pidfd {
			h.Fenced, h.Pidfd = true, 0
		}
	}
	r.Holders = slices.DeleteFunc(r.Holders, func(h held) bool { return h.Holder.Fenced && !h.Holder.leased() })
}

// orphaned reports whether the only process that would bring the rest has died.
func (t *transaction) orphaned() bool {
	return strings.HasPrefix(t.ID, Private) && len(t.Bookings) == 0 && !slices.ContainsFunc(t.Delivered, func(p Part) bool { return !p.Writer.Fenced })
}

func fenceParts(parts []Part, pidfd ID) {
	for i := range parts {
		if w := &parts[i].Writer; w.Pidfd == pidfd {
			w.Fenced, w.Pidfd = true, 0
		}
	}
}
