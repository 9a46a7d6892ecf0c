package weights

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"unicode/utf8"

	"github.com/gpufd/gpufd/internal/safetensors"
)

// maxName is how many bytes the name of a tensor has at most.
const maxName = 1024

// members are those of a JSON object, by their exact names: encoding/json ignores the case where it fills structs.
type members map[string]json.RawMessage

// whole reads a text that is one object, and checks all of it.
func whole(text []byte) (members, error) {
	if err := strict(text); err != nil {
		return nil, err
	}
	return object(text)
}

// object reads the members of an object.
func object(text []byte) (m members, err error) {
	if !utf8.Valid(text) {
		return nil, errors.New("it is not UTF-8")
	}
	if err := json.Unmarshal(text, &m); err != nil {
		return nil, mismatch(err, "an object")
	}
	if m == nil {
		return nil, errors.New("null where an object belongs")
	}
	return m, nil
}

// mismatch says what JSON has in the place of what was wanted.
func mismatch(err error, want string) error {
	if typ := (*json.UnmarshalTypeError)(nil); errors.As(err, &typ) {
		return fmt.Errorf("%s where %s belongs", typ.Value, want)
	}
	return err
}

func (m members) has(name string) bool { return m[name] != nil }

// into reads a member that has to be there, and is not null. want says what it is.
func (m members) into(name, want string, v any) error {
	raw := m[name]
	if raw == nil || string(raw) == "null" {
		return fmt.Errorf("member %q is missing", name)
	}
	if err := json.Unmarshal(raw, v); err != nil {
		return fmt.Errorf("member %q: %w", name, mismatch(err, want))
	}
	return nil
}

func (m members) list(name string) (all []json.RawMessage, err error) {
	return all, m.into(name, "a list", &all)
}

// text reads a text whose escapes are whole characters.
func (m members) text(name string) (s string, err error) {
	if err := safetensors.CheckEscapes(m[name]); err != nil {
		return "", fmt.Errorf("member %q: %w", name, err)
	}
	return s, m.into(name, "a text", &s)
}

// number reads an integer from 0 to 2^63-1.
func (m members) number(name string) (uint64, error) {
	if m[name] == nil {
		return 0, fmt.Errorf("member %q is missing", name)
	}
	return integer(name, m[name])
}

func (m members) numbers(name string) ([]uint64, error) {
	list, err := m.list(name)
	if err != nil {
		return nil, err
	}
	all := make([]uint64, len(list))
	for i, raw := range list {
		if all[i], err = integer(name, raw); err != nil {
			return nil, err
		}
	}
	return all, nil
}

func integer(name string, raw []byte) (uint64, error) {
	n, err := strconv.ParseUint(string(raw), 10, 63)
	if err != nil {
		return 0, fmt.Errorf("member %q: %s is no integer from 0 to 2^63-1", name, safetensors.Quote(string(raw)))
	}
	return n, nil
}

// meta reads what a tensor is, and returns how many bytes it has.
func (m members) meta() (x Meta, size uint64, err error) {
	if x.Name, err = m.text("name"); err != nil {
		return x, 0, err
	}
	if x.Name == "" || len(x.Name) > maxName {
		return x, 0, fmt.Errorf("a name of %d bytes; want 1 to %d", len(x.Name), maxName)
	}
	if x.DType, err = m.text("dtype"); err != nil {
		return x, 0, err
	}
	if x.Shape, err = m.numbers("shape"); err != nil {
		return x, 0, err
	}
	if m.has("of") {
		if x.Of, err = m.shard(x.Shape); err != nil {
			return x, 0, fmt.Errorf("tensor %s: %w", safetensors.Quote(x.Name), err)
		}
	}
	size, err = safetensors.Tensor{Name: x.Name, DType: x.DType, Shape: x.Shape}.NumBytes()
	return x, size, err
}

// shard reads which tensor the one of that shape is a slice of.
func (m members) shard(shape []uint64) (*Shard, error) {
	of, err := object(m["of"])
	if err != nil {
		return nil, err
	}
	var s Shard
	if s.Shape, err = of.numbers("shape"); err != nil {
		return nil, err
	}
	if s.Begin, err = of.numbers("begin"); err != nil {
		return nil, err
	}
	if len(s.Shape) != len(shape) || len(s.Begin) != len(shape) {
		return nil, fmt.Errorf("a slice of %d dimensions that begins in %d of %d", len(shape), len(s.Begin), len(s.Shape))
	}
	for i, n := range shape {
		if s.Begin[i] > s.Shape[i] || n > s.Shape[i]-s.Begin[i] {
			return nil, fmt.Errorf("a slice of %d elements from %d on, of %d in dimension %d", n, s.Begin[i], s.Shape[i], i)
		}
	}
	return &s, nil
}
