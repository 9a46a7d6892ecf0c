package state

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/gpumem"
)

var update = flag.Bool("update", false, "write testdata")

// everything is a state with each kind of line, and each member of it.
func everything(t testing.TB) *State {
	s := New(open())
	w := Writer{Who: writer, Since: t0, Pidfd: s.NewID()}
	put(t, s, newBooking("weights", by(w)))
	hold(t, s, "weights", 1)
	id, _ := hold(t, s, "weights", 1)
	require.NoError(t, s.Lose(id))
	_, pidfd := hold(t, s, "weights", 1)
	s.Fence(pidfd)
	b := newBooking("weights", by(w), labelled("step", "<7>"), bytesOf(5000), func(b *Booking) { b.Kind, b.At = gpumem.CUDA, t0.Add(1) })
	p := partOf(s, b)
	p.Table, p.TableSize = s.NewID(), 12
	require.NoError(t, errOf(s.Deliver(book(t, s, b), p, b.At)))
	require.NoError(t, errOf(s.Report("weights", 2, 0, reader, Damaged, "")))
	require.NoError(t, errOf(s.Report("weights", 2, 0, writer, Damaged, "sums differ")))
	s.Fence(w.Pidfd)
	require.NoError(t, s.Drain("weights", writer, true))
	put(t, s, newBooking("weights", of("y", 1, 2), expecting(2), labelled("a", "b")))
	book(t, s, newBooking("weights", of("y", 0, 2), expecting(2), labelled("a", "b")))
	book(t, s, newBooking("a"))
	put(t, s, newBooking("gone"))
	require.NoError(t, s.Remove("gone", writer))
	put(t, s, newBooking("shown"))
	id, _ = hold(t, s, "shown", 1)
	require.NoError(t, s.Remove("shown", writer))
	require.NoError(t, s.Revoke(id))
	s.SetCounts(map[string]uint64{"commits": 7})
	s.Retire(t0)
	s.Expire(t0)
	require.NoError(t, s.DrainDevice(device(1), owner, true))
	require.NoError(t, s.DrainDevice(device(0), owner, true))
	park(t, s)
	return s
}

// park keeps a name that is parked, and whose reader has detached.
func park(t testing.TB, s *State) {
	t.Helper()
	withPool(t, s, 3)
	b := newBooking("parked", by(Writer{Who: owner, Since: t0}), on(device(2)))
	p := partOf(s, b)
	p.Layout = "gpufd-l1:0123456789abcdef0123456789abcdef"
	require.NoError(t, errOf(s.Deliver(book(t, s, b), p, b.At)))
	id, _ := hold(t, s, "parked", 1)
	require.NoError(t, s.Detach(id))
	parked(t, s, "parked", owner)
}

// A keeper reads what one wrote before it: this fails if the format changes. What is new
// has to be left out when it is zero, or the first line has to change.
func TestFormat(t *testing.T) {
	const path = "testdata/manifest-1.txt"
	text := everything(t).Encode()
	if *update {
		require.NoError(t, os.WriteFile(path, text, 0o644))
	}
	want := ok(os.ReadFile(path))(t)
	require.Equal(t, string(want), string(text))
	for _, word := range []string{wordState, wordOutcome, wordName, wordCurrent, wordRetired, wordPart, wordTransaction, wordDelivered, wordBooking, wordHolder} {
		require.Contains(t, string(text), "\n"+word+" ")
	}
}

// Manifests of keepers that knew no outcomes, counts and holders that were told to let go are read.
func TestOlderManifest(t *testing.T) {
	text := ok(os.ReadFile("testdata/manifest-1-old.txt"))(t)
	s := ok(Decode(text, open()))(t)
	for ticket, b := range s.Bookings() {
		require.NoError(t, errOf(s.Deliver(ticket, partOf(s, b), t0)))
		version, _, ok := s.Outcome(ticket, b.By.Who)
		require.True(t, ok)
		require.NotZero(t, version)
	}
	restarted(t, s, open())
}

