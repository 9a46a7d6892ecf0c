package cu

import (
	"fmt"
	"reflect"
	"runtime"
	"unsafe"

	"github.com/gpufd/gpufd/cu/sys"
)

// CopyToDevice copies src to the memory at dst in q and waits (cuMemcpyHtoDAsync). Pass the
// stream that has the work before the copy: see [Queue]. Errors: [ErrTooShort], [ErrPointers],
// [ErrClosed].
func CopyToDevice[T any, D Pointer](q Queue, dst D, src []T) error {
	defer runtime.KeepAlive(src)
	return waiting(q, toDeviceOp, func(s *Stream) error { return CopyToDeviceAsync(s, dst, src) })
}

// CopyToHost fills dst from the memory at src in q and waits (cuMemcpyDtoHAsync). Pass the stream
// that was given the work whose results these are: see [Queue]. Errors: [ErrTooShort],
// [ErrPointers], [ErrClosed].
func CopyToHost[T any, S Pointer](q Queue, dst []T, src S) error {
	defer runtime.KeepAlive(dst)
	return waiting(q, toHostOp, func(s *Stream) error { return CopyToHostAsync(s, dst, src) })
}

const (
	toDeviceOp = "cuMemcpyHtoDAsync_v2"
	toHostOp   = "cuMemcpyDtoHAsync_v2"
)

// CopyToDeviceAsync queues a copy of src to dst on s (cuMemcpyHtoDAsync). The
// caller keeps src alive and unchanged until the stream is done with it. If src
// is not pinned, by [Context.AllocHost] or [Context.RegisterHost], the driver
// first copies it to a buffer of its own, and may keep the call until the stream
// gets there.
func CopyToDeviceAsync[T any, D Pointer](s *Stream, dst D, src []T) error {
	p, n, err := memory(src)
	if err != nil {
		return err
	}
	at, err := reach(toDeviceOp, "the destination", dst, uint64(n))
	if err != nil {
		return err
	}
	defer runtime.KeepAlive(p)
	err = s.run(toDeviceOp, func(call sys.Caller, h sys.CUstream) sys.CUresult {
		return call.CuMemcpyHtoDAsync_v2(sys.CUdeviceptr(at), p, n, h)
	})
	if err != nil {
		return s.explain(err, destination(at, uint64(n)))
	}
	return nil
}

// CopyToHostAsync queues a copy from src into dst on s (cuMemcpyDtoHAsync). The
// caller keeps dst alive and untouched until the stream is done with it. If dst
// is not pinned, the call returns only when the copy is done.
func CopyToHostAsync[T any, S Pointer](s *Stream, dst []T, src S) error {
	p, n, err := memory(dst)
	if err != nil {
		return err
	}
	at, err := reach(toHostOp, "the source", src, uint64(n))
	if err != nil {
		return err
	}
	defer runtime.KeepAlive(p)
	err = s.run(toHostOp, func(call sys.Caller, h sys.CUstream) sys.CUresult {
		return call.CuMemcpyDtoHAsync_v2(p, sys.CUdeviceptr(at), n, h)
	})
	if err != nil {
		return s.explain(err, source(at, uint64(n)))
	}
	return nil
}

// memory returns where a slice's elements lie, and how many bytes they have.
func memory[T any](s []T) (unsafe.Pointer, uintptr, error) {
	var t T
	if typ := reflect.TypeFor[T](); !copyable.has(typ) {
		return nil, 0, fmt.Errorf("%w: %s", ErrPointers, typ)
	}
	return unsafe.Pointer(unsafe.SliceData(s)), uintptr(len(s)) * unsafe.Sizeof(t), nil
}
