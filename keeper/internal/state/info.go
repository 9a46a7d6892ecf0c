package state

import (
	"cmp"
	"maps"
	"slices"

	"github.com/gpufd/gpufd/gpumem"
	"github.com/gpufd/gpufd/keeper/api"
)

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
	return s.list(func(name string) bool { return allows(rules.rule(by, name), Read, Write, Remove) })
}

// After returns the first name after another one that a process has a right to, or "", and the size
// of its record.
func (s *State) After(name string, by Who) (next string, size int) {
	i, found := s.find(name)
	if found {
		i++
	}
	for rules, all := s.rules(), s.all(); i < len(all); i++ {
		if r := all[i]; !r.idle() && allows(rules.rule(by, r.Name), Read, Write, Remove) {
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
	i := Info{Name: r.Name, Labels: map[string]string{}, Parts: []PartInfo{}, Holders: []api.Holder{}, Retired: []RetiredInfo{}, Pending: []PendingInfo{}}
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
	r.parts(func(p *Part) { i.ParkedBytes = plus(i.ParkedBytes, p.parkedBytes()) })
	for _, v := range r.versions() {
		if !slices.ContainsFunc(r.holdersOf(v.N), func(h Holder) bool { return !h.Detached || h.Lost }) { // one that has detached has nothing mapped
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
	return PartOn{Part: p.Index, Device: p.Memory.Device.String(), Bytes: p.Bytes, Parked: len(p.Parked) > 0}
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

// shownHolders leaves out what is of no use outside the keeper.
func shownHolders(holders []Holder) []api.Holder {
	all := []api.Holder{}
	for _, h := range holders {
		all = append(all, h.shown())
	}
	return all
}

func (p *Part) info(holders []api.Holder) PartInfo {
	writer := p.Writer.asHolder(p.Index)
	i := PartInfo{Part: p.Index, Device: p.Memory.Device.String(), Bytes: p.Bytes, Digest: p.Digest, Layout: p.Layout, Parked: len(p.Parked) > 0, State: p.State, Reason: p.Reason, Reports: p.Reports, WritableBy: []int32{}, Writer: &writer}
	var able []api.Holder
	if !p.Writer.Fenced {
		able = append(able, writer)
	}
	for _, h := range holders {
		if h.Part == p.Index && h.Access == gpumem.ReadWrite && !h.Fenced {
			able = append(able, h)
		}
	}
	for _, h := range api.Processes(able) {
		i.WritableBy = append(i.WritableBy, h.PID)
	}
	return i
}

func (t *transaction) info() PendingInfo {
	i := PendingInfo{Transaction: t.ID, Parts: t.Parts, Delivered: len(t.Delivered), Writers: []api.Holder{}, Devices: []PartOn{}, Deadline: t.Deadline}
	for _, b := range t.Bookings {
		i.Bytes = plus(i.Bytes, b.Bytes)
		i.Devices = append(i.Devices, PartOn{Part: b.Index, Device: b.Device.String(), Bytes: b.Bytes})
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
		if v.Parts[i].Writer.Fenced && len(v.Parts[i].Parked) == 0 {
			sum = plus(sum, v.Parts[i].Bytes)
		}
	}
	return sum
}
