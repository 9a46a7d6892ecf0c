package soft

import (
	"encoding/binary"
	"math"
	"math/bits"

	"github.com/gpufd/gpufd/cu/sys"
)

// A sideDesc is one side of a 2D or 3D copy as its descriptor describes it.
type sideDesc struct {
	kind        sys.CUmemorytype
	host        uintptr
	device      sys.CUdeviceptr
	x, y, z     uintptr
	pitch, rows uintptr
	ctx         sys.CUcontext // of a peer copy
}

// A copyDesc is a 2D or 3D copy.
type copyDesc struct {
	dst, src sideDesc
	extent
	stream sys.CUstream
	async  bool
	peer   bool // the sides name contexts
}

// copyExtent checks what a descriptor says and copies. Without a stream it waits,
// unless both sides are device memory.
func (m *machine) copyExtent(c copyDesc) sys.CUresult {
	t := transfer{extent: c.extent, stream: c.stream}
	m.mu.Lock()
	_, r := m.findStream(c.stream)
	if r == sys.CUDA_SUCCESS && !c.empty() {
		r = m.sides(&t, &c)
	}
	t.wait = !c.async && !(m.isDevice(t.dst.addr) && m.isDevice(t.src.addr))
	m.mu.Unlock()
	if r != sys.CUDA_SUCCESS {
		return r
	}
	if r = m.transfer(t); c.async {
		return r
	}
	return m.syncMemops(r, sys.CUdeviceptr(t.dst.addr), sys.CUdeviceptr(t.src.addr))
}

// sides sets the sides of a transfer to what the call says, which is not empty.
func (m *machine) sides(t *transfer, c *copyDesc) (r sys.CUresult) {
	var r2 sys.CUresult
	t.dst, r = m.side(c.dst, c)
	t.src, r2 = m.side(c.src, c)
	return firstError(r, r2)
}

// isDevice reports whether an address is in device memory.
func (m *machine) isDevice(addr uintptr) bool { return m.space.reservation(addr) != nil }

// side turns a sideDesc into the side that begins where the copy does.
func (m *machine) side(k sideDesc, c *copyDesc) (s side, r sys.CUresult) {
	switch k.kind {
	case sys.CU_MEMORYTYPE_HOST:
		s = onHost(k.host)
	case sys.CU_MEMORYTYPE_DEVICE:
		s = onDevice(k.device)
	case sys.CU_MEMORYTYPE_UNIFIED:
		s = anywhere(k.device)
	default: // there are no arrays yet
		return s, sys.CUDA_ERROR_INVALID_VALUE
	}
	if c.peer {
		if s.ctx, r = m.contextOr(k.ctx); r != sys.CUDA_SUCCESS {
			return s, r
		}
	}
	if k.pitch == 0 {
		k.pitch = k.x + c.width
	}
	if k.rows == 0 {
		k.rows = k.y + c.height
	}
	if !fits(k.x, c.width, k.pitch) || !fits(k.y, c.height, k.rows) {
		return s, sys.CUDA_ERROR_INVALID_VALUE
	}
	over, stride := bits.Mul64(uint64(k.pitch), uint64(k.rows))
	s.pitch, s.stride = k.pitch, uintptr(stride)
	// The memory's start up to its far corner reaches the extent.
	skip, ok := s.reach(extent{width: k.x, height: k.y + 1, depth: k.z + 1})
	if over != 0 || !ok || s.addr == 0 {
		return s, sys.CUDA_ERROR_INVALID_VALUE
	}
	s.addr += skip
	return s, sys.CUDA_SUCCESS
}

// fits reports whether n from at on are within all.
func fits(at, n, all uintptr) bool { return n <= all && at <= all-n }

func (m *machine) cuMemcpy2D_v2(p *sys.CUDA_MEMCPY2D) sys.CUresult {
	return m.copy2D(p, copyDesc{})
}

func (m *machine) cuMemcpy2DAsync_v2(p *sys.CUDA_MEMCPY2D, s sys.CUstream) sys.CUresult {
	return m.copy2D(p, copyDesc{stream: s, async: true})
}

func (m *machine) copy2D(p *sys.CUDA_MEMCPY2D, c copyDesc) sys.CUresult {
	if p == nil {
		return m.refuse(c.stream, sys.CUDA_ERROR_INVALID_VALUE)
	}
	c.extent = extent{p.WidthInBytes, p.Height, 1}
	c.src = sideDesc{
		kind: p.SrcMemoryType, host: uintptr(p.SrcHost), device: p.SrcDevice,
		x: p.SrcXInBytes, y: p.SrcY, pitch: p.SrcPitch,
	}
	c.dst = sideDesc{
		kind: p.DstMemoryType, host: uintptr(p.DstHost), device: p.DstDevice,
		x: p.DstXInBytes, y: p.DstY, pitch: p.DstPitch,
	}
	return m.copyExtent(c)
}

