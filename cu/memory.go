package cu

import (
	"fmt"
	"runtime"

	"github.com/gpufd/gpufd/cu/sys"
)

// DevicePtr is an address in device memory. The host cannot dereference it.
type DevicePtr uint64

// Add returns the address n bytes on.
func (p DevicePtr) Add(n uint64) DevicePtr { return p + DevicePtr(n) }

// String prints the address in hexadecimal with 0x.
func (p DevicePtr) String() string { return fmt.Sprintf("%#x", uint64(p)) }

// Memory is device memory of the plain kind, which legacy IPC can share and
// file descriptors cannot: see package vmm for those. The caller owns it.
type Memory struct {
	*memoryHandle
	ctx *Context
}

// memoryHandle is the part of Memory that its context closes.
type memoryHandle struct {
	gate
	ptr  DevicePtr
	size uint64
}

// Alloc allocates size bytes of device memory, whose content is undefined
// (cuMemAlloc).
func (c *Context) Alloc(size uint64) (*Memory, error) {
	m := &Memory{&memoryHandle{size: size}, c}
	err := c.inner.run("cuMemAlloc_v2", func(call sys.Caller) sys.CUresult {
		p := new(sys.CUdeviceptr)
		r := call.CuMemAlloc_v2(p, uintptr(size))
		if r == sys.CUDA_SUCCESS {
			m.ptr = DevicePtr(*p)
			c.inner.adopt(m.memoryHandle)
		}
		return r
	})
	if err != nil {
		return nil, err
	}
	return m, nil
}

// Ptr is the memory's address.
func (m *Memory) Ptr() DevicePtr { return m.ptr }

// Size is the memory's size in bytes.
func (m *Memory) Size() uint64 { return m.size }

// Close frees the memory, after the work that uses it if that is in the null
// stream (cuMemFree). A second Close, or one after the context's, does nothing.
func (m *Memory) Close() error {
	if m == nil {
		return nil
	}
	defer runtime.KeepAlive(m) // and so its context
	return m.ctx.inner.release(m.memoryHandle)
}

func (m *memoryHandle) closeIn(h *contextHandle) error {
	if !m.gate.close() {
		return nil
	}
	return h.check("cuMemFree_v2", h.caller().CuMemFree_v2(sys.CUdeviceptr(m.ptr)))
}

// CopyDevice queues a copy of n bytes from src to dst, both in device memory,
// on s (cuMemcpyDtoDAsync). It returns before the copy is done.
func CopyDevice(c *Context, s *Stream, dst, src DevicePtr, n uint64) error {
	return s.use(c, "cuMemcpyDtoDAsync_v2", func(call sys.Caller, h sys.CUstream) sys.CUresult {
		return call.CuMemcpyDtoDAsync_v2(sys.CUdeviceptr(dst), sys.CUdeviceptr(src), uintptr(n), h)
	})
}

// Fill queues the setting of count elements at dst to value on s
// (cuMemsetD8Async, cuMemsetD16Async, cuMemsetD32Async). It returns before
// that is done. dst must be aligned to the element's size.
func Fill[T uint8 | uint16 | uint32](c *Context, s *Stream, dst DevicePtr, value T, count uint64) error {
	p, n := sys.CUdeviceptr(dst), uintptr(count)
	switch v := any(value).(type) {
	case uint8:
		return s.use(c, "cuMemsetD8Async", func(call sys.Caller, h sys.CUstream) sys.CUresult {
			return call.CuMemsetD8Async(p, v, n, h)
		})
	case uint16:
		return s.use(c, "cuMemsetD16Async", func(call sys.Caller, h sys.CUstream) sys.CUresult {
			return call.CuMemsetD16Async(p, v, n, h)
		})
	default:
		return s.use(c, "cuMemsetD32Async", func(call sys.Caller, h sys.CUstream) sys.CUresult {
			return call.CuMemsetD32Async(p, any(value).(uint32), n, h)
		})
	}
}
