package cu

import (
	"errors"
	"fmt"
	"math/bits"
	"runtime"
	"sync"
	"unsafe"

	"github.com/gpufd/gpufd/cu/sys"
)

// ErrTooShort says that a slice, or memory whose size is known, is smaller than the copy from or to
// it, or than the fill. Nothing reached the driver.
var ErrTooShort = errors.New("cu: the memory is too short")

// A Side is one side of a copy of rows, [Copy2D] or [Copy3D]: the memory, how
// rows lie in it, and where the copy begins. It owns nothing. The zero Side has no memory, which is [ErrClosed].
//
//	image := cu.HostSide(pixels, 640)
//	image.X, image.Y = 16, 2
type Side struct {
	X       uint64   // the copy begins X bytes into a row,
	Y       uint64   // Y rows down
	Z       uint64   // and Z layers in
	Pitch   uint64   // bytes from row to row; 0 means X and one row
	Rows    uint64   // rows from layer to layer; 0 means Y and one layer
	Context *Context // the memory's; nil means the copy's

	kind    sys.CUmemorytype
	ptr     DevicePtr
	host    unsafe.Pointer
	size    uint64 // of the memory in bytes
	unsized bool   // size is not known
	err     error
}

// DeviceSide returns device memory at p with rows that are pitch bytes apart. A copy beyond the end
// of p fails with [ErrTooShort] where its size is known: see [Pointer].
func DeviceSide[P Pointer](p P, pitch uint64) Side {
	return sideOf(sys.CU_MEMORYTYPE_DEVICE, p, pitch)
}

// UnifiedSide returns memory at p with rows that are pitch bytes apart. The
// driver finds out what kind of memory it is.
func UnifiedSide[P Pointer](p P, pitch uint64) Side {
	return sideOf(sys.CU_MEMORYTYPE_UNIFIED, p, pitch)
}

func sideOf[P Pointer](kind sys.CUmemorytype, p P, pitch uint64) Side {
	at, err := reach("copy of rows", "the memory of a Side", p, 0)
	s := Side{Pitch: pitch, kind: kind, ptr: at, err: err}
	if err == nil {
		size, known := sizeOf(p)
		s.size, s.unsized = size, !known
	}
	return s
}

// HostSide returns the memory of s, pinned or not, with rows that are pitch bytes
// apart. A copy beyond s fails with [ErrTooShort], and one of anything but
// numbers with [ErrPointers].
func HostSide[T any](s []T, pitch uint64) Side {
	p, n, err := memory(s)
	return Side{Pitch: pitch, kind: sys.CU_MEMORYTYPE_HOST, host: p, size: uint64(n), err: err}
}

// Copy2D copies height rows of width bytes in q and waits (cuMemcpy2DAsync). Errors:
// [ErrTooShort]; [ErrPointers]; [ErrInvalidValue] for rows longer than the
// pitch, and for device memory with a hole between the first row and the last.
func Copy2D(q Queue, dst, src Side, width, height uint64) error {
	defer runtime.KeepAlive(dst.host)
	defer runtime.KeepAlive(src.host)
	return waiting(q, "cuMemcpy2DAsync_v2", func(s *Stream) error { return Copy2DAsync(s, dst, src, width, height) })
}

// Copy2DAsync queues [Copy2D] on s. The caller keeps host memory alive, and the
// source unchanged, until the stream is done with it.
func Copy2DAsync(s *Stream, dst, src Side, width, height uint64) error {
	if dst.Context != nil || src.Context != nil || dst.Z|src.Z != 0 {
		return Copy3DAsync(s, dst, src, width, height, 1)
	}
	const op = "cuMemcpy2DAsync_v2"
	if err := fit(op, &dst, &src, width, height, 1); err != nil {
		return err
	}
	d := newCopyDesc()
	defer d.free()
	d.rows = sys.CUDA_MEMCPY2D{
		SrcXInBytes: uintptr(src.X), SrcY: uintptr(src.Y), SrcPitch: uintptr(src.Pitch),
		SrcMemoryType: src.kind, SrcHost: src.host, SrcDevice: sys.CUdeviceptr(src.ptr),
		DstXInBytes: uintptr(dst.X), DstY: uintptr(dst.Y), DstPitch: uintptr(dst.Pitch),
		DstMemoryType: dst.kind, DstHost: dst.host, DstDevice: sys.CUdeviceptr(dst.ptr),
		WidthInBytes: uintptr(width), Height: uintptr(height),
	}
	err := s.run(op, func(call sys.Caller, h sys.CUstream) sys.CUresult { return call.CuMemcpy2DAsync_v2(&d.rows, h) })
	if err != nil {
		return s.explain(err, destination(dst.touched(width, height, 1)), source(src.touched(width, height, 1)))
	}
	return nil
}