func (m *machine) cuMemcpy3D_v2(p *sys.CUDA_MEMCPY3D) sys.CUresult {
	return m.copy3D(p, copyDesc{})
}

func (m *machine) cuMemcpy3DAsync_v2(p *sys.CUDA_MEMCPY3D, s sys.CUstream) sys.CUresult {
	return m.copy3D(p, copyDesc{stream: s, async: true})
}

func (m *machine) copy3D(p *sys.CUDA_MEMCPY3D, c copyDesc) sys.CUresult {
	if p == nil {
		return m.refuse(c.stream, sys.CUDA_ERROR_INVALID_VALUE)
	}
	c.read(p)
	return m.copyExtent(c)
}

// read copies a descriptor's fields.
func (c *copyDesc) read(p *sys.CUDA_MEMCPY3D) {
	c.extent = extent{p.WidthInBytes, p.Height, p.Depth}
	c.src = sideDesc{
		kind: p.SrcMemoryType, host: uintptr(p.SrcHost), device: p.SrcDevice, ctx: sys.CUcontext(p.Reserved0),
		x: p.SrcXInBytes, y: p.SrcY, z: p.SrcZ, pitch: p.SrcPitch, rows: p.SrcHeight,
	}
	c.dst = sideDesc{
		kind: p.DstMemoryType, host: uintptr(p.DstHost), device: p.DstDevice, ctx: sys.CUcontext(p.Reserved1),
		x: p.DstXInBytes, y: p.DstY, z: p.DstZ, pitch: p.DstPitch, rows: p.DstHeight,
	}
}

func (m *machine) cuMemcpy3DPeer(p *sys.CUDA_MEMCPY3D_PEER) sys.CUresult {
	return m.copy3D(peerCopy(p), copyDesc{peer: true})
}

func (m *machine) cuMemcpy3DPeerAsync(p *sys.CUDA_MEMCPY3D_PEER, s sys.CUstream) sys.CUresult {
	return m.copy3D(peerCopy(p), copyDesc{peer: true, stream: s, async: true})
}

// memset2D sets rows of n elements as wide as the pattern.
func (m *machine) memset2D(dst sys.CUdeviceptr, pitch uintptr, pattern []byte, n, height uintptr, s sys.CUstream) sys.CUresult {
	t, ok := setOfRows(dst, pitch, pattern, n, height)
	if !ok {
		return m.refuse(s, sys.CUDA_ERROR_INVALID_VALUE)
	}
	t.stream = s
	return m.transfer(t)
}

// setOfRows returns a transfer that sets rows. A single row needs no pitch. ok is
// false if it is not aligned, or rows overlap.
func setOfRows(dst sys.CUdeviceptr, pitch uintptr, pattern []byte, n, height uintptr) (t transfer, ok bool) {
	width := uintptr(len(pattern))
	t = transfer{dst: onDevice(dst), pattern: pattern}
	if n == 0 || height == 0 {
		return t, true
	}
	if n > math.MaxInt64/width || uintptr(dst)%width != 0 || height > 1 && (pitch%width != 0 || n*width > pitch) {
		return t, false
	}
	t.dst.pitch, t.extent = pitch, extent{n * width, height, 1}
	return t, true
}

func (m *machine) cuMemsetD2D8_v2(dst sys.CUdeviceptr, pitch uintptr, v uint8, n, height uintptr) sys.CUresult {
	return m.syncMemops(m.cuMemsetD2D8Async(dst, pitch, v, n, height, 0), dst)
}

func (m *machine) cuMemsetD2D8Async(dst sys.CUdeviceptr, pitch uintptr, v uint8, n, height uintptr, s sys.CUstream) sys.CUresult {
	return m.memset2D(dst, pitch, []byte{v}, n, height, s)
}

func (m *machine) cuMemsetD2D16_v2(dst sys.CUdeviceptr, pitch uintptr, v uint16, n, height uintptr) sys.CUresult {
	return m.syncMemops(m.cuMemsetD2D16Async(dst, pitch, v, n, height, 0), dst)
}

func (m *machine) cuMemsetD2D16Async(dst sys.CUdeviceptr, pitch uintptr, v uint16, n, height uintptr, s sys.CUstream) sys.CUresult {
	return m.memset2D(dst, pitch, binary.LittleEndian.AppendUint16(nil, v), n, height, s)
}

func (m *machine) cuMemsetD2D32_v2(dst sys.CUdeviceptr, pitch uintptr, v uint32, n, height uintptr) sys.CUresult {
	return m.syncMemops(m.cuMemsetD2D32Async(dst, pitch, v, n, height, 0), dst)
}

func (m *machine) cuMemsetD2D32Async(dst sys.CUdeviceptr, pitch uintptr, v uint32, n, height uintptr, s sys.CUstream) sys.CUresult {
	return m.memset2D(dst, pitch, binary.LittleEndian.AppendUint32(nil, v), n, height, s)
}
