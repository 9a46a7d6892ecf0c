package state

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// A Right is what a [Rule] allows.
type Right string

// The rights.
const (
	Read   Right = "read"   // list, stat, lease, report
	Write  Right = "write"  // book and deliver, drain, report for good, lease for writing
	Remove Right = "remove" // remove, drain, report for good
)

// A Policy says who may do what under which names. If several rules match, one of them
// decides everything: the one with the longest prefix. If two have the same prefix,
// the one for the uid decides, not the one for the gid.
//
// The keeper's own uid, Owner, has a rule with all rights, no quotas and the empty
// prefix, unless Rules has one for that uid and prefix. So the Policy without rules lets
// in nobody else; the zero Policy is that of a keeper of root. Only Owner may drain
// devices.
//
// A quota belongs to the rule, not to a name or process: all that the rule decided counts
// together.
type Policy struct {
	Owner uint32 `json:"-"` // the keeper's uid

	Rules []Rule   `json:"rules"`
	Grace Duration `json:"grace"` // how long a retired version outlives its successor's commit at most; 0 is no limit
}

// A Rule is for one uid, or one gid, and all names that begin with Prefix. Quotas that
// are nil do not bound.
type Rule struct {
	UID    *uint32  `json:"uid"`
	GID    *uint32  `json:"gid"` // of the process; groups beside that are not known
	Prefix string   `json:"prefix"`
	Allow  []Right  `json:"allow"`
	Bytes  *uint64  `json:"bytes"`  // of parts that are kept and booked
	Names  *int     `json:"names"`  // with a version or a booking
	Leases *int     `json:"leases"` // at a time
	Expiry Duration `json:"expiry"` // after which a name that nobody leases or writes is removed; 0 is never
}

// A Duration is written as in Go: "90s", "24h".
type Duration time.Duration

// MarshalText writes the duration.
func (d Duration) MarshalText() ([]byte, error) { return []byte(time.Duration(d).String()), nil }

// UnmarshalText reads a duration that is not negative.
func (d *Duration) UnmarshalText(text []byte) error {
	v, err := time.ParseDuration(string(text))
	if err != nil {
		return err
	}
	if v < 0 {
		return fmt.Errorf("duration %s is negative", v)
	}
	*d = Duration(v)
	return nil
}

// DefaultPolicy lets in the keeper's own uid only, to everything.
func DefaultPolicy(owner uint32) Policy { return Policy{Owner: owner} }

// String names the rule in errors.
func (r Rule) String() string {
	switch {
	case r.UID != nil:
		return fmt.Sprintf("the rule for uid %d and names %q…", *r.UID, r.Prefix)
	case r.GID != nil:
		return fmt.Sprintf("the rule for gid %d and names %q…", *r.GID, r.Prefix)
	}
	return fmt.Sprintf("the rule for nobody and names %q…", r.Prefix)
}

func (r *Rule) matches(w Who, name string) bool {
	who := r.UID != nil && *r.UID == w.UID || r.UID == nil && r.GID != nil && *r.GID == w.GID
	return who && strings.HasPrefix(name, r.Prefix)
}

// before reports whether r decides and not other, if both match.
func (r *Rule) before(other *Rule) bool {
	if len(r.Prefix) != len(other.Prefix) {
		return len(r.Prefix) > len(other.Prefix)
	}
	return r.UID != nil && other.UID == nil
}

// allows reports whether r has one of the rights.
func (r *Rule) allows(rights ...Right) bool {
	return r != nil && slices.ContainsFunc(rights, func(x Right) bool { return slices.Contains(r.Allow, x) })
}

// complete returns the policy with the owner's rule. It shares nothing with p that the
// caller could change.
func (p Policy) complete() *Policy {
	p.Rules = slices.Clone(p.Rules)
	for _, r := range p.Rules {
		if r.UID != nil && *r.UID == p.Owner && r.Prefix == "" {
			return &p
		}
	}
	owner := p.Owner
	p.Rules = append(p.Rules, Rule{UID: &owner, Allow: []Right{Read, Write, Remove}})
	return &p
}

// rule returns the rule that decides, nil if none matches. Rules for gids do not bind the
// owner.
func (p *Policy) rule(w Who, name string) (best *Rule) {
	if p == nil {
		return nil
	}
	for i := range p.Rules {
		r := &p.Rules[i]
		if w.UID == p.Owner && r.UID == nil {
			continue
		}
		if r.matches(w, name) && (best == nil || r.before(best)) {
			best = r
		}
	}
	return best
}

// allow returns the rule that decides, if it has one of the rights.
func (p *Policy) allow(w Who, name string, rights ...Right) (*Rule, error) {
	r := p.rule(w, name)
	switch {
	case r == nil:
		return nil, fail(Denied, "%s may not %s %q: the keeper's policy has no rule for uid %d or gid %d there; ask the keeper's owner for one", w, words(rights), name, w.UID, w.GID)
	case !r.allows(rights...):
		return nil, fail(Denied, "%s may not %s %q: %s allows %s", w, words(rights), name, r, words(r.Allow))
	}
	return r, nil
}

func words(rights []Right) string {
	if len(rights) == 0 {
		return "nothing"
	}
	all := make([]string, len(rights))
	for i, r := range rights {
		all[i] = string(r)
	}
	return strings.Join(all, " or ")
}

// Check refuses a policy whose rules contradict each other or can match nobody.
func (p Policy) Check() error {
	if len(p.Rules) > maxRules {
		return fmt.Errorf("policy: %d rules; %d are allowed", len(p.Rules), maxRules)
	}
	if p.Grace < 0 {
		return fmt.Errorf("policy: grace %s is negative", time.Duration(p.Grace))
	}
	seen := map[string]int{}
	for i := range p.Rules {
		r := &p.Rules[i]
		if err := r.check(); err != nil {
			return fmt.Errorf("policy: rule %d: %w", i+1, err)
		}
		if first := seen[r.String()]; first > 0 {
			return fmt.Errorf("policy: rules %d and %d are both %s", first, i+1, r)
		}
		seen[r.String()] = i + 1
	}
	return nil
}

const maxRules = 1024

func (r *Rule) check() error {
	if (r.UID == nil) == (r.GID == nil) {
		return fmt.Errorf("it is for a uid or for a gid: give one of them")
	}
	if err := checkText("prefix", r.Prefix, MaxName); err != nil {
		return err
	}
	for _, x := range r.Allow {
		if x != Read && x != Write && x != Remove {
			return fmt.Errorf("right %q; %q, %q and %q are known", x, Read, Write, Remove)
		}
	}
	switch {
	case r.Allow == nil:
		return fmt.Errorf("\"allow\" is missing; [] allows nothing")
	case r.Names != nil && *r.Names < 0:
		return fmt.Errorf("%d names are fewer than none", *r.Names)
	case r.Leases != nil && *r.Leases < 0:
		return fmt.Errorf("%d leases are fewer than none", *r.Leases)
	case r.Expiry < 0:
		return fmt.Errorf("expiry %s is negative", time.Duration(r.Expiry))
	}
	return nil
}
