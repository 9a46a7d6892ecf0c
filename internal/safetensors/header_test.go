package safetensors

import (
	"bytes"
	"encoding/binary"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// fileBytes is a file with a header and data.
func fileBytes(head string, data []byte) []byte {
	b := binary.LittleEndian.AppendUint64(nil, uint64(len(head)))
	return append(append(b, head...), data...)
}

func TestHeader(t *testing.T) {
	b := fileBytes(`{"__metadata__":{"format":"pt"}, "b":{"data_offsets":[4,10],"shape":[3,1],"dtype":"BF16"},`+
		`"e":{"dtype":"F64","shape":[7,0,18446744073709551615],"data_offsets":[4,4]},"a":{"dtype":"F32","shape":[],"data_offsets":[0,4]},`+
		`"f4":{"dtype":"F4","shape":[2,3],"data_offsets":[10,13]}}  `, make([]byte, 13))
	h, err := readHeader(bytes.NewReader(b), uint64(len(b)))
	require.NoError(t, err)
	require.Equal(t, map[string]string{"format": "pt"}, h.metadata)
	require.Equal(t, uint64(len(b)-13), h.dataAt)
	require.Equal(t, []Tensor{
		{"a", "F32", []uint64{}, 0, 4, nil}, {"e", "F64", []uint64{7, 0, 1<<64 - 1}, 4, 0, nil},
		{"b", "BF16", []uint64{3, 1}, 4, 6, nil}, {"f4", "F4", []uint64{2, 3}, 10, 3, nil},
	}, h.tensors)
}

func TestHostileHeaders(t *testing.T) {
	one := func(fields string) string { return `{"a":{` + fields + `}}` }
	for name, c := range map[string]struct {
		head  string
		words string
	}{
		"nothing":            {``, "a header of 0 bytes"},
		"a blank first":      {` {}`, "not a JSON object"},
		"no object":          {`[]`, "not a JSON object"},
		"no text":            {"{\"\xff\":1}", "not a JSON object"},
		"cut off":            {`{"a":{"dtype":"U8"`, "EOF"},
		"something behind":   {`{} {}`, "something follows"},
		"no tensor":          {`{"a":1}`, `"1" instead of {`},
		"nested":             {`{"a":` + strings.Repeat(`[`, 50_000), "instead of {"},
		"a name twice":       {`{"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},"\u0061":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}`, `"a" is there twice`},
		"a field twice":      {one(`"dtype":"U8","dtype":"U8","shape":[4],"data_offsets":[0,4]`), `"dtype" is there twice`},
		"another case":       {one(`"DType":"U8","shape":[4],"data_offsets":[0,4]`), "needs dtype, shape and data_offsets"},
		"a deep field":       {one(`"x":` + strings.Repeat(`[`, 50_000)), "a depth of more than 100"},
		"a field missing":    {one(`"dtype":"U8","shape":[4]`), "needs dtype, shape and data_offsets"},
		"metadata twice":     {`{"__metadata__":{},"__metadata__":{}}`, `"__metadata__" is there twice`},
		"metadata, a number": {`{"__metadata__":{"a":1}}`, "is not a string"},
		"dtype, a number":    {one(`"dtype":8,"shape":[4],"data_offsets":[0,4]`), "is not a string"},
		"unknown dtype":      {one(`"dtype":"u8","shape":[4],"data_offsets":[0,4]`), `of type "u8", which is unknown`},
		"shape, negative":    {one(`"dtype":"U8","shape":[-4],"data_offsets":[0,4]`), `"-4" before`},
		"shape, a fraction":  {one(`"dtype":"U8","shape":[4.0],"data_offsets":[0,4]`), `"4.0" before`},
		"shape, too large":   {one(`"dtype":"U8","shape":[18446744073709551616],"data_offsets":[0,4]`), "is not a number"},
		"shape, a string":    {one(`"dtype":"U8","shape":["4"],"data_offsets":[0,4]`), "is not a number"},
		"shape, null":        {one(`"dtype":"U8","shape":null,"data_offsets":[0,4]`), "instead of ["},
		"size overflows":     {one(`"dtype":"U8","shape":[4294967296,4294967296,4],"data_offsets":[0,4]`), "does not have a number of bytes"},
		"half a byte":        {one(`"dtype":"F4","shape":[7],"data_offsets":[0,4]`), "does not have a number of bytes"},
		"one offset":         {one(`"dtype":"U8","shape":[4],"data_offsets":[4]`), "begin and end"},
		"end before begin":   {one(`"dtype":"U8","shape":[4],"data_offsets":[4,0]`), "begin and end"},
		"other size":         {one(`"dtype":"U16","shape":[4],"data_offsets":[0,4]`), `"a" of U16 [4] has 4 bytes instead of 8`},
		"a hole before":      {one(`"dtype":"U8","shape":[3],"data_offsets":[1,4]`), "begins at 1; it should begin at 0"},
		"a hole behind":      {one(`"dtype":"U8","shape":[3],"data_offsets":[0,3]`), "the tensors have 3 bytes; the file has 4"},
		"beyond":             {one(`"dtype":"U8","shape":[5],"data_offsets":[0,5]`), "the tensors have 5 bytes; the file has 4"},
		"overlap":            {`{"a":{"dtype":"U8","shape":[3],"data_offsets":[0,3]},"b":{"dtype":"U8","shape":[2],"data_offsets":[2,4]}}`, "begins at 2; it should begin at 3"},
		"same bytes":         {`{"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"b":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}}`, "begins at 0; it should begin at 4"},
		"empty, far away":    {`{"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"b":{"dtype":"U8","shape":[0],"data_offsets":[9,9]}}`, "begins at 9; it should begin at 4"},
	} {
		b := fileBytes(c.head, make([]byte, 4))
		_, err := readHeader(bytes.NewReader(b), uint64(len(b)))
		require.ErrorIs(t, err, ErrFormat, name)
		require.ErrorContains(t, err, c.words, name)
	}
	for _, b := range [][]byte{nil, make([]byte, 7), fileBytes("", nil), {3, 0, 0, 0, 0, 0, 0, 0, '{', '}'}, bytes.Repeat([]byte{255}, 100)} {
		_, err := readHeader(bytes.NewReader(b), uint64(len(b)))
		require.ErrorIs(t, err, ErrFormat, "%v", b)
	}
	long := binary.LittleEndian.AppendUint64(nil, headerMost+1)
	_, err := readHeader(bytes.NewReader(long), 1<<40)
	require.ErrorContains(t, err, "a header of 100000001 bytes")
}

func TestHostileIndexes(t *testing.T) {
	for text, words := range map[string]string{
		``:                                          "EOF",
		`{}`:                                        "no weight_map",
		`{"weight_map":{}} 1`:                       "something follows",
		`{"weight_map":{},"weight_map":{}}`:         "twice",
		`{"weight_map":{"a":"f","a":"f"}}`:          "twice",
		`{"weight_map":{"a":"../f"}}`:               "not the name of a file beside it",
		`{"weight_map":{"a":"/etc/passwd"}}`:        "not the name of a file beside it",
		`{"weight_map":{"a":".."}}`:                 "not the name of a file beside it",
		`{"weight_map":{"a":"f\u0000"}}`:            "not the name of a file beside it",
		`{"weight_map":{"a":1}}`:                    "not a string",
		`{"x":` + strings.Repeat(`[`, 20_000):       "depth",
		"{\"\xff\":1}":                              "not text",
		`{"metadata":{"total_size":1},"weight_map"`: "EOF",
	} {
		_, err := readIndex(strings.NewReader(text), uint64(len(text)))
		require.ErrorIs(t, err, ErrFormat, text)
		require.ErrorContains(t, err, words, text)
	}
	_, err := readIndex(strings.NewReader(""), headerMost+1)
	require.ErrorIs(t, err, ErrFormat)
}

// A stranger's long names do not fill the screen.
func TestErrorsAreShort(t *testing.T) {
	long := strings.Repeat("x", 1<<16)
	tensor := `{"dtype":"U8","shape":[4],"data_offsets":[0,4]}`
	for _, head := range []string{
		`{"` + long + `":1}`, `{"a":"` + long + `"}`, `{"` + long + `":{"` + long + `":1}}`, `{"` + long + `":{}}`,
		`{"` + long + `":` + tensor + `,"` + long + `":` + tensor + `}`, `{"` + long + `":` + tensor + `,"b":` + tensor + `}`,
		`{"` + long + `":{"dtype":"` + long + `","shape":[4],"data_offsets":[0,4]}}`, `{"` + long + `":{"dtype":"U8","shape":["` + long + `"]}}`,
		`{"` + long + `":{"dtype":"U8","shape":[5],"data_offsets":[0,4]}}`, `{"` + long + `":{"dtype":"U8","data_offsets":[]}}`,
	} {
		_, err := parseHeader([]byte(head), 4)
		require.ErrorIs(t, err, ErrFormat)
		require.Less(t, len(err.Error()), 500)
	}
	for _, text := range []string{`{"weight_map":{"` + long + `":"` + long + `"}}`, `{"weight_map":{"a":["` + long + `"]}}`} {
		_, err := readIndex(strings.NewReader(text), uint64(len(text)))
		require.ErrorIs(t, err, ErrFormat)
		require.Less(t, len(err.Error()), 500)
	}
	x := Tensor{Name: long, DType: "U8", Shape: []uint64{1}, Bytes: 1}
	for _, table := range []Table{{Tensors: []Tensor{x}}, {Tensors: []Tensor{x, x}, Size: 1}} {
		require.ErrorIs(t, table.Check(), ErrFormat)
		require.Less(t, len(table.Check().Error()), 500)
	}
}

// Whatever a header says, it is refused, or written again it says the same.
func FuzzHeader(f *testing.F) {
	f.Add([]byte(`{"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[],"data_offsets":[0,4]}}`), uint64(4))
	f.Add([]byte(`{"a":{"dtype":"F4","shape":[2,3],"data_offsets":[0,3]},"b":{"dtype":"U8","shape":[0],"data_offsets":[3,3]}}`), uint64(3))
	f.Add([]byte(`{"a":{"dtype":"I64","shape":[4294967296,4294967296],"data_offsets":[0,0]}}`), uint64(0))
	f.Add([]byte(`{"a":[[{`), uint64(1))
	f.Fuzz(func(t *testing.T, text []byte, data uint64) {
		h, err := parseHeader(text, data)
		if err != nil {
			require.ErrorIs(t, err, ErrFormat)
			return
		}
		again, err := encodeHeader(h.tensors, h.metadata)
		require.NoError(t, err)
		require.Zero(t, len(again)%8)
		h2, err := parseHeader(again[prefix:], data)
		require.NoError(t, err)
		require.Equal(t, h.tensors, h2.tensors)
		require.Equal(t, len(h.metadata), len(h2.metadata))
		var table Table
		for _, x := range h.tensors {
			if _, err := table.place(x); err != nil {
				return
			}
		}
		require.NoError(t, table.Check())
	})
}
