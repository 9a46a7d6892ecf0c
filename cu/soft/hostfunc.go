package soft

import (
	"github.com/ebitengine/purego"
	"github.com/gpufd/gpufd/cu/sys"
)

// cuLaunchHostFunc makes a stream call a C function, unless the context is lost
// by then.
func (m *machine) cuLaunchHostFunc(h sys.CUstream, f, data uintptr) sys.CUresult {
	return m.callHost(h, f, func(*stream) sys.CUresult {
		purego.SyscallN(f, data)
		return sys.CUDA_SUCCESS
	}, false)
}

// cuStreamAddCallback is cuLaunchHostFunc for a function that gets the stream
// and, if the context is lost, the reason.
func (m *machine) cuStreamAddCallback(h sys.CUstream, f, data uintptr, flags uint32) sys.CUresult {
	if flags != 0 {
		return m.refuse(h, sys.CUDA_ERROR_INVALID_VALUE)
	}
	return m.callHost(h, f, func(s *stream) sys.CUresult {
		purego.SyscallN(f, uintptr(h), uintptr(m.stickyOf(s.ctx)), data)
		return sys.CUDA_SUCCESS
	}, true)
}

func (m *machine) callHost(h sys.CUstream, f uintptr, call func(*stream) sys.CUresult, always bool) sys.CUresult {
	return with(m, m.findStream, h, func(s *stream) sys.CUresult {
		if f == 0 {
			return sys.CUDA_ERROR_INVALID_VALUE
		}
		m.enqueue(s, &op{traits: traits{kind: sys.CU_GRAPH_NODE_TYPE_HOST}, run: func() sys.CUresult { return call(s) }, always: always})
		return sys.CUDA_SUCCESS
	})
}
