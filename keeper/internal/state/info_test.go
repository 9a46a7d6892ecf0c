package state

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/gpumem"
)

// Stat shows a name that has everything, as a whole.
func TestStat(t *testing.T) {
	s := New(open())
	w := Writer{Who: writer, Since: t0, Pidfd: s.NewID()}
	put(t, s, newBooking("weights", by(w), bytesOf(7)))
	hold(t, s, "weights", 1)
	put(t, s, newBooking("weights", by(w), bytesOf(70)))
	s.Fence(w.Pidfd)
	w = Writer{Who: writer, Since: t0, Pidfd: s.NewID()}
	put(t, s, newBooking("weights", of("x", 0, 2), by(w), labelled("step", "7")))
	put(t, s, newBooking("weights", of("x", 1, 2), on(device(1)), labelled("step", "7")))
	s.Fence(w.Pidfd)
	hold(t, s, "weights", 3, func(h *Holder) {
		h.Who, h.Access, h.Part = Who{UID: 2001, GID: 50, PID: 22}, gpumem.ReadWrite, 1
	})
	put(t, s, newBooking("weights", of("y", 0, 2), bytesOf(5)))
	book(t, s, newBooking("weights", of("y", 1, 2), bytesOf(6)))
	require.NoError(t, errOf(s.Report("weights", 3, 1, reader, Damaged, "odd")))
	require.NoError(t, errOf(s.Report("weights", 3, 1, writer, Quarantined, "look")))
	info := ok(restarted(t, s, open()).Stat("weights", reader))(t)
	text := ok(json.Marshal(info))(t)
	digest := digestOf(s.get("weights").Current.Parts)
	require.JSONEq(t, `{
	  "name": "weights", "version": 3, "state": "quarantined", "bytes": 200, "reserved_bytes": 11, "frees_bytes": 70,
	  "digest": "`+digest+`", "labels": {"step": "7"}, "committed": "2026-07-01T12:00:00Z",
	  "parts": [
	    {"part": 0, "device": "GPU-67000000-0000-0000-0000-000000000000", "bytes": 100, "state": "ok", "writable_by": [],
	     "writer": {"uid": 2000, "gid": 50, "pid": 2, "part": 0, "access": "read-write", "since": "2026-07-01T12:00:00Z", "fenced": true},
	     "digest": "gpufd-d1:00000000000000000000000000000000"},
	    {"part": 1, "device": "GPU-67000000-0000-0000-0000-000000000001", "bytes": 100, "state": "quarantined", "reason": "look",
	     "reports": 1, "writable_by": [2, 22],
	     "writer": {"uid": 2000, "gid": 50, "pid": 2, "part": 1, "access": "read-write", "since": "2026-07-01T12:00:00Z", "fenced": false},
	     "digest": "gpufd-d1:00000000000000000000000000000001"}],
	  "holders": [{"uid": 2001, "gid": 50, "pid": 22, "version": 3, "part": 1, "access": "read-write", "since": "2026-07-01T12:00:00Z", "fenced": false, "process": 13}],
	  "retired": [
	    {"version": 1, "bytes": 7, "retired": "2026-07-01T12:00:00Z", "parts": [{"part": 0, "device": "GPU-67000000-0000-0000-0000-000000000000", "bytes": 7}],
	     "holders": [{"uid": 3000, "gid": 60, "pid": 3, "version": 1, "part": 0, "access": "read-only", "since": "2026-07-01T12:00:00Z", "fenced": false, "process": 4}]},
	    {"version": 2, "bytes": 70, "retired": "2026-07-01T12:00:00Z", "parts": [{"part": 0, "device": "GPU-67000000-0000-0000-0000-000000000000", "bytes": 70}], "holders": []}],
	  "pending": [{"transaction": "y", "parts": 2, "delivered": 1, "bytes": 11, "deadline": "2026-07-01T12:01:00Z",
	    "devices": [{"part": 1, "device": "GPU-67000000-0000-0000-0000-000000000000", "bytes": 6}, {"part": 0, "device": "GPU-67000000-0000-0000-0000-000000000000", "bytes": 5}], "writers": [{"uid": 2000, "gid": 50, "pid": 2, "part": 1, "access": "read-write", "since": "2026-07-01T12:00:00Z", "fenced": false}]}]
	}`, string(text))
}

