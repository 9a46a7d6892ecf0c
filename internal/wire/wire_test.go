package wire

import (
	"bytes"
	"fmt"
	"math"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/gpumem"
)

// messages are one or more of every type, with the extremes of their fields.
func messages() []Message {
	full := gpumem.Descriptor{Kind: 255, Device: gpumem.UUID{1, 15: 2}, Size: math.MaxUint64, ChunkSize: math.MaxUint64 - 1,
		Chunks: math.MaxUint32, Granularity: math.MaxUint64 - 2, Generation: math.MaxUint64 - 3}
	return []Message{
		Attach{Driver: gpumem.CUDA, Access: gpumem.ReadOnly, Name: ""}, Attach{Driver: gpumem.Soft, Access: gpumem.ReadWrite, Name: strings.Repeat("ä", 127)}, Attach{Driver: 0, Access: gpumem.ReadOnly, Name: "x", Capabilities: TakesLegacy, Process: Process{true, math.MaxUint64}, Resume: math.MaxUint64, After: math.MaxUint64}, Attach{Access: gpumem.ReadOnly, Name: "x", Reattach: math.MaxUint64},
		Offer{Access: gpumem.ReadOnly, Name: "n"},
		Offer{Memory: full, Access: gpumem.ReadWrite, Name: strings.Repeat("n", MaxName), Data: noise(MaxData, 1), First: math.MaxUint32, FDs: math.MaxUint32 - 1, Pending: true, Capabilities: math.MaxUint64, Process: Process{Told: true}, DataSize: math.MaxUint64, CursorSize: math.MaxUint64, Resume: math.MaxUint64},
		longest(),
		Offer{Memory: gpumem.Descriptor{Kind: 1, Size: 1, ChunkSize: 1, Chunks: 1}, Access: gpumem.ReadWrite, Name: "n", Legacy: &gpumem.LegacyHandle{}},
		Offer{Memory: gpumem.Descriptor{Size: 2, ChunkSize: math.MaxUint64, Chunks: 1, Generation: math.MaxUint64}, Access: gpumem.ReadWrite, Name: "n", Data: noise(9, 1),
			Pending: true, Legacy: &gpumem.LegacyHandle{Handle: gpumem.IPCHandle{1, 63: 2}, Offset: math.MaxUint64 - 2}, Capabilities: 2},
		Refuse{}, Refuse{Code: math.MaxUint16, Text: strings.Repeat("x", MaxText)},
		Progress{}, Progress{Done: math.MaxUint64, Total: math.MaxUint64 - 1, Capabilities: 1 << 63}, Mapped{}, Mapped{Generation: math.MaxUint64},
		Verdict{}, Verdict{OK: true, Text: ""}, Verdict{OK: false, Text: "a\nb\x00c\u2028"}, Revoke{}, Revoke{Text: "🚀"}, Revoke{Reason: EndRestarting}, Revoke{Text: "x", Reason: math.MaxUint64}, Publish{}, Publish{Generation: math.MaxUint64}, Confirm{}, Confirm{Generation: math.MaxUint64},
		Data{}, Cursors{}, List{}, Listed{}, Listed{Left: math.MaxUint32, Offers: []Listing{{Name: "n", Access: gpumem.ReadOnly}, fullListing()}}, Lists(slices.Repeat([]Listing{fullListing()}, 100))[0],
		Farewell{}, Superseded{}, Superseded{Generation: math.MaxUint64}, Detached{}, Detached{Keep: math.MaxUint64}, Notice{Data: []byte{}}, Notice{Data: bytes.Repeat([]byte{0xff}, MaxNotice)},
	}
}

// fullListing is one with the extremes of its fields.
func fullListing() Listing {
	return Listing{Name: strings.Repeat("n", MaxName), Driver: 255, Device: gpumem.UUID{1, 15: 2}, Handle: 254, Access: gpumem.ReadWrite,
		Size: math.MaxUint64, Generation: math.MaxUint64 - 1, DataSize: math.MaxUint64 - 2, Pending: true, Counts: Counts{true, math.MaxUint32, math.MaxUint32 - 1}}
}

