package cu

import (
	"fmt"
	"reflect"

	"github.com/gpufd/gpufd/cu/sys"
)

// Fill sets count elements at dst, aligned to their size, to value in q and waits
// (cuMemsetD8Async, cuMemsetD16Async, cuMemsetD32Async). The unit of count is an element of the
// size of value, as it is for [Alloc]: a [Slice] of elements of another size is [ErrInvalidValue],
// and [View] of it has others. Errors: [ErrTooShort], [ErrClosed].
//
//	counts, err := cu.Alloc[uint32](ctx, 1000)
//	err = cu.Fill(ctx, counts, uint32(0), 1000)
func Fill[T uint8 | uint16 | uint32, P Pointer](q Queue, dst P, value T, count uint64) error {
	return waiting(q, "Fill", func(s *Stream) error { return FillAsync(s, dst, value, count) })
}

// FillAsync queues [Fill] on s (cuMemsetD8Async, cuMemsetD16Async,
// cuMemsetD32Async).
func FillAsync[T uint8 | uint16 | uint32, P Pointer](s *Stream, dst P, value T, count uint64) error {
	at, err := reachElements[T]("Fill", dst, bytesOf(count, unitOf[T]()))
	if err != nil {
		return err
	}
	p, n := sys.CUdeviceptr(at), uintptr(count)
	switch v := any(value).(type) {
	case uint8:
		err = s.run("cuMemsetD8Async", func(call sys.Caller, h sys.CUstream) sys.CUresult {
			return call.CuMemsetD8Async(p, v, n, h)
		})
	case uint16:
		err = s.run("cuMemsetD16Async", func(call sys.Caller, h sys.CUstream) sys.CUresult {
			return call.CuMemsetD16Async(p, v, n, h)
		})
	default:
		err = s.run("cuMemsetD32Async", func(call sys.Caller, h sys.CUstream) sys.CUresult {
			return call.CuMemsetD32Async(p, any(value).(uint32), n, h)
		})
	}
	if err != nil {
		return s.explain(err, filled[T](at, 0, count, 1))
	}
	return nil
}

// Fill2D sets height rows of width elements, pitch bytes apart from dst on, to
// value in q and waits (cuMemsetD2D8Async, cuMemsetD2D16Async, cuMemsetD2D32Async).
// dst and pitch are multiples of the element's size. Errors are those of [Fill].
func Fill2D[T uint8 | uint16 | uint32, P Pointer](q Queue, dst P, pitch uint64, value T, width, height uint64) error {
	return waiting(q, "Fill2D", func(s *Stream) error { return Fill2DAsync(s, dst, pitch, value, width, height) })
}

// Fill2DAsync queues [Fill2D] on s (cuMemsetD2D8Async, cuMemsetD2D16Async,
// cuMemsetD2D32Async).
func Fill2DAsync[T uint8 | uint16 | uint32, P Pointer](s *Stream, dst P, pitch uint64, value T, width, height uint64) error {
	at, err := reachElements[T]("Fill2D", dst, rowsOf(pitch, bytesOf(width, unitOf[T]()), height))
	if err != nil {
		return err
	}
	p, pit, w, n := sys.CUdeviceptr(at), uintptr(pitch), uintptr(width), uintptr(height)
	switch v := any(value).(type) {
	case uint8:
		err = s.run("cuMemsetD2D8Async", func(call sys.Caller, h sys.CUstream) sys.CUresult {
			return call.CuMemsetD2D8Async(p, pit, v, w, n, h)
		})
	case uint16:
		err = s.run("cuMemsetD2D16Async", func(call sys.Caller, h sys.CUstream) sys.CUresult {
			return call.CuMemsetD2D16Async(p, pit, v, w, n, h)
		})
	default:
		err = s.run("cuMemsetD2D32Async", func(call sys.Caller, h sys.CUstream) sys.CUresult {
			return call.CuMemsetD2D32Async(p, pit, any(value).(uint32), w, n, h)
		})
	}
	if err != nil {
		return s.explain(err, filled[T](at, pitch, width, height))
	}
	return nil
}

// reachElements is reach for a fill with values of T.
func reachElements[T any, P Pointer](op string, dst P, n uint64) (DevicePtr, error) {
	if _, ok := any(dst).(counted); ok { // only a Slice: the next conversion does not allocate
		if unit := any(dst).(counted).elementSize(); unit != 0 && unit != unitOf[T]() {
			return 0, fmt.Errorf("cu: %s: an element of the destination has %d bytes and the value %d; use View to count in elements of another size: %w", op, unit, unitOf[T](), ErrInvalidValue)
		}
	}
	return reach(op, "the destination", dst, n)
}

// counted is memory in elements of a size in bytes; 0 is unknown.
type counted interface{ elementSize() uint64 }

// unitOf returns the size of a T in bytes.
func unitOf[T any]() uint64 { return uint64(reflect.TypeFor[T]().Size()) }