// Lists in JSON are lists, also when there is nothing in them.
func TestStatOfLittle(t *testing.T) {
	s := New(open())
	book(t, s, newBooking("soon"))
	info := ok(s.Stat("soon", writer))(t)
	text := ok(json.Marshal(info))(t)
	require.NotContains(t, string(text), "null")
	require.Contains(t, string(text), `"state":"reserved","bytes":0,"reserved_bytes":100,"labels":{},"parts":[],"holders":[],"retired":[]`)
	require.Zero(t, s.Len())
	empty := ok(json.Marshal(s.List(nobody)))(t)
	require.Equal(t, "[]", string(empty))
}

func TestStatesShown(t *testing.T) {
	s := New(open())
	state := func() string {
		i := ok(s.Stat("weights", reader))(t)
		return i.State
	}
	for i := range 3 {
		put(t, s, newBooking("weights", of("x", i, 3), on(device(i))))
	}
	require.Equal(t, "ok", state())
	require.NoError(t, s.DrainDevice(device(2), owner, true))
	require.Equal(t, "draining", state())
	require.NoError(t, s.DrainDevice(device(2), owner, false))
	require.NoError(t, s.Drain("weights", writer, true))
	require.Equal(t, "draining", state())
	for part, verdict := range []PartState{Quarantined, Damaged} {
		require.NoError(t, errOf(s.Report("weights", 1, part, writer, verdict, "")))
		require.Equal(t, string(verdict), state())
	}
	hold(t, s, "weights", 1)
	require.NoError(t, s.Remove("weights", writer))
	s.Retire(t0)
	require.Equal(t, "removed", state())
}

func TestListShowsWhatOneMaySee(t *testing.T) {
	p := open()
	p.Rules = append(p.Rules, Rule{UID: at(nobody.UID), Prefix: "b", Allow: []Right{Remove}})
	s := New(p)
	for _, name := range []string{"c", "a", "b"} {
		put(t, s, newBooking(name))
	}
	put(t, s, newBooking("gone"))
	require.NoError(t, s.Remove("gone", writer))
	s.Retire(t0)
	names := func(w Who) (all []string) {
		for _, i := range s.List(w) {
			all = append(all, i.Name)
		}
		return all
	}
	require.Equal(t, []string{"a", "b", "c"}, names(reader))
	require.Equal(t, []string{"b"}, names(nobody))
	_, err := s.Stat("gone", reader)
	refused(t, err, NotFound)
	_, err = s.Stat("a", nobody)
	refused(t, err, Denied)
	var current []string
	s.Current(func(name string, v *Version) {
		require.EqualValues(t, 1, v.N)
		current = append(current, name)
	})
	require.Equal(t, []string{"a", "b", "c"}, current)
}

// Removing frees what nobody has: no holder of the version, no writer of the part.
func TestFreesBytes(t *testing.T) {
	s := New(open())
	frees := func() uint64 { return s.List(reader)[0].FreesBytes }
	w := Writer{Who: writer, Since: t0, Pidfd: s.NewID()}
	put(t, s, newBooking("weights", by(w)))
	require.Zero(t, frees())
	s.Fence(w.Pidfd)
	require.EqualValues(t, 100, frees())
	id, _ := hold(t, s, "weights", 1)
	require.Zero(t, frees())
	require.NoError(t, s.Release(id))
	require.EqualValues(t, 100, frees())
}

func TestErrors(t *testing.T) {
	var none *Error
	require.Empty(t, none.Error())
	require.Empty(t, CodeOf(nil))
	require.Empty(t, CodeOf(none))
	text := ok(json.Marshal(because(fail(Quota, "no"), newBooking("x").By.asHolder(1))))(t)
	require.JSONEq(t, `{"code":"quota","message":"no","holders":[{"uid":2000,"gid":50,"pid":2,"part":1,"access":"read-write","since":"`+t0.Format(time.RFC3339)+`","fenced":false}]}`, string(text))
}
