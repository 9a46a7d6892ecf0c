package soft

import (
	"encoding/binary"

	"github.com/gpufd/gpufd/cu/sys"
)

// A pointee is what contains an address: a mapping in a reservation, a
// reservation of cuMemAddressReserve with nothing there, pinned host memory, or
// nothing that the driver knows.
type pointee struct {
	addr        uintptr
	mapping     *mapping
	reservation *reservation
	block       *hostBlock
}

// pointee finds that out. The space behind an allocation is unknown, and so is a
// freed allocation.
func (m *machine) pointee(addr uintptr) pointee {
	p := pointee{addr: addr}
	p.block, _ = m.host.find(addr)
	v, at := m.space.reservation(addr), m.space.mapping(addr)
	if v != nil && (!v.allocated() || at != nil && !v.freed) {
		p.reservation, p.mapping = v, at
	}
	return p
}

// there reports whether the address is in memory of the driver's.
func (p *pointee) there() bool { return p.mapping != nil || p.block != nil }

// virtual reports whether it is in memory of cuMemCreate.
func (p *pointee) virtual() bool { return p.mapping != nil && !p.reservation.allocated() }

// pooled reports whether it is in memory of a pool.
func (p *pointee) pooled() bool { return p.mapping != nil && p.reservation.pool != nil }

// linear reports whether it is in memory of cuMemAlloc.
func (p *pointee) linear() bool { return p.mapping != nil && p.mapping.phys.kind == kindLinear }

// cuPointerGetAttribute knows only addresses where memory is.
func (m *machine) cuPointerGetAttribute(out *byte, a sys.CUpointer_attribute, ptr sys.CUdeviceptr) sys.CUresult {
	return m.locked(func() sys.CUresult {
		p := m.pointee(uintptr(ptr))
		width := m.widthOf(a)
		if out == nil || width == 0 || !p.there() {
			return sys.CUDA_ERROR_INVALID_VALUE
		}
		v, r := m.attribute(&p, a)
		if r == sys.CUDA_SUCCESS {
			putWord(out, v, width)
		}
		return r
	})
}

// cuPointerGetAttributes takes any address. Attributes that it does not have read
// 0, except the host's pointer, which is the address itself, the device, which is
// −2, and the range, which stays as it was.
func (m *machine) cuPointerGetAttributes(n uint32, attributes *sys.CUpointer_attribute, out **byte, ptr sys.CUdeviceptr) sys.CUresult {
	return m.locked(func() sys.CUresult {
		if n == 0 || n > maxDescs || attributes == nil || out == nil {
			return sys.CUDA_ERROR_INVALID_VALUE
		}
		p := m.pointee(uintptr(ptr))
		asked, outs := array(attributes, uintptr(n)), array(out, uintptr(n))
		for i, a := range asked {
			if m.widthOf(a) == 0 || outs[i] == nil {
				return sys.CUDA_ERROR_INVALID_VALUE
			}
		}
		for i, a := range asked {
			if v, r := m.attribute(&p, a); r == sys.CUDA_SUCCESS {
				putWord(outs[i], v, m.widthOf(a))
			} else if !isRange(a) {
				putWord(outs[i], 0, m.widthOf(a))
			}
		}
		return sys.CUDA_SUCCESS
	})
}

func isRange(a sys.CUpointer_attribute) bool {
	return a == sys.CU_POINTER_ATTRIBUTE_RANGE_START_ADDR || a == sys.CU_POINTER_ATTRIBUTE_RANGE_SIZE
}

// cuPointerSetAttribute can set one attribute, but not for memory of
// cuMemCreate.
func (m *machine) cuPointerSetAttribute(value *uint32, a sys.CUpointer_attribute, ptr sys.CUdeviceptr) sys.CUresult {
	return m.locked(func() sys.CUresult {
		p := m.pointee(uintptr(ptr))
		switch {
		case value == nil, !p.there():
			return sys.CUDA_ERROR_INVALID_VALUE
		case p.virtual():
			return sys.CUDA_ERROR_NOT_SUPPORTED
		case a != sys.CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
			return sys.CUDA_ERROR_INVALID_VALUE
		case p.block != nil:
			p.block.syncs = *value != 0
		default:
			p.mapping.phys.syncs = *value != 0
		}
		return sys.CUDA_SUCCESS
	})
}

// putWord writes the low bytes of v.
func putWord(out *byte, v uint64, width uintptr) {
	copy(sliceOf(out, width), binary.LittleEndian.AppendUint64(nil, v))
}

// widthOf returns the size of an attribute in bytes, 0 if this version does not
// have it.
func (m *machine) widthOf(a sys.CUpointer_attribute) uintptr {
	switch a {
	case sys.CU_POINTER_ATTRIBUTE_CONTEXT, sys.CU_POINTER_ATTRIBUTE_DEVICE_POINTER, sys.CU_POINTER_ATTRIBUTE_HOST_POINTER,
		sys.CU_POINTER_ATTRIBUTE_BUFFER_ID, sys.CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, sys.CU_POINTER_ATTRIBUTE_RANGE_SIZE,
		sys.CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES, sys.CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
		return 8
	case sys.CU_POINTER_ATTRIBUTE_MEMORY_TYPE, sys.CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, sys.CU_POINTER_ATTRIBUTE_IS_MANAGED,
		sys.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, sys.CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, sys.CU_POINTER_ATTRIBUTE_MAPPED,
		sys.CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE, sys.CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
		return 4
	case sys.CU_POINTER_ATTRIBUTE_MAPPING_SIZE, sys.CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR, sys.CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID:
		if m.conf.version >= 11070 {
			return 8
		}
	case sys.CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE:
		if m.conf.version >= 12080 {
			return 4
		}
	}
	return 0
}

