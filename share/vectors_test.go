package share

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"flag"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/vmm"
)

// vectorFile holds what docs/wire.md describes as bytes, for programs in any
// language to be tested with.
const vectorFile = "testdata/vectors.json"

// update rewrites the bytes of the valid vectors from their fields. Whoever
// uses it changes the wire format, and its version.
var update = flag.Bool("update", false, "rewrite the hex of "+vectorFile)

type vectors struct {
	Vectors []*vector `json:"vectors"`
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
}

// fieldsOf takes a message apart.
func fieldsOf(m message) (typ string, f fields) {
	switch m := m.(type) {
	case attach:
		return "attach", fields{Driver: new(uint8(m.driver)), Access: new(uint8(m.access)), Name: &m.name}
	case offer:
		d := m.desc
		return "offer", fields{Driver: new(uint8(d.Kind)), Access: new(uint8(m.access)), HandleType: new(uint8(m.handleType())), Pending: m.pending,
			Offset: offsetOf(m), Handle: handleOf(m),
			Chunks: new(uint32(d.Chunks)), Device: new(hex.EncodeToString(d.Device[:])),
			Size: &d.Size, ChunkSize: &d.ChunkSize, Granularity: &d.Granularity, Generation: &d.Generation,
			First: new(uint32(m.first)), FDs: new(uint32(m.fds)), Name: &m.name, Data: new(hex.EncodeToString(m.data))}
	case refuse:
		return "refuse", fields{Code: new(uint16(m.code)), Text: &m.text}
	case progress:
		return "progress", fields{Done: &m.done, Total: &m.total}
	case mapped:
		return "mapped", fields{Generation: &m.generation}
	case verdict:
		return "verdict", fields{OK: &m.ok, Text: &m.text}
	case publish:
		return "publish", fields{Generation: &m.generation}
	case confirm:
		return "confirm", fields{Generation: &m.generation}
	case revoke:
		return "revoke", fields{Text: &m.text}
	}
	return "", f
}

func offsetOf(m offer) *uint64 {
	if m.legacy == nil {
		return nil
	}
	return &m.legacy.Offset
}

func handleOf(m offer) *string {
	if m.legacy == nil {
		return nil
	}
	return new(m.legacy.Handle.String())
}

// message puts one together again.
func (v *vector) message(t *testing.T) message {
	var f fields
	dec := json.NewDecoder(bytes.NewReader(v.Fields))
	dec.DisallowUnknownFields()
	require.NoError(t, dec.Decode(&f), v.Name)
	switch v.Type {
	case "attach":
		return attach{cu.Kind(*f.Driver), cu.Access(*f.Access), *f.Name}
	case "offer":
		d := vmm.Descriptor{Kind: cu.Kind(*f.Driver), Device: cu.UUID(fromHex(t, *f.Device)), Size: *f.Size, ChunkSize: *f.ChunkSize,
			Chunks: int(*f.Chunks), Granularity: *f.Granularity, Generation: *f.Generation}
		o := offer{desc: d, access: cu.Access(*f.Access), name: *f.Name, data: append([]byte(nil), fromHex(t, *f.Data)...),
			first: int(*f.First), fds: int(*f.FDs), pending: f.Pending}
		if *f.HandleType == uint8(HandleLegacy) {
			o.legacy = &LegacyHandle{cu.IPCHandle(fromHex(t, *f.Handle)), *f.Offset}
		}
		return o
	case "refuse":
		return refuse{RefusalCode(*f.Code), *f.Text}
	case "progress":
		return progress{*f.Done, *f.Total}
	case "mapped":
		return mapped{*f.Generation}
	case "verdict":
		return verdict{*f.OK, *f.Text}
	case "publish":
		return publish{*f.Generation}
	case "confirm":
		return confirm{*f.Generation}
	case "revoke":
		return revoke{*f.Text}
	}
	require.FailNow(t, "no such type", v.Type)
	return nil
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
		m, err := decode(record)
		require.NoError(t, err, v.Name)
		require.Equal(t, v.message(t), m, v.Name)
		typ, f := fieldsOf(m)
		require.Equal(t, v.Type, typ, v.Name)
		text, err := json.Marshal(f)
		require.NoError(t, err)
		require.JSONEq(t, string(v.Fields), string(text), v.Name)
		require.Equal(t, v.Hex, hex.EncodeToString(encode(m)), v.Name)
		require.NotEmpty(t, v.Comment)
		types[typ]++
	}
	require.Len(t, types, 9)
}

// The two records of one offer differ in the two fields that may differ.
func TestVectorOfTwoRecordsIsOneOffer(t *testing.T) {
	var records []offer
	for _, v := range readVectors(t).Vectors {
		if v.Name == "offer, first of two records" || v.Name == "offer, second of two records" {
			records = append(records, v.message(t).(offer))
		}
	}
	require.Len(t, records, 2)
	first, second := records[0], records[1]
	require.NoError(t, first.follows(offer{}, first.fds))
	require.NoError(t, second.follows(first, first.fds+second.fds))
	require.Equal(t, first.desc.Chunks, first.fds+second.fds)
}

func TestInvalidVectorsAreRefused(t *testing.T) {
	for _, v := range readVectors(t).Invalid {
		_, err := decode(fromHex(t, v.Hex))
		require.True(t, errors.Is(err, ErrWire) || errors.Is(err, ErrVersion), "%s: %v", v.Name, err)
		require.NotEmpty(t, v.Why)
	}
}

func rewrite(t *testing.T, all vectors) {
	for _, v := range all.Vectors {
		v.Hex = hex.EncodeToString(encode(v.message(t)))
	}
	var out bytes.Buffer
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", " ")
	require.NoError(t, enc.Encode(all))
	require.NoError(t, os.WriteFile(vectorFile, out.Bytes(), 0o644))
}