// A state is the same after a restart, but for what it has dropped.
func TestDecodeIsTheWayBack(t *testing.T) {
	s := everything(t)
	back := restarted(t, s, open())
	s.Dropped()
	for _, r := range s.records {
		b := back.get(r.Name)
		require.Equal(t, r.Current, b.Current)
		require.Equal(t, slices.Concat(r.Retired), slices.Concat(b.Retired))
		require.Equal(t, slices.Concat(r.Pending), slices.Concat(b.Pending))
		require.Equal(t, slices.Concat(r.Holders), slices.Concat(b.Holders))
	}
	require.Equal(t, s.draining, back.draining)
	require.Equal(t, s.size, back.size)
	require.Equal(t, s.Named(), back.Named())
	require.Equal(t, s.NewID(), back.NewID())
	require.Equal(t, s.List(owner), back.List(owner))
}

// sealed makes lines a manifest.
func sealed(lines string) []byte {
	text := firstLine + lines
	return []byte(text + lastLine([]byte(text)))
}

func TestDecodeRefuses(t *testing.T) {
	good := everything(t).Encode()
	lines := strings.TrimPrefix(string(good[:bytes.LastIndex(good, []byte(lastWord))]), firstLine)
	require.Equal(t, string(good), string(sealed(lines)))
	for words, text := range map[string][]byte{
		"begins with \"\"":          nil,
		"begins with \"gpufd-keepe": []byte("gpufd-keeper-manifest 2\n"),
		"checksum":                  good[:len(good)-1],
		"cut off":                   good[:len(good)/2],
		"is damaged":                bytes.Replace(good, []byte("weights"), []byte("wEights"), 1),
		"that of the others":        append(bytes.Clone(good), '\n'),
		"bytes; ":                   make([]byte, maxManifest+1),
		"says nothing":              sealed(""),
		"instead of the state":      sealed("name {}\n"),
		"line 2":                    sealed("state\n"),
		"as this keeper would":      sealed(strings.Replace(lines, `{"last_id":`, `{ "last_id":`, 1)),
	} {
		_, err := Decode(text, open())
		require.ErrorContains(t, err, words)
		require.ErrorContains(t, err, "manifest: ")
	}
	// Each changes something of a manifest that is good.
	for words, edit := range map[string][2]string{
		"before the first name":   {"name {\"name\":\"a\"}\n", ""},
		"unknown word":            {"holder ", "Holder "},
		"out of order":            {`name {"name":"a"}`, `name {"name":"z"}`},
		"'@'":                     {`name {"name":"a"}`, `name {"name":"@"}`},
		"is the last, and":        {`"last":2`, `"last":3`},
		"is out of order":         {`current {"n":2`, `current {"n":1`},
		"not their digest":        {`gpufd-v1:`, `gpufd-v2:`},
		"part 1 is out of":        {`part {"index":0`, `part {"index":1`},
		"invalid character":       {`part {`, `part `},
		"want \"gpufd-d1:":        {`gpufd-d1:`, `gpufd-d2:`},
		"5001":                    {`"bytes":5000`, `"bytes":5001`},
		"is \"bad\"":              {`"state":"ok"`, `"state":"bad"`},
		"comes twice, or was not": {`"files":10`, `"files":99`},
		"id 3":                    {`"files":10`, `"files":3`},
		"of a pidfd and of":       {`"pidfd":4`, `"pidfd":10`},
		"ticket":                  {`"ticket":"t`, `"ticket":"x`},
		"parts of 1":              {`"parts":2`, `"parts":1`},
		"a part comes twice":      {`booking {"ticket":"t15","index":0`, `booking {"ticket":"t15","index":1`},
		"part 5 of 2":             {`booking {"ticket":"t15","index":0`, `booking {"ticket":"t15","index":5`},
		"has no deadline":         {`"deadline":"2026-07-01T12:01:00Z"`, `"deadline":"0001-01-01T00:00:00Z"`},
		"access":                  {`"read-only"`, `"none"`},
		"which is not there":      {`"version":1,"part"`, `"version":9,"part"`},
		"without an id":           {`holder {"id":5`, `holder {"id":0`},
		"are out of order":        {`"draining":[`, `"draining":[[200],`},
		"driver 7":                {`"kind":2`, `"kind":7`},
		"33 labels":               {`"labels":{"step"`, `"labels":{` + manyLabels() + `"step"`},
		"part 0 is":               {`"reports":1`, `"reports":-1`},
	} {
		require.Contains(t, lines, edit[0])
		require.ErrorContains(t, errOf(Decode(sealed(strings.Replace(lines, edit[0], edit[1], 1)), open())), words, "%q", edit)
	}
}

