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

// Memory is plain device memory. Legacy IPC can share it, file descriptors
// cannot: for those see package vmm. The caller owns it.
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

// Alloc allocates size bytes of device memory with undefined content
// (cuMemAlloc).
func (c *Context) Alloc(size uint64) (*Memory, error) {
	m := &Memory{&memoryHandle{size: size}, c}
	return made(m, c.create("cuMemAlloc_v2", m.memoryHandle, func(call sys.Caller) sys.CUresult {
		return call.CuMemAlloc_v2((*sys.CUdeviceptr)(&m.ptr), uintptr(size))
	}))
}

// Ptr returns the memory's address, 0 after Close.
func (m *Memory) Ptr() DevicePtr {
	if m == nil {
		return 0
	}
	return m.openAt(m.ptr)
}

// Size returns the memory's size in bytes.
func (m *Memory) Size() uint64 {
	if m == nil {
		return 0
	}
	return m.size
}

// Close waits for queued work ([Driver.WaitQueued]) and frees the memory (cuMemFree). If the work is not
// done within [Driver.CloseLimit], Close returns [ErrInUse], nothing has changed, and it may be called
// again. Processes that opened the memory by its [Memory.IPCHandle] must have closed it before.
func (m *Memory) Close() error {
	if m == nil {
		return nil
	}
	return m.ctx.releaseUnused(m.memoryHandle, func() string {
		return fmt.Sprintf("%d bytes of device memory at %s", m.size, m.ptr)
	})
}

func (m *memoryHandle) closeIn(h *contextHandle) error {
	return h.check("cuMemFree_v2", h.call.CuMemFree_v2(sys.CUdeviceptr(m.ptr)))
}

// AddressRange returns the address and size in bytes of the device or pinned
// memory around p, or of the mapping of a [MemHandle] (cuMemGetAddressRange).
// [ErrNotFound]: p is in no memory that c may use.
func (c *Context) AddressRange(p DevicePtr) (base DevicePtr, size uint64, err error) {
	b, n := new(sys.CUdeviceptr), new(uintptr)
	err = c.run("cuMemGetAddressRange_v2", func(call sys.Caller) sys.CUresult {
		return call.CuMemGetAddressRange_v2(b, n, sys.CUdeviceptr(p))
	})
	return DevicePtr(*b), uint64(*n), err
}

// Copy copies n bytes from src to dst, memory of any device or pinned host
// memory, and waits (cuMemcpyAsync).
func Copy(c *Context, dst, src DevicePtr, n uint64) error {
	return c.waiting(func(s *Stream) error { return CopyAsync(s, dst, src, n) })
}

// CopyAsync queues [Copy] on s (cuMemcpyAsync).
func CopyAsync(s *Stream, dst, src DevicePtr, n uint64) error {
	err := s.run("cuMemcpyAsync", func(call sys.Caller, h sys.CUstream) sys.CUresult {
		return call.CuMemcpyAsync(sys.CUdeviceptr(dst), sys.CUdeviceptr(src), uintptr(n), h)
	})
	if err != nil {
		return s.explain(err, destination(dst, n), source(src, n))
	}
	return nil
}

// CopyPeer copies n bytes from src, memory of srcCtx's device, to dst, memory of
// dstCtx's device, and waits (cuMemcpyPeerAsync). c may be either context or
// another. Between devices without peer access the copy goes through the host.
func CopyPeer(c *Context, dst DevicePtr, dstCtx *Context, src DevicePtr, srcCtx *Context, n uint64) error {
	return c.waiting(func(s *Stream) error { return CopyPeerAsync(s, dst, dstCtx, src, srcCtx, n) })
}

// CopyPeerAsync queues [CopyPeer] on s (cuMemcpyPeerAsync).
func CopyPeerAsync(s *Stream, dst DevicePtr, dstCtx *Context, src DevicePtr, srcCtx *Context, n uint64) error {
	err := s.borrow("cuMemcpyPeerAsync", dstCtx, srcCtx, func(call sys.Caller, h sys.CUstream) sys.CUresult {
		return call.CuMemcpyPeerAsync(sys.CUdeviceptr(dst), dstCtx.inner.ctx, sys.CUdeviceptr(src), srcCtx.inner.ctx, uintptr(n), h)
	})
	if err != nil {
		return s.explain(err, destination(dst, n).in(dstCtx), source(src, n).in(srcCtx))
	}
	return nil
}

// borrow is run for a call that names two other contexts. Close of these waits
// for it.
func (s *Stream) borrow(op string, a, b *Context, f func(sys.Caller, sys.CUstream) sys.CUresult) error {
	defer runtime.KeepAlive(a)
	defer runtime.KeepAlive(b)
	if s == nil || a == nil || !a.inner.enter() {
		return ErrClosed
	}
	defer a.inner.leave()
	if b == nil || !b.inner.enter() {
		return ErrClosed
	}
	defer b.inner.leave()
	for _, other := range [...]*Context{a, b} {
		if err := other.inner.dev.drv.refuseOther(op, "the context", s.ctx.inner.dev.drv); err != nil {
			return err
		}
	}
	return s.run(op, f)
}

// Fill sets count elements at dst, aligned to their size, to value and waits
// (cuMemsetD8Async, cuMemsetD16Async, cuMemsetD32Async).
func Fill[T uint8 | uint16 | uint32](c *Context, dst DevicePtr, value T, count uint64) error {
	return c.waiting(func(s *Stream) error { return FillAsync(s, dst, value, count) })
}

// FillAsync queues [Fill] on s (cuMemsetD8Async, cuMemsetD16Async,
// cuMemsetD32Async).
func FillAsync[T uint8 | uint16 | uint32](s *Stream, dst DevicePtr, value T, count uint64) error {
	p, n := sys.CUdeviceptr(dst), uintptr(count)
	var err error
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
		return s.explain(err, filled[T](dst, 0, count, 1))
	}
	return nil
}

// Fill2D sets height rows of width elements, pitch bytes apart from dst on, to
// value and waits (cuMemsetD2D8Async, cuMemsetD2D16Async, cuMemsetD2D32Async).
// dst and pitch are multiples of the element's size.
func Fill2D[T uint8 | uint16 | uint32](c *Context, dst DevicePtr, pitch uint64, value T, width, height uint64) error {
	return c.waiting(func(s *Stream) error { return Fill2DAsync(s, dst, pitch, value, width, height) })
}

// Fill2DAsync queues [Fill2D] on s (cuMemsetD2D8Async, cuMemsetD2D16Async,
// cuMemsetD2D32Async).
func Fill2DAsync[T uint8 | uint16 | uint32](s *Stream, dst DevicePtr, pitch uint64, value T, width, height uint64) error {
	p, pit, w, n := sys.CUdeviceptr(dst), uintptr(pitch), uintptr(width), uintptr(height)
	var err error
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
		return s.explain(err, filled[T](dst, pitch, width, height))
	}
	return nil
}
