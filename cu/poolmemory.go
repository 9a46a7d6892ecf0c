package cu

import (
	"fmt"
	"runtime"

	"github.com/gpufd/gpufd/cu/sys"
)

// StreamMemory is device memory of a pool. The caller owns it and ends it with
// FreeAsync or Close.
type StreamMemory struct {
	*streamMemoryHandle
	ctx  *Context
	pool *Pool // keeps it while its memory is; nil if it is not ours
}

// streamMemoryHandle is the part of StreamMemory that its context closes.
type streamMemoryHandle struct {
	gate
	ptr    DevicePtr
	size   uint64
	stream *streamHandle // the one it was made in
	from   *poolHandle   // nil if it is not ours
}

// AllocAsync allocates size bytes from the device's current pool in the order of
// s (cuMemAllocAsync; cuMemAllocFromPoolAsync after [Device.SetPool]). The
// address is valid at once. The memory, with undefined content, is for later work
// in s, or in a stream that has waited for s. 0 bytes are no error. Errors:
// [ErrOutOfMemory]; [ErrNotSupported] on a device without pools;
// [ErrStreamCaptureUnsupported] while s is captured.
func (s *Stream) AllocAsync(size uint64) (*StreamMemory, error) {
	const op = "cuMemAllocAsync"
	if s == nil {
		return nil, unusable(op, "the stream", true)
	}
	dev := s.ctx.inner.dev
	// The pool stays the current one, and open, because memory of it has to be
	// counted.
	dev.pools.RLock()
	defer dev.pools.RUnlock()
	if p := dev.pool; p != nil {
		return p.AllocAsync(s, size)
	}
	return s.alloc(op, nil, size, func(call sys.Caller, p *sys.CUdeviceptr) sys.CUresult {
		return call.CuMemAllocAsync(p, uintptr(size), s.stream)
	})
}

// AllocAsync is [Stream.AllocAsync] from p, a pool of the stream's device or
// accessible to it (cuMemAllocFromPoolAsync).
func (p *Pool) AllocAsync(s *Stream, size uint64) (*StreamMemory, error) {
	return p.alloc("cuMemAllocFromPoolAsync", s, size, func(call sys.Caller, ptr *sys.CUdeviceptr) sys.CUresult {
		return call.CuMemAllocFromPoolAsync(ptr, uintptr(size), p.inner.pool, s.stream)
	})
}

// alloc is the stream's alloc, with memory of p.
func (p *Pool) alloc(op string, s *Stream, size uint64, f func(sys.Caller, *sys.CUdeviceptr) sys.CUresult) (*StreamMemory, error) {
	if s == nil {
		return nil, unusable(op, "the stream", true)
	}
	if p == nil || !p.inner.enter() {
		return nil, unusable(op, "the pool", p == nil)
	}
	defer p.inner.leave()
	if err := p.inner.drv.refuseOther(op, "the pool", s.ctx.inner.dev.drv); err != nil {
		return nil, err
	}
	return s.alloc(op, p, size, f)
}

// alloc makes memory in the order of s; f stores its address.
func (s *Stream) alloc(op string, p *Pool, size uint64, f func(sys.Caller, *sys.CUdeviceptr) sys.CUresult) (*StreamMemory, error) {
	m := &StreamMemory{&streamMemoryHandle{size: size, stream: s.streamHandle}, s.ctx, p}
	if p != nil {
		m.from = p.inner
	}
	return made(m, s.runUncaptured(op, func(call sys.Caller, h sys.CUstream) sys.CUresult {
		r := f(call, (*sys.CUdeviceptr)(&m.ptr))
		if r == sys.CUDA_SUCCESS {
			m.from.hold()
			s.ctx.inner.adopt(m.streamMemoryHandle)
		}
		return r
	}))
}

// Ptr returns the memory's address, 0 after FreeAsync or Close. Memory of 0 bytes
// may have the address 0 from the beginning.
func (m *StreamMemory) Ptr() DevicePtr {
	if m == nil {
		return 0
	}
	return m.openAt(m.ptr)
}

