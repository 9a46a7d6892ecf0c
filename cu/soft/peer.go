package soft

import "github.com/gpufd/gpufd/cu/sys"

// Copies need no peer access: the driver copies through the host if needed.
// Kernels, sets, and writes of and waits for values need it.

// reaches reports whether a context's work, other than copies, may touch an
// address, as far as peer access decides that.
func (m *machine) reaches(ctx *context, addr uintptr) bool {
	v := m.space.reservation(addr)
	return v == nil || v.linear == nil || v.linear.dev == ctx.dev || ctx.peers[v.linear]
}

// linked reports whether a device can get access to memory of another: always,
// unless GPUFD_SOFT_PEERS=0.
func (m *machine) linked(a, b *device) bool { return a != b && m.conf.peers != 0 }

// cuDeviceCanAccessPeer says no for a device and itself.
func (m *machine) cuDeviceCanAccessPeer(can *int32, dev, peer sys.CUdevice) sys.CUresult {
	return withBoth(m, m.device, dev, m.device, peer, func(a, b *device) sys.CUresult {
		return set(can, int32(asWord(m.linked(a, b))))
	})
}

// cuDeviceGetP2PAttribute knows no link of a device with itself.
func (m *machine) cuDeviceGetP2PAttribute(value *int32, a sys.CUdevice_P2PAttribute, dev, peer sys.CUdevice) sys.CUresult {
	return withBoth(m, m.device, dev, m.device, peer, func(from, to *device) sys.CUresult {
		switch {
		case value == nil:
			return sys.CUDA_ERROR_INVALID_VALUE
		case from == to:
			return sys.CUDA_ERROR_INVALID_DEVICE
		}
		switch a {
		case sys.CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED:
			return set(value, int32(m.conf.peers))
		case sys.CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK, sys.CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED,
			sys.CU_DEVICE_P2P_ATTRIBUTE_CUDA_ARRAY_ACCESS_SUPPORTED, sys.CU_DEVICE_P2P_ATTRIBUTE_ONLY_PARTIAL_NATIVE_ATOMIC_SUPPORTED:
			return set(value, 0)
		}
		return sys.CUDA_ERROR_INVALID_VALUE
	})
}

// withPeer is with for the current context and the one given.
func (m *machine) withPeer(h sys.CUcontext, f func(ctx, peer *context) sys.CUresult) sys.CUresult {
	return withContext(m, m.current, func(ctx *context) sys.CUresult {
		if h == 0 {
			return sys.CUDA_ERROR_INVALID_CONTEXT
		}
		peer, r := m.context(h)
		if r != sys.CUDA_SUCCESS {
			return r
		}
		return f(ctx, peer)
	})
}

// cuCtxEnablePeerAccess is for contexts of two devices, and goes one way.
func (m *machine) cuCtxEnablePeerAccess(h sys.CUcontext, flags uint32) sys.CUresult {
	return m.withPeer(h, func(ctx, peer *context) sys.CUresult {
		switch {
		case flags != 0:
			return sys.CUDA_ERROR_INVALID_VALUE
		case !m.linked(ctx.dev, peer.dev):
			return sys.CUDA_ERROR_PEER_ACCESS_UNSUPPORTED
		case ctx.peers[peer]:
			return sys.CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED
		}
		r := m.reachable(ctx, peer.dev)
		if r == sys.CUDA_SUCCESS {
			ctx.peers[peer] = true
		}
		return r
	})
}

func (m *machine) cuCtxDisablePeerAccess(h sys.CUcontext) sys.CUresult {
	return m.withPeer(h, func(ctx, peer *context) sys.CUresult {
		if !ctx.peers[peer] {
			return sys.CUDA_ERROR_PEER_ACCESS_NOT_ENABLED
		}
		delete(ctx.peers, peer)
		return sys.CUDA_SUCCESS
	})
}