// longest is the longest message that there is.
func longest() Message {
	return Offer{Memory: gpumem.Descriptor{Size: 1, ChunkSize: 1, Chunks: 1}, Access: gpumem.ReadWrite, Name: strings.Repeat("n", MaxName),
		Data: noise(MaxData, 2), Legacy: &gpumem.LegacyHandle{}, Capabilities: 1, Process: Process{true, ProcessMPS}, DataSize: 1, CursorSize: 1, Resume: 1}
}

// noise is n bytes that look like nothing.
func noise(n int, seed int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i*7 + i>>8 + seed)
	}
	return b
}

// flaw is the record of m with other bytes at an offset.
func flaw(m Message, offset int, b ...byte) []byte {
	r := Encode(m)
	copy(r[offset:], b)
	return r
}

// mended is a record whose length is right again.
func mended(record []byte) []byte {
	le.PutUint32(record[12:], uint32(len(record)-headerSize))
	return record
}

func TestMessagesSurviveTheWire(t *testing.T) {
	seen := map[Type]bool{}
	for _, m := range messages() {
		record := Encode(m)
		got, err := Decode(record)
		require.NoError(t, err, m.Type())
		require.Equal(t, m, got)
		require.Equal(t, record, Encode(got))
		seen[m.Type()] = true
	}
	require.Len(t, seen, 17)
}

// A record that is cut off is refused, also if its length says that it is whole, unless the
// cut is in front of a field.
func TestCutOffRecordsAreRefused(t *testing.T) {
	for n, m := range messages() {
		record := Encode(m)
		starts := []int{}
		for _, f := range fieldsOf(t, record) {
			starts = append(starts, f.start)
		}
		for i := range record {
			_, err := Decode(record[:i])
			require.ErrorIs(t, err, ErrMalformed, "message %d, %s, %d bytes", n, m.Type(), i)
			if i < headerSize || slices.Contains(starts, i) {
				continue
			}
			_, err = Decode(mended(slices.Clone(record[:i])))
			require.ErrorIs(t, err, ErrMalformed, "message %d, %s, %d bytes", n, m.Type(), i)
		}
	}
}

// field is a field of a record.
type field struct {
	number uint16
	start  int // in the record
	value  []byte
}

// fieldsOf finds the fields of a record.
func fieldsOf(t *testing.T, record []byte) (all []field) {
	t.Helper()
	require.GreaterOrEqual(t, len(record), headerSize, "a record without bytes: go test -update writes those of a vector")
	r := reader{b: record[headerSize:]}
	require.NoError(t, Type(le.Uint16(record[6:])).message().read(&r))
	require.False(t, r.short)
	for len(r.b) > 0 {
		f := field{start: len(record) - len(r.b), number: r.u16()}
		f.value = r.take(int(r.u16()))
		require.False(t, r.short)
		all = append(all, f)
	}
	return all
}

// numbersOf gives the numbers of the fields of a record.
func numbersOf(t *testing.T, record []byte) (numbers []uint16) {
	t.Helper()
	for _, f := range fieldsOf(t, record) {
		numbers = append(numbers, f.number)
	}
	return numbers
}

// with is the record with another value of f.
func (f field) with(record, value []byte) []byte {
	other := appendField(slices.Clone(record[:f.start]), f.number, value)
	return mended(append(other, record[f.start+4+len(f.value):]...))
}

// shorter is the record with a value of f that is a byte too short.
func (f field) shorter(record []byte) []byte { return f.with(record, f.value[:len(f.value)-1]) }

// longer is the record with a value of f that has a byte more, as of a later version.
func (f field) longer(record []byte) []byte {
	return f.with(record, append(slices.Clone(f.value), 0xff))
}

// A decoder refuses a field that is too short, and takes the beginning of a longer one.
func TestFieldsMayBeLongerButNotShorter(t *testing.T) {
	for _, m := range messages() {
		record := Encode(m)
		for _, f := range fieldsOf(t, record) {
			require.NotEmpty(t, f.value, "field %d has no bytes to be cut off; except it here and in the test of the vectors", f.number)
			_, err := Decode(f.shorter(record))
			require.ErrorIs(t, err, ErrMalformed)
			number, ok := numberTooShort(err)
			require.True(t, ok, err)
			require.Equal(t, f.number, number)
			got, err := Decode(f.longer(record))
			require.NoError(t, err)
			require.Equal(t, m, got)
		}
	}
}

