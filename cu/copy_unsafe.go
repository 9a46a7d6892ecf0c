package cu

import (
	"runtime"
	"unsafe"

	"github.com/gpufd/gpufd/cu/sys"
)

// CopyToDevice copies src to the device memory at dst, in the order of s, and
// waits until it is there, so that src may be changed afterwards
// (cuMemcpyHtoDAsync, cuStreamSynchronize). [CopyToDeviceAsync] does not wait.
func CopyToDevice[T any](c *Context, s *Stream, dst DevicePtr, src []T) error {
	if err := CopyToDeviceAsync(c, s, dst, src); err != nil {
		return err
	}
	return s.waitIn(c)
}

// CopyToHost copies device memory at src into dst, as much as dst is long, in
// the order of s, and waits until it is there (cuMemcpyDtoHAsync,
// cuStreamSynchronize).
func CopyToHost[T any](c *Context, s *Stream, dst []T, src DevicePtr) error {
	if err := CopyToHostAsync(c, s, dst, src); err != nil {
		return err
	}
	return s.waitIn(c)
}

// CopyToDeviceAsync queues a copy of src to dst on s. The caller keeps src
// alive and unchanged until the stream is done with it.
func CopyToDeviceAsync[T any](c *Context, s *Stream, dst DevicePtr, src []T) error {
	p, n := memory(src)
	defer runtime.KeepAlive(src)
	return s.use(c, "cuMemcpyHtoDAsync_v2", func(call sys.Caller, h sys.CUstream) sys.CUresult {
		return call.CuMemcpyHtoDAsync_v2(sys.CUdeviceptr(dst), p, n, h)
	})
}

// CopyToHostAsync queues a copy from src into dst on s. The caller keeps dst
// alive and untouched until the stream is done with it.
func CopyToHostAsync[T any](c *Context, s *Stream, dst []T, src DevicePtr) error {
	p, n := memory(dst)
	defer runtime.KeepAlive(dst)
	return s.use(c, "cuMemcpyDtoHAsync_v2", func(call sys.Caller, h sys.CUstream) sys.CUresult {
		return call.CuMemcpyDtoHAsync_v2(p, sys.CUdeviceptr(src), n, h)
	})
}

// waitIn waits in the driver for s, or for c's null stream.
func (s *Stream) waitIn(c *Context) error {
	return s.use(c, "cuStreamSynchronize", func(call sys.Caller, h sys.CUstream) sys.CUresult {
		return call.CuStreamSynchronize(h)
	})
}

// memory is where a slice's elements lie, and how many bytes they are.
func memory[T any](s []T) (unsafe.Pointer, uintptr) {
	var t T
	return unsafe.Pointer(unsafe.SliceData(s)), uintptr(len(s)) * unsafe.Sizeof(t)
}