// Copy3D copies depth layers of height rows of width bytes in q and waits
// (cuMemcpy3DAsync, or cuMemcpy3DPeerAsync where a side has a Context). Errors
// are those of [Copy2D].
func Copy3D(q Queue, dst, src Side, width, height, depth uint64) error {
	defer runtime.KeepAlive(dst.host)
	defer runtime.KeepAlive(src.host)
	return waiting(q, "cuMemcpy3DAsync_v2", func(s *Stream) error { return Copy3DAsync(s, dst, src, width, height, depth) })
}

// Copy3DAsync queues [Copy3D] on s. The caller treats host memory as for
// [Copy2DAsync].
func Copy3DAsync(s *Stream, dst, src Side, width, height, depth uint64) error {
	if dst.Context != nil || src.Context != nil {
		return copyPeer3D(s, dst, src, width, height, depth)
	}
	const op = "cuMemcpy3DAsync_v2"
	if err := fit(op, &dst, &src, width, height, depth); err != nil {
		return err
	}
	d := newCopyDesc()
	defer d.free()
	d.layers = sys.CUDA_MEMCPY3D{
		SrcXInBytes: uintptr(src.X), SrcY: uintptr(src.Y), SrcZ: uintptr(src.Z),
		SrcMemoryType: src.kind, SrcHost: src.host, SrcDevice: sys.CUdeviceptr(src.ptr),
		SrcPitch: uintptr(src.Pitch), SrcHeight: uintptr(src.Rows),
		DstXInBytes: uintptr(dst.X), DstY: uintptr(dst.Y), DstZ: uintptr(dst.Z),
		DstMemoryType: dst.kind, DstHost: dst.host, DstDevice: sys.CUdeviceptr(dst.ptr),
		DstPitch: uintptr(dst.Pitch), DstHeight: uintptr(dst.Rows),
		WidthInBytes: uintptr(width), Height: uintptr(height), Depth: uintptr(depth),
	}
	err := s.run(op, func(call sys.Caller, h sys.CUstream) sys.CUresult { return call.CuMemcpy3DAsync_v2(&d.layers, h) })
	if err != nil {
		return s.explain(err, destination(dst.touched(width, height, depth)), source(src.touched(width, height, depth)))
	}
	return nil
}

// copyPeer3D is Copy3DAsync between contexts. A side without one is of the stream's.
func copyPeer3D(s *Stream, dst, src Side, width, height, depth uint64) error {
	const op = "cuMemcpy3DPeerAsync"
	if err := fit(op, &dst, &src, width, height, depth); err != nil {
		return err
	}
	if s == nil {
		return unusable(op, "the stream", true)
	}
	to, from := dst.contextOr(s.ctx), src.contextOr(s.ctx)
	d := newCopyDesc()
	defer d.free()
	d.peer = sys.CUDA_MEMCPY3D_PEER{
		SrcXInBytes: uintptr(src.X), SrcY: uintptr(src.Y), SrcZ: uintptr(src.Z),
		SrcMemoryType: src.kind, SrcHost: src.host, SrcDevice: sys.CUdeviceptr(src.ptr),
		SrcContext: from.inner.ctx, SrcPitch: uintptr(src.Pitch), SrcHeight: uintptr(src.Rows),
		DstXInBytes: uintptr(dst.X), DstY: uintptr(dst.Y), DstZ: uintptr(dst.Z),
		DstMemoryType: dst.kind, DstHost: dst.host, DstDevice: sys.CUdeviceptr(dst.ptr),
		DstContext: to.inner.ctx, DstPitch: uintptr(dst.Pitch), DstHeight: uintptr(dst.Rows),
		WidthInBytes: uintptr(width), Height: uintptr(height), Depth: uintptr(depth),
	}
	err := s.borrow(op, to, from, func(call sys.Caller, h sys.CUstream) sys.CUresult {
		return call.CuMemcpy3DPeerAsync(&d.peer, h)
	})
	if err != nil {
		return s.explain(err, destination(dst.touched(width, height, depth)).in(to), source(src.touched(width, height, depth)).in(from))
	}
	return nil
}

