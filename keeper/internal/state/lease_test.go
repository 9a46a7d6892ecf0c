package state

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/gpumem"
)

func TestLease(t *testing.T) {
	s := New(open())
	put(t, s, newBooking("weights", labelled("a", "b")))
	for i := range 2 {
		put(t, s, newBooking("parts", of("x", i, 2), on(device(i))))
	}
	book(t, s, newBooking("soon"))
	for _, part := range []int{-1, 0} {
		v, p, err := s.Lease("weights", part, reader, nil)
		require.NoError(t, err)
		require.EqualValues(t, 1, v.N)
		require.Equal(t, &v.Parts[0], p)
	}
	_, p, err := s.Lease("parts", 1, reader, nil)
	require.NoError(t, err)
	require.Equal(t, device(1), p.Memory.Device)
	_, _, err = s.Lease("parts", -1, reader, nil)
	refused(t, err, BadRequest, "from 0 to 1")
	for _, part := range []int{-2, 2} {
		_, _, err = s.Lease("parts", part, reader, nil)
		refused(t, err, NotFound, "0 to 1")
	}
	_, _, err = s.Lease("other", -1, reader, nil)
	refused(t, err, NotFound, "is not kept here")
	_, _, err = s.Lease("soon", -1, reader, nil)
	require.Equal(t, writer, refused(t, err, NotFound, "being written").Holders[0].Who)
	for _, name := range []string{"weights", "other"} {
		_, _, err = s.Lease(name, -1, nobody, nil)
		refused(t, err, Denied)
	}
}

// A name or a device that is draining takes no new leases.
func TestDrain(t *testing.T) {
	s := New(open())
	for i := range 2 {
		put(t, s, newBooking("weights", of("x", i, 2), on(device(i))))
	}
	lease := func(part int) error {
		s = restarted(t, s, open())
		_, _, err := s.Lease("weights", part, reader, nil)
		return err
	}
	refused(t, s.Drain("weights", reader, true), Denied)
	refused(t, s.Drain("other", writer, true), NotFound)
	require.NoError(t, s.Drain("weights", writer, true))
	refused(t, lease(0), Draining, `"weights" is draining`)
	put(t, s, newBooking("weights", of("y", 0, 1), on(device(0))))
	refused(t, lease(0), Draining)
	require.NoError(t, s.Drain("weights", writer, false))
	require.NoError(t, lease(0))

	refused(t, s.DrainDevice(device(0), writer, true), Denied, "uid 1000")
	for range 2 {
		require.NoError(t, s.DrainDevice(device(0), owner, true))
	}
	require.NoError(t, s.DrainDevice(device(1), owner, true))
	refused(t, lease(0), Draining, "is on GPU-67")
	_, err := s.Book(newBooking("new"))
	refused(t, err, Draining, "another device")
	book(t, s, newBooking("new", on(device(2))))
	for range 2 {
		require.NoError(t, s.DrainDevice(device(0), owner, false))
	}
	require.NoError(t, lease(0))
	for i := range maxDraining {
		err = s.DrainDevice(gpumem.UUID{1: byte(i)}, owner, true)
	}
	refused(t, err, BadRequest, "256 devices")
}

