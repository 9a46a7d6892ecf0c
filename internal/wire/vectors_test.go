package wire

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/gpumem"
)

// vectorFile holds what docs/wire.md describes as bytes, for programs in any
// language to be tested with.
const vectorFile = "testdata/vectors.json"

// update rewrites the bytes of the valid vectors from their fields. Where it changes those
// of one that was there, the wire format has changed.
var update = flag.Bool("update", false, "rewrite the hex of "+vectorFile)

type vectors struct {
	Vectors []*vector  `json:"vectors"`
	Foreign []*foreign `json:"foreign"`
	Invalid []struct {
		Name string `json:"name"`
		Hex  string `json:"hex"`
		Why  string `json:"why"`
	} `json:"invalid"`
}

type vector struct {
	Name    string          `json:"name"`
	Comment string          `json:"comment"`
	Type    string          `json:"type"`
	Hex     string          `json:"hex"`
	Fields  json.RawMessage `json:"fields"`
}

// A foreign vector is a valid record of a later program.
type foreign struct {
	Name    string          `json:"name"`
	Comment string          `json:"comment"`
	Type    string          `json:"type"` // a number, if this version does not know it
	Hex     string          `json:"hex"`
	What    string          `json:"what"`             // "ignored", "refused" or "taken": what this version makes of it
	Names   string          `json:"names,omitempty"`  // what the refusal names
	Fields  json.RawMessage `json:"fields,omitempty"` // what is taken
}

// fields are the fields of every type of message, under the names that
// docs/wire.md gives them.
type fields struct {
	Driver      *uint8  `json:"driver,omitempty"`
	Access      *uint8  `json:"access,omitempty"`
	HandleType  *uint8  `json:"handle_type,omitempty"`
	Pending     bool    `json:"pending,omitempty"`
	Chunks      *uint32 `json:"chunks,omitempty"`
	Device      *string `json:"device,omitempty"` // hexadecimal
	Size        *uint64 `json:"size,omitempty"`
	ChunkSize   *uint64 `json:"chunk_size,omitempty"`
	Granularity *uint64 `json:"granularity,omitempty"`
	Generation  *uint64 `json:"generation,omitempty"`
	First       *uint32 `json:"first,omitempty"`
	FDs         *uint32 `json:"fds,omitempty"`
	Name        *string `json:"name,omitempty"`
	Data        *string `json:"data,omitempty"` // hexadecimal
	Offset      *uint64 `json:"offset,omitempty"`
	Handle      *string `json:"handle,omitempty"` // hexadecimal
	Code        *uint16 `json:"code,omitempty"`
	Text        *string `json:"text,omitempty"`
	Done        *uint64 `json:"done,omitempty"`
	Total       *uint64 `json:"total,omitempty"`
	OK          *bool   `json:"ok,omitempty"`
	Left        *uint32 `json:"left,omitempty"`

	Offers []listed `json:"offers,omitempty"`

	Capabilities uint64  `json:"capabilities,omitempty"`
	Process      *uint64 `json:"process,omitempty"`
	DataSize     uint64  `json:"data_size,omitempty"`
	CursorSize   uint64  `json:"cursor_size,omitempty"`
	Resume       uint64  `json:"resume,omitempty"`
	After        uint64  `json:"after,omitempty"`
	Reason       uint64  `json:"reason,omitempty"`
	Reattach     uint64  `json:"reattach,omitempty"`
	Keep         *uint64 `json:"keep,omitempty"`
}

// listed are the fields of one offer in a list.
type listed struct {
	Driver     uint8   `json:"driver"`
	Access     uint8   `json:"access"`
	HandleType uint8   `json:"handle_type"`
	Pending    bool    `json:"pending,omitempty"`
	Device     string  `json:"device"` // hexadecimal
	Size       uint64  `json:"size"`
	Generation uint64  `json:"generation"`
	DataSize   uint64  `json:"data_size"`
	Name       string  `json:"name"`
	Leases     *uint32 `json:"leases,omitempty"` // absent in a list of an older producer, as slots is
	Slots      *uint32 `json:"slots,omitempty"`
}

