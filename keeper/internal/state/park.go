package state

import (
	"slices"

	"github.com/gpufd/gpufd/internal/plain"
	"github.com/gpufd/gpufd/keeper/api"
)

// A Parking says where a part is to be parked.
type Parking struct {
	Part   int
	Chunks []ID // in the order in which they have its bytes
}

// PlanPark returns the version that a process may park now, and free chunks for its parts: none for those that are
// parked already. Version 0 is the current one, and another number is an error unless it is current. soon returns
// leases that the state does not know yet; nil is none. PlanPark changes nothing.
//
// Errors: [Denied]; [NotFound]; [Conflict] if another version is current, or if processes may use the memory;
// [IsDamaged], [IsQuarantined]; [NoRoom] if the pool is too small or full; [Quota] if the rest is not for that user.
func (s *State) PlanPark(name string, version uint64, by Who, soon func() []Soon) (*Version, []Parking, error) {
	v, err := s.mayMove(name, version, by)
	if err == nil {
		err = s.mayPark(name, v, soon)
	}
	if err != nil {
		return nil, nil, err
	}
	free, all := s.FreeChunks(), []Parking(nil)
	for i := range v.Parts {
		p := &v.Parts[i]
		if len(p.Parked) > 0 {
			continue
		}
		var chunks []ID
		if chunks, free = choose(free, p); chunks == nil {
			return nil, nil, s.noRoomToPark(name, v, p)
		}
		all = append(all, Parking{i, chunks})
	}
	_, err = s.parkedRecord(name, v, all)
	return v, all, err
}

// mayMove returns the current version of a name if a process may park or unpark it.
func (s *State) mayMove(name string, version uint64, by Who) (*Version, error) {
	if _, err := s.rules().allow(by, name, Write); err != nil {
		return nil, err
	}
	r := s.get(name)
	if r == nil || r.Current == nil {
		return nil, noVersion(name, r)
	}
	if version != 0 && version != r.Current.N {
		return nil, fail(Conflict, "%q has version %d, and version %d was asked for", name, r.Current.N, version)
	}
	return r.Current, nil
}

// mayPark returns an error that names the processes in the way, or what is wrong with a part.
func (s *State) mayPark(name string, v *Version, soon func() []Soon) error {
	for i := range v.Parts {
		switch p := &v.Parts[i]; p.State {
		case Damaged:
			return fail(IsDamaged, "part %d of %q, version %d, is damaged (%s), and is not parked: put another version", i, name, v.N, p.Reason)
		case Quarantined:
			return fail(IsQuarantined, "part %d of %q, version %d, is quarantined (%s), and is not parked: end that first (gpufd quarantine --undo)", i, name, v.N, p.Reason)
		}
	}
	var inTheWay []api.Holder
	for _, h := range s.get(name).holdersOf(v.N) {
		if h.attached() {
			inTheWay = append(inTheWay, h.shown())
		}
	}
	if soon != nil {
		for _, l := range soon() {
			if l.Name == name && l.Holder.Version == v.N && l.Holder.attached() {
				inTheWay = append(inTheWay, l.Holder.shown())
			}
		}
	}
	if len(inTheWay) > 0 {
		return because(fail(Conflict, "%q, version %d, is in use by %s, and is parked when all of them have detached or ended", name, v.N, plain.Count(len(api.Processes(inTheWay)), "process")), inTheWay...)
	}
	return nil
}

// attached reports whether the holder may have the memory mapped, and was not told to let go.
func (h Holder) attached() bool { return !h.Detached && !h.Fenced && !h.Revoked }

// choose takes chunks for a part out of free, or returns nil if they do not suffice.
func choose(free []Chunk, p *Part) (chunks []ID, rest []Chunk) {
	size := uint64(0)
	for _, c := range free {
		if size >= p.Bytes || c.Kind != p.Memory.Kind {
			rest = append(rest, c)
			continue
		}
		chunks, size = append(chunks, c.ID), plus(size, c.Size)
	}
	if size < p.Bytes {
		return nil, free
	}
	return chunks, rest
}

func (s *State) noRoomToPark(name string, v *Version, p *Part) error {
	var free, all uint64
	of := func(chunks []Chunk) (sum uint64) {
		for _, c := range chunks {
			if c.Kind == p.Memory.Kind {
				sum += c.Size
			}
		}
		return sum
	}
	if free, all = of(s.FreeChunks()), of(s.pool); all == 0 {
		return fail(NoRoom, "%q cannot be parked: the keeper has no pool of memory of the host for the %s driver; start it with gpufd keeper --park-pool SIZE", name, p.Memory.Kind)
	}
	return fail(NoRoom, "%q, version %d, of %d bytes, does not fit the %d bytes that are free of the pool's %d: unpark or remove other names, or start the keeper with a larger --park-pool", name, v.N, v.bytes(), free, all)
}

// parkedRecord returns the record of a name whose current version is parked as said.
func (s *State) parkedRecord(name string, v *Version, all []Parking) (*record, error) {
	r, v := s.get(name).clone(), v.clone()
	var users []uint32
	for _, m := range all {
		p := &v.Parts[m.Part]
		p.Parked, p.Files = m.Chunks, 0
		if !slices.Contains(users, p.Writer.UID) {
			users = append(users, p.Writer.UID)
		}
	}
	r.swap(v)
	r.encode()
	for _, uid := range users {
		if err := s.affordChunks(name, uid, r.charges[uid].Chunks); err != nil {
			return nil, err
		}
	}
	return r, nil
}

