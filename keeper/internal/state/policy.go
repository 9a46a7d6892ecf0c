package state

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/gpufd/gpufd/keeper/api"
)

// A Policy is an [api.Policy], which decides.
type Policy api.Policy

// DefaultPolicy lets in the keeper's own uid only, to everything.
func DefaultPolicy(owner uint32) Policy { return Policy{Owner: owner} }

func matches(r *Rule, w Who, name string) bool {
	who := r.UID != nil && *r.UID == w.UID || r.UID == nil && r.GID != nil && *r.GID == w.GID
	return who && strings.HasPrefix(name, r.Prefix)
}

// before reports whether r decides and not other, if both match.
func before(r, other *Rule) bool {
	if len(r.Prefix) != len(other.Prefix) {
		return len(r.Prefix) > len(other.Prefix)
	}
	return r.UID != nil && other.UID == nil
}

// allows reports whether r has one of the rights.
func allows(r *Rule, rights ...Right) bool {
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
		if matches(r, w, name) && (best == nil || before(r, best)) {
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
	case !allows(r, rights...):
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
		if err := checkRule(r); err != nil {
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

func checkRule(r *Rule) error {
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