// Size returns the memory's size in bytes.
func (m *StreamMemory) Size() uint64 {
	if m == nil {
		return 0
	}
	return m.size
}

// FreeAsync frees the memory in the order of s, after what s has so far
// (cuMemFreeAsync). No other stream may use it then. After FreeAsync or Close it
// is [ErrClosed]. If s is refused, as while it is captured, the memory remains.
func (m *StreamMemory) FreeAsync(s *Stream) error {
	const op = "cuMemFreeAsync"
	if m == nil {
		return unusable(op, "the memory", true)
	}
	defer runtime.KeepAlive(m)
	mine := true
	err := s.runIn(m.ctx, op, func(call sys.Caller, h sys.CUstream) sys.CUresult {
		if r := m.ctx.inner.refuseCaptured(call, h); r != sys.CUDA_SUCCESS {
			return r
		}
		if mine = m.ctx.inner.disown(m.streamMemoryHandle) && m.gate.close(); !mine {
			return sys.CUDA_SUCCESS
		}
		return call.CuMemFreeAsync(sys.CUdeviceptr(m.ptr), h)
	})
	switch {
	case err != nil:
		return err
	case !mine:
		return unusable(op, "the memory", false)
	}
	return m.from.drop()
}

// Close is FreeAsync in the stream that the memory was made in (cuMemFreeAsync).
// If that was closed, it is the null stream, and Close first waits for queued work, or returns [ErrInUse], as
// [Memory.Close]. After FreeAsync it does nothing.
func (m *StreamMemory) Close() error {
	if m == nil {
		return nil
	}
	if m.stream.isClosed() {
		return m.ctx.releaseUnused(m.streamMemoryHandle, func() string {
			return fmt.Sprintf("cu: memory of %d bytes of a closed stream at %s", m.size, m.ptr)
		})
	}
	return m.ctx.release(m.streamMemoryHandle)
}

func (m *streamMemoryHandle) closeIn(h *contextHandle) error {
	var s sys.CUstream
	if m.stream.enter() {
		defer m.stream.leave()
		s = m.stream.stream
	}
	if err := h.check("cuMemFreeAsync", h.call.CuMemFreeAsync(sys.CUdeviceptr(m.ptr), s)); err != nil {
		return err
	}
	return m.from.drop()
}

// ExportPointer returns a value that names the memory to a process that has
// imported its pool, for [Pool.ImportPointer] (cuMemPoolExportPointer).
// Synchronise before sending it: the allocation must be done in its stream. The
// importer frees the memory before its owner does. [ErrInvalidValue]: the pool
// was not exported before.
func (m *StreamMemory) ExportPointer() (PoolPointer, error) {
	const op = "cuMemPoolExportPointer"
	if m == nil || !m.enter() {
		return PoolPointer{}, unusable(op, "the memory", m == nil)
	}
	defer m.leave()
	defer runtime.KeepAlive(m)
	data := new(sys.CUmemPoolPtrExportData)
	err := m.ctx.run(op, func(call sys.Caller) sys.CUresult {
		return call.CuMemPoolExportPointer(data, sys.CUdeviceptr(m.ptr))
	})
	return PoolPointer(data.Reserved), err
}

// ImportPointer makes memory in c from a pointer into the pool that p was
// imported from (cuMemPoolImportPointer). size is what the exporter says. The
// caller owns the memory and frees it before the exporter does: the two have to
// agree, as nothing else keeps the exporter from reusing it. [ErrInvalidValue]:
// data is not of this pool.
func (p *Pool) ImportPointer(c *Context, data PoolPointer, size uint64) (*StreamMemory, error) {
	raw := &sys.CUmemPoolPtrExportData{Reserved: data}
	return p.alloc("cuMemPoolImportPointer", c.NullStream(), size, func(call sys.Caller, ptr *sys.CUdeviceptr) sys.CUresult {
		return call.CuMemPoolImportPointer(ptr, p.inner.pool, raw)
	})
}
