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

// Ptr is the memory's address, 0 after Close.
func (m *Memory) Ptr() DevicePtr { return m.openAt(m.ptr) }

// Size is the memory's size in bytes.
func (m *Memory) Size() uint64 { return m.size }

// Close frees the memory, after the work that uses it if that is in the null
// stream (cuMemFree). Processes that have it open by its [Memory.IPCHandle] have to
// have closed it before. A second Close, or one after the context's, does nothing.
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
	return h.check("cuMemFree_v2", h.call.CuMemFree_v2(sys.CUdeviceptr(m.ptr)))
}

// AddressRange returns where the device or pinned memory begins that p is in,
// and its size in bytes; of memory of cuMemCreate, those of the mapping
// (cuMemGetAddressRange). [ErrNotFound] says that it is in none that c may use.
func (c *Context) AddressRange(p DevicePtr) (base DevicePtr, size uint64, err error) {
	defer runtime.KeepAlive(c)
	b, n := new(sys.CUdeviceptr), new(uintptr)
	err = c.inner.run("cuMemGetAddressRange_v2", func(call sys.Caller) sys.CUresult {
		return call.CuMemGetAddressRange_v2(b, n, sys.CUdeviceptr(p))
	})
	return DevicePtr(*b), uint64(*n), err
}

// Copy queues a copy of n bytes from src to dst on s; each may be memory of any
// device or pinned host memory (cuMemcpyAsync). It returns before the copy is
// done.
func Copy(c *Context, s *Stream, dst, src DevicePtr, n uint64) error {
	return s.use(c, "cuMemcpyAsync", func(call sys.Caller, h sys.CUstream) sys.CUresult {
		return call.CuMemcpyAsync(sys.CUdeviceptr(dst), sys.CUdeviceptr(src), uintptr(n), h)
	})
}

// CopyPeer queues a copy of n bytes from src, memory of srcCtx's device, to dst,
// memory of dstCtx's device, on the stream s of c, which may be either or
// another (cuMemcpyPeerAsync). It returns before the copy is done. Devices that
// cannot access each other copy by way of the host.
func CopyPeer(c *Context, s *Stream, dst DevicePtr, dstCtx *Context, src DevicePtr, srcCtx *Context, n uint64) error {
	const op = "cuMemcpyPeerAsync"
	return c.borrow(op, dstCtx, srcCtx, func() error {
		return s.use(c, op, func(call sys.Caller, h sys.CUstream) sys.CUresult {
			return call.CuMemcpyPeerAsync(sys.CUdeviceptr(dst), dstCtx.inner.ctx, sys.CUdeviceptr(src), srcCtx.inner.ctx, uintptr(n), h)
		})
	})
}

// borrow makes a call in c that names two other contexts. Closing them waits
// for it.
func (c *Context) borrow(op string, a, b *Context, f func() error) error {
	defer runtime.KeepAlive(a)
	defer runtime.KeepAlive(b)
	if a == nil || !a.inner.enter() {
		return ErrClosed
	}
	defer a.inner.leave()
	if b == nil || !b.inner.enter() {
		return ErrClosed
	}
	defer b.inner.leave()
	for _, other := range [...]*Context{a, b} {
		if err := other.inner.dev.drv.refuseOther(op, "the context", c.inner.dev.drv); err != nil {
			return err
		}
	}
	return f()
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

// Fill2D queues the setting of height rows of width elements each to value on
// s; the first row begins at dst, the others pitch bytes after the one before
// (cuMemsetD2D8Async, cuMemsetD2D16Async, cuMemsetD2D32Async). It returns before
// that is done. dst and pitch must be aligned to the element's size.
func Fill2D[T uint8 | uint16 | uint32](c *Context, s *Stream, dst DevicePtr, pitch uint64, value T, width, height uint64) error {
	p, pit, w, n := sys.CUdeviceptr(dst), uintptr(pitch), uintptr(width), uintptr(height)
	switch v := any(value).(type) {
	case uint8:
		return s.use(c, "cuMemsetD2D8Async", func(call sys.Caller, h sys.CUstream) sys.CUresult {
			return call.CuMemsetD2D8Async(p, pit, v, w, n, h)
		})
	case uint16:
		return s.use(c, "cuMemsetD2D16Async", func(call sys.Caller, h sys.CUstream) sys.CUresult {
			return call.CuMemsetD2D16Async(p, pit, v, w, n, h)
		})
	default:
		return s.use(c, "cuMemsetD2D32Async", func(call sys.Caller, h sys.CUstream) sys.CUresult {
			return call.CuMemsetD2D32Async(p, pit, any(value).(uint32), w, n, h)
		})
	}
}
