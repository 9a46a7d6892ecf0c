package state

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/gpumem"
	"github.com/gpufd/gpufd/keeper/api"
)

func TestBookRefusesNonsense(t *testing.T) {
	long := strings.Repeat("x", 257)
	many := map[string]string{}
	for i := range MaxLabels + 1 {
		many[string(rune('A'+i))] = ""
	}
	for name, c := range map[string]struct {
		change func(*Booking)
		code   Code
		words  string
	}{
		"no name":              {func(b *Booking) { b.Name = "" }, BadRequest, "0 bytes"},
		"a long name":          {func(b *Booking) { b.Name = long[:201] }, BadRequest, "201 bytes"},
		"no UTF-8":             {func(b *Booking) { b.Name = "\xff" }, BadRequest, "UTF-8"},
		"a control character":  {func(b *Booking) { b.Name = "a\nb" }, BadRequest, "control"},
		"a version":            {func(b *Booking) { b.Name = "a@2" }, BadRequest, "'@'"},
		"a part":               {func(b *Booking) { b.Name = "a/b/12" }, BadRequest, `part 12 of "a/b"`},
		"a long transaction":   {func(b *Booking) { of(long[:65], 0, 1)(b) }, BadRequest, "65 bytes"},
		"no parts":             {func(b *Booking) { b.Parts = 0 }, BadRequest, "0 parts"},
		"too many parts":       {of("x", 0, MaxParts+1), BadRequest, "257 parts"},
		"part -1":              {of("x", -1, 2), BadRequest, "part -1"},
		"part 2 of 2":          {of("x", 2, 2), BadRequest, "part 2 of 2"},
		"parts of nothing":     {func(b *Booking) { b.Parts = 2 }, BadRequest, "without a transaction"},
		"no bytes":             {bytesOf(0), BadRequest, "0 bytes"},
		"too many bytes":       {bytesOf(MaxPart + 1), BadRequest, "1125899906842625 bytes"},
		"another driver":       {func(b *Booking) { b.Kind = 3 }, BadRequest, "driver 3"},
		"a label without key":  {labelled("", "x"), BadRequest, "without a key"},
		"a long key":           {labelled(long[:65], "x"), BadRequest, "65 bytes"},
		"a long value":         {labelled("x", long), BadRequest, "257 bytes"},
		"a label in colour":    {labelled("x", "\x1b[1m"), BadRequest, "control"},
		"too many labels":      {func(b *Booking) { b.Labels = many }, BadRequest, "33 labels"},
		"no deadline":          {func(b *Booking) { of("x", 0, 2)(b); b.Deadline = time.Time{} }, BadRequest, "without a deadline"},
		"a deadline long over": {until(t0), Expired, "has passed"},
		"nobody":               {by(Writer{Who: nobody}), Denied, "no rule for uid 4000"},
		"a reader":             {by(Writer{Who: reader}), Denied, "allows read"},
	} {
		s := New(open())
		put(t, s, newBooking("before"))
		before := string(s.Encode())
		_, err := s.Book(newBooking("weights", c.change))
		refused(t, err, c.code, c.words)
		require.Equal(t, before, string(s.Encode()), "%s: it changed something", name)
	}
}

func TestNamesThatMayBe(t *testing.T) {
	for _, name := range []string{"a", "a/b", "a/1b", "1", "a/", "a/1/b", "ä b", strings.Repeat("x", MaxName)} {
		require.NoError(t, CheckName(name), name)
	}
}

func TestPartsOfATransactionAgree(t *testing.T) {
	s := New(open())
	first := newBooking("weights", of("step 7", 0, 3), labelled("step", "7"), expecting(0))
	ticket := book(t, s, first)
	for words, change := range map[string]func(*Booking){
		"has 3 parts":    of("step 7", 1, 4),
		"other labels":   labelled("step", "8"),
		"another versio": func(b *Booking) { b.Expect = nil },
		"of name":        func(b *Booking) { b.Name = "biases" },
	} {
		b := first
		b.Index = 1
		change(&b)
		_, err := s.Book(b)
		refused(t, err, Conflict, words)
	}
	e := first
	e.By = Writer{Who: Who{UID: 2001, GID: 50, PID: 22}}
	_, err := s.Book(e)
	require.Equal(t, []api.Holder{{Who: writer, Access: gpumem.ReadWrite, Since: t0}}, refused(t, err, Taken, "process 2").Holders)
	require.NoError(t, errOf(s.Deliver(ticket, partOf(s, first), t0)))
	_, err = s.Book(e)
	refused(t, err, Taken, "was delivered")
	e.Index, e.At = 1, t0.Add(time.Minute)
	e.Deadline = e.At.Add(time.Minute)
	_, err = s.Book(e)
	refused(t, err, Expired, "begin another")
	other := newBooking("biases", of("step 7", 0, 1), by(Writer{Who: e.By.Who}))
	require.NotEmpty(t, book(t, s, other), "ids of another uid's transactions are its own business")
	require.Len(t, s.Bookings(), 1)
	require.Equal(t, 1, s.Delivered("weights", "step 7"))
	require.Zero(t, s.Delivered("weights", "step 8")+s.Delivered("other", "step 7")+s.Delivered("weights", ""))
}

// A writer that comes back goes on with its ticket, and nobody else does.
func TestRenew(t *testing.T) {
	s := New(open())
	b := newBooking("weights", of("step 7", 0, 2), labelled("step", "7"), expecting(0))
	b.By.Pidfd = s.NewID()
	ticket := book(t, s, b)
	s = restarted(t, s, open())
	_, err := s.Renew("t999", writer, t0)
	refused(t, err, NotFound, "book it anew")
	_, err = s.Renew(ticket, Who{UID: 2001, GID: 50}, t0)
	refused(t, err, Denied, "of uid 2000")
	again := ok(s.Renew(ticket, writer, t0.Add(time.Hour)))(t)
	b.Deadline = t0.Add(time.Hour)
	require.Equal(t, b, again)
	again = ok(s.Renew(ticket, writer, t0))(t)
	require.Equal(t, b, again, "the latest deadline counts")
	require.Equal(t, map[string]Booking{ticket: b}, s.Bookings())
}

// The part of a writer that gave up can be booked again, and what has come stays.
func TestCancel(t *testing.T) {
	s := New(open())
	refused(t, s.Cancel("t1"), NotFound)
	put(t, s, newBooking("weights", of("x", 0, 2)))
	b := newBooking("weights", of("x", 1, 2))
	b.By.Pidfd = s.NewID()
	require.NoError(t, s.Cancel(book(t, s, b)))
	require.Equal(t, []ID{b.By.Pidfd}, s.Dropped())
	require.EqualValues(t, 1, put(t, s, newBooking("weights", of("x", 1, 2))).N)
	require.NoError(t, s.Cancel(book(t, s, newBooking("other"))))
	require.Nil(t, s.get("other"), "nothing is left of a name that never had a version")
	require.Empty(t, s.Dropped())
}

// A caller cannot change later what a call has taken over.
func TestBookingIsACopy(t *testing.T) {
	s := New(open())
	b := newBooking("weights", labelled("a", "1"), expecting(0))
	ticket := book(t, s, b)
	b.Labels["a"], *b.Expect = "2", 9
	b.Expect = nil
	v := ok(s.Deliver(ticket, partOf(s, b), t0))(t)
	require.Equal(t, map[string]string{"a": "1"}, v.Labels)
}