// affordChunks returns an error if a user would have more than its share of the pool, with now for a name instead of
// what it had before.
func (s *State) affordChunks(name string, uid uint32, now uint64) error {
	own, others := s.Charged(uid)
	before, may := s.chargesOf(name)[uid].Chunks, Share(uint64(len(s.pool)), others.Chunks, uid == s.rules().Owner)
	if n := own.Chunks - before + now; now > before && n > may {
		return fail(Quota, "%q is not parked: uid %d would have %d of the pool's %d chunks, and may have %d; unpark or remove some of its names", name, uid, n, len(s.pool), may)
	}
	return nil
}

// Park records that parts of the current version are in chunks of the pool, and not on their devices any more: what
// the state named of these is among the next Dropped. It checks all again: v and all are what PlanPark returned.
//
// Errors: those of PlanPark; [Conflict] also for a version that has changed since, or chunks that are not free.
func (s *State) Park(name string, v *Version, by Who, all []Parking, soon func() []Soon) error {
	now, err := s.mayMove(name, v.N, by)
	if err == nil {
		err = s.mayPark(name, now, soon)
	}
	if err != nil {
		return err
	}
	taken := s.parked()
	for _, m := range all {
		if m.Part < 0 || m.Part >= len(now.Parts) || now.Parts[m.Part].Files == 0 {
			return fail(Conflict, "part %d of %q, version %d, is not on its device any more", m.Part, name, v.N)
		}
		p := &now.Parts[m.Part]
		size, ok := s.sizeOf(m.Chunks, p.Memory.Kind)
		if !ok || size < p.Bytes || slices.ContainsFunc(m.Chunks, func(id ID) bool { return taken[id] }) {
			return fail(Conflict, "the chunks %v for part %d of %q are not free, or too small", m.Chunks, m.Part, name)
		}
		for _, id := range m.Chunks {
			taken[id] = true
		}
	}
	r, err := s.parkedRecord(name, now, all)
	if err != nil {
		return err
	}
	s.replace(r)
	return nil
}

// An Unparking says what has become of a part that was to be unparked.
type Unparking struct {
	Part   int
	Files  ID     // of its memory on the device; a new id ([State.NewID]), which the state takes over
	Damage string // if Files is 0: its bytes are not what they were, and why
}

// MayUnpark returns the current version of a name if a process may have it unparked: a reader is allowed by its lease.
//
// Errors: [Denied]; [NotFound]; [Conflict] for another version.
func (s *State) MayUnpark(name string, version uint64, by Who) (*Version, error) {
	return s.mayMove(name, version, by)
}

// PlanUnpark returns a version that is kept, current or retired, and its parts that are to be unparked: those that are
// parked, and not damaged. PlanUnpark changes nothing.
//
// Errors: [NotFound]; [Draining] if a device is to be freed.
func (s *State) PlanUnpark(name string, version uint64) (*Version, []Parking, error) {
	v := s.Kept(name, version)
	if v == nil {
		return nil, nil, fail(NotFound, "version %d of %q is not kept any more", version, name)
	}
	var all []Parking
	for i := range v.Parts {
		p := &v.Parts[i]
		if len(p.Parked) == 0 || p.State == Damaged {
			continue
		}
		if slices.Contains(s.draining, p.Memory.Device) {
			return nil, nil, fail(Draining, "part %d of %q, version %d, is not unparked to %s, which is draining: wait until the keeper's owner ends that (gpufd drain --undo)", i, name, version, p.Memory.Device)
		}
		all = append(all, Parking{i, p.Parked})
	}
	return v, all, nil
}

// Kept returns a version of a name that is kept, current or retired, or nil.
func (s *State) Kept(name string, version uint64) *Version { return s.get(name).version(version) }

// Unpark records that parts of a version are on their devices again, and their chunks free. A damaged part stays where
// it is, and is served no more.
//
// Errors: [NotFound] for a version that is not kept any more; [BadRequest] for parts that are not parked, or ids that
// are not new.
func (s *State) Unpark(name string, version uint64, all []Unparking) error {
	r := s.get(name)
	v := r.version(version)
	if v == nil {
		return fail(NotFound, "version %d of %q is not kept any more", version, name)
	}
	r, v = r.clone(), v.clone()
	seen := map[ID]bool{}
	for _, m := range all {
		if m.Part < 0 || m.Part >= len(v.Parts) || len(v.Parts[m.Part].Parked) == 0 {
			return fail(BadRequest, "part %d of version %d of %q is not parked", m.Part, version, name)
		}
		p := &v.Parts[m.Part]
		if m.Files == 0 {
			p.judge(true, Damaged, m.Damage)
			continue
		}
		if m.Files > ID(s.ids.Load()) || s.named(m.Files) || seen[m.Files] {
			return fail(BadRequest, "id %d of part %d was not made with NewID, or is in use", m.Files, m.Part)
		}
		p.Files, p.Parked, seen[m.Files] = m.Files, nil, true
	}
	r.swap(v)
	s.put(r)
	return nil
}

// Detach records whether a holder has detached: it keeps its lease, and has none of the memory.
//
// Errors: [NotFound], as of Release.
func (s *State) Detach(id HoldID) error {
	r, i := s.holder(id)
	if r == nil {
		return noHolder(id)
	}
	r.Holders[i].Holder.Detached = true
	s.put(r)
	return nil
}

// ParkedBytes returns how many bytes of the parts of all names are parked.
func (s *State) ParkedBytes() (sum uint64) {
	for _, r := range s.all() {
		r.parts(func(p *Part) { sum = plus(sum, p.parkedBytes()) })
	}
	return sum
}

func (p *Part) parkedBytes() uint64 {
	if len(p.Parked) == 0 {
		return 0
	}
	return p.Bytes
}