// A field that a later program appends changes nothing, to messages of any type.
func TestEveryMessageTakesUnknownFields(t *testing.T) {
	for _, m := range messages() {
		record := Encode(m)
		at := len(record) // in front of the fields with larger numbers
		for _, f := range fieldsOf(t, record) {
			if f.number > 0x7f00 {
				at = min(at, f.start)
			}
		}
		got, err := Decode(mended(slices.Insert(record, at, appendField(nil, 0x7f00, []byte("later"))...)))
		require.NoError(t, err)
		require.Equal(t, m, got)
		_, err = Decode(mended(appendField(Encode(m), 0xff00, nil)))
		require.ErrorIs(t, err, ErrUnsupported)
		require.ErrorContains(t, err, m.Type().String()+": ")
		require.ErrorContains(t, err, "field 65280")
	}
}

// What a message can say is in one of messages, so that the tests above see it travel, and
// each field is there with all bits set, so that they see whether one gets lost.
func TestMessagesSayAllThatThereIs(t *testing.T) {
	said, largest := map[string]bool{}, map[uint16]bool{}
	for _, m := range messages() {
		if reflect.DeepEqual(m, longest()) {
			continue // it would hide what the others do not say
		}
		for _, f := range fieldsOf(t, Encode(m)) {
			largest[f.number] = largest[f.number] || bytes.Count(f.value, []byte{0xff}) == len(f.value)
		}
		v := reflect.ValueOf(m)
		for i := range v.NumField() {
			name := v.Type().String() + "." + v.Type().Field(i).Name
			said[name] = said[name] || !v.Field(i).IsZero()
		}
	}
	for name, ok := range said {
		require.True(t, ok, "no message has a %s", name)
	}
	for number, ok := range largest {
		require.True(t, ok, "no message but the longest has field %d with all bits set; if it cannot, except it here", number)
	}
}

// The fields that are written are those of docs/wire.md, and each is in a vector.
func TestFieldsAreDocumented(t *testing.T) {
	_, table, ok := strings.Cut(page(t), "| number | name | in | value |\n|---|---|---|---|\n")
	require.True(t, ok, "docs/wire.md has a table of fields")
	table, _, _ = strings.Cut(table, "\n\n")
	var documented, written, inVectors []uint16
	for row := range strings.Lines(table) {
		n, err := strconv.ParseUint(strings.TrimSpace(strings.Split(row, "|")[1]), 10, 16)
		require.NoError(t, err)
		documented = append(documented, uint16(n))
	}
	for _, m := range messages() {
		written = append(written, numbersOf(t, Encode(m))...)
	}
	for _, v := range readVectors(t).Vectors {
		inVectors = append(inVectors, numbersOf(t, fromHex(t, v.Hex))...)
	}
	require.ElementsMatch(t, documented, distinct(written), "the fields of docs/wire.md, and of messages")
	require.ElementsMatch(t, documented, distinct(inVectors), "the fields of docs/wire.md, and of %s", vectorFile)
}

// distinct is numbers in order, each once.
func distinct(numbers []uint16) []uint16 {
	return slices.Compact(slices.Sorted(slices.Values(numbers)))
}

// page is docs/wire.md.
func page(t *testing.T) string {
	t.Helper()
	b, err := os.ReadFile("../../docs/wire.md")
	require.NoError(t, err)
	return string(b)
}

// The records of an offer agree in all but what docs/wire.md excepts.
func TestRecordsOfAnOfferAgree(t *testing.T) {
	first := Offer{Memory: gpumem.Descriptor{Kind: gpumem.Soft, Size: 3, ChunkSize: 1, Chunks: 3}, Access: gpumem.ReadOnly, Name: "n", FDs: 2}
	second := first
	second.First, second.FDs = 2, 1
	require.NoError(t, second.Follows(first, 3))
	for i := range reflect.TypeFor[Offer]().NumField() {
		name := reflect.TypeFor[Offer]().Field(i).Name
		other := second
		switch f := reflect.ValueOf(&other).Elem().Field(i); name {
		case "Capabilities": // later ones count for nothing
			other.Capabilities = 1
			require.NoError(t, other.Follows(first, 3))
			continue
		case "Legacy": // has one record
			continue
		case "Process":
			other.Process.Flags++
		case "Memory":
			other.Memory.Generation++
		case "Data":
			other.Data = []byte("x")
		default:
			change(t, f)
		}
		require.ErrorIs(t, other.Follows(first, 3), ErrMalformed, "another %s", name)
	}
}