func manyLabels() (text string) {
	for i := range MaxLabels {
		text += fmt.Sprintf(`"k%d":"",`, i)
	}
	return text
}

// Every byte counts.
func TestDecodeNoticesEachByte(t *testing.T) {
	text := everything(t).Encode()
	for i := range text {
		text[i] ^= 4
		require.Error(t, errOf(Decode(text, open())), "byte %d", i)
		text[i] ^= 4
	}
}

// Decode allocates a small multiple of the size of a hostile manifest.
func TestDecodeIsBounded(t *testing.T) {
	lines := string(everything(t).Encode())
	last := lines[strings.Index(lines, wordBooking+" "):]
	last = last[:strings.IndexByte(last, '\n')+1]
	head := "state {\"last_id\":9}\nname {\"name\":\"a\",\"last\":9}\n"
	for _, line := range []string{"part {}\n", "retired {\"n\":1}\n", "transaction {}\n", "transaction {\"parts\":1}\n", last, "holder {}\n", "delivered {}\n", "name {}\n"} {
		text := sealed(head + strings.Repeat(line, 1<<20/len(line)))
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, err := Decode(text, open())
		runtime.ReadMemStats(&after)
		require.Error(t, err)
		require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(64<<20), "%.40q", line)
	}
}

// FuzzDecode: Decode ends, and what it accepts is a state: it is written as it was read,
// and all methods can be called.
func FuzzDecode(f *testing.F) {
	good := everything(f).Encode()
	f.Add(string(good[len(firstLine):bytes.LastIndex(good, []byte(lastWord))]))
	f.Add("state {\"last_id\":0}\n")
	f.Add("state {\"last_id\":3}\nname {\"name\":\"a\",\"last\":1}\n")
	f.Fuzz(func(t *testing.T, lines string) {
		text := sealed(lines)
		_, _ = Decode([]byte(lines), open())
		s, err := Decode(text, open())
		if err != nil {
			return
		}
		require.Equal(t, string(text), string(s.Encode()))
		if s.NewID() == 0 || s.NewID() > 1<<60 {
			return // a keeper does not live to see that
		}
		exercise(t, s)
	})
}

// exercise calls all methods that change a state, on all that is in it.
func exercise(t *testing.T, s *State) {
	for _, i := range s.List(owner) {
		_, _, _ = s.Lease(i.Name, -1, owner, nil)
		_, _ = s.Hold(i.Name, Holder{Who: owner, Version: i.Version, Access: gpumem.ReadWrite, Since: t0})
		_, _ = s.Report(i.Name, i.Version, 0, owner, Damaged, "")
		_, _ = s.Book(newBooking(i.Name, by(Writer{Who: owner})))
		_ = s.Drain(i.Name, owner, true)
		if v, plan, err := s.PlanPark(i.Name, 0, owner, nil); err == nil {
			require.NoError(t, s.Park(i.Name, v, owner, plan, nil))
		}
		if _, plan, err := s.PlanUnpark(i.Name, i.Version); err == nil {
			for _, m := range plan {
				require.NoError(t, s.Unpark(i.Name, i.Version, []Unparking{{Part: m.Part, Files: s.NewID()}}))
			}
		}
	}
	for _, c := range s.FreeChunks() {
		require.NoError(t, s.DropChunk(c.ID))
	}
	for ticket, b := range s.Bookings() {
		_, _ = s.Renew(ticket, b.By.Who, t0)
		_, _ = s.Deliver(ticket, partOf(s, b), t0)
		_ = s.Cancel(ticket)
	}
	for _, id := range s.Pidfds() {
		require.True(t, s.Fence(id))
	}
	restarted(t, s, open())
	s.Holds(func(id HoldID, _ string, _ Holder) { require.NoError(t, s.Clone().Lose(id)) })
	for _, i := range s.List(owner) {
		_ = s.Remove(i.Name, owner)
	}
	for _, now := range []time.Time{t0, t0.Add(1e5 * time.Hour)} {
		s.Expire(now)
		s.Retire(now)
		restarted(t, s, open())
	}
	require.NotContains(t, s.Dropped(), ID(0))
}
