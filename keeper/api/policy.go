package api

import (
	"fmt"
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
	Owner uint32 `json:"-"` // the keeper's uid, which the keeper itself fills in

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