// describe takes a message apart.
func describe(m Message) (typ string, f fields) {
	switch m := m.(type) {
	case Attach:
		return "attach", fields{Driver: new(uint8(m.Driver)), Access: new(uint8(m.Access)), Name: &m.Name, Capabilities: uint64(m.Capabilities), Process: describeProcess(m.Process), Resume: m.Resume, After: m.After, Reattach: m.Reattach}
	case Offer:
		d := m.Memory
		return "offer", fields{Driver: new(uint8(d.Kind)), Access: new(uint8(m.Access)), HandleType: new(uint8(m.HandleType())), Pending: m.Pending,
			Offset: offsetOf(m), Handle: handleOf(m),
			Chunks: new(uint32(d.Chunks)), Device: new(hex.EncodeToString(d.Device[:])),
			Size: &d.Size, ChunkSize: &d.ChunkSize, Granularity: &d.Granularity, Generation: &d.Generation,
			First: new(uint32(m.First)), FDs: new(uint32(m.FDs)), Name: &m.Name, Data: new(hex.EncodeToString(m.Data)),
			Capabilities: uint64(m.Capabilities), Process: describeProcess(m.Process), DataSize: m.DataSize, CursorSize: m.CursorSize, Resume: m.Resume}
	case Refuse:
		return "refuse", fields{Code: new(uint16(m.Code)), Text: &m.Text}
	case Progress:
		return "progress", fields{Done: &m.Done, Total: &m.Total, Capabilities: uint64(m.Capabilities)}
	case Mapped:
		return "mapped", fields{Generation: &m.Generation}
	case Verdict:
		return "verdict", fields{OK: &m.OK, Text: &m.Text}
	case Publish:
		return "publish", fields{Generation: &m.Generation}
	case Confirm:
		return "confirm", fields{Generation: &m.Generation}
	case Revoke:
		return "revoke", fields{Text: &m.Text, Reason: uint64(m.Reason)}
	case Farewell:
		return "farewell", fields{}
	case List:
		return "list", fields{}
	case Listed:
		return "listed", fields{Left: new(uint32(m.Left)), Offers: describeList(m.Offers)}
	case Data:
		return "data", fields{}
	case Cursors:
		return "cursors", fields{}
	case Superseded:
		return "superseded", fields{Generation: &m.Generation}
	case Detached:
		return "detached", fields{Keep: &m.Keep}
	case Notice:
		return "notice", fields{Data: new(hex.EncodeToString(m.Data))}
	}
	return "", f
}

func describeProcess(p Process) *uint64 {
	if !p.Told {
		return nil
	}
	return new(uint64(p.Flags))
}

func processOf(f fields) (p Process) {
	if f.Process != nil {
		p = Process{true, ProcessFlags(*f.Process)}
	}
	return p
}

func describeList(all []Listing) (described []listed) {
	for _, l := range all {
		d := listed{uint8(l.Driver), uint8(l.Access), uint8(l.Handle), l.Pending, hex.EncodeToString(l.Device[:]), l.Size, l.Generation, l.DataSize, l.Name, nil, nil}
		if l.Counts.Told {
			d.Leases, d.Slots = &l.Counts.Leases, &l.Counts.Slots
		}
		described = append(described, d)
	}
	return described
}

func offsetOf(m Offer) *uint64 {
	if m.Legacy == nil {
		return nil
	}
	return &m.Legacy.Offset
}

func handleOf(m Offer) *string {
	if m.Legacy == nil {
		return nil
	}
	return new(m.Legacy.Handle.String())
}

