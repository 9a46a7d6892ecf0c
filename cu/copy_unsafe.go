package cu

import (
	"fmt"
	"reflect"
	"runtime"
	"unsafe"

	"github.com/gpufd/gpufd/cu/sys"
)

// A copy or fill without Async in its name is done in the null stream of a context,
// and when it returns it is over. It waits for the work of the null stream and of
// blocking streams before it, not for that of [Context.NewStream]: see
// [Stream.Synchronize]. One with Async is queued on a stream, and returns before it
// is done. Both have the place first, then destination, source and size.
//
// Slices to be copied are of numbers, or of arrays and structs of numbers, laid
// out as Go lays them out. Anything else is [ErrPointers].

// CopyToDevice copies src to the device memory at dst and waits until it is there,
// so that src may be changed afterwards (cuMemcpyHtoDAsync in the null stream,
// cuStreamSynchronize).
func CopyToDevice[T any](c *Context, dst DevicePtr, src []T) error {
	defer runtime.KeepAlive(src)
	return c.waiting(func(s *Stream) error { return CopyToDeviceAsync(s, dst, src) })
}

// CopyToHost copies device memory at src into dst, as much as dst is long, and
// waits until it is there (cuMemcpyDtoHAsync in the null stream,
// cuStreamSynchronize).
func CopyToHost[T any](c *Context, dst []T, src DevicePtr) error {
	defer runtime.KeepAlive(dst)
	return c.waiting(func(s *Stream) error { return CopyToHostAsync(s, dst, src) })
}

// CopyToDeviceAsync queues a copy of src to dst on s (cuMemcpyHtoDAsync). The
// caller keeps src alive and unchanged until the stream is done with it. The
// driver copies other memory than [Context.AllocHost]'s and
// [Context.RegisterHost]'s to a place of its own first.
func CopyToDeviceAsync[T any](s *Stream, dst DevicePtr, src []T) error {
	p, n, err := memory(src)
	if err != nil {
		return err
	}
	defer runtime.KeepAlive(p)
	return s.run("cuMemcpyHtoDAsync_v2", func(call sys.Caller, h sys.CUstream) sys.CUresult {
		return call.CuMemcpyHtoDAsync_v2(sys.CUdeviceptr(dst), p, n, h)
	})
}

// CopyToHostAsync queues a copy from src into dst on s (cuMemcpyDtoHAsync). The
// caller keeps dst alive and untouched until the stream is done with it. Into
// other memory than [Context.AllocHost]'s and [Context.RegisterHost]'s it
// returns only when the copy is done.
func CopyToHostAsync[T any](s *Stream, dst []T, src DevicePtr) error {
	p, n, err := memory(dst)
	if err != nil {
		return err
	}
	defer runtime.KeepAlive(p)
	return s.run("cuMemcpyDtoHAsync_v2", func(call sys.Caller, h sys.CUstream) sys.CUresult {
		return call.CuMemcpyDtoHAsync_v2(p, sys.CUdeviceptr(src), n, h)
	})
}

// memory is where a slice's elements lie, and how many bytes they are.
func memory[T any](s []T) (unsafe.Pointer, uintptr, error) {
	var t T
	if typ := reflect.TypeFor[T](); !plain(typ) {
		return nil, 0, fmt.Errorf("%w: %s", ErrPointers, typ)
	}
	return unsafe.Pointer(unsafe.SliceData(s)), uintptr(len(s)) * unsafe.Sizeof(t), nil
}
