package state

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A model is what a state should be, said as plainly as can be: flat lists, and loops
// over all of them. The steps of TestModel apply to it what they do to a State.
type model struct {
	now      time.Time
	last     map[string]uint64    // the last version of each name that is remembered
	used     map[string]time.Time // zero: to be noted
	removed  map[string]time.Time // zero: to be noted
	versions []*mVersion
	txs      []*mTx
	holds    []*mHold
	pool     []ID
}

type mVersion struct {
	name    string
	n       uint64
	retired bool
	at      time.Time // when it was retired, zero: to be noted
	parts   []*mPart
}

// An mTx is a transaction; its content tells it from all others.
type mTx struct {
	content  int
	name, id string
	parts    int
	expect   *uint64
	deadline time.Time
	bookings []*mPart
	come     []*mPart
}

// An mPart is a part that is booked (with a ticket), or has come.
type mPart struct {
	ticket       string
	index        int
	bytes        uint64
	uid          uint32
	pidfd        ID
	files, table ID
	parked       []ID
	tableSize    uint64
	digest       string
}

type mHold struct {
	id           HoldID
	name         string
	n            uint64
	part         int
	pidfd        ID
	pid          int32
	fenced, lost bool
	revoked      bool
	detached     bool
}

func (h *mHold) leased() bool { return !h.lost && !h.revoked }

func newModel() *model {
	return &model{now: t0, last: map[string]uint64{}, used: map[string]time.Time{}, removed: map[string]time.Time{}}
}

func (m *model) current(name string) *mVersion {
	for _, v := range m.versions {
		if v.name == name && !v.retired {
			return v
		}
	}
	return nil
}

func (m *model) number(name string) uint64 {
	if v := m.current(name); v != nil {
		return v.n
	}
	return 0
}

// parts are all that count: kept, come and booked.
func (m *model) parts(f func(name string, p *mPart)) {
	for _, v := range m.versions {
		for _, p := range v.parts {
			f(v.name, p)
		}
	}
	for _, t := range m.txs {
		for _, p := range slices.Concat(t.bookings, t.come) {
			f(t.name, p)
		}
	}
}

// usage is what counts against the quota of modelPolicy.
func (m *model) usage() (bytes uint64, names map[string]bool) {
	names = map[string]bool{}
	m.parts(func(name string, p *mPart) {
		if p.uid != owner.UID {
			bytes += p.bytes + p.tableSize
			names[name] = true
		}
	})
	return bytes, names
}

// ids are all that the state should name.
func (m *model) ids() map[ID]bool {
	all := map[ID]bool{}
	m.parts(func(_ string, p *mPart) { all[p.files], all[p.table], all[p.pidfd] = true, true, true })
	for _, h := range m.holds {
		all[h.pidfd] = true
	}
	for _, id := range m.pool {
		all[id] = true
	}
	delete(all, 0)
	return all
}

// has reports whether there is anything of a name but the number of its last version.
func (m *model) has(name string) bool {
	return slices.ContainsFunc(m.versions, func(v *mVersion) bool { return v.name == name }) ||
		slices.ContainsFunc(m.txs, func(t *mTx) bool { return t.name == name }) ||
		slices.ContainsFunc(m.holds, func(h *mHold) bool { return h.name == name })
}

func (m *model) expire() {
	m.txs = slices.DeleteFunc(m.txs, func(t *mTx) bool { return !t.deadline.IsZero() && !m.now.Before(t.deadline) })
	for _, v := range m.versions {
		writing := slices.ContainsFunc(m.txs, func(t *mTx) bool { return t.name == v.name })
		leased := slices.ContainsFunc(m.holds, func(h *mHold) bool { return h.name == v.name && h.leased() })
		switch used := m.used[v.name]; {
		case v.retired || writing || leased || v.parts[0].uid == owner.UID:
		case used.IsZero():
			m.used[v.name] = m.now
		case !m.now.Before(used.Add(modelExpiry)):
			v.retired = true
		}
	}
	for name := range m.last {
		switch {
		case m.has(name):
		case m.removed[name].IsZero():
			m.removed[name] = m.now
		case !m.now.Before(m.removed[name].Add(recordAge)):
			delete(m.last, name)
			delete(m.removed, name)
		}
	}
}