// attribute returns the value of an attribute of an address, or why there is
// none.
func (m *machine) attribute(p *pointee, a sys.CUpointer_attribute) (v uint64, r sys.CUresult) {
	switch a {
	case sys.CU_POINTER_ATTRIBUTE_CONTEXT:
		v = uint64(p.context())
	case sys.CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
		v = uint64(p.memoryType())
	case sys.CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
		return m.devicePointer(p)
	case sys.CU_POINTER_ATTRIBUTE_HOST_POINTER:
		if v = uint64(p.addr); p.mapping != nil {
			return 0, sys.CUDA_ERROR_INVALID_VALUE
		}
	case sys.CU_POINTER_ATTRIBUTE_BUFFER_ID:
		v = p.bufferID()
	case sys.CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, sys.CU_POINTER_ATTRIBUTE_RANGE_SIZE:
		return p.rangeOf(a)
	case sys.CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
		_, size := p.extent()
		v = uint64(size)
	case sys.CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
		base, _ := p.extent()
		v = uint64(base)
	case sys.CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID:
		v = p.blockID()
	case sys.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
		v = uint64(uint32(m.ordinal(p)))
	case sys.CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
		v = asWord(p.syncs())
	case sys.CU_POINTER_ATTRIBUTE_MAPPED:
		v = asWord(p.there())
	case sys.CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
		v = asWord(p.exportable())
	case sys.CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
		v = uint64(p.handleTypes())
	case sys.CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
		if p.pooled() {
			v = uint64(p.reservation.pool.handle)
		}
	case sys.CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
		v = uint64(m.access(p))
	}
	return v, sys.CUDA_SUCCESS
}

func asWord(is bool) uint64 {
	if is {
		return 1
	}
	return 0
}

// context is the owner, which memory of cuMemCreate does not have.
func (p *pointee) context() sys.CUcontext {
	switch {
	case p.block != nil:
		return p.block.ctx.handle
	case p.linear():
		return p.reservation.linear.handle
	}
	return 0
}

func (p *pointee) memoryType() sys.CUmemorytype {
	switch {
	case p.block != nil:
		return sys.CU_MEMORYTYPE_HOST
	case p.mapping != nil:
		return sys.CU_MEMORYTYPE_DEVICE
	}
	return 0
}

// handleTypes is how the memory, or the pool it is of, can be shared.
func (p *pointee) handleTypes() sys.CUmemAllocationHandleType {
	switch {
	case p.pooled():
		return p.reservation.pool.types
	case p.mapping != nil:
		return p.mapping.phys.types
	}
	return 0
}

// devicePointer is the address itself, if the current context may use it.
func (m *machine) devicePointer(p *pointee) (uint64, sys.CUresult) {
	ctx, r := m.current()
	switch {
	case r != sys.CUDA_SUCCESS:
		return 0, r
	case p.block != nil, p.mapping != nil && p.mapping.allows(m.number(ctx.dev), false):
		return uint64(p.addr), r
	}
	return 0, sys.CUDA_ERROR_INVALID_VALUE
}

// bufferID numbers what has an address, blockID what has content.
func (p *pointee) bufferID() uint64 {
	if p.mapping != nil {
		return p.mapping.id
	}
	return p.blockID()
}

func (p *pointee) blockID() uint64 {
	switch {
	case p.mapping != nil:
		return p.mapping.phys.number
	case p.block != nil:
		return p.block.id
	}
	return 0
}

// rangeOf returns the allocation of an address: for cuMemAddressReserve the whole
// reservation, whatever is mapped there.
func (p *pointee) rangeOf(a sys.CUpointer_attribute) (uint64, sys.CUresult) {
	base, size := p.extent()
	switch {
	case p.reservation != nil && !p.reservation.allocated():
		base, size = p.reservation.base, p.reservation.size
	case !p.there():
		return 0, sys.CUDA_ERROR_INVALID_VALUE
	}
	if a == sys.CU_POINTER_ATTRIBUTE_RANGE_SIZE {
		return uint64(size), sys.CUDA_SUCCESS
	}
	return uint64(base), sys.CUDA_SUCCESS
}

// extent is the memory that the address is in.
func (p *pointee) extent() (base, size uintptr) {
	switch {
	case p.block != nil:
		return p.block.base, p.block.size
	case p.mapping != nil:
		return p.mapping.base, p.mapping.size
	}
	return 0, 0
}

// ordinal is the device's number, −2 for none.
func (m *machine) ordinal(p *pointee) int32 {
	switch {
	case p.block != nil:
		return int32(m.number(p.block.ctx.dev))
	case p.reservation != nil && p.reservation.opened != nil:
		return int32(m.number(p.reservation.linear.dev)) // that opened it, wherever it is (D16)
	case p.mapping != nil:
		return int32(m.number(p.mapping.phys.dev))
	}
	return -2
}

// syncs reports whether calls without a stream wait for what they do there.
func (p *pointee) syncs() bool {
	return p.block != nil && p.block.syncs || p.mapping != nil && p.mapping.phys.syncs
}

// access returns what the current context's device may do. Without a context that
// is known only for memory that belongs to one.
func (m *machine) access(p *pointee) sys.CUDA_POINTER_ATTRIBUTE_ACCESS_FLAGS {
	ctx, r := m.current()
	may := func(write bool) bool {
		return p.linear() || p.mapping != nil && r == sys.CUDA_SUCCESS && p.mapping.allows(m.number(ctx.dev), write)
	}
	switch {
	case may(true), p.block != nil && !p.block.readOnly:
		return sys.CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READWRITE
	case may(false), p.block != nil:
		return sys.CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READ
	}
	return sys.CU_POINTER_ATTRIBUTE_ACCESS_FLAG_NONE
}
