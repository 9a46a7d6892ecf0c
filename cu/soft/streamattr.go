package soft

import (
	"maps"

	"github.com/gpufd/gpufd/cu/sys"
)

// cuStreamGetId's numbers are the serial numbers of handles, the context's for
// its default stream, with the thread's above for a thread's own.
func (m *machine) cuStreamGetId(h sys.CUstream, out *uint64) sys.CUresult {
	return value(m, m.anyStream, h, out, func(s *stream) uint64 {
		switch s.handle {
		case sys.CU_STREAM_LEGACY:
			return uint64(uint32(s.ctx.handle))
		case sys.CU_STREAM_PER_THREAD:
			return uint64(threadID())<<32 | uint64(uint32(s.ctx.handle))
		}
		return uint64(uint32(s.handle))
	})
}

// cuStreamGetCtx_v2 has no green contexts to tell of. Either result may be left
// out.
func (m *machine) cuStreamGetCtx_v2(h sys.CUstream, out *sys.CUcontext, green *sys.CUgreenCtx) sys.CUresult {
	return with(m, m.findStream, h, func(s *stream) sys.CUresult {
		setOptional(out, s.ctx.handle)
		setOptional(green, 0)
		return sys.CUDA_SUCCESS
	})
}

// attribute returns an attribute of the stream; ok is false for what streams
// do not have. But for the priority they make no difference here.
func (s *stream) attribute(attr sys.CUstreamAttrID) (v sys.CUstreamAttrValue, ok bool) {
	if v, ok = s.attributes[attr]; ok {
		return v, ok
	}
	switch attr {
	case sys.CU_LAUNCH_ATTRIBUTE_PRIORITY:
		*v.Priority() = s.priority
	case sys.CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY:
		*v.SyncPolicy() = ^sys.CUsynchronizationPolicy(0) // as on an H200: the context's
	case sys.CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW, sys.CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP, sys.CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN:
	default:
		return v, false
	}
	return v, true
}

// setAttribute is for an attribute that the stream has.
func (s *stream) setAttribute(attr sys.CUstreamAttrID, v sys.CUstreamAttrValue) sys.CUresult {
	switch attr {
	case sys.CU_LAUNCH_ATTRIBUTE_PRIORITY:
		s.priority = clampPriority(*v.Priority())
		return sys.CUDA_SUCCESS
	case sys.CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY:
		if p := *v.SyncPolicy(); p < sys.CU_SYNC_POLICY_AUTO || p > sys.CU_SYNC_POLICY_BLOCKING_SYNC {
			return sys.CUDA_ERROR_INVALID_VALUE
		}
	}
	if s.attributes == nil {
		s.attributes = map[sys.CUstreamAttrID]sys.CUstreamAttrValue{}
	}
	s.attributes[attr] = v
	return sys.CUDA_SUCCESS
}

func (m *machine) cuStreamGetAttribute(h sys.CUstream, attr sys.CUstreamAttrID, out *sys.CUstreamAttrValue) sys.CUresult {
	return with(m, m.findStream, h, func(s *stream) sys.CUresult {
		v, ok := s.attribute(attr)
		if !ok {
			return sys.CUDA_ERROR_INVALID_VALUE
		}
		return set(out, v)
	})
}

func (m *machine) cuStreamSetAttribute(h sys.CUstream, attr sys.CUstreamAttrID, value *sys.CUstreamAttrValue) sys.CUresult {
	return with(m, m.findStream, h, func(s *stream) sys.CUresult {
		if _, ok := s.attribute(attr); !ok || value == nil {
			return sys.CUDA_ERROR_INVALID_VALUE
		}
		return s.setAttribute(attr, *value)
	})
}

// cuStreamCopyAttributes wants two streams of one context.
func (m *machine) cuStreamCopyAttributes(hDst, hSrc sys.CUstream) sys.CUresult {
	return withBoth(m, m.findStream, hDst, m.findStream, hSrc, func(dst, src *stream) sys.CUresult {
		if src.ctx != dst.ctx {
			return sys.CUDA_ERROR_INVALID_VALUE
		}
		dst.priority, dst.attributes = src.priority, maps.Clone(src.attributes)
		return sys.CUDA_SUCCESS
	})
}

// clampPriority brings a priority into the range of the device.
func clampPriority(p int32) int32 { return min(max(p, greatestPriority), leastPriority) }
