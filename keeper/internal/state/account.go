package state

// Memory kept for a user costs the keeper room in the manifest, memory for tables, and open
// files. All of it is charged to that user: lines as they are written, with what JSON makes of
// their text, and holders that are lost as well. Nothing here is asked of anybody else.

// A Charge is what a user takes.
type Charge struct {
	Room   uint64 // bytes of the manifest
	Tables uint64 // bytes of them, and of labels for each part
	Files  uint64 // descriptors in the keeper
	Chunks uint64 // of the pool
}

// Bounds are what all users may take together. A field that is 0 does not bound, except Room: it
// is 64 MiB then. The pool bounds Chunks. [Share] returns how much of it a user gets.
type Bounds Charge

// Share returns how much of most a user may take if the others have taken that much. The keeper's
// own user, the owner, gets all that is left. Any other gets half of what is left beyond an eighth,
// which is the owner's. So nobody can take all, whoever comes first.
func Share(most, others uint64, owner bool) uint64 {
	if !owner {
		most -= most / 8
	}
	if others >= most {
		return 0
	}
	if owner {
		return most - others
	}
	return (most - others) / 2
}

// Descriptors that the keeper has open: of a chunk or table one that it keeps and one that it
// sends; of a process one that it keeps and one that it waits for.
const filesOfEach = 2

// Bound sets what all users may take. A clone has the bounds of its original.
func (s *State) Bound(b Bounds) {
	if s != nil {
		s.init()
		s.bounds = b
	}
}

// Charged returns what is kept for a user, and for all others.
func (s *State) Charged(uid uint32) (own, others Charge) {
	if s == nil {
		return own, others
	}
	for u, c := range s.charged {
		if u == uid {
			own = c
		} else {
			others = others.plus(c)
		}
	}
	return own, others
}

func (c Charge) plus(d Charge) Charge {
	return Charge{plus(c.Room, d.Room), plus(c.Tables, d.Tables), plus(c.Files, d.Files), plus(c.Chunks, d.Chunks)}
}

// minus subtracts d, which is part of c.
func (c Charge) minus(d Charge) Charge {
	return Charge{c.Room - d.Room, c.Tables - d.Tables, c.Files - d.Files, c.Chunks - d.Chunks}
}

// charges are what one record costs each user.
type charges map[uint32]Charge

func (c charges) add(uid uint32, d Charge) { c[uid] = c[uid].plus(d) }

func (c charges) room(uid uint32, line int) { c.add(uid, Charge{Room: uint64(line)}) }

// process charges a user with a process that is waited for.
func (c charges) process(uid uint32, pidfd ID) {
	if pidfd != 0 {
		c.add(uid, Charge{Files: filesOfEach})
	}
}

// part charges a user with a part. One that is parked is charged with the descriptors that it will have again.
func (c charges) part(p *Part, line int) {
	d := Charge{Room: uint64(line), Files: filesOfEach * uint64(p.Memory.Chunks), Chunks: uint64(len(p.Parked))}
	if p.Table != 0 {
		d.Tables, d.Files = p.TableSize, d.Files+filesOfEach
	}
	c.add(p.Writer.UID, d)
	c.process(p.Writer.UID, p.Writer.Pidfd)
}

// user returns the user that the line of the whole name is charged to: it has written the name,
// is about to, or still has it. A name of which nothing is left is charged to nobody.
func (r *record) user() (uid uint32, ok bool) {
	for _, v := range r.versions() {
		return v.Parts[0].Writer.UID, true
	}
	for _, t := range r.Pending {
		return t.user(), true
	}
	for i := range r.Holders {
		return r.Holders[i].Holder.UID, true
	}
	return 0, false
}

// user returns the user of the transaction: of one of its parts that has not come, else of one
// that has.
func (t *transaction) user() uint32 {
	if len(t.Bookings) > 0 {
		return t.Bookings[0].By.UID
	}
	return t.Delivered[0].Writer.UID
}

// recharge accounts for a record in the place of another; either may be nil.
func (s *State) recharge(before, after *record) {
	all := make(map[uint32]Charge, len(s.charged)+1) // clones share it
	for uid, c := range s.charged {
		all[uid] = c
	}
	if before != nil {
		for uid, c := range before.charges {
			if all[uid] = all[uid].minus(c); all[uid] == (Charge{}) {
				delete(all, uid)
			}
		}
	}
	if after != nil {
		for uid, c := range after.charges {
			all[uid] = all[uid].plus(c)
		}
	}
	s.charged = all
}

