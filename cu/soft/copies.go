package soft

import (
	"encoding/binary"
	"math"

	"github.com/gpufd/gpufd/cu/sys"
)

// The calls without a stream are ordered by the legacy default stream. Of
// those, copies with a host side return when they are done; between devices,
// and sets, they do not wait, as CUDA documents.

func (m *machine) cuMemcpyHtoD(dst sys.CUdeviceptr, src, n uintptr) sys.CUresult {
	return m.transfer(transfer{dst: onDevice(dst), src: onHost(src), n: n, wait: true})
}

func (m *machine) cuMemcpyHtoDAsync(dst sys.CUdeviceptr, src, n uintptr, s sys.CUstream) sys.CUresult {
	return m.transfer(transfer{dst: onDevice(dst), src: onHost(src), n: n, stream: s})
}

func (m *machine) cuMemcpyDtoH(dst uintptr, src sys.CUdeviceptr, n uintptr) sys.CUresult {
	return m.transfer(transfer{dst: onHost(dst), src: onDevice(src), n: n, wait: true})
}

func (m *machine) cuMemcpyDtoHAsync(dst uintptr, src sys.CUdeviceptr, n uintptr, s sys.CUstream) sys.CUresult {
	return m.transfer(transfer{dst: onHost(dst), src: onDevice(src), n: n, stream: s})
}

func (m *machine) cuMemcpyDtoD(dst, src sys.CUdeviceptr, n uintptr) sys.CUresult {
	return m.transfer(transfer{dst: onDevice(dst), src: onDevice(src), n: n})
}

func (m *machine) cuMemcpyDtoDAsync(dst, src sys.CUdeviceptr, n uintptr, s sys.CUstream) sys.CUresult {
	return m.transfer(transfer{dst: onDevice(dst), src: onDevice(src), n: n, stream: s})
}

func (m *machine) cuMemcpy(dst, src sys.CUdeviceptr, n uintptr) sys.CUresult {
	m.mu.Lock()
	between := m.space.reservation(uintptr(dst)) != nil && m.space.reservation(uintptr(src)) != nil
	m.mu.Unlock()
	return m.transfer(transfer{dst: anywhere(dst), src: anywhere(src), n: n, wait: !between})
}

func (m *machine) cuMemcpyAsync(dst, src sys.CUdeviceptr, n uintptr, s sys.CUstream) sys.CUresult {
	return m.transfer(transfer{dst: anywhere(dst), src: anywhere(src), n: n, stream: s})
}

// memset sets n elements as wide as the pattern.
func (m *machine) memset(dst sys.CUdeviceptr, pattern []byte, n uintptr, s sys.CUstream) sys.CUresult {
	width := uintptr(len(pattern))
	if n > 0 && (n > math.MaxInt64/width || uintptr(dst)%width != 0) {
		return m.argumentError()
	}
	return m.transfer(transfer{dst: onDevice(dst), pattern: pattern, n: n * width, stream: s})
}

// argumentError returns CUDA_ERROR_INVALID_VALUE, or what comes before it.
func (m *machine) argumentError() sys.CUresult { return m.refuse(sys.CUDA_ERROR_INVALID_VALUE) }

// refuse returns why a call is refused, or what comes before that.
func (m *machine) refuse(why sys.CUresult) sys.CUresult {
	_, r := m.lockCurrent()
	defer m.mu.Unlock()
	return firstError(r, why)
}

func (m *machine) cuMemsetD8(dst sys.CUdeviceptr, v uint8, n uintptr) sys.CUresult {
	return m.memset(dst, []byte{v}, n, 0)
}

func (m *machine) cuMemsetD8Async(dst sys.CUdeviceptr, v uint8, n uintptr, s sys.CUstream) sys.CUresult {
	return m.memset(dst, []byte{v}, n, s)
}

func (m *machine) cuMemsetD16(dst sys.CUdeviceptr, v uint16, n uintptr) sys.CUresult {
	return m.cuMemsetD16Async(dst, v, n, 0)
}

func (m *machine) cuMemsetD16Async(dst sys.CUdeviceptr, v uint16, n uintptr, s sys.CUstream) sys.CUresult {
	return m.memset(dst, binary.LittleEndian.AppendUint16(nil, v), n, s)
}

func (m *machine) cuMemsetD32(dst sys.CUdeviceptr, v uint32, n uintptr) sys.CUresult {
	return m.cuMemsetD32Async(dst, v, n, 0)
}

func (m *machine) cuMemsetD32Async(dst sys.CUdeviceptr, v uint32, n uintptr, s sys.CUstream) sys.CUresult {
	return m.memset(dst, binary.LittleEndian.AppendUint32(nil, v), n, s)
}
