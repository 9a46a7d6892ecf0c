package state

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// The bounds of TestModel's policy, which are met all the time.
const (
	modelBytes  = 600
	modelNames  = 3
	modelLeases = 4
	modelExpiry = 30 * time.Second
	modelGrace  = 20 * time.Second
)

func modelPolicy() Policy {
	p := with(func(r *Rule) {
		r.Bytes, r.Names, r.Expiry = at(uint64(modelBytes)), at(modelNames), Duration(modelExpiry)
	})
	p.Rules[1].Leases = at(modelLeases)
	p.Grace = Duration(modelGrace)
	return p
}

// A world is a keeper, the fd store beside it, and their users.
type world struct {
	*testing.T
	*rand.Rand
	*model
	s       *State
	store   map[ID]bool // what the fd store has
	pidfds  map[int32]ID
	pid     int32
	content int
	dropped map[ID]bool
	done    map[string]int // steps by what came of them
}

// A step does something to next, and returns what to do to the model if next becomes the
// state: nil changes nothing.
type step func(next *State) (what string, then func())

// TestModel does thousands of random steps to a State and to a model, with a restart
// after each, and compares the two.
func TestModel(t *testing.T) {
	seeds, steps := 8, 2000
	if testing.Short() {
		seeds = 4
	}
	done := map[string]int{}
	for seed := range seeds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			w := &world{T: t, Rand: rand.New(rand.NewPCG(uint64(seed), 1)), model: newModel(), s: New(modelPolicy()),
				store: map[ID]bool{}, pidfds: map[int32]ID{}, pid: 10, dropped: map[ID]bool{}, done: done}
			for range steps {
				w.one()
			}
		})
	}
	// It fails if the steps have become harmless.
	for _, what := range []string{"book", "book quota", "book conflict", "book taken", "book denied", "book expired", "deliver", "commit", "deliver conflict",
		"deliver expired", "deliver quota", "cancel", "kill", "hold", "release", "lose", "revoke", "remove", "remove not-found", "expire", "retire", "lease quota",
		"grow", "shrink", "shrink conflict", "park", "park conflict", "park no-room", "park quota", "unpark", "detach"} {
		require.Positive(t, done[what], "%s: %v", what, done)
	}
}

// one makes a step, as a keeper does: a clone, a swap, drops. Now and then the keeper dies
// before the swap, or before the drops.
func (w *world) one() {
	w.now = w.now.Add(time.Duration(w.IntN(1200)) * time.Millisecond)
	if w.IntN(300) == 0 {
		w.now = w.now.Add(recordAge)
	}
	steps := []step{w.book, w.book, w.book, w.book, w.deliver, w.deliver, w.deliver, w.deliver, w.cancel, w.kill,
		w.hold, w.hold, w.hold, w.release, w.lose, w.revoke, w.remove, w.expire, w.retire, w.retire, w.growOrShrink, w.park, w.unpark, w.detach}
	next := w.s.Clone()
	what, then := steps[w.IntN(len(steps))](next)
	w.done[what]++
	switch fate := w.IntN(20); {
	case fate == 0:
	case then == nil:
		require.Equal(w, string(w.s.Encode()), string(next.Encode()), what)
	default:
		then()
		w.tidy()
		w.s = next
		if fate > 1 {
			w.drop(next.Dropped())
			require.Empty(w, next.Dropped())
		}
	}
	w.restart()
	w.compare(w.T, w.s)
	require.Equal(w, w.ids(), w.store)
	bytes, names := w.usage()
	require.LessOrEqual(w, bytes, uint64(modelBytes))
	require.LessOrEqual(w, len(names), modelNames)
}

// drop gives up descriptors, each once.
func (w *world) drop(ids []ID) {
	for _, id := range ids {
		require.True(w, w.store[id], "id %d is not in the store", id)
		require.False(w, w.dropped[id], "id %d was dropped before", id)
		delete(w.store, id)
		w.dropped[id] = true
	}
}

