package cu

import (
	"fmt"
	"reflect"
	"runtime"
	"unsafe"

	"github.com/gpufd/gpufd/cu/sys"
)

// CopyToDevice copies src to the device memory at dst and waits
// (cuMemcpyHtoDAsync). Work of [Context.NewStream] it does not wait for: to come after
// that, use [CopyToDeviceAsync] there and [Stream.Synchronize].
func CopyToDevice[T any](c *Context, dst DevicePtr, src []T) error {
	defer runtime.KeepAlive(src)
	return c.waiting(func(s *Stream) error { return CopyToDeviceAsync(s, dst, src) })
}

// CopyToHost fills dst with device memory from src on and waits
// (cuMemcpyDtoHAsync). Work of [Context.NewStream] it does not wait for: to come after
// that, use [CopyToHostAsync] there and [Stream.Synchronize].
func CopyToHost[T any](c *Context, dst []T, src DevicePtr) error {
	defer runtime.KeepAlive(dst)
	return c.waiting(func(s *Stream) error { return CopyToHostAsync(s, dst, src) })
}

// CopyToDeviceAsync queues a copy of src to dst on s (cuMemcpyHtoDAsync). The
// caller keeps src alive and unchanged until the stream is done with it. The
// driver first copies memory that is not pinned, by [Context.AllocHost] or
// [Context.RegisterHost], to a place of its own.
func CopyToDeviceAsync[T any](s *Stream, dst DevicePtr, src []T) error {
	p, n, err := memory(src)
	if err != nil {
		return err
	}
	defer runtime.KeepAlive(p)
	err = s.run("cuMemcpyHtoDAsync_v2", func(call sys.Caller, h sys.CUstream) sys.CUresult {
		return call.CuMemcpyHtoDAsync_v2(sys.CUdeviceptr(dst), p, n, h)
	})
	if err != nil {
		return s.explain(err, destination(dst, uint64(n)))
	}
	return nil
}

// CopyToHostAsync queues a copy from src into dst on s (cuMemcpyDtoHAsync). The
// caller keeps dst alive and untouched until the stream is done with it. For
// memory that is not pinned it returns only when the copy is done.
func CopyToHostAsync[T any](s *Stream, dst []T, src DevicePtr) error {
	p, n, err := memory(dst)
	if err != nil {
		return err
	}
	defer runtime.KeepAlive(p)
	err = s.run("cuMemcpyDtoHAsync_v2", func(call sys.Caller, h sys.CUstream) sys.CUresult {
		return call.CuMemcpyDtoHAsync_v2(p, sys.CUdeviceptr(src), n, h)
	})
	if err != nil {
		return s.explain(err, source(src, uint64(n)))
	}
	return nil
}

// memory is where a slice's elements lie, and how many bytes they are.
func memory[T any](s []T) (unsafe.Pointer, uintptr, error) {
	var t T
	if typ := reflect.TypeFor[T](); !plain(typ) {
		return nil, 0, fmt.Errorf("%w: %s", ErrPointers, typ)
	}
	return unsafe.Pointer(unsafe.SliceData(s)), uintptr(len(s)) * unsafe.Sizeof(t), nil
}
