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

// Ptr returns p: a DevicePtr is a [Pointer].
func (p DevicePtr) Ptr() DevicePtr { return p }

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
// (cuMemAlloc). The function [Alloc] counts elements instead.
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

// Close waits for queued work ([Driver.WaitQueued]) and frees the memory (cuMemFree), for which the driver waits for all
// work of the context, also what was queued since, without a limit. If the work is not
// done within [WithCloseLimit], Close returns [ErrInUse], nothing has changed, and it may be called
// again. Processes that opened the memory by its [Memory.IPCHandle] must have closed it before.
func (m *Memory) Close() error {
	if m == nil {
		return nil
	}
	return m.ctx.releaseUnused(m.memoryHandle, func() string {
		return fmt.Sprintf("cu: device memory of %d bytes at %s", m.size, m.ptr)
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
// memory, in q and waits (cuMemcpyAsync). Errors: [ErrTooShort], [ErrClosed].
func Copy[D, S Pointer](q Queue, dst D, src S, n uint64) error {
	return waiting(q, copyOp, func(s *Stream) error { return CopyAsync(s, dst, src, n) })
}

const copyOp = "cuMemcpyAsync"

// CopyAsync queues [Copy] on s (cuMemcpyAsync).
func CopyAsync[D, S Pointer](s *Stream, dst D, src S, n uint64) error {
	to, from, err := reachBoth(copyOp, dst, src, n)
	if err != nil {
		return err
	}
	err = s.run(copyOp, func(call sys.Caller, h sys.CUstream) sys.CUresult {
		return call.CuMemcpyAsync(sys.CUdeviceptr(to), sys.CUdeviceptr(from), uintptr(n), h)
	})
	if err != nil {
		return s.explain(err, destination(to, n), source(from, n))
	}
	return nil
}

// CopyPeer copies n bytes from src, memory of srcCtx's device, to dst, memory of
// dstCtx's device, in q and waits (cuMemcpyPeerAsync). q may be of either context or
// another. Between devices without peer access the copy goes through the host. Errors
// are those of [Copy].
func CopyPeer[D, S Pointer](q Queue, dst D, dstCtx *Context, src S, srcCtx *Context, n uint64) error {
	return waiting(q, copyPeerOp, func(s *Stream) error { return CopyPeerAsync(s, dst, dstCtx, src, srcCtx, n) })
}

const copyPeerOp = "cuMemcpyPeerAsync"

// CopyPeerAsync queues [CopyPeer] on s (cuMemcpyPeerAsync).
func CopyPeerAsync[D, S Pointer](s *Stream, dst D, dstCtx *Context, src S, srcCtx *Context, n uint64) error {
	to, from, err := reachBoth(copyPeerOp, dst, src, n)
	if err != nil {
		return err
	}
	err = s.borrow(copyPeerOp, dstCtx, srcCtx, func(call sys.Caller, h sys.CUstream) sys.CUresult {
		return call.CuMemcpyPeerAsync(sys.CUdeviceptr(to), dstCtx.inner.ctx, sys.CUdeviceptr(from), srcCtx.inner.ctx, uintptr(n), h)
	})
	if err != nil {
		return s.explain(err, destination(to, n).in(dstCtx), source(from, n).in(srcCtx))
	}
	return nil
}

// reachBoth returns the addresses of a copy.
func reachBoth[D, S Pointer](op string, dst D, src S, n uint64) (to, from DevicePtr, err error) {
	if to, err = reach(op, "the destination", dst, n); err != nil {
		return 0, 0, err
	}
	from, err = reach(op, "the source", src, n)
	return to, from, err
}

// borrow is run for a call that names two other contexts. Close of these waits
// for it.
func (s *Stream) borrow(op string, a, b *Context, f func(sys.Caller, sys.CUstream) sys.CUresult) error {
	defer runtime.KeepAlive(a)
	defer runtime.KeepAlive(b)
	if s == nil {
		return unusable(op, "the stream", true)
	}
	if a == nil || !a.inner.enter() {
		return unusable(op, "the destination's context", a == nil)
	}
	defer a.inner.leave()
	if b == nil || !b.inner.enter() {
		return unusable(op, "the source's context", b == nil)
	}
	defer b.inner.leave()
	for _, other := range [...]*Context{a, b} {
		if err := other.inner.dev.drv.refuseOther(op, "the context", s.ctx.inner.dev.drv); err != nil {
			return err
		}
	}
	return s.run(op, f)
}
