package cu

import (
	"fmt"
	"reflect"
	"runtime"
	"unsafe"

	"github.com/gpufd/gpufd/cu/sys"
)

// CopyToDevice copies src to the device memory at dst and waits
// (cuMemcpyHtoDAsync). It does not wait for streams of [Context.NewStream]: to
// copy after their work, use [CopyToDeviceAsync] and [Stream.Synchronize].
func CopyToDevice[T any](c *Context, dst DevicePtr, src []T) error {
	defer runtime.KeepAlive(src)
	return c.waiting(func(s *Stream) error { return CopyToDeviceAsync(s, dst, src) })
}

// CopyToHost fills dst from the device memory at src and waits
// (cuMemcpyDtoHAsync). It does not wait for streams of [Context.NewStream]: to
// copy after their work, use [CopyToHostAsync] and [Stream.Synchronize].
func CopyToHost[T any](c *Context, dst []T, src DevicePtr) error {
	defer runtime.KeepAlive(dst)
	return c.waiting(func(s *Stream) error { return CopyToHostAsync(s, dst, src) })
}

// CopyToDeviceAsync queues a copy of src to dst on s (cuMemcpyHtoDAsync). The
// caller keeps src alive and unchanged until the stream is done with it. If src
// is not pinned, by [Context.AllocHost] or [Context.RegisterHost], the driver
// first copies it to a buffer of its own, and may keep the call until the stream
// gets there.
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
// caller keeps dst alive and untouched until the stream is done with it. If dst
// is not pinned, the call returns only when the copy is done.
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

// memory returns where a slice's elements lie, and how many bytes they have.
func memory[T any](s []T) (unsafe.Pointer, uintptr, error) {
	var t T
	if typ := reflect.TypeFor[T](); !copyable.has(typ) {
		return nil, 0, fmt.Errorf("%w: %s", ErrPointers, typ)
	}
	return unsafe.Pointer(unsafe.SliceData(s)), uintptr(len(s)) * unsafe.Sizeof(t), nil
}
