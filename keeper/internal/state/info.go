package state

import (
	"cmp"
	"maps"
	"slices"
	"time"
)

// An Info describes a name. Slices and maps are never nil.
type Info struct {
	Name          string            `json:"name"`
	Version       uint64            `json:"version"` // 0: there is none
	Digest        string            `json:"digest"`
	State         string            `json:"state"` // ok, damaged, quarantined, draining; without a version reserved or removed
	Bytes         uint64            `json:"bytes"`
	ReservedBytes uint64            `json:"reserved_bytes"` // booked by writers that have not committed
	Labels        map[string]string `json:"labels"`
	Parts         []PartInfo        `json:"parts"`
	Holders       []Holder          `json:"holders"` // of the current version
	Committed     time.Time         `json:"committed,omitzero"`
	Retired       []RetiredInfo     `json:"retired"`
	Pending       []PendingInfo     `json:"pending"`
	// FreesBytes is what is free at once if the name is removed: of versions without
	// holders, the parts whose writers are fenced. Others may free theirs, too.
	FreesBytes uint64 `json:"frees_bytes"`
}

// A PartInfo describes a part.
type PartInfo struct {
	Part       int       `json:"part"`
	Device     string    `json:"device"`
	Bytes      uint64    `json:"bytes"`
	Digest     string    `json:"digest"`
	State      PartState `json:"state"`
	Reason     string    `json:"reason,omitempty"`
	Reports    int       `json:"reports,omitempty"` // by readers that may not change its state
	WritableBy []int32   `json:"writable_by"`       // processes that are not fenced: its writer, and holders that may write
	Writer     *Holder   `json:"writer,omitempty"`  // the process that wrote it, dead or not; nil from a keeper that does not say
}

// A RetiredInfo describes a version that has been replaced or removed.
type RetiredInfo struct {
	Version uint64    `json:"version"`
	Bytes   uint64    `json:"bytes"`
	Retired time.Time `json:"retired,omitzero"`
	Gone    bool      `json:"gone,omitempty"` // the keeper has given it up: its holders alone may have it
	Parts   []PartOn  `json:"parts"`
	Holders []Holder  `json:"holders"`
}

// A PartOn is the short form of a part: for one whose details are not known, or
// not wanted.
type PartOn struct {
	Part   int    `json:"part"`
	Device string `json:"device"`
	Bytes  uint64 `json:"bytes"`
}

// A PendingInfo describes a version in the making.
type PendingInfo struct {
	Transaction string    `json:"transaction,omitempty"`
	Parts       int       `json:"parts"`
	Delivered   int       `json:"delivered"`
	Bytes       uint64    `json:"bytes"`
	Writers     []Holder  `json:"writers"` // of the parts that have not come
	Devices     []PartOn  `json:"devices"` // of all its parts, booked or come
	Deadline    time.Time `json:"deadline,omitzero"`
}

// Stat shows a name to a process that has a right to it. It also shows a name that is
// being written, or that was removed and still has holders.
//
// Errors: [Denied]; [NotFound].
func (s *State) Stat(name string, by Who) (Info, error) {
	if _, err := s.rules().allow(by, name, Read, Write, Remove); err != nil {
		return Info{}, err
	}
	r := s.get(name)
	if r == nil || r.idle() {
		return Info{}, noVersion(name, nil)
	}
	return s.info(r), nil
}

// List shows all names that a process has a right to, in ascending order.
func (s *State) List(by Who) []Info {
	rules := s.rules()
	return s.list(func(name string) bool { return rules.rule(by, name).allows(Read, Write, Remove) })
}

// After returns the first name after another one that a process has a right to, or "", and the size
// of its record.
func (s *State) After(name string, by Who) (next string, size int) {
	i, found := s.find(name)
	if found {
		i++
	}
	for rules, all := s.rules(), s.all(); i < len(all); i++ {
		if r := all[i]; !r.idle() && rules.rule(by, r.Name).allows(Read, Write, Remove) {
			return r.Name, len(r.text)
		}
	}
	return "", 0
}

// Size returns the size of the record of a name, 0 if there is none.
func (s *State) Size(name string) int {
	if r := s.get(name); r != nil {
		return len(r.text)
	}
	return 0
}

// All shows all names, ascending.
func (s *State) All() []Info { return s.list(func(string) bool { return true }) }

func (s *State) list(wanted func(name string) bool) []Info {
	all := []Info{}
	for _, r := range s.all() {
		if !r.idle() && wanted(r.Name) {
			all = append(all, s.info(r))
		}
	}
	return all
}