// Reports of processes that may write or remove decide whether a part is served.
func TestReport(t *testing.T) {
	s := New(open())
	for i := range 2 {
		put(t, s, newBooking("weights", of("x", i, 2), on(device(i))))
	}
	report := func(by Who, verdict PartState, reason string) bool {
		t.Helper()
		counted := ok(s.Report("weights", 1, 1, by, verdict, reason))(t)
		s = restarted(t, s, open())
		return counted
	}
	denied := func(by Who) {
		t.Helper()
		_, err := s.Report("weights", 1, 1, by, OK, "")
		refused(t, err, Denied, "may not remove")
	}
	lease := func(part int) error { _, _, err := s.Lease("weights", part, reader, nil); return err }
	for range 3 {
		require.False(t, report(reader, Damaged, "a bit flipped"))
	}
	denied(reader)
	require.NoError(t, lease(1))
	require.Equal(t, 3, s.get("weights").Current.Parts[1].Reports)
	require.True(t, report(writer, Quarantined, "who knows"))
	require.True(t, report(writer, Quarantined, "again"))
	require.Equal(t, writer, refused(t, lease(1), IsQuarantined, "who knows", "version 1").Holders[0].Who)
	require.NoError(t, lease(0), "only that part is bad")
	denied(reader)
	require.False(t, report(reader, Damaged, "no"))
	refused(t, lease(1), IsQuarantined, "who knows")
	require.True(t, report(writer, OK, ""))
	require.NoError(t, lease(1))
	require.True(t, report(writer, Damaged, "sums differ"))
	_, err := s.Report("weights", 1, 1, writer, OK, "")
	refused(t, err, IsDamaged, "for good")
	require.True(t, report(writer, Quarantined, ""))
	refused(t, lease(1), IsDamaged, "sums differ", "another version")

	put(t, s, newBooking("weights"))
	require.NoError(t, lease(0))
	old := s.get("weights").Retired[0]
	counted := ok(s.Report("weights", 1, 0, writer, Damaged, "later"))(t)
	require.True(t, counted)
	require.Equal(t, Damaged, s.get("weights").Retired[0].Parts[0].State)
	require.NoError(t, lease(0), "that was the retired one")
	require.Equal(t, OK, old.Parts[0].State, "what was shared is as it was")
}

// A process that may write and not remove a name can quarantine it, and cannot end that.
func TestWriterEndsNoQuarantine(t *testing.T) {
	s := New(with(func(r *Rule) { r.Allow = []Right{Read, Write} }))
	put(t, s, newBooking("weights"))
	counted := ok(s.Report("weights", 1, 0, writer, Quarantined, ""))(t)
	require.True(t, counted)
	_, err := s.Report("weights", 1, 0, writer, OK, "")
	refused(t, err, Denied, "may not remove")
	counted = ok(s.Report("weights", 1, 0, owner, OK, ""))(t)
	require.True(t, counted)
	_, _, err = s.Lease("weights", 0, reader, nil)
	require.NoError(t, err)
}

func TestReportRefuses(t *testing.T) {
	s := New(open())
	put(t, s, newBooking("weights"))
	for words, f := range map[string]func() (bool, error){
		"verdict \"bad\"": func() (bool, error) { return s.Report("weights", 1, 0, writer, "bad", "") },
		"control":         func() (bool, error) { return s.Report("weights", 1, 0, writer, Damaged, "\x00") },
	} {
		_, err := f()
		refused(t, err, BadRequest, words)
	}
	for _, c := range []struct {
		name    string
		version uint64
		part    int
	}{{"other", 1, 0}, {"weights", 2, 0}, {"weights", 0, 0}, {"weights", 1, 1}, {"weights", 1, -1}} {
		_, err := s.Report(c.name, c.version, c.part, writer, Damaged, "")
		refused(t, err, NotFound)
	}
	_, err := s.Report("weights", 1, 0, nobody, Damaged, "")
	refused(t, err, Denied)
}

