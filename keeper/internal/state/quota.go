package state

import "github.com/gpufd/gpufd/keeper/api"

// A usage is what counts against the quotas of a rule.
type usage struct {
	bytes   uint64
	names   int
	writers []api.Holder // of what counts in bytes and names
	readers []api.Holder // of what counts in leases: also those that were lost
}

// usage adds up what the rule decides.
func (s *State) usage(rule *Rule) (u usage) {
	for _, r := range s.all() {
		u.add(r, s.judge(rule, r.Name))
	}
	return u
}

// judge returns a function that reports whether the rule decides for a process and a name.
// The function remembers its last answer: one process has written most names.
func (s *State) judge(rule *Rule, name string) func(Who) bool {
	var last *Who
	var answer bool
	return func(w Who) bool {
		if last == nil || *last != w {
			last, answer = &w, s.policy.rule(w, name) == rule
		}
		return answer
	}
}

// add adds what counts of a record.
func (u *usage) add(r *record, counts func(Who) bool) {
	before := len(u.writers)
	one := func(w Writer, part int, bytes uint64) {
		if counts(w.Who) {
			u.bytes = plus(u.bytes, bytes)
			u.writers = append(u.writers, w.asHolder(part))
		}
	}
	r.parts(func(p *Part) { one(p.Writer, p.Index, plus(p.Bytes, p.TableSize)) })
	for _, t := range r.Pending {
		for _, b := range t.Bookings {
			one(b.By, b.Index, b.Bytes)
		}
	}
	if len(u.writers) > before {
		u.names++
	}
	for _, h := range r.Holders {
		if counts(h.Holder.Who) {
			u.readers = append(u.readers, h.Holder.shown())
		}
	}
}

// roomFor returns an error if a booking exceeds the quotas of its rule.
func (s *State) roomFor(rule *Rule, b *Booking) error {
	if rule.Bytes == nil && rule.Names == nil {
		return nil
	}
	u := s.usage(rule)
	if limit := rule.Bytes; limit != nil && plus(u.bytes, b.Bytes) > *limit {
		return because(fail(Quota, "%d bytes are kept and booked, %d more do not fit the %d bytes of %s: remove names, or let readers of retired versions go", u.bytes, b.Bytes, *limit, rule), u.writers...)
	}
	if limit := rule.Names; limit != nil && u.names >= *limit && !s.counted(rule, b.Name) {
		return because(fail(Quota, "%d names are kept and booked, as many as %s allows: remove one", u.names, rule), u.writers...)
	}
	return nil
}

// counted reports whether the name counts already.
func (s *State) counted(rule *Rule, name string) bool {
	var u usage
	if r := s.get(name); r != nil {
		u.add(r, s.judge(rule, name))
	}
	return u.names > 0
}

// Soon is a lease of a name that the state does not know yet. It counts against quotas.
type Soon struct {
	Name   string
	Holder Holder
}

// roomForLease returns an error if one more lease of a process exceeds the quota of its rule.
// Leases that were lost count while their processes live, except those of the process itself: it
// resumes them, or has others in their place. So do those that it has detached from, as many as it may
// have leases: it has each twice while it attaches again. If the process has no pid here, its own leases
// are unknown: one does not count.
func (s *State) roomForLease(rule *Rule, by Who, soon func() []Soon) error {
	if rule.Leases == nil {
		return nil
	}
	u := s.usage(rule)
	if soon != nil {
		for _, l := range soon() {
			if s.policy.rule(l.Holder.Who, l.Name) == rule {
				u.readers = append(u.readers, l.Holder.shown())
			}
		}
	}
	own, detached := 0, 0
	for _, h := range u.readers {
		switch {
		case h.Who != by:
		case h.Lost || h.Revoked:
			own++
		case h.Detached:
			detached++
		}
	}
	own += min(detached, *rule.Leases)
	if by.PID == 0 {
		own = min(own, 1)
	}
	if len(u.readers)-own >= *rule.Leases {
		return because(fail(Quota, "%d leases are held, or were lost by processes that still run, as many as %s allows: end one", len(u.readers), rule), u.readers...)
	}
	return nil
}