func (s *State) info(r *record) Info {
	i := Info{Name: r.Name, Labels: map[string]string{}, Parts: []PartInfo{}, Holders: []Holder{}, Retired: []RetiredInfo{}, Pending: []PendingInfo{}}
	i.State = s.shown(r)
	if v := r.Current; v != nil {
		i.Version, i.Digest, i.Bytes, i.Committed = v.N, v.Digest, v.bytes(), v.Committed
		maps.Copy(i.Labels, v.Labels)
		i.Holders = shownHolders(r.holdersOf(v.N))
		for n := range v.Parts {
			i.Parts = append(i.Parts, v.Parts[n].info(i.Holders))
		}
	}
	for _, v := range r.Retired {
		i.Retired = append(i.Retired, v.retired(r))
	}
	i.Retired = append(i.Retired, r.gone()...)
	for _, t := range r.Pending {
		p := t.info()
		i.ReservedBytes = plus(i.ReservedBytes, p.Bytes)
		i.Pending = append(i.Pending, p)
	}
	for _, v := range r.versions() {
		if len(r.holdersOf(v.N)) == 0 {
			i.FreesBytes = plus(i.FreesBytes, v.fenced())
		}
	}
	return i
}

func (v *Version) retired(r *record) RetiredInfo {
	i := RetiredInfo{Version: v.N, Bytes: v.bytes(), Retired: v.Retired, Parts: []PartOn{}, Holders: shownHolders(r.holdersOf(v.N))}
	for n := range v.Parts {
		i.Parts = append(i.Parts, v.Parts[n].on())
	}
	return i
}

func (p *Part) on() PartOn {
	return PartOn{Part: p.Index, Device: p.Memory.Device.String(), Bytes: p.Bytes}
}

// gone returns the versions that the keeper has given up and that a process may still have,
// in ascending order, with the parts that it may have.
func (r *record) gone() (all []RetiredInfo) {
	for _, h := range r.Holders {
		n := h.Holder.Version
		if r.version(n) != nil {
			continue
		}
		at, found := slices.BinarySearchFunc(all, n, func(i RetiredInfo, n uint64) int { return cmp.Compare(i.Version, n) })
		if !found {
			all = slices.Insert(all, at, RetiredInfo{Version: n, Gone: true, Parts: []PartOn{}, Holders: shownHolders(r.holdersOf(n))})
		}
		if i := &all[at]; h.Of != nil && !slices.Contains(i.Parts, *h.Of) {
			i.Parts, i.Bytes = append(i.Parts, *h.Of), plus(i.Bytes, h.Of.Bytes)
		}
	}
	return all
}

// shown returns the state of a name: the worst that is wrong with its parts.
func (s *State) shown(r *record) string {
	if r.Current == nil && len(r.Pending) > 0 {
		return "reserved"
	}
	if r.Current == nil {
		return "removed"
	}
	is := func(p PartState) bool {
		return slices.ContainsFunc(r.Current.Parts, func(x Part) bool { return x.State == p })
	}
	drained := func(p Part) bool { return slices.Contains(s.draining, p.Memory.Device) }
	switch {
	case is(Damaged):
		return string(Damaged)
	case is(Quarantined):
		return string(Quarantined)
	case r.Draining || slices.ContainsFunc(r.Current.Parts, drained):
		return string(Draining)
	}
	return string(OK)
}

// Processes returns one holder of each process, as answers have them, in their order. Where
// nobody knows whether two holders are one process, they count as two.
func Processes(holders []Holder) (all []Holder) {
	seen, pids := map[uint64]bool{}, map[Who]bool{}
	for _, h := range holders {
		if h.Process != 0 && seen[h.Process] || h.PID != 0 && pids[h.Who] {
			continue
		}
		seen[h.Process], pids[h.Who] = true, true
		all = append(all, h)
	}
	return all
}

// shownHolders leaves out what is of no use outside the keeper.
func shownHolders(holders []Holder) []Holder {
	all := []Holder{}
	for _, h := range holders {
		all = append(all, h.shown())
	}
	return all
}

func (p *Part) info(holders []Holder) PartInfo {
	writer := p.Writer.asHolder(p.Index)
	i := PartInfo{Part: p.Index, Device: p.Memory.Device.String(), Bytes: p.Bytes, Digest: p.Digest, State: p.State, Reason: p.Reason, Reports: p.Reports, WritableBy: []int32{}, Writer: &writer}
	var able []Holder
	if !p.Writer.Fenced {
		able = append(able, writer)
	}
	for _, h := range holders {
		if h.Part == p.Index && h.writes() {
			able = append(able, h)
		}
	}
	for _, h := range Processes(able) {
		i.WritableBy = append(i.WritableBy, h.PID)
	}
	return i
}

func (t *transaction) info() PendingInfo {
	i := PendingInfo{Transaction: t.ID, Parts: t.Parts, Delivered: len(t.Delivered), Writers: []Holder{}, Devices: []PartOn{}, Deadline: t.Deadline}
	for _, b := range t.Bookings {
		i.Bytes = plus(i.Bytes, b.Bytes)
		i.Devices = append(i.Devices, PartOn{b.Index, b.Device.String(), b.Bytes})
		i.Writers = append(i.Writers, b.By.asHolder(b.Index))
	}
	for n := range t.Delivered {
		p := &t.Delivered[n]
		i.Bytes = plus(i.Bytes, p.Bytes)
		i.Devices = append(i.Devices, p.on())
	}
	return i
}

// fenced returns the bytes of the parts that no writer has any more.
func (v *Version) fenced() (sum uint64) {
	for i := range v.Parts {
		if v.Parts[i].Writer.Fenced {
			sum = plus(sum, v.Parts[i].Bytes)
		}
	}
	return sum
}
