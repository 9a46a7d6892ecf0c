package cu

import (
	"encoding/hex"
	"runtime"

	"github.com/gpufd/gpufd/cu/sys"
)

// StreamMemory is device memory of a pool. The caller owns it and ends it with
// Free or Close; the context that it was made in does at the latest.
type StreamMemory struct {
	*streamMemoryHandle
	ctx    *Context
	pool   *Pool   // kept while its memory is; nil if it is not ours
	stream *Stream // likewise
}

// streamMemoryHandle is the part of StreamMemory that its context closes.
type streamMemoryHandle struct {
	gate
	ptr    DevicePtr
	size   uint64
	stream *streamHandle // that it was made in; nil for the null stream
	from   *poolHandle   // nil if it is not ours
}

// AllocAsync allocates size bytes of the device's current pool in the order of
// s (cuMemAllocAsync; cuMemAllocFromPoolAsync after [Device.SetPool]). The
// address is there at once; the memory, whose content is undefined, must not be
// used but by work that comes after in s, or in another stream that has waited
// for s. Errors: [ErrOutOfMemory], [ErrNotSupported] on a device without pools,
// [ErrStreamCaptureUnsupported] while s is captured. 0 bytes are no error.
func (c *Context) AllocAsync(s *Stream, size uint64) (*StreamMemory, error) {
	dev := c.inner.dev
	// The pool stays the current one, and open: memory of it has to be counted.
	dev.pools.RLock()
	defer dev.pools.RUnlock()
	if p := dev.pool; p != nil {
		return p.Alloc(c, s, size)
	}
	return allocAsync(c, nil, s, "cuMemAllocAsync", size, func(call sys.Caller, h sys.CUstream, p *sys.CUdeviceptr) sys.CUresult {
		return call.CuMemAllocAsync(p, uintptr(size), h)
	})
}

// Alloc is [Context.AllocAsync] from p (cuMemAllocFromPoolAsync), which is of
// c's device or accessible to it.
func (p *Pool) Alloc(c *Context, s *Stream, size uint64) (*StreamMemory, error) {
	if p == nil || !p.inner.enter() {
		return nil, ErrClosed
	}
	defer p.inner.leave()
	const op = "cuMemAllocFromPoolAsync"
	if err := p.inner.drv.refuseOther(op, "the pool", c.inner.dev.drv); err != nil {
		return nil, err
	}
	return allocAsync(c, p, s, op, size, func(call sys.Caller, h sys.CUstream, ptr *sys.CUdeviceptr) sys.CUresult {
		return call.CuMemAllocFromPoolAsync(ptr, uintptr(size), p.inner.pool, h)
	})
}

// allocAsync has f store the address of new memory.
func allocAsync(c *Context, p *Pool, s *Stream, op string, size uint64, f func(sys.Caller, sys.CUstream, *sys.CUdeviceptr) sys.CUresult) (*StreamMemory, error) {
	m := &StreamMemory{&streamMemoryHandle{size: size}, c, p, s}
	if s != nil {
		m.streamMemoryHandle.stream = s.streamHandle
	}
	if p != nil {
		m.from = p.inner
	}
	err := s.use(c, op, func(call sys.Caller, h sys.CUstream) sys.CUresult {
		if r := c.inner.refuseCaptured(call, h); r != sys.CUDA_SUCCESS {
			return r
		}
		ptr := new(sys.CUdeviceptr)
		r := f(call, h, ptr)
		if r == sys.CUDA_SUCCESS {
			m.ptr = DevicePtr(*ptr)
			m.from.hold()
			c.inner.adopt(m.streamMemoryHandle)
		}
		return r
	})
	if err != nil {
		return nil, err
	}
	return m, nil
}

// Ptr is the memory's address, 0 after Free or Close. Memory of 0 bytes may have the
// address 0 from the beginning.
func (m *StreamMemory) Ptr() DevicePtr { return m.openAt(m.ptr) }

// Size is the memory's size in bytes.
func (m *StreamMemory) Size() uint64 { return m.size }