func TestHoldRefuses(t *testing.T) {
	s := New(open())
	put(t, s, newBooking("weights"))
	files := s.get("weights").Current.Parts[0].Files
	for _, c := range []struct {
		name   string
		change func(*Holder)
		code   Code
		words  string
	}{
		{"weights", func(h *Holder) { h.Version = 2 }, NotFound, "the current one"},
		{"other", func(*Holder) {}, NotFound, "not kept"},
		{"weights", func(h *Holder) { h.Part = 1 }, NotFound, "no part 1"},
		{"weights", func(h *Holder) { h.Part = -1 }, NotFound, "no part -1"},
		{"weights", func(h *Holder) { h.Access = gpumem.NoAccess }, BadRequest, "access 0"},
		{"weights", func(h *Holder) { h.Access = gpumem.ReadWrite }, Denied, "may not write"},
		{"weights", func(h *Holder) { h.Who = nobody }, Denied, "no rule"},
		{"weights", func(h *Holder) { h.Pidfd = files }, BadRequest, "not of a pidfd"},
	} {
		h := Holder{Who: reader, Version: 1, Access: gpumem.ReadOnly, Since: t0}
		c.change(&h)
		refused(t, s.MayHold(c.name, h), c.code, c.words)
		_, err := s.Hold(c.name, h)
		refused(t, err, c.code, c.words)
	}
	before := string(s.Encode())
	require.NoError(t, s.MayHold("weights", Holder{Who: reader, Version: 1, Access: gpumem.ReadOnly, Since: t0}))
	require.Equal(t, before, string(s.Encode()), "it changes nothing")
	b := newBooking("weights")
	b.By.Pidfd = files
	_, err := s.Book(b)
	refused(t, err, BadRequest, "not of a pidfd")
	for _, f := range []func(HoldID) error{s.Release, s.Lose} {
		refused(t, f(99), NotFound)
	}
}

// A holder that ended without a goodbye stays until its process has ended.
func TestLose(t *testing.T) {
	s := New(open())
	put(t, s, newBooking("weights"))
	s.Dropped()
	holders := func() (all []Holder) {
		s = restarted(t, s, open())
		s.Holds(func(_ HoldID, name string, h Holder) {
			require.Equal(t, "weights", name)
			all = append(all, h)
		})
		return all
	}
	id, pidfd := hold(t, s, "weights", 1)
	require.NoError(t, s.Lose(id))
	require.True(t, holders()[0].Lost)
	require.Equal(t, []ID{pidfd}, s.Pidfds())
	require.True(t, s.Fence(pidfd))
	require.Equal(t, []ID{pidfd}, s.Dropped())
	require.Empty(t, holders())

	id, pidfd = hold(t, s, "weights", 1)
	require.True(t, s.Fence(pidfd), "the process has ended, and its connection lives in a child")
	require.True(t, holders()[0].Fenced)
	require.False(t, s.Fence(pidfd))
	require.NoError(t, s.Lose(id))
	require.Empty(t, holders())

	id, _ = hold(t, s, "weights", 1, func(h *Holder) { h.Pidfd = 0 })
	require.NoError(t, s.Lose(id))
	require.Empty(t, holders(), "nobody could say when its process ends")

	s.Dropped()
	first, old := hold(t, s, "weights", 1)
	second, pidfd := hold(t, s, "weights", 1)
	hold(t, s, "weights", 1)
	require.NoError(t, s.Lose(first))
	require.NoError(t, s.Lose(second))
	require.Equal(t, []ID{old}, s.Dropped(), "one of a process is enough")
	require.Len(t, holders(), 2)
	require.True(t, s.Fence(pidfd))
	require.Len(t, holders(), 1)
}

func TestHoldersInJSON(t *testing.T) {
	h := Holder{Who: reader, Version: 2, Part: 1, Access: gpumem.ReadWrite, Since: t0}
	text := ok(json.Marshal(h))(t)
	require.JSONEq(t, `{"uid":3000,"gid":60,"pid":3,"version":2,"part":1,"access":"read-write","since":"2026-07-01T12:00:00Z","fenced":false}`, string(text))
	var back Holder
	require.NoError(t, json.Unmarshal(text, &back))
	require.Equal(t, h, back)
	require.ErrorContains(t, json.Unmarshal([]byte(`{"access":"none"}`), &back), `access "none"`)
	require.Error(t, json.Unmarshal([]byte(`{"access":1}`), &back))
}

// Times are what a manifest can say, whatever a clock says.
func TestTimes(t *testing.T) {
	s := New(open())
	for _, when := range []time.Time{{}, time.Now(), time.Unix(1<<60, 0), time.Unix(-1<<60, 0), t0.In(time.FixedZone("x", 3600))} {
		put(t, s, newBooking("weights", func(b *Booking) { b.At, b.By.Since = when, when }))
		s.Expire(when)
		s.Retire(when)
		s = restarted(t, s, open())
	}
}
