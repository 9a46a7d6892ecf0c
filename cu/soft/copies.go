package soft

import (
	"encoding/binary"

	"github.com/gpufd/gpufd/cu/sys"
)

// The legacy default stream orders the calls without a stream. Copies with a host
// side return when they are done; sets and copies between devices do not wait, as
// CUDA documents.

func (m *machine) cuMemcpyHtoD_v2(dst sys.CUdeviceptr, src, n uintptr) sys.CUresult {
	return m.transfer(transfer{dst: onDevice(dst), src: onHost(src), extent: line(n), wait: true})
}

func (m *machine) cuMemcpyHtoDAsync_v2(dst sys.CUdeviceptr, src, n uintptr, s sys.CUstream) sys.CUresult {
	return m.transfer(transfer{dst: onDevice(dst), src: onHost(src), extent: line(n), stream: s})
}

func (m *machine) cuMemcpyDtoH_v2(dst uintptr, src sys.CUdeviceptr, n uintptr) sys.CUresult {
	return m.transfer(transfer{dst: onHost(dst), src: onDevice(src), extent: line(n), wait: true})
}

func (m *machine) cuMemcpyDtoHAsync_v2(dst uintptr, src sys.CUdeviceptr, n uintptr, s sys.CUstream) sys.CUresult {
	return m.transfer(transfer{dst: onHost(dst), src: onDevice(src), extent: line(n), stream: s})
}

func (m *machine) cuMemcpyDtoD_v2(dst, src sys.CUdeviceptr, n uintptr) sys.CUresult {
	return m.syncMemops(m.cuMemcpyDtoDAsync_v2(dst, src, n, 0), dst, src)
}

func (m *machine) cuMemcpyDtoDAsync_v2(dst, src sys.CUdeviceptr, n uintptr, s sys.CUstream) sys.CUresult {
	return m.transfer(transfer{dst: onDevice(dst), src: onDevice(src), extent: line(n), stream: s})
}

func (m *machine) cuMemcpy(dst, src sys.CUdeviceptr, n uintptr) sys.CUresult {
	m.mu.Lock()
	between := m.isDevice(uintptr(dst)) && m.isDevice(uintptr(src))
	m.mu.Unlock()
	return m.syncMemops(m.transfer(transfer{dst: anywhere(dst), src: anywhere(src), extent: line(n), wait: !between}), dst, src)
}

func (m *machine) cuMemcpyAsync(dst, src sys.CUdeviceptr, n uintptr, s sys.CUstream) sys.CUresult {
	return m.transfer(transfer{dst: anywhere(dst), src: anywhere(src), extent: line(n), stream: s})
}

// cuMemcpyPeer waits for the present work of both contexts, and until it is done,
// as later work in them waits for it too. As with the legacy default stream that
// excludes non-blocking streams.
func (m *machine) cuMemcpyPeer(dst sys.CUdeviceptr, to sys.CUcontext, src sys.CUdeviceptr, from sys.CUcontext, n uintptr) sys.CUresult {
	return m.copyPeer(transfer{dst: onDevice(dst), src: onDevice(src), extent: line(n), wait: true}, to, from)
}

func (m *machine) cuMemcpyPeerAsync(dst sys.CUdeviceptr, to sys.CUcontext, src sys.CUdeviceptr, from sys.CUcontext, n uintptr, s sys.CUstream) sys.CUresult {
	return m.copyPeer(transfer{dst: onDevice(dst), src: onDevice(src), extent: line(n), stream: s}, to, from)
}

// copyPeer makes a transfer with sides in contexts of their own; 0 is the current
// one.
func (m *machine) copyPeer(t transfer, to, from sys.CUcontext) (r sys.CUresult) {
	m.mu.Lock()
	var r2 sys.CUresult
	t.dst.ctx, r = m.contextOr(to)
	t.src.ctx, r2 = m.contextOr(from)
	if r = firstError(r, r2); r == sys.CUDA_SUCCESS && t.wait {
		t.after = append(t.dst.ctx.tails((*stream).blocking), t.src.ctx.tails((*stream).blocking)...)
	}
	m.mu.Unlock()
	if r != sys.CUDA_SUCCESS {
		return r
	}
	return m.transfer(t)
}

// syncMemops ends a call without a stream, with result r. It waits if the memory
// wants synchronous calls to.
func (m *machine) syncMemops(r sys.CUresult, ptrs ...sys.CUdeviceptr) sys.CUresult {
	m.mu.Lock()
	wait := false
	for _, ptr := range ptrs {
		p := m.pointee(uintptr(ptr))
		wait = wait || p.syncs()
	}
	m.mu.Unlock()
	if r != sys.CUDA_SUCCESS || !wait {
		return r
	}
	return m.cuStreamSynchronize(sys.CU_STREAM_LEGACY)
}

// refuse returns why a call with a stream is refused: first why not the stream,
// then why.
func (m *machine) refuse(h sys.CUstream, why sys.CUresult) sys.CUresult {
	return with(m, m.findStream, h, func(*stream) sys.CUresult { return why })
}

func (m *machine) cuMemsetD8_v2(dst sys.CUdeviceptr, v uint8, n uintptr) sys.CUresult {
	return m.syncMemops(m.cuMemsetD8Async(dst, v, n, 0), dst)
}

func (m *machine) cuMemsetD8Async(dst sys.CUdeviceptr, v uint8, n uintptr, s sys.CUstream) sys.CUresult {
	return m.memset2D(dst, 0, []byte{v}, n, 1, s)
}

func (m *machine) cuMemsetD16_v2(dst sys.CUdeviceptr, v uint16, n uintptr) sys.CUresult {
	return m.syncMemops(m.cuMemsetD16Async(dst, v, n, 0), dst)
}

func (m *machine) cuMemsetD16Async(dst sys.CUdeviceptr, v uint16, n uintptr, s sys.CUstream) sys.CUresult {
	return m.memset2D(dst, 0, binary.LittleEndian.AppendUint16(nil, v), n, 1, s)
}

func (m *machine) cuMemsetD32_v2(dst sys.CUdeviceptr, v uint32, n uintptr) sys.CUresult {
	return m.syncMemops(m.cuMemsetD32Async(dst, v, n, 0), dst)
}

func (m *machine) cuMemsetD32Async(dst sys.CUdeviceptr, v uint32, n uintptr, s sys.CUstream) sys.CUresult {
	return m.memset2D(dst, 0, binary.LittleEndian.AppendUint32(nil, v), n, 1, s)
}