// restart starts another keeper with the store. It drops what no manifest names.
func (w *world) restart() {
	w.s = restarted(w, w.s, modelPolicy())
	named := w.s.Named()
	for id := range w.store {
		if !named[id] {
			delete(w.store, id)
		}
	}
}

// keep puts new descriptors into the store.
func (w *world) keep(next *State) ID {
	id := next.NewID()
	require.False(w, w.store[id] || w.dropped[id], "id %d is not new", id)
	w.store[id] = true
	return id
}

// pidfd is that of a process, which the store may have already.
func (w *world) pidfd(next *State, pid int32) ID {
	if id := w.pidfds[pid]; w.store[id] {
		return id
	}
	id := w.keep(next)
	w.pidfds[pid] = id
	return id
}

func (w *world) name() string { return string(rune('a' + w.IntN(5))) }

// someone is one of four processes; each lives until it is killed.
func (w *world) someone() Who {
	n := w.Uint32N(4)
	return withPID([]Who{{UID: 2000, GID: 50}, {UID: 2001, GID: 50}, {UID: owner.UID, GID: owner.GID}, nobody}[n], w.pid+int32(n))
}

func withPID(w Who, pid int32) Who {
	w.PID = pid
	return w
}

func (w *world) book(next *State) (string, func()) {
	b := newBooking(w.name(), bytesOf(1+w.Uint64N(150)), by(Writer{Who: w.someone(), Since: w.now}), func(b *Booking) { b.At = w.now })
	if w.IntN(3) > 0 {
		of([]string{"x", "y"}[w.IntN(2)]+b.Name+fmt.Sprint(b.By.UID/1000), w.IntN(2), 2)(&b)
		b.Deadline = w.now.Add(time.Duration(5+w.IntN(20)) * time.Second)
	}
	if w.IntN(4) == 0 {
		expecting(w.number(b.Name) + w.Uint64N(2))(&b)
	}
	b.By.Pidfd = w.pidfd(next, b.By.PID)
	t, code := w.mayBook(&b)
	ticket, err := next.Book(b)
	require.Equal(w, code, CodeOf(err), err)
	if err != nil {
		return "book " + string(code), nil
	}
	return "book", func() {
		if t == nil {
			w.content++
			t = &mTx{content: w.content, name: b.Name, id: b.Transaction, parts: b.Parts, expect: b.Expect}
			w.txs = append(w.txs, t)
		}
		if b.Deadline.After(t.deadline) {
			t.deadline = b.Deadline
		}
		t.bookings = append(t.bookings, &mPart{ticket: ticket, index: b.Index, bytes: b.Bytes, uid: b.By.UID, pidfd: b.By.Pidfd})
	}
}

// mayBook returns what should become of a booking, and which transaction it joins.
func (w *world) mayBook(b *Booking) (*mTx, Code) {
	if b.By.UID == nobody.UID {
		return nil, Denied
	}
	if b.Expect != nil && *b.Expect != w.number(b.Name) {
		return nil, Conflict
	}
	i := slices.IndexFunc(w.txs, func(t *mTx) bool { return t.id != "" && t.name == b.Name && t.id == b.Transaction })
	var t *mTx
	if i >= 0 {
		t = w.txs[i]
		switch same := func(p *mPart) bool { return p.index == b.Index }; {
		case !w.now.Before(t.deadline):
			return nil, Expired
		case (t.expect == nil) != (b.Expect == nil) || t.expect != nil && *t.expect != *b.Expect:
			return nil, Conflict
		case slices.ContainsFunc(slices.Concat(t.bookings, t.come), same):
			return nil, Taken
		}
	}
	if bytes, names := w.usage(); b.By.UID != owner.UID && (bytes+b.Bytes > modelBytes || len(names) == modelNames && !names[b.Name]) {
		return nil, Quota
	}
	return t, ""
}