// messageOf puts one together again.
func messageOf(t *testing.T, typ string, described json.RawMessage) Message {
	t.Helper()
	var f fields
	dec := json.NewDecoder(bytes.NewReader(described))
	dec.DisallowUnknownFields()
	require.NoError(t, dec.Decode(&f))
	capabilities := Capabilities(f.Capabilities)
	switch typ {
	case "attach":
		return Attach{Driver: gpumem.Kind(*f.Driver), Access: gpumem.Access(*f.Access), Name: *f.Name, Capabilities: capabilities, Process: processOf(f), Resume: f.Resume, After: f.After, Reattach: f.Reattach}
	case "offer":
		d := gpumem.Descriptor{Kind: gpumem.Kind(*f.Driver), Device: gpumem.UUID(fromHex(t, *f.Device)), Size: *f.Size, ChunkSize: *f.ChunkSize,
			Chunks: int(*f.Chunks), Granularity: *f.Granularity, Generation: *f.Generation}
		o := Offer{Memory: d, Access: gpumem.Access(*f.Access), Name: *f.Name, Data: append([]byte(nil), fromHex(t, *f.Data)...),
			First: int(*f.First), FDs: int(*f.FDs), Pending: f.Pending, Capabilities: capabilities, Process: processOf(f), DataSize: f.DataSize, CursorSize: f.CursorSize, Resume: f.Resume}
		if *f.HandleType == uint8(HandleLegacy) {
			o.Legacy = &gpumem.LegacyHandle{Handle: gpumem.IPCHandle(fromHex(t, *f.Handle)), Offset: *f.Offset}
		}
		return o
	case "refuse":
		return Refuse{Code: RefusalCode(*f.Code), Text: *f.Text}
	case "progress":
		return Progress{Done: *f.Done, Total: *f.Total, Capabilities: capabilities}
	case "mapped":
		return Mapped{Generation: *f.Generation}
	case "verdict":
		return Verdict{OK: *f.OK, Text: *f.Text}
	case "publish":
		return Publish{Generation: *f.Generation}
	case "confirm":
		return Confirm{Generation: *f.Generation}
	case "revoke":
		return Revoke{Text: *f.Text, Reason: EndReason(f.Reason)}
	case "farewell":
		return Farewell{}
	case "list":
		return List{}
	case "listed":
		return Listed{Left: int(*f.Left), Offers: listOf(t, f.Offers)}
	case "notice":
		return Notice{Data: fromHex(t, *f.Data)}
	case "data":
		return Data{}
	case "cursors":
		return Cursors{}
	case "detached":
		return Detached{Keep: *f.Keep}
	case "superseded":
		return Superseded{Generation: *f.Generation}
	}
	require.FailNow(t, "no such type", typ)
	return nil
}

func listOf(t *testing.T, described []listed) (all []Listing) {
	for _, l := range described {
		all = append(all, Listing{Name: l.Name, Driver: gpumem.Kind(l.Driver), Device: gpumem.UUID(fromHex(t, l.Device)), Handle: HandleType(l.HandleType), Access: gpumem.Access(l.Access),
			Size: l.Size, Generation: l.Generation, DataSize: l.DataSize, Pending: l.Pending, Counts: countsOf(l)})
	}
	return all
}

func countsOf(l listed) Counts {
	if l.Leases == nil {
		return Counts{}
	}
	return Counts{true, *l.Leases, *l.Slots}
}

func fromHex(t *testing.T, s string) []byte {
	b, err := hex.DecodeString(s)
	require.NoError(t, err)
	return b
}

func readVectors(t testing.TB) (v vectors) {
	t.Helper()
	b, err := os.ReadFile(vectorFile)
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(b, &v))
	return v
}

// Every valid vector means what it says, and is written as it is.
func TestVectorsAreWhatThisPackageSpeaks(t *testing.T) {
	all := readVectors(t)
	if *update {
		rewrite(t, all)
	}
	types := map[string]int{}
	for _, v := range all.Vectors {
		record := fromHex(t, v.Hex)
		m, err := Decode(record)
		require.NoError(t, err, v.Name)
		require.Equal(t, messageOf(t, v.Type, v.Fields), m, v.Name)
		typ, f := describe(m)
		require.Equal(t, v.Type, typ, v.Name)
		text, err := json.Marshal(f)
		require.NoError(t, err)
		require.JSONEq(t, string(v.Fields), string(text), v.Name)
		require.Equal(t, v.Hex, hex.EncodeToString(Encode(m)), v.Name)
		require.NotEmpty(t, v.Comment)
		types[typ]++
	}
	require.Len(t, types, 17)
}

// The two records of one offer differ in the two fields that may differ.
func TestVectorOfTwoRecordsIsOneOffer(t *testing.T) {
	var records []Offer
	for _, v := range readVectors(t).Vectors {
		if v.Name == "offer, first of two records" || v.Name == "offer, second of two records" {
			records = append(records, messageOf(t, v.Type, v.Fields).(Offer))
		}
	}
	require.Len(t, records, 2)
	first, second := records[0], records[1]
	require.NoError(t, first.Follows(Offer{}, first.FDs))
	require.NoError(t, second.Follows(first, first.FDs+second.FDs))
	require.Equal(t, first.Memory.Chunks, first.FDs+second.FDs)
	second.Capabilities = 1
	require.NoError(t, second.Follows(first, first.FDs+second.FDs), "what is said later counts for nothing")
	second.Data = []byte("other")
	require.ErrorIs(t, second.Follows(first, first.FDs+second.FDs), ErrMalformed)
}

