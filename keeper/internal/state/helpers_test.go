package state

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/gpumem"
)

// The processes of the tests.
var (
	owner  = Who{UID: 1000, GID: 1000, PID: 1}
	writer = Who{UID: 2000, GID: 50, PID: 2}
	reader = Who{UID: 3000, GID: 60, PID: 3}
	nobody = Who{UID: 4000, GID: 70, PID: 4}
)

// t0 is when the tests happen.
var t0 = time.Date(2026, 7, 1, 12, 0, 0, 0, time.UTC)

// device is one of several.
func device(n int) gpumem.UUID { return gpumem.UUID{0: 0x67, 15: byte(n)} }

func at[T any](v T) *T { return &v }

// open lets gid 50 write and gid 60 read.
func open() Policy {
	return Policy{Owner: owner.UID, Rules: []Rule{
		{GID: at(writer.GID), Allow: []Right{Read, Write, Remove}},
		{GID: at(reader.GID), Allow: []Right{Read}},
	}}
}

// with is open with a changed rule for gid 50.
func with(change func(*Rule)) Policy {
	p := open()
	change(&p.Rules[0])
	return p
}

// newBooking is one of 100 bytes that writer may make.
func newBooking(name string, change ...func(*Booking)) Booking {
	b := Booking{Name: name, Parts: 1, Device: device(0), Kind: gpumem.Soft, Bytes: 100, By: Writer{Who: writer, Since: t0}, At: t0}
	for _, f := range change {
		f(&b)
	}
	return b
}

// of makes it part i of n of a transaction that has a minute.
func of(transaction string, i, n int) func(*Booking) {
	return func(b *Booking) {
		b.Transaction, b.Index, b.Parts, b.Deadline = transaction, i, n, b.At.Add(time.Minute)
	}
}

func by(w Writer) func(*Booking)        { return func(b *Booking) { b.By = w } }
func expecting(n uint64) func(*Booking) { return func(b *Booking) { b.Expect = &n } }
func bytesOf(n uint64) func(*Booking)   { return func(b *Booking) { b.Bytes = n } }
func on(dev gpumem.UUID) func(*Booking) { return func(b *Booking) { b.Device = dev } }
func until(t time.Time) func(*Booking)  { return func(b *Booking) { b.Deadline = t } }
func labelled(k, v string) func(*Booking) {
	return func(b *Booking) { b.Labels = map[string]string{k: v} }
}

// partOf is what was booked, with descriptors of its own.
func partOf(s *State, b Booking) Part {
	d := gpumem.Descriptor{Kind: b.Kind, Device: b.Device, Size: b.Bytes, ChunkSize: 4096, Chunks: int(b.Bytes/4096) + 1, Granularity: 4096, Generation: 7}
	return Part{Index: b.Index, Memory: d, Bytes: b.Bytes, Digest: fmt.Sprintf("gpufd-d1:%032x", b.Index), Files: s.NewID()}
}

func book(t testing.TB, s *State, b Booking) string {
	t.Helper()
	ticket := ok(s.Book(b))(t)
	return ticket
}

// put books and delivers one part, and returns the version that this commits, if it does.
func put(t testing.TB, s *State, b Booking) *Version {
	t.Helper()
	v := ok(s.Deliver(book(t, s, b), partOf(s, b), b.At))(t)
	return v
}

// hold makes reader a holder of a part of a version, with a pidfd.
func hold(t testing.TB, s *State, name string, version uint64, change ...func(*Holder)) (HoldID, ID) {
	t.Helper()
	h := Holder{Who: reader, Version: version, Access: gpumem.ReadOnly, Since: t0, Pidfd: s.NewID()}
	for _, f := range change {
		f(&h)
	}
	id := ok(s.Hold(name, h))(t)
	return id, h.Pidfd
}

// refused requires an error of that code that says the words.
func refused(t testing.TB, err error, c Code, words ...string) *Error {
	t.Helper()
	require.Error(t, err)
	require.Equal(t, c, CodeOf(err), err)
	for _, w := range words {
		require.ErrorContains(t, err, w)
	}
	return err.(*Error)
}

// restarted returns the state of a keeper that starts with s's manifest.
func restarted(t testing.TB, s *State, p Policy) *State {
	t.Helper()
	text := s.Encode()
	back, err := Decode(text, p)
	require.NoError(t, err, "%s", text)
	require.Equal(t, string(text), string(back.Encode()))
	if len(s.charged)+len(back.charged) > 0 {
		require.Equal(t, s.charged, back.charged, "as counted one by one, and anew")
	}
	return back
}
