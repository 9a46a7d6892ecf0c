package state

import (
	"slices"
	"time"

	"github.com/gpufd/gpufd/gpumem"
	"github.com/gpufd/gpufd/keeper/api"
)

// A record is all that there is of a name. Once a record is in a State, neither it
// nor anything that it points to is ever changed: to change a name, put another
// record.
type record struct {
	Name     string    `json:"name"`
	Last     uint64    `json:"last,omitzero"` // the number of the last version
	Draining bool      `json:"draining,omitzero"`
	Used     time.Time `json:"used,omitzero"`    // when it was committed or a lease began or ended; zero: to be noted
	Removed  time.Time `json:"removed,omitzero"` // when nothing was left but the record; zero: to be noted

	Current *Version       `json:"-"`
	Retired []*Version     `json:"-"` // ascending
	Pending []*transaction `json:"-"` // in the order of their first bookings
	Holders []held         `json:"-"` // in the order of their ids

	text    []byte  // the record in a manifest
	charges charges // that belong to text
}

// A transaction is a version in the making.
type transaction struct {
	ID        string            `json:"id,omitzero"` // "" if it is one booking of its own
	Parts     int               `json:"parts"`
	Labels    map[string]string `json:"labels,omitempty"`
	Expect    *uint64           `json:"expect,omitempty"`
	Deadline  time.Time         `json:"deadline,omitzero"`
	Bookings  []booked          `json:"-"` // of parts that have not come
	Delivered []Part            `json:"-"` // by index, ascending
}

// A booked part has not come.
type booked struct {
	Ticket string      `json:"ticket"`
	Index  int         `json:"index"`
	Device gpumem.UUID `json:"device"`
	Kind   gpumem.Kind `json:"kind"`
	Bytes  uint64      `json:"bytes"`
	By     Writer      `json:"by"`
	At     time.Time   `json:"at"`
}

// A held is a holder of a version. If the record does not have the version any more, the holder
// was told to let go, and Of describes what it may have.
type held struct {
	ID     HoldID  `json:"id"`
	Holder Holder  `json:"holder"`
	Of     *PartOn `json:"of,omitempty"` // set when the holder is told to let go

	line *heldLine // as it was written last, or nil
}

// A heldLine is the line of a manifest for a holder that has not changed since. A record with many
// holders is written again whenever one of them comes or goes, with the others' lines as they are.
type heldLine struct {
	id     HoldID
	holder Holder
	of     *PartOn
	text   []byte
}

// append appends the holder's line.
func (h *held) append(text []byte) []byte {
	if l := h.line; l == nil || l.id != h.ID || l.holder != h.Holder || l.of != h.Of {
		h.line = &heldLine{h.ID, h.Holder, h.Of, appendLine(nil, wordHolder, h)}
	}
	return append(text, h.line.text...)
}

// clone returns a record that may be changed, but for what its elements point to.
func (r *record) clone() *record {
	c := *r
	c.Retired, c.Pending, c.Holders = slices.Clone(r.Retired), slices.Clone(r.Pending), slices.Clone(r.Holders)
	c.text, c.charges = nil, nil
	return &c
}

func (t *transaction) clone() *transaction {
	c := *t
	c.Bookings, c.Delivered = slices.Clone(t.Bookings), slices.Clone(t.Delivered)
	return &c
}

func (v *Version) clone() *Version {
	c := *v
	c.Parts = slices.Clone(v.Parts)
	return &c
}

// number returns the number of the current version, 0 if there is none.
func (r *record) number() uint64 {
	if r == nil || r.Current == nil {
		return 0
	}
	return r.Current.N
}

// version returns the version of that number that is kept, nil if none is.
func (r *record) version(n uint64) *Version {
	for _, v := range r.versions() {
		if v.N == n {
			return v
		}
	}
	return nil
}

// versions returns those that are kept, ascending.
func (r *record) versions() []*Version {
	if r == nil {
		return nil
	}
	if r.Current == nil {
		return r.Retired
	}
	return append(slices.Clip(r.Retired), r.Current)
}

// idle reports whether nothing is left of the name but the record.
func (r *record) idle() bool {
	return r.Current == nil && len(r.Retired)+len(r.Pending)+len(r.Holders) == 0
}

// empty reports whether there is nothing to remember.
func (r *record) empty() bool { return r.idle() && r.Last == 0 }

// retire makes the current version a retired one. at may be zero: not known.
func (r *record) retire(at time.Time) {
	if r.Current == nil {
		return
	}
	v := r.Current.clone()
	v.Retired = at
	r.Retired, r.Current = append(r.Retired, v), nil
}

// drop forgets transaction t.
func (r *record) drop(t *transaction) {
	r.Pending = slices.DeleteFunc(r.Pending, func(x *transaction) bool { return x == t })
}

// holdersOf returns the holders of a version.
func (r *record) holdersOf(n uint64) (all []Holder) {
	for _, h := range r.Holders {
		if h.Holder.Version == n {
			all = append(all, h.Holder)
		}
	}
	return all
}

// leased reports whether any process has a lease.
func (r *record) leased() bool {
	return slices.ContainsFunc(r.Holders, func(h held) bool { return h.Holder.leased() })
}

// parts calls f with each part that has come.
func (r *record) parts(f func(p *Part)) {
	for _, v := range r.versions() {
		for i := range v.Parts {
			f(&v.Parts[i])
		}
	}
	for _, t := range r.Pending {
		for i := range t.Delivered {
			f(&t.Delivered[i])
		}
	}
}

// ids calls f with each id that the record names, and whether it is a pidfd; some ids of
// pidfds come more than once.
func (r *record) ids(f func(id ID, pidfd bool)) {
	some := func(id ID, pidfd bool) {
		if id != 0 {
			f(id, pidfd)
		}
	}
	r.parts(func(p *Part) {
		some(p.Files, false)
		some(p.Table, false)
		some(p.Writer.Pidfd, true)
	})
	for _, t := range r.Pending {
		for i := range t.Bookings {
			some(t.Bookings[i].By.Pidfd, true)
		}
	}
	for i := range r.Holders {
		some(r.Holders[i].Holder.Pidfd, true)
	}
}

// lost returns the ids that r names and next does not.
func (r *record) lost(next *record) (ids []ID) {
	kept := map[ID]bool{}
	next.ids(func(id ID, _ bool) { kept[id] = true })
	r.ids(func(id ID, _ bool) {
		if !kept[id] {
			ids = append(ids, id)
		}
	})
	return ids
}

// writers returns the writers of all parts, come or booked.
func (r *record) writers() (all []api.Holder) {
	r.parts(func(p *Part) { all = append(all, p.Writer.asHolder(p.Index)) })
	for _, t := range r.Pending {
		for _, b := range t.Bookings {
			all = append(all, b.By.asHolder(b.Index))
		}
	}
	return all
}