func (m *model) retire() {
	for _, v := range m.versions {
		if v.retired && v.at.IsZero() {
			v.at = m.now
		}
	}
	m.versions = slices.DeleteFunc(m.versions, func(v *mVersion) bool {
		held := slices.ContainsFunc(m.holds, func(h *mHold) bool { return h.name == v.name && h.n == v.n && !h.revoked })
		return v.retired && (!held || !m.now.Before(v.at.Add(modelGrace)))
	})
	m.holds = slices.DeleteFunc(m.holds, func(h *mHold) bool {
		return !h.revoked && !slices.ContainsFunc(m.versions, func(v *mVersion) bool { return h.name == v.name && h.n == v.n })
	})
}

// commit publishes a transaction that is whole, unless it expects something else.
func (m *model) commit(t *mTx) (conflict bool) {
	m.drop(t)
	if t.expect != nil && *t.expect != m.number(t.name) {
		return true
	}
	if v := m.current(t.name); v != nil {
		v.retired, v.at = true, m.now
	}
	slices.SortFunc(t.come, func(a, b *mPart) int { return a.index - b.index })
	m.last[t.name]++
	m.versions = append(m.versions, &mVersion{name: t.name, n: m.last[t.name], parts: t.come})
	m.used[t.name] = m.now
	return false
}

func (m *model) drop(t *mTx) {
	m.txs = slices.DeleteFunc(m.txs, func(x *mTx) bool { return x == t })
}

func (m *model) cancel(t *mTx, which func(*mPart) bool) {
	t.bookings = slices.DeleteFunc(t.bookings, which)
	if len(t.bookings)+len(t.come) == 0 {
		m.drop(t)
	}
}

func (m *model) fence(pidfd ID) {
	for _, t := range slices.Clone(m.txs) {
		m.cancel(t, func(p *mPart) bool { return p.pidfd == pidfd })
	}
	m.parts(func(_ string, p *mPart) {
		if p.pidfd == pidfd {
			p.pidfd = 0
		}
	})
	for _, h := range m.holds {
		if h.pidfd == pidfd {
			h.pidfd, h.fenced = 0, true
		}
	}
	m.holds = slices.DeleteFunc(m.holds, func(h *mHold) bool { return h.fenced && !h.leased() })
}

// tidy forgets what is over: it follows each step.
func (m *model) tidy() {
	for name := range m.removed {
		if m.has(name) {
			delete(m.removed, name)
		}
	}
}

// compare requires the state to be as the model says.
func (m *model) compare(t *testing.T, s *State) {
	t.Helper()
	require.Equal(t, m.ids(), s.Named())
	known := slices.Sorted(maps.Keys(m.last))
	for _, x := range m.txs {
		known = append(known, x.name)
	}
	slices.Sort(known)
	known = slices.Compact(known)
	require.Len(t, s.records, len(known))
	tickets := 0
	for i, name := range known {
		r := s.records[i]
		require.Equal(t, name, r.Name)
		require.Equal(t, m.last[name], r.Last, name)
		m.compareVersions(t, r)
		holders := []HoldID{}
		for _, h := range r.Holders {
			holders = append(holders, h.ID)
		}
		want := []HoldID{}
		for _, h := range m.holds {
			if h.name == name {
				want = append(want, h.id)
			}
		}
		require.Equal(t, want, holders)
	}
	for _, x := range m.txs {
		tickets += len(x.bookings)
		for _, p := range x.bookings {
			b := s.Bookings()[p.ticket]
			require.Equal(t, fmt.Sprint(x.name, x.id, p.index, p.bytes, p.pidfd), fmt.Sprint(b.Name, b.Transaction, b.Index, b.Bytes, b.By.Pidfd))
		}
	}
	require.Len(t, s.Bookings(), tickets)
	require.Len(t, s.FreeChunks(), m.freeChunks())
}

// compareVersions requires the versions of a name to have the parts of one transaction each.
func (m *model) compareVersions(t *testing.T, r *record) {
	t.Helper()
	got, want := []string{}, []string{}
	for _, v := range r.versions() {
		one := fmt.Sprint(v.N, v != r.Current)
		for _, p := range v.Parts {
			one += fmt.Sprint(" ", p.Index, p.Bytes, p.Files, p.Parked, p.Table, p.Writer.Pidfd, p.Digest)
			require.Equal(t, v.Parts[0].Digest, p.Digest, "a mixture")
		}
		got = append(got, one)
	}
	for _, v := range m.versions {
		if v.name != r.Name {
			continue
		}
		one := fmt.Sprint(v.n, v.retired)
		for i, p := range v.parts {
			one += fmt.Sprint(" ", i, p.bytes, p.files, p.parked, p.table, p.pidfd, p.digest)
		}
		want = append(want, one)
	}
	require.Equal(t, want, got)
}