// chargesOf returns the charges of the record that a name has now.
func (s *State) chargesOf(name string) charges {
	if r := s.get(name); r != nil {
		return r.charges
	}
	return nil
}

// mostRoom returns how much room a manifest may take.
func (s *State) mostRoom() uint64 {
	if s == nil || s.bounds.Room == 0 {
		return maxState
	}
	return min(s.bounds.Room, maxState)
}

// affordRoom returns an error if a user would have more than its share of a name's record or of
// the manifest, with now of the record instead of what it had before. all is what all users have
// of it.
func (s *State) affordRoom(name string, uid uint32, now uint64, all charges) error {
	before := s.chargesOf(name)[uid].Room
	if now <= before {
		return nil
	}
	owner, most := uid == s.rules().Owner, s.mostRoom()
	var inName uint64
	for u, c := range all {
		if u != uid {
			inName += c.Room
		}
	}
	if may := Share(min(maxRecord, most), inName, owner); now > may {
		return fail(Quota, "the keeper has no room for more bookings, versions and holders of %q: uid %d would have %d bytes of its record, and may have %d; let the readers of its retired versions go, or end some", name, uid, now, may)
	}
	own, others := s.Charged(uid)
	if may := Share(most, others.Room, owner); own.Room-before+now > may {
		return fail(Quota, "the keeper has no room for more names, versions and holders: uid %d would have %d bytes of its manifest, and may have %d; remove some", uid, own.Room-before+now, may)
	}
	return nil
}

// affordKept returns an error if a user would have more than its share of tables or descriptors,
// with now under a name instead of what it had before.
func (s *State) affordKept(name string, uid uint32, now Charge) error {
	before := s.chargesOf(name)[uid]
	own, others := s.Charged(uid)
	own, owner := own.minus(before).plus(now), uid == s.rules().Owner
	if now.Tables > before.Tables && s.bounds.Tables > 0 && own.Tables > Share(s.bounds.Tables, others.Tables, owner) {
		return s.noRoomForTables(uid, own.Tables, others.Tables)
	}
	if may := Share(s.bounds.Files, others.Files, owner); now.Files > before.Files && s.bounds.Files > 0 && own.Files > may {
		return fail(Quota, "the keeper has no descriptors for more: uid %d would have %d, and may have %d; put larger chunks, remove names, or raise the limit of open files (ulimit -n)", uid, own.Files, may)
	}
	return nil
}

func (s *State) noRoomForTables(uid uint32, own, others uint64) error {
	return fail(Quota, "the keeper has no memory for that table, or for the labels of another part: uid %d would have %d bytes of tables, and may have %d; remove names, let readers of retired versions go, or give the keeper more memory", uid, own, Share(s.bounds.Tables, others, uid == s.rules().Owner))
}

// MayBring returns nil if a user may bring a table of size bytes for a name, beside the waiting
// bytes of those that it has brought and not delivered. It changes nothing.
//
// Errors: [Quota]; [Denied].
func (s *State) MayBring(name string, by Who, size, waiting uint64) error {
	rule, err := s.rules().allow(by, name, Write)
	if err != nil {
		return err
	}
	if err := s.roomForTable(rule, plus(size, waiting)); err != nil {
		return err
	}
	own, others := s.Charged(by.UID)
	if own := plus(own.Tables, plus(size, waiting)); s != nil && s.bounds.Tables > 0 && own > Share(s.bounds.Tables, others.Tables, by.UID == s.rules().Owner) {
		return s.noRoomForTables(by.UID, own, others.Tables)
	}
	return nil
}

// roomForTable returns an error if a table and the parts exceed the quota of its rule in bytes.
func (s *State) roomForTable(rule *Rule, size uint64) error {
	if rule.Bytes == nil || size == 0 {
		return nil
	}
	if u := s.usage(rule); plus(u.bytes, size) > *rule.Bytes {
		return because(fail(Quota, "%d bytes are kept and booked, a table of %d more does not fit the %d bytes of %s: remove names, or let readers of retired versions go", u.bytes, size, *rule.Bytes, rule), u.writers...)
	}
	return nil
}
