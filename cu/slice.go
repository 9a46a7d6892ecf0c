package cu

import (
	"fmt"
	"math"
)

// A Slice is device memory as elements of T, which are numbers, or arrays and structs of numbers
// ([ErrPointers]). One from [Alloc] is the caller's, who ends it with Close; [View] and
// [Slice.Slice] return parts of memory that something else owns. It is a small value that points
// to its memory, as Go's slices are, and a [Pointer]. The zero Slice has no memory.
//
//	xs, err := cu.Alloc[float32](ctx, len(host))
//	defer xs.Close()
//	err = xs.CopyFrom(s, host)
type Slice[T any] struct{ *span }

// span is what a Slice is without its type. Being one pointer, a Slice becomes an any without an
// allocation.
type span struct {
	of   Pointer
	own  *Memory // what Close frees, if anything
	off  uint64  // in bytes, in of
	n    int     // in elements
	unit uint64  // of an element in bytes
}

// elementSize is 0 if there is no memory.
func (s *span) elementSize() uint64 {
	if s == nil {
		return 0
	}
	return s.unit
}

// Alloc allocates n elements of device memory with undefined content (cuMemAlloc). The caller owns
// them. Errors: [ErrPointers]; [ErrOutOfMemory]; [ErrInvalidValue] for n below 1, or for more than can be.
func Alloc[T any](c *Context, n int) (Slice[T], error) {
	size, err := elements[T]("Alloc", n)
	if err != nil {
		return Slice[T]{}, err
	}
	m, err := c.Alloc(size)
	if err != nil {
		return Slice[T]{}, err
	}
	return Slice[T]{&span{of: m, own: m, n: n, unit: unitOf[T]()}}, nil
}

// View returns the first n elements of memory that p's owner keeps: a [DevicePtr], *vmm.Buffer,
// *share.Attachment and the like. Once p is closed, the view is closed, too. Errors: [ErrPointers];
// [ErrTooShort] if p is known to be smaller; [ErrInvalidValue] for n below 0; [ErrClosed].
func View[T any](p Pointer, n int) (Slice[T], error) {
	size, err := elements[T]("View", n)
	if err != nil {
		return Slice[T]{}, err
	}
	if _, err := reach("View", "the memory", p, size); err != nil {
		return Slice[T]{}, err
	}
	return Slice[T]{&span{of: p, n: n, unit: unitOf[T]()}}, nil
}

// elements returns the size of n elements in bytes, or why there cannot be that many of that type.
func elements[T any](op string, n int) (uint64, error) {
	if _, _, err := memory[T](nil); err != nil {
		return 0, err
	}
	size := bytesOf(uint64(n), unitOf[T]())
	if n < 0 || size == math.MaxUint64 {
		return 0, fmt.Errorf("cu: %s: there cannot be %d elements of %d bytes: %w", op, n, unitOf[T](), ErrInvalidValue)
	}
	return size, nil
}

// Len returns the number of elements.
func (s Slice[T]) Len() int {
	if s.span == nil {
		return 0
	}
	return s.n
}

// Size returns the size in bytes.
func (s Slice[T]) Size() uint64 {
	if s.span == nil {
		return 0
	}
	return uint64(s.n) * s.unit
}

// Ptr returns the address of the first element, 0 once the memory is closed.
func (s Slice[T]) Ptr() DevicePtr {
	if s.span == nil {
		return 0
	}
	p := s.of.Ptr()
	if p == 0 {
		return 0
	}
	return p.Add(s.off)
}

// Slice returns the elements from i up to, but not including, j, as s[i:j] would, without owning
// them. The error names the numbers if they are out of range, and is [ErrInvalidValue].
func (s Slice[T]) Slice(i, j int) (Slice[T], error) {
	if i < 0 || j < i || j > s.Len() {
		return Slice[T]{}, fmt.Errorf("cu: Slice: elements %d to %d are not in a slice of %d: %w", i, j, s.Len(), ErrInvalidValue)
	}
	if s.span == nil {
		return s, nil
	}
	return Slice[T]{&span{of: s.of, off: s.off + uint64(i)*s.unit, n: j - i, unit: s.unit}}, nil
}

// CopyFrom copies src to the first elements in q and waits: [CopyToDevice] of elements that the
// compiler has compared.
func (s Slice[T]) CopyFrom(q Queue, src []T) error { return CopyToDevice(q, s, src) }

// CopyTo fills dst from the first elements in q and waits: [CopyToHost] of elements that the
// compiler has compared.
func (s Slice[T]) CopyTo(q Queue, dst []T) error { return CopyToHost(q, dst, s) }

// Close frees what [Alloc] allocated, as [Memory.Close] does, and closes all parts of it. For other
// slices it does nothing: their memory is not theirs.
func (s Slice[T]) Close() error {
	if s.span == nil {
		return nil
	}
	return s.own.Close()
}
