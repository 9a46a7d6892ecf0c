package safetensors

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"math/bits"
	"slices"
	"strconv"
	"unicode/utf8"

	"github.com/gpufd/gpufd/vmm"
)

// Align is the alignment of tensors in a buffer, in bytes.
const Align = 256

// ErrFormat says that a file or a table breaks the format.
var ErrFormat = errors.New("safetensors: bad format")

// A Table says which tensors a buffer holds, and where.
type Table struct {
	Tensors  []Tensor          `json:"tensors"`            // by Offset
	Metadata map[string]string `json:"metadata,omitempty"` // that no files contradict
	Size     uint64            `json:"size"`               // of the buffer, in bytes
}

// A Tensor is one tensor of a table.
type Tensor struct {
	Name   string   `json:"name"`
	DType  string   `json:"dtype"`  // in the words of the format: BF16
	Shape  []uint64 `json:"shape"`  // empty for a single number
	Offset uint64   `json:"offset"` // in the buffer, in bytes
	Bytes  uint64   `json:"bytes"`
	Stride []uint64 `json:"stride,omitempty"` // in elements, of a view; tensors of files lie dense
}

// dtypes are the types of the format, with their size in bits.
var dtypes = map[string]uint64{
	"BOOL": 8, "U8": 8, "I8": 8, "U16": 16, "I16": 16, "U32": 32, "I32": 32, "U64": 64, "I64": 64,
	"F16": 16, "BF16": 16, "F32": 32, "F64": 64, "C64": 64,
	"F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8,
	"F6_E2M3": 6, "F6_E3M2": 6, "F4": 4,
}

// metadataName is not a tensor's name.
const metadataName = "__metadata__"

// UnmarshalJSON reads a table. Its texts are whole.
func (t *Table) UnmarshalJSON(b []byte) error {
	type plain Table // without this method
	if err := CheckEscapes(b); err != nil {
		return err
	}
	return json.Unmarshal(b, (*plain)(t))
}

// Check finds what is wrong with a table: sizes that do not fit their shapes,
// tensors that overlap or reach beyond the buffer, names that occur twice.
func (t Table) Check() error {
	names := make(map[string]bool, len(t.Tensors))
	for _, x := range t.Tensors {
		if err := x.check(); err != nil {
			return err
		}
		if names[x.Name] {
			return fmt.Errorf("%w: tensor %s is there twice", ErrFormat, Quote(x.Name))
		}
		names[x.Name] = true
		if x.Offset > t.Size || x.Bytes > t.Size-x.Offset {
			return fmt.Errorf("%w: tensor %s has %d bytes at %d, in a buffer of %d", ErrFormat, Quote(x.Name), x.Bytes, x.Offset, t.Size)
		}
	}
	sorted := slices.DeleteFunc(slices.Clone(t.Tensors), func(x Tensor) bool { return x.Bytes == 0 })
	slices.SortFunc(sorted, byOffset)
	for i := 1; i < len(sorted); i++ {
		if a, b := sorted[i-1], sorted[i]; a.Offset+a.Bytes > b.Offset {
			return fmt.Errorf("%w: tensors %s and %s overlap", ErrFormat, Quote(a.Name), Quote(b.Name))
		}
	}
	return nil
}

func byOffset(a, b Tensor) int {
	return cmp.Or(cmp.Compare(a.Offset, b.Offset), cmp.Compare(a.Bytes, b.Bytes))
}

// check compares a tensor's bytes with its type and shape.
func (x Tensor) check() error {
	if x.Name == metadataName || !utf8.ValidString(x.Name) {
		return fmt.Errorf("%w: a tensor named %s", ErrFormat, Quote(x.Name))
	}
	size, err := x.NumBytes()
	if err != nil {
		return err
	}
	if size != x.Bytes {
		return fmt.Errorf("%w: tensor %s of %s %v has %d bytes instead of %d", ErrFormat, Quote(x.Name), x.DType, short(x.Shape), x.Bytes, size)
	}
	return nil
}

// NumBytes returns how many bytes the type and the shape make.
func (x Tensor) NumBytes() (uint64, error) {
	each, known := dtypes[x.DType]
	if !known {
		return 0, fmt.Errorf("%w: tensor %s is of type %s, which is unknown", ErrFormat, Quote(x.Name), Quote(x.DType))
	}
	n, over := uint64(1), false
	times := func(d uint64) {
		high, low := bits.Mul64(n, d)
		n, over = low, over || high != 0
	}
	for _, d := range x.Shape { // as safetensors does: what overflows before a 0 is refused
		times(d)
	}
	times(each)
	if over || n%8 != 0 {
		return 0, fmt.Errorf("%w: tensor %s of %s %v does not have a number of bytes", ErrFormat, Quote(x.Name), x.DType, short(x.Shape))
	}
	return n / 8, nil
}

// short returns a shape that fits into an error.
func short(shape []uint64) string {
	if len(shape) > 8 {
		return fmt.Sprintf("%v and %d more", shape[:8], len(shape)-8)
	}
	return fmt.Sprint(shape)
}

// Quote returns a stranger's text, short enough for an error.
func Quote(s string) string {
	const most = 100
	if len(s) > most {
		return fmt.Sprintf("%q…", s[:most])
	}
	return strconv.Quote(s)
}

// place puts a tensor behind those of the table, and returns where.
func (t *Table) place(x Tensor) (at uint64, err error) {
	at, ok := vmm.AlignUp(t.Size, Align)
	if !ok || x.Bytes > 1<<63-1-at {
		return 0, fmt.Errorf("%w: no buffer holds all tensors", ErrFormat)
	}
	x.Offset, t.Size = at, at+x.Bytes
	t.Tensors = append(t.Tensors, x)
	return at, nil
}
