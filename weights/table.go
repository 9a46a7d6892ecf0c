package weights

import (
	"fmt"
	"slices"

	"github.com/gpufd/gpufd/internal/safetensors"
)

// tensorAlign is what the beginnings of tensors are multiples of.
const tensorAlign = 256

// A Meta says what a tensor is.
type Meta struct {
	Name  string
	DType string   // as safetensors names it: BF16
	Shape []uint64 // the slowest dimension first; empty for a single number
	Of    *Shard   // nil for a whole tensor
}

// A Shard says of which tensor another one is a slice.
type Shard struct {
	Shape []uint64 // of the whole tensor
	Begin []uint64 // the first element of the slice in each dimension
}

// same reports whether two pieces are of one tensor.
func (m *Meta) same(o *Meta) bool {
	return m.Name == o.Name && m.DType == o.DType && slices.Equal(m.Shape, o.Shape) && (m.Of == nil) == (o.Of == nil) &&
		(m.Of == nil || slices.Equal(m.Of.Shape, o.Of.Shape) && slices.Equal(m.Of.Begin, o.Of.Begin))
}

// An entry is a tensor of a table, or a piece of one.
type entry struct {
	Meta
	total          uint64 // bytes of the whole tensor
	at, size, from uint64
}

// A table says which tensors a bucket has. It is not changed.
type table struct {
	entries []entry
	end     uint64 // of the tensors
}

// parseTable reads the JSON of a table, and checks each entry by itself.
func parseTable(text []byte) (*table, error) {
	all, err := whole(text)
	if err != nil {
		return nil, fmt.Errorf("%w: a table: %w", ErrFormat, err)
	}
	list, err := all.list("tensors")
	if err != nil {
		return nil, fmt.Errorf("%w: a table: %w", ErrFormat, err)
	}
	t := &table{entries: make([]entry, len(list))}
	for i, raw := range list {
		e := &t.entries[i]
		if err := e.parse(raw); err != nil {
			return nil, fmt.Errorf("%w: entry %d of a table: %w", ErrFormat, i, err)
		}
		t.end = max(t.end, e.at+e.size)
	}
	return t, nil
}

func (e *entry) parse(raw []byte) error {
	m, err := object(raw)
	if err != nil {
		return err
	}
	if e.Meta, e.total, err = m.meta(); err != nil {
		return err
	}
	if e.at, err = m.number("at"); err != nil {
		return err
	}
	if e.size, err = m.number("bytes"); err != nil {
		return err
	}
	if m.has("from") {
		if e.from, err = m.number("from"); err != nil {
			return err
		}
	}
	return e.check()
}

// check compares the numbers of an entry with the tensor's size.
func (e *entry) check() error {
	switch {
	case e.at%tensorAlign != 0:
		return fmt.Errorf("tensor %s is at %d, which is no multiple of %d", safetensors.Quote(e.Name), e.at, tensorAlign)
	case e.from > e.total || e.size > e.total-e.from:
		return fmt.Errorf("tensor %s has %d bytes from %d on, and %d in all", safetensors.Quote(e.Name), e.size, e.from, e.total)
	case e.size == 0 && e.total > 0:
		return fmt.Errorf("tensor %s comes in a piece without bytes", safetensors.Quote(e.Name))
	}
	return nil
}