func (w *world) deliver(next *State) (string, func()) {
	if len(w.txs) == 0 {
		return "idle", nil
	}
	t := w.txs[w.IntN(len(w.txs))]
	if len(t.bookings) == 0 {
		return "idle", nil
	}
	p := *t.bookings[w.IntN(len(t.bookings))]
	part := partOf(next, newBooking(t.name, bytesOf(p.bytes), func(b *Booking) { b.Index = p.index }))
	w.store[part.Files] = true
	part.Digest = fmt.Sprintf("gpufd-d1:%032x", t.content)
	if w.IntN(2) == 0 {
		part.Table, part.TableSize = w.keep(next), 25
	}
	bytes, _ := w.usage()
	full := p.uid != owner.UID && bytes+part.TableSize > modelBytes
	late := !t.deadline.IsZero() && !w.now.Before(t.deadline)
	whole := len(t.come)+1 == t.parts
	conflict := whole && t.expect != nil && *t.expect != w.number(t.name)
	v, err := next.Deliver(p.ticket, part, w.now)
	then := func() {
		t.bookings = slices.DeleteFunc(t.bookings, func(x *mPart) bool { return x.ticket == p.ticket })
		p.files, p.table, p.digest, p.tableSize = part.Files, part.Table, part.Digest, part.TableSize
		t.come = append(t.come, &p)
		if whole {
			require.Equal(w, conflict, w.commit(t))
		}
	}
	switch {
	case late:
		refused(w, err, Expired)
		return "deliver expired", nil
	case full:
		require.False(w, refused(w, err, Quota, "a table of 25 more").Changed)
		return "deliver quota", nil
	case conflict:
		require.True(w, refused(w, err, Conflict).Changed)
		return "deliver conflict", then
	}
	require.NoError(w, err)
	require.Equal(w, whole, v != nil)
	if !whole {
		return "deliver", then
	}
	require.Equal(w, w.last[t.name]+1, v.N)
	return "commit", then
}

func (w *world) cancel(next *State) (string, func()) {
	for _, t := range w.txs {
		if len(t.bookings) > 0 && w.IntN(2) == 0 {
			ticket := t.bookings[0].ticket
			require.NoError(w, next.Cancel(ticket))
			return "cancel", func() { w.model.cancel(t, func(p *mPart) bool { return p.ticket == ticket }) }
		}
	}
	refused(w, next.Cancel("t0"), NotFound)
	return "idle", nil
}

// kill ends a process; another comes in its place.
func (w *world) kill(next *State) (string, func()) {
	pids := []int32{}
	for pid := range w.pidfds {
		pids = append(pids, pid)
	}
	if len(pids) == 0 {
		return "idle", nil
	}
	slices.Sort(pids)
	pid := pids[w.IntN(len(pids))]
	pidfd := w.pidfds[pid]
	require.Equal(w, w.ids()[pidfd], next.Fence(pidfd))
	return "kill", func() {
		delete(w.pidfds, pid)
		w.pid += 10
		w.fence(pidfd)
	}
}

func (w *world) remove(next *State) (string, func()) {
	name := w.name()
	err := next.Remove(name, owner)
	v := w.current(name)
	if v == nil {
		refused(w, err, NotFound)
		return "remove not-found", nil
	}
	require.NoError(w, err)
	return "remove", func() { v.retired = true }
}

func (w *world) expire(next *State) (string, func()) {
	return w.passes("expire", next, next.Expire, w.model.expire)
}

func (w *world) retire(next *State) (string, func()) {
	return w.passes("retire", next, next.Retire, w.model.retire)
}

// passes lets time pass: f reports whether it has changed something, or no keeper would write that down.
func (w *world) passes(what string, next *State, f func(time.Time) bool, then func()) (string, func()) {
	before := string(next.Encode())
	changed := f(w.now)
	require.True(w, changed || before == string(next.Encode()), what)
	return what, then
}
