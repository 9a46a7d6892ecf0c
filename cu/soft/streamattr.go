package soft

import "github.com/gpufd/gpufd/cu/sys"

// cuStreamGetId's numbers are the serial numbers of handles, the context's for
// its default stream, with the thread's above for a thread's own.
func (m *machine) cuStreamGetId(h sys.CUstream, out *uint64) sys.CUresult {
	return streamValue(m, h, out, func(s *stream) uint64 {
		switch s.handle {
		case sys.CU_STREAM_LEGACY:
			return uint64(uint32(s.ctx.handle))
		case sys.CU_STREAM_PER_THREAD:
			return uint64(threadID())<<32 | uint64(uint32(s.ctx.handle))
		}
		return uint64(uint32(s.handle))
	})
}

// cuStreamGetCtx_v2 has no green contexts to tell of.
func (m *machine) cuStreamGetCtx_v2(h sys.CUstream, out *sys.CUcontext, green *sys.CUgreenCtx) sys.CUresult {
	r := m.cuStreamGetCtx(h, out)
	setOptional(r, green, 0)
	return r
}

// cuStreamGetAttribute knows the priority and the way of waiting, which makes
// no difference here.
func (m *machine) cuStreamGetAttribute(h sys.CUstream, attr sys.CUstreamAttrID, out *sys.CUstreamAttrValue) sys.CUresult {
	s, r := m.lockStream(h)
	defer m.mu.Unlock()
	switch {
	case r != sys.CUDA_SUCCESS:
		return r
	case out == nil:
		return sys.CUDA_ERROR_INVALID_VALUE
	}
	switch attr {
	case sys.CU_LAUNCH_ATTRIBUTE_PRIORITY:
		*out.Priority() = s.priority
	case sys.CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY:
		*out.SyncPolicy() = s.syncPolicy()
	default:
		return otherAttribute(attr)
	}
	return sys.CUDA_SUCCESS
}

func (m *machine) cuStreamSetAttribute(h sys.CUstream, attr sys.CUstreamAttrID, value *sys.CUstreamAttrValue) sys.CUresult {
	s, r := m.lockStream(h)
	defer m.mu.Unlock()
	switch {
	case r != sys.CUDA_SUCCESS:
		return r
	case value == nil:
		return sys.CUDA_ERROR_INVALID_VALUE
	}
	switch attr {
	case sys.CU_LAUNCH_ATTRIBUTE_PRIORITY:
		s.priority = clampPriority(*value.Priority())
	case sys.CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY:
		if p := *value.SyncPolicy(); p < sys.CU_SYNC_POLICY_AUTO || p > sys.CU_SYNC_POLICY_BLOCKING_SYNC {
			return sys.CUDA_ERROR_INVALID_VALUE
		}
		s.policy = *value.SyncPolicy()
	default:
		return otherAttribute(attr)
	}
	return sys.CUDA_SUCCESS
}

// cuStreamCopyAttributes wants two streams of one context.
func (m *machine) cuStreamCopyAttributes(hDst, hSrc sys.CUstream) sys.CUresult {
	dst, r := m.lockStream(hDst)
	defer m.mu.Unlock()
	if r != sys.CUDA_SUCCESS {
		return r
	}
	src, r := m.findStream(hSrc)
	if r != sys.CUDA_SUCCESS {
		return r
	}
	if src.ctx != dst.ctx {
		return sys.CUDA_ERROR_INVALID_CONTEXT
	}
	dst.priority, dst.policy = src.priority, src.policy
	return sys.CUDA_SUCCESS
}

// otherAttribute tells attributes of streams from what is none.
func otherAttribute(attr sys.CUstreamAttrID) sys.CUresult {
	switch attr {
	case sys.CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW, sys.CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP, sys.CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN:
		return sys.CUDA_ERROR_NOT_SUPPORTED
	}
	return sys.CUDA_ERROR_INVALID_VALUE
}

// syncPolicy is how the host is to wait for the stream.
func (s *stream) syncPolicy() sys.CUsynchronizationPolicy {
	return max(s.policy, sys.CU_SYNC_POLICY_AUTO)
}

// clampPriority brings a priority into the range of the device.
func clampPriority(p int32) int32 { return min(max(p, greatestPriority), leastPriority) }
