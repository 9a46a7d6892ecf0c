package state

import (
	"maps"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/gpufd/gpufd/gpumem"
)

// A State is what a keeper keeps, as of one manifest. The package comment says how it is
// used.
type State struct {
	policy   *Policy           // shared, never changed
	ids      *atomic.Uint64    // the last that was given out; shared with clones
	records  []*record         // by name, ascending; shared, never changed
	draining []gpumem.UUID     // devices, ascending; replaced, never changed
	pool     []Chunk           // replaced, never changed
	size     int               // of the records in a manifest, in bytes
	outcomes []outcome         // of the last tickets, in their order; replaced, never changed
	counts   map[string]uint64 // of the keeper's; replaced, never changed
	gone     []ID              // that a record or the pool named, and does not name any more
	bounds   Bounds
	charged  map[uint32]Charge // by uid; replaced, never changed
}

// New returns the state of a keeper that keeps nothing. The policy should have passed
// [Policy.Check].
func New(p Policy) *State {
	return &State{policy: p.complete(), ids: new(atomic.Uint64)}
}

// Clone returns a copy; changing it leaves the original as it is. It costs a pointer a name.
func (s *State) Clone() *State {
	if s == nil {
		return New(Policy{})
	}
	s.init()
	c := *s
	c.records, c.gone = slices.Clone(s.records), slices.Clone(s.gone)
	return &c
}

// init makes a zero State the one of a keeper of root.
func (s *State) init() {
	if s.ids == nil {
		s.policy, s.ids = Policy{}.complete(), new(atomic.Uint64)
	}
}

// NewID returns an id that neither the state nor a clone has given out before. After
// Decode it is larger than all that were given out before Encode. It is 0 of a nil State.
func (s *State) NewID() ID {
	if s == nil {
		return 0
	}
	s.init()
	return ID(s.ids.Add(1))
}

// errNil is the error of a change to a nil State.
func errNil() error { return fail(BadRequest, "there is no state to change") }

// all returns the records of a state that may be nil.
func (s *State) all() []*record {
	if s == nil {
		return nil
	}
	return s.records
}

// rules returns the policy of a state that may be nil or zero.
func (s *State) rules() *Policy {
	if s == nil || s.policy == nil {
		return Policy{}.complete()
	}
	return s.policy
}

func (s *State) find(name string) (int, bool) {
	return slices.BinarySearchFunc(s.all(), name, func(r *record, name string) int { return strings.Compare(r.Name, name) })
}

// get returns the record of a name, nil if there is none.
func (s *State) get(name string) *record {
	if i, ok := s.find(name); ok {
		return s.records[i]
	}
	return nil
}

// edit returns a copy of the name's record, or a new one, to be changed and put.
func (s *State) edit(name string) *record {
	if r := s.get(name); r != nil {
		return r.clone()
	}
	return &record{Name: name}
}

// The bounds of what one record takes in a manifest, and all of them, in bytes. Only
// bookings and holders are refused over them: what these lead to is not, and is at most
// three times as much.
const (
	maxRecord = 1 << 20
	maxState  = 64 << 20
)

// grow puts a record that has become larger for a user, unless there is no room for it.
func (s *State) grow(r *record, uid uint32) error {
	r.encode()
	c := r.charges[uid]
	err := s.affordRoom(r.Name, uid, c.Room, r.charges)
	if err == nil {
		err = s.affordKept(r.Name, uid, c)
	}
	if err != nil {
		return err
	}
	s.replace(r)
	return nil
}

// put makes r the record of its name.
func (s *State) put(r *record) {
	r.encode()
	s.replace(r)
}

// replace puts a record that is encoded.
func (s *State) replace(r *record) {
	i, ok := s.find(r.Name)
	if ok {
		s.recharge(s.records[i], r)
		s.gone = append(s.gone, s.records[i].lost(r)...)
		s.size -= len(s.records[i].text)
	} else {
		s.recharge(nil, r)
	}
	s.size += len(r.text)
	switch {
	case r.empty() && ok:
		s.size -= len(r.text)
		s.records = slices.Delete(s.records, i, i+1)
	case r.empty():
		s.size -= len(r.text)
	case ok:
		s.records[i] = r
	default:
		s.records = slices.Insert(s.records, i, r)
	}
}

// Named returns all ids that the state names.
func (s *State) Named() map[ID]bool {
	named := map[ID]bool{}
	for _, c := range s.Pool() {
		named[c.ID] = true
	}
	for _, r := range s.all() {
		r.ids(func(id ID, _ bool) { named[id] = true })
	}
	return named
}

// Dropped returns, once, the ids that the state has named and does not name any more,
// ascending. The caller drops them from the store when the state has been swapped in.
func (s *State) Dropped() []ID {
	if s == nil || len(s.gone) == 0 {
		return nil
	}
	gone := map[ID]bool{}
	for _, id := range s.gone {
		gone[id] = true
	}
	for _, r := range s.records {
		r.ids(func(id ID, _ bool) { delete(gone, id) })
	}
	s.gone = nil
	return slices.Sorted(maps.Keys(gone))
}

// Len returns how many names have a version.
func (s *State) Len() (n int) {
	for _, r := range s.all() {
		if r.Current != nil {
			n++
		}
	}
	return n
}

// Current calls f with each name that has a version, ascending, and that version.
func (s *State) Current(f func(name string, v *Version)) {
	for _, r := range s.all() {
		if r.Current != nil {
			f(r.Name, r.Current)
		}
	}
}

// Next returns the current version of a name if it has followed version n, else nil.
func (s *State) Next(name string, n uint64) *Version {
	if r := s.get(name); r != nil && r.Current != nil && r.Current.N > n {
		return r.Current
	}
	return nil
}

// Number returns the number of the current version of a name, 0 if there is none.
func (s *State) Number(name string) uint64 { return s.get(name).number() }