// change makes a value another one.
func change(t *testing.T, v reflect.Value) {
	t.Helper()
	switch {
	case v.CanInt():
		v.SetInt(v.Int() + 1)
	case v.CanUint():
		v.SetUint(v.Uint() + 1)
	case v.Kind() == reflect.Bool:
		v.SetBool(!v.Bool())
	case v.Kind() == reflect.String:
		v.SetString(v.String() + "x")
	default:
		t.Fatalf("how does a %s become another one?", v.Type())
	}
}

func TestLongestRecord(t *testing.T) {
	all := numbersOf(t, Encode(longest()))
	for _, m := range messages() {
		require.LessOrEqual(t, len(Encode(m)), len(Encode(longest())))
		if m.Type() == TypeOffer {
			require.Subset(t, all, numbersOf(t, Encode(m)), "the longest offer has every field")
		}
	}
	n := len(Encode(longest()))
	require.Less(t, n, MaxRecord)
	says := fmt.Sprintf("is %d,%03d bytes, and here 8,192 are taken", n/1000, n%1000)
	require.True(t, strings.Contains(page(t), says), "docs/wire.md does not say that the longest record %s", says)
}

// What is decoded holds nothing of the record, whose memory is used again.
func TestDecodedMessageIsACopy(t *testing.T) {
	record := Encode(Offer{Access: gpumem.ReadOnly, Name: "name", Data: []byte("data")})
	m, err := Decode(record)
	require.NoError(t, err)
	clear(record)
	require.Equal(t, "name", m.(Offer).Name)
	require.Equal(t, "data", string(m.(Offer).Data))
}

// Whatever words an error has, they reach the other side as far as they fit.
func TestTextsAreMadeToFit(t *testing.T) {
	for name, c := range map[string]struct{ text, want string }{
		"empty":       {"", ""},
		"fits":        {strings.Repeat("x", MaxText), strings.Repeat("x", MaxText)},
		"too long":    {strings.Repeat("x", MaxText+1), strings.Repeat("x", MaxText)},
		"half a rune": {strings.Repeat("x", MaxText-1) + "€", strings.Repeat("x", MaxText-1)},
		"most of one": {strings.Repeat("x", MaxText-2) + "€", strings.Repeat("x", MaxText-2)},
		"one fits":    {strings.Repeat("x", MaxText-3) + "€€", strings.Repeat("x", MaxText-3) + "€"},
		"four bytes":  {strings.Repeat("x", MaxText-3) + "🚀", strings.Repeat("x", MaxText-3)},
		"no UTF-8":    {"a\xff\xfeb", "a\uFFFDb"},
	} {
		for _, m := range []Message{Verdict{OK: false, Text: c.text}, Refuse{Code: RefusedBusy, Text: c.text}, Revoke{Text: c.text}} {
			got, err := Decode(Encode(m))
			require.NoError(t, err, name)
			var text string
			switch got := got.(type) {
			case Verdict:
				text = got.Text
			case Refuse:
				text = got.Text
			case Revoke:
				text = got.Text
			}
			require.Equal(t, c.want, text, name)
			require.True(t, utf8.ValidString(text))
		}
	}
}

// A newer version is told from garbage: the answers differ.
func TestVersionComesBeforeEverythingElse(t *testing.T) {
	for _, v := range []byte{0, 2, 255} {
		_, err := Decode(flaw(Mapped{Generation: 1}, 4, v))
		require.ErrorIs(t, err, ErrVersion)
		require.NotErrorIs(t, err, ErrMalformed)
		_, err = Decode(append(flaw(Mapped{Generation: 1}, 4, v), noise(50, 1)...))
		require.ErrorIs(t, err, ErrVersion, "whatever else there is")
	}
}
