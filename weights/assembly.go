package weights

import (
	"fmt"

	"github.com/gpufd/gpufd/internal/safetensors"
)

// An assembly puts buckets together. It decides what frames mean, without memory and time: a test runs the vectors
// through it. The caller asks place where a frame belongs, reads the table of a frame that belongs somewhere, and adds it.
type assembly struct {
	number  uint64 // of the newest update that began
	step    int64
	under   bool   // it is under way
	next    uint32 // bucket
	names   map[string]struct{}
	known   map[string]*Meta // the tensors that each update has, by the metadata; nil if it does not say
	inPlace bool             // each update is one frame
	open    *entry           // a tensor of which pieces are missing; its from and size are those of the last one
}

// describe notes what the metadata says of each update.
func (a *assembly) describe(m *Metadata) {
	a.inPlace = m.InPlace
	if m.Tensors == nil {
		return
	}
	a.known = make(map[string]*Meta, len(m.Tensors))
	for i := range m.Tensors {
		a.known[m.Tensors[i].Name] = &m.Tensors[i]
	}
}

// place reports whether a frame belongs to an update that began, or begins one, and whether the update that was under
// way is torn by it. A frame that is refused tears it, too.
func (a *assembly) place(b *bucket) (torn, belongs bool, err error) {
	switch {
	case a.inPlace && !b.alone():
		return a.tear(), false, fmt.Errorf("%w: bucket %d of update %d in place, with last %t; want one frame for each update", ErrFormat, b.index, b.number, b.last)
	case b.first && b.number <= a.number:
		return a.tear(), false, fmt.Errorf("%w: update %d begins behind update %d", ErrFormat, b.number, a.number)
	case b.first:
		return a.tear(), true, nil
	case a.under && b.number == a.number && b.index == a.next:
		return false, true, nil
	}
	return a.tear(), false, nil
}

// tear ends the update that is under way, and reports whether there was one.
func (a *assembly) tear() (was bool) {
	was, a.under = a.under, false
	return was
}

// add takes a frame that belongs, and its table, or nil if it has no tensors. Then the update is under way, or it was
// the last frame, or one that gives up. A frame that is refused belongs to no update, and tears none.
func (a *assembly) add(b *bucket, t *table) error {
	if b.first {
		if a.names == nil {
			a.names = map[string]struct{}{}
		}
		clear(a.names)
		a.open, a.next = nil, 0
	}
	if t != nil {
		if err := b.suits(t); err != nil {
			return err
		}
		for i := range t.entries {
			if err := a.enter(&t.entries[i]); err != nil {
				return err
			}
		}
	}
	if b.last && a.open != nil {
		return fmt.Errorf("%w: update %d ends with %d of %d bytes of tensor %s", ErrFormat, b.number, a.open.from+a.open.size, a.open.total, safetensors.Quote(a.open.Name))
	}
	if b.last && a.known != nil && len(a.names) != len(a.known) {
		return fmt.Errorf("%w: update %d ends with %d tensors of the %d that the publisher's metadata names", ErrFormat, b.number, len(a.names), len(a.known))
	}
	a.number, a.step, a.next = b.number, b.step, a.next+1
	a.under = !b.last && !b.givenUp
	return nil
}

// enter takes the next tensor, or piece of one.
func (a *assembly) enter(e *entry) error {
	switch o := a.open; {
	case o != nil && (!o.same(&e.Meta) || e.from != o.from+o.size):
		return fmt.Errorf("%w: %d bytes of tensor %s, of %s %v, from %d on, follow the first %d bytes of tensor %s, of %s %v",
			ErrFormat, e.size, safetensors.Quote(e.Name), e.DType, short(e.Shape), e.from, o.from+o.size, safetensors.Quote(o.Name), o.DType, short(o.Shape))
	case o == nil && e.from != 0:
		return fmt.Errorf("%w: tensor %s begins with byte %d", ErrFormat, safetensors.Quote(e.Name), e.from)
	case o == nil:
		if _, twice := a.names[e.Name]; twice || len(a.names) == maxTensors {
			return fmt.Errorf("%w: tensor %s comes twice in an update, or behind %d others", ErrFormat, safetensors.Quote(e.Name), maxTensors)
		}
		if m := a.known[e.Name]; a.known != nil && (m == nil || !m.same(&e.Meta)) {
			return fmt.Errorf("%w: tensor %s, of %s %v, is not one that the publisher's metadata names", ErrFormat, safetensors.Quote(e.Name), e.DType, short(e.Shape))
		}
		a.names[e.Name] = struct{}{}
	}
	a.open = nil
	if e.from+e.size < e.total {
		a.open = e
	}
	return nil
}

// short returns a shape that fits into an error.
func short(shape []uint64) []uint64 { return shape[:min(len(shape), 8)] }