// What a later program says is ignored, refused by name, or taken for what of it is known.
func TestForeignVectors(t *testing.T) {
	what := map[string]int{}
	for _, v := range readVectors(t).Foreign {
		t.Run(v.Name, func(t *testing.T) {
			m, err := Decode(fromHex(t, v.Hex))
			switch v.What {
			case "ignored":
				require.NoError(t, err)
				require.Equal(t, v.Type, strconv.Itoa(int(m.(Unknown).Kind)))
				require.Zero(t, Descriptors(m))
			case "refused":
				require.ErrorIs(t, err, ErrUnsupported)
				require.NotErrorIs(t, err, ErrMalformed)
				require.NotEmpty(t, v.Names)
				require.Contains(t, err.Error(), v.Names)
			case "taken":
				require.NoError(t, err)
				require.Equal(t, messageOf(t, v.Type, v.Fields), m)
			}
		})
		require.NotEmpty(t, v.Comment, v.Name)
		what[v.What]++
	}
	require.Len(t, what, 3)
	require.Positive(t, what["ignored"]*what["refused"]*what["taken"])
}

func TestInvalidVectorsAreRefused(t *testing.T) {
	for _, v := range readVectors(t).Invalid {
		_, err := Decode(fromHex(t, v.Hex))
		require.True(t, errors.Is(err, ErrMalformed) || errors.Is(err, ErrVersion), "%s: %v", v.Name, err)
		require.Equal(t, errors.Is(err, ErrVersion), errors.Is(err, ErrUnsupported), v.Name)
		require.NotEmpty(t, v.Why)
	}
}

// Of each field there are two more vectors, so that programs in other languages are tested with
// a value that is too short, which they refuse, and a longer one, whose beginning they take.
func TestVectorsOfEachFieldAreTooShortAndLonger(t *testing.T) {
	all := readVectors(t)
	short, long := map[uint16]bool{}, map[uint16]bool{}
	for _, v := range all.Invalid {
		_, err := Decode(fromHex(t, v.Hex))
		if n, ok := numberTooShort(err); ok {
			short[n] = true
		}
	}
	for _, v := range all.Foreign {
		if v.What != "taken" {
			continue
		}
		record := fromHex(t, v.Hex)
		m, err := Decode(record)
		require.NoError(t, err, v.Name)
		for _, f := range fieldsOf(t, record) {
			for _, known := range fieldsOf(t, Encode(m)) {
				long[f.number] = long[f.number] || f.number == known.number && len(f.value) > len(known.value)
			}
		}
	}
	for _, v := range all.Vectors {
		record := fromHex(t, v.Hex)
		for _, f := range fieldsOf(t, record) {
			if !short[f.number] {
				t.Errorf("%s has no invalid record with too short a field %d; of %q it would be\n%x", vectorFile, f.number, v.Name, f.shorter(record))
			}
			if !long[f.number] {
				t.Errorf("%s has no foreign record with a longer field %d; of %q it would be\n%x", vectorFile, f.number, v.Name, f.longer(record))
			}
			short[f.number], long[f.number] = true, true // one of each will do
		}
	}
}

// numberTooShort is the number of the field that is too short, if that is what err says.
func numberTooShort(err error) (n uint16, ok bool) {
	if err == nil {
		return 0, false
	}
	_, reason, _ := strings.Cut(err.Error(), ": field ")
	read, _ := fmt.Sscanf(reason, "%d: %d bytes are too few", &n, new(int))
	return n, read == 2
}

func rewrite(t *testing.T, all vectors) {
	for _, v := range all.Vectors {
		v.Hex = hex.EncodeToString(Encode(messageOf(t, v.Type, v.Fields)))
	}
	var out bytes.Buffer
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", " ")
	require.NoError(t, enc.Encode(all))
	require.NoError(t, os.WriteFile(vectorFile, out.Bytes(), 0o644))
}
