package state

import (
	"slices"
	"time"
)

// The time that the record of a name lives when nothing is left of the name, and the most of
// such records that there are.
const (
	recordAge  = 24 * time.Hour
	maxRecords = 4096
)

// Expire drops transactions and bookings whose deadline has passed. It retires the
// versions of a name that nobody leases or writes, once the name's expiry is over, and
// forgets names that have been empty for long. It reports whether the state has
// changed.
func (s *State) Expire(now time.Time) (changed bool) {
	now = instant(now)
	for _, r := range slices.Clone(s.all()) {
		r = r.clone()
		late := r.expireTransactions(now)
		unused := s.expireName(r, now)
		if r.expireRecord(now) || unused || late {
			s.put(r)
			changed = true
		}
	}
	return s.trim() || changed
}

func (r *record) expireTransactions(now time.Time) (changed bool) {
	before := len(r.Pending)
	r.Pending = slices.DeleteFunc(r.Pending, func(t *transaction) bool { return !t.Deadline.IsZero() && !now.Before(t.Deadline) })
	return len(r.Pending) < before
}

// expireName removes a name that nobody has used for as long as the rule of its writer, that
// of part 0, allows.
func (s *State) expireName(r *record, now time.Time) (changed bool) {
	if r.Current == nil || len(r.Pending) > 0 || r.leased() {
		return false
	}
	rule := s.policy.rule(r.Current.Parts[0].Writer.Who, r.Name)
	switch {
	case rule == nil || rule.Expiry == 0:
		return false
	case r.Used.IsZero():
		r.Used = now
	case now.Before(r.Used.Add(time.Duration(rule.Expiry))):
		return false
	default:
		r.remove()
	}
	return true
}

// expireRecord forgets the number of the last version, long after all else.
func (r *record) expireRecord(now time.Time) (changed bool) {
	switch {
	case !r.idle():
		return false
	case r.Removed.IsZero():
		r.Removed = now
	case now.Before(r.Removed.Add(recordAge)):
		return false
	default:
		r.Last = 0
	}
	return true
}

// trim forgets names of which nothing is left, if there are too many, or if they take more than
// an eighth of the manifest's room, which is charged to nobody: those first that have been empty
// for longest.
func (s *State) trim() (changed bool) {
	var idle []*record
	size := 0
	for _, r := range s.all() {
		if r.idle() {
			idle = append(idle, r)
			size += len(r.text)
		}
	}
	slices.SortStableFunc(idle, func(a, b *record) int { return a.Removed.Compare(b.Removed) })
	for i, r := range idle {
		if len(idle)-i <= maxRecords && uint64(size) <= s.mostRoom()/8 {
			break
		}
		size -= len(r.text)
		s.put(&record{Name: r.Name})
		changed = true
	}
	return changed
}

// Retire drops the retired versions that nobody holds. It also drops those whose
// holders have had the policy's grace, and the holders. Holders that were told to let
// go keep no version, and stay themselves. It reports whether the state has changed.
func (s *State) Retire(now time.Time) (changed bool) {
	now = instant(now)
	grace := time.Duration(s.rules().Grace)
	for _, r := range slices.Clone(s.all()) {
		if len(r.Retired) == 0 {
			continue
		}
		r = r.clone()
		if r.dropRetired(now, grace) {
			s.put(r)
			changed = true
		}
	}
	return changed
}

func (r *record) dropRetired(now time.Time, grace time.Duration) (changed bool) {
	for i, v := range r.Retired {
		if v.Retired.IsZero() {
			v = v.clone()
			v.Retired, r.Retired[i], changed = now, v, true
		}
	}
	over := func(v *Version) bool {
		return !r.kept(v.N) || grace > 0 && !now.Before(v.Retired.Add(grace))
	}
	before := len(r.Retired)
	r.Retired = slices.DeleteFunc(r.Retired, over)
	r.Holders = slices.DeleteFunc(r.Holders, func(h held) bool { return !h.Holder.Revoked && r.version(h.Holder.Version) == nil })
	return changed || len(r.Retired) < before
}

// kept reports whether a process that may come back has the version.
func (r *record) kept(n uint64) bool {
	return slices.ContainsFunc(r.Holders, func(h held) bool { return h.Holder.Version == n && !h.Holder.Revoked })
}
