package safetensors

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"unicode/utf8"
)

const (
	prefix     = 8           // bytes that say how long the header is
	headerMost = 100_000_000 // limit of a header, set by the format
)

// A header is what a file says about itself. Tensors are in the order of their
// bytes, and their offsets count from dataAt.
type header struct {
	tensors  []Tensor
	metadata map[string]string
	dataAt   uint64
}

// readHeader reads the header of a file of size bytes.
func readHeader(r io.ReaderAt, size uint64) (*header, error) {
	var length [prefix]byte
	if size < prefix {
		return nil, fmt.Errorf("%w: %d bytes are too few for a file", ErrFormat, size)
	}
	if _, err := r.ReadAt(length[:], 0); err != nil {
		return nil, err
	}
	n := binary.LittleEndian.Uint64(length[:])
	if n == 0 || n > headerMost || n > size-prefix {
		return nil, fmt.Errorf("%w: a header of %d bytes in a file of %d", ErrFormat, n, size)
	}
	text := make([]byte, n)
	if _, err := r.ReadAt(text, prefix); err != nil {
		return nil, err
	}
	h, err := parseHeader(text, size-prefix-n)
	if err != nil {
		return nil, err
	}
	h.dataAt = prefix + n
	return h, nil
}

// parseHeader reads the JSON of a header with data bytes behind it.
func parseHeader(text []byte, data uint64) (*header, error) {
	if !utf8.Valid(text) || len(text) == 0 || text[0] != '{' {
		return nil, fmt.Errorf("%w: the header is not a JSON object", ErrFormat)
	}
	if err := CheckEscapes(text); err != nil {
		return nil, fmt.Errorf("%w: the header has %w", ErrFormat, err)
	}
	h := &header{}
	s := newScanner(bytes.TrimRight(text, " \t\r\n")) // the decoder is slow with much padding
	err := s.object(func(key string) error {
		if key == metadataName {
			return s.metadata(h)
		}
		return s.tensor(h, key)
	})
	if err == nil {
		err = s.end()
	}
	if err != nil {
		return nil, fmt.Errorf("%w: the header: %w", ErrFormat, err)
	}
	slices.SortStableFunc(h.tensors, byOffset)
	return h, h.covers(data)
}

// covers returns an error unless the tensors cover the data without a hole.
func (h *header) covers(data uint64) error {
	at := uint64(0)
	for _, x := range h.tensors {
		if err := x.check(); err != nil {
			return err
		}
		if x.Offset != at {
			return fmt.Errorf("%w: tensor %s begins at %d; it should begin at %d: tensors overlap or leave a hole", ErrFormat, Quote(x.Name), x.Offset, at)
		}
		at += x.Bytes // both ends are numbers of 64 bits
	}
	if at != data {
		return fmt.Errorf("%w: the tensors have %d bytes; the file has %d behind its header", ErrFormat, at, data)
	}
	return nil
}

// A scanner reads JSON piece by piece. Go's decoder would take a name twice, and
// names that differ only in case as the same.
type scanner struct{ dec *json.Decoder }

func newScanner(text []byte) scanner {
	s := scanner{json.NewDecoder(bytes.NewReader(text))}
	s.dec.UseNumber()
	return s
}

// end returns an error if anything but blanks follows.
func (s scanner) end() error {
	if _, err := s.dec.Token(); !errors.Is(err, io.EOF) {
		return fmt.Errorf("something follows it at %d", s.dec.InputOffset())
	}
	return nil
}

// want reads one bracket.
func (s scanner) want(d json.Delim) error {
	t, err := s.dec.Token()
	if err != nil {
		return err
	}
	return s.is(t, d)
}

func (s scanner) is(t json.Token, d json.Delim) error {
	if t != d {
		return fmt.Errorf("%s instead of %v before %d", Quote(fmt.Sprint(t)), d, s.dec.InputOffset())
	}
	return nil
}

// mostDepth is how deep a value that is skipped may be nested.
const mostDepth = 100

// skip reads a value, in which no key comes twice either.
func (s scanner) skip(depth int) error {
	t, err := s.dec.Token()
	if err != nil {
		return err
	}
	if depth > mostDepth {
		return fmt.Errorf("values at %d are nested to a depth of more than %d", s.dec.InputOffset(), mostDepth)
	}
	switch t {
	case json.Delim('{'):
		return s.members(func(string) error { return s.skip(depth + 1) })
	case json.Delim('['):
		for s.dec.More() {
			if err := s.skip(depth + 1); err != nil {
				return err
			}
		}
		return s.want(']')
	}
	return nil
}

// object calls f with each key, to read the value. No key comes twice.
func (s scanner) object(f func(key string) error) error {
	if err := s.want('{'); err != nil {
		return err
	}
	return s.members(f)
}

// members is object, behind its bracket.
func (s scanner) members(f func(key string) error) error {
	seen := map[string]bool{}
	for s.dec.More() {
		key, err := s.text()
		if err != nil {
			return err
		}
		if seen[key] {
			return fmt.Errorf("%s is there twice", Quote(key))
		}
		seen[key] = true
		if err := f(key); err != nil {
			return err
		}
	}
	return s.want('}')
}

func (s scanner) text() (string, error) {
	t, err := s.dec.Token()
	if err != nil {
		return "", err
	}
	text, is := t.(string)
	if !is {
		return "", fmt.Errorf("%s before %d is not a string", Quote(fmt.Sprint(t)), s.dec.InputOffset())
	}
	return text, nil
}

// numbers reads a list of numbers.
func (s scanner) numbers() ([]uint64, error) {
	if err := s.want('['); err != nil {
		return nil, err
	}
	list := []uint64{}
	for s.dec.More() {
		t, err := s.dec.Token()
		if err != nil {
			return nil, err
		}
		number, _ := t.(json.Number)
		n, err := strconv.ParseUint(number.String(), 10, 64)
		if err != nil {
			return nil, fmt.Errorf("%s before %d is not a number of bytes or elements", Quote(fmt.Sprint(t)), s.dec.InputOffset())
		}
		list = append(list, n)
	}
	return list, s.want(']')
}

func (s scanner) metadata(h *header) error {
	t, err := s.dec.Token()
	if err != nil || t == nil { // null: there is none
		return err
	}
	if err := s.is(t, '{'); err != nil {
		return err
	}
	h.metadata = map[string]string{}
	return s.members(func(key string) (err error) {
		h.metadata[key], err = s.text()
		return err
	})
}

// tensor reads the fields of one tensor.
func (s scanner) tensor(h *header, name string) error {
	x, fields := Tensor{Name: name}, 0
	err := s.object(func(key string) (err error) {
		fields++
		switch key {
		case "dtype":
			x.DType, err = s.text()
		case "shape":
			x.Shape, err = s.numbers()
		case "data_offsets":
			err = s.offsets(&x)
		default: // a field of a later version, or of another program
			fields--
			err = s.skip(0)
		}
		return err
	})
	if err == nil && fields != 3 {
		err = fmt.Errorf("tensor %s needs dtype, shape and data_offsets", Quote(name))
	}
	h.tensors = append(h.tensors, x)
	return err
}

func (s scanner) offsets(x *Tensor) error {
	at, err := s.numbers()
	if err != nil {
		return err
	}
	if len(at) != 2 || at[1] < at[0] {
		return fmt.Errorf("tensor %s: data_offsets are begin and end", Quote(x.Name))
	}
	x.Offset, x.Bytes = at[0], at[1]-at[0]
	return nil
}
