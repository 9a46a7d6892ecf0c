package state

import (
	"encoding/json"
	"errors"
	"fmt"
)

// maxOutcomes is how many tickets the state remembers the outcome of: enough for
// two versions with as many parts as a version may have.
const maxOutcomes = 2 * MaxParts

// An outcome is the result of a ticket whose version was committed. The keeper may have
// died before the writer was told.
type outcome struct {
	Ticket  string `json:"ticket"`
	UID     uint32 `json:"uid"`
	Version uint64 `json:"version"`

	line string // in a manifest
}

// remember records that tickets have become a version, and forgets the oldest of too many.
func (s *State) remember(v *Version) {
	all := append([]outcome(nil), s.outcomes...)
	for i := range v.Parts {
		p := &v.Parts[i]
		if p.Ticket == "" {
			continue // from a manifest without outcomes
		}
		all = append(all, newOutcome(outcome{Ticket: p.Ticket, UID: p.Writer.UID, Version: v.N}))
		p.Ticket = ""
	}
	s.outcomes = all[max(0, len(all)-maxOutcomes):]
}

func newOutcome(o outcome) outcome {
	o.line = string(appendLine(nil, wordOutcome, o))
	return o
}

// Outcome returns the outcome of a ticket that was delivered: the version, or 0 and how
// many of its parts are missing. ok is false if there is no such ticket of the uid, if it
// was not delivered, and once others have taken its place: 512 that were committed are
// remembered.
func (s *State) Outcome(ticket string, by Who) (version uint64, missing int, ok bool) {
	if s == nil || ticket == "" {
		return 0, 0, false
	}
	for _, o := range s.outcomes {
		if o.Ticket == ticket {
			return o.Version, 0, o.UID == by.UID
		}
	}
	for _, r := range s.records {
		for _, t := range r.Pending {
			for i := range t.Delivered {
				if p := &t.Delivered[i]; p.Ticket == ticket {
					return 0, t.Parts - len(t.Delivered), p.Writer.UID == by.UID
				}
			}
		}
	}
	return 0, 0, false
}

func (d *decoder) outcome(object []byte) error {
	var o outcome
	if err := json.Unmarshal(object, &o); err != nil {
		return err
	}
	if len(d.s.outcomes) == maxOutcomes || o.Version == 0 {
		return errors.New("a ticket of no version, or one too many")
	}
	d.s.outcomes = append(d.s.outcomes, newOutcome(o))
	return d.ticket(o.Ticket)
}

// ticket returns an error unless a ticket was given out, and comes once.
func (d *decoder) ticket(ticket string) error {
	var id uint64
	if _, err := fmt.Sscanf(ticket, "t%d", &id); err != nil || ticket != fmt.Sprintf("t%d", id) || id == 0 {
		return fmt.Errorf("ticket %.40q", ticket)
	}
	return d.own(id)
}