// Free gives the memory back in the order of s, after what s has so far
// (cuMemFreeAsync). No other stream may use it then. It does not wait. After a
// Free or Close it is [ErrClosed] and does not reach the driver; if s is
// refused, as while it is captured, the memory remains.
func (m *StreamMemory) Free(s *Stream) error {
	if m == nil {
		return ErrClosed
	}
	defer runtime.KeepAlive(m)
	mine := true
	err := s.use(m.ctx, "cuMemFreeAsync", func(call sys.Caller, h sys.CUstream) sys.CUresult {
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
		return ErrClosed
	}
	return m.from.drop()
}

// Close is Free in the stream that the memory was made in, or in the null
// stream if that one was closed: work that it may still have with the memory
// must then be done (cuMemFreeAsync). A second Close, or one after Free or after the context's,
// does nothing.
func (m *StreamMemory) Close() error {
	if m == nil {
		return nil
	}
	defer runtime.KeepAlive(m)
	return m.ctx.inner.release(m.streamMemoryHandle)
}

func (m *streamMemoryHandle) closeIn(h *contextHandle) error {
	if !m.gate.close() {
		return nil
	}
	var s sys.CUstream
	if m.stream != nil && m.stream.enter() {
		defer m.stream.leave()
		s = m.stream.stream
	}
	if err := h.check("cuMemFreeAsync", h.call.CuMemFreeAsync(sys.CUdeviceptr(m.ptr), s)); err != nil {
		return err
	}
	return m.from.drop()
}

// A PoolPointer names memory of an exported pool to a process that has
// imported the pool. It is a value without rights of its own, to be sent in any
// way.
type PoolPointer [64]byte

// MarshalText gives 128 hexadecimal digits.
func (p PoolPointer) MarshalText() ([]byte, error) {
	return hex.AppendEncode(nil, p[:]), nil
}

// UnmarshalText reads what MarshalText gives.
func (p *PoolPointer) UnmarshalText(text []byte) error {
	return unmarshal64((*[64]byte)(p), "a pool pointer", text)
}

// ExportPointer returns what names the memory to a process that has imported
// its pool: [Pool.ImportPointer] (cuMemPoolExportPointer). The importer must
// have freed the memory before its owner does, and must not use it before the
// allocation is done in its stream: synchronise before sending. Memory of a
// pool that was not exported before gives [ErrInvalidValue].
func (m *StreamMemory) ExportPointer() (PoolPointer, error) {
	if m == nil || !m.enter() {
		return PoolPointer{}, ErrClosed
	}
	defer m.leave()
	defer runtime.KeepAlive(m)
	data := new(sys.CUmemPoolPtrExportData)
	err := m.ctx.inner.run("cuMemPoolExportPointer", func(call sys.Caller) sys.CUresult {
		return call.CuMemPoolExportPointer(data, sys.CUdeviceptr(m.ptr))
	})
	return PoolPointer(data.Reserved), err
}

// ImportPointer makes memory in c of what another process exported from the
// pool that p was imported from (cuMemPoolImportPointer). The caller owns it
// and ends it before the exporter does; that has to be told by other means, as
// nothing else keeps the exporter from using the memory anew. size is what the
// exporter says. Errors: [ErrInvalidValue] for data that is not of this pool.
func (p *Pool) ImportPointer(c *Context, data PoolPointer, size uint64) (*StreamMemory, error) {
	if p == nil || !p.inner.enter() {
		return nil, ErrClosed
	}
	defer p.inner.leave()
	const op = "cuMemPoolImportPointer"
	if err := p.inner.drv.refuseOther(op, "the pool", c.inner.dev.drv); err != nil {
		return nil, err
	}
	raw := &sys.CUmemPoolPtrExportData{Reserved: data}
	return allocAsync(c, p, nil, op, size, func(call sys.Caller, _ sys.CUstream, ptr *sys.CUdeviceptr) sys.CUresult {
		return call.CuMemPoolImportPointer(ptr, p.inner.pool, raw)
	})
}