func (s *Side) contextOr(c *Context) *Context {
	if s.Context != nil {
		return s.Context
	}
	return c
}

// A copyDesc holds what the driver reads during a copy of rows.
type copyDesc struct {
	rows   sys.CUDA_MEMCPY2D
	layers sys.CUDA_MEMCPY3D
	peer   sys.CUDA_MEMCPY3D_PEER
}

var copyDescs = sync.Pool{New: func() any { return new(copyDesc) }}

func newCopyDesc() *copyDesc { return copyDescs.Get().(*copyDesc) }

// free returns d to the pool and drops the host memory that d named.
func (d *copyDesc) free() {
	*d = copyDesc{}
	copyDescs.Put(d)
}

// fit sets the Pitch and Rows that are 0 and checks that memory whose size is known holds the copy.
func fit(op string, dst, src *Side, width, height, depth uint64) error {
	for _, s := range [...]*Side{dst, src} {
		if s.err != nil {
			return s.err
		}
		if s.kind == 0 {
			return unusable(op, "the memory of a Side", true)
		}
		if s.Pitch == 0 {
			s.Pitch = s.X + width
		}
		if s.Rows == 0 {
			s.Rows = s.Y + height
		}
		if width == 0 || height == 0 || depth == 0 {
			continue
		}
		if s.kind == sys.CU_MEMORYTYPE_HOST && s.rowsOverlap(width, height) {
			return &Error{Op: op, Result: ErrInvalidValue, Detail: fmt.Sprintf("rows or layers of a slice overlap: X %d and %d bytes need a pitch of %d, or Y %d and %d rows need %d rows", s.X, width, s.Pitch, s.Y, height, s.Rows)}
		}
		if s.unsized {
			continue
		}
		if need, ok := s.extent(width, height, depth); !ok || need > s.size {
			return fmt.Errorf("%w: it has %d bytes; %d rows of %d bytes each in %d layers, at %d bytes, %d rows and %d layers, with a pitch of %d, do not fit",
				ErrTooShort, s.size, height, width, depth, s.X, s.Y, s.Z, s.Pitch)
		}
	}
	return nil
}

// rowsOverlap reports whether rows or layers of the copy begin before the one before has ended.
func (s *Side) rowsOverlap(width, height uint64) bool {
	return s.X+width > s.Pitch || s.X+width < width || s.Y+height > s.Rows || s.Y+height < height
}

// extent returns how many bytes a copy spans, from the memory's first byte on; ok
// is false if that overflows 64 bits. The copy is not empty.
func (s *Side) extent(width, height, depth uint64) (n uint64, ok bool) {
	layers, c0 := bits.Add64(s.Z, depth-1, 0)
	over, rows := bits.Mul64(layers, s.Rows)
	rows, c1 := bits.Add64(rows, s.Y+height-1, 0)
	over2, n := bits.Mul64(rows, s.Pitch)
	n, c2 := bits.Add64(n, s.X+width, 0)
	return n, c0|c1|c2|over|over2 == 0
}

// touched returns the device memory that a copy, which is not empty, needs from
// the first row to the last. It is none for host memory, and if the size
// overflows 64 bits.
func (s *Side) touched(width, height, depth uint64) (at DevicePtr, size uint64) {
	if s.kind == sys.CU_MEMORYTYPE_HOST {
		return 0, 0
	}
	first, ok := s.extent(1, 1, 1)
	end, fits := s.extent(width, height, depth)
	if !ok || !fits {
		return 0, 0
	}
	return s.ptr.Add(first - 1), end - first + 1
}
