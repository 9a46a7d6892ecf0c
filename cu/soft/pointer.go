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
		at := m.pointerAttribute(a)
		if out == nil || at.width == 0 || !p.there() {
			return sys.CUDA_ERROR_INVALID_VALUE
		}
		v, r := at.get(m, &p)
		if r == sys.CUDA_SUCCESS {
			putWord(out, v, at.width)
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
			if m.pointerAttribute(a).width == 0 || outs[i] == nil {
				return sys.CUDA_ERROR_INVALID_VALUE
			}
		}
		for i, a := range asked {
			at := m.pointerAttribute(a)
			isRange := a == sys.CU_POINTER_ATTRIBUTE_RANGE_START_ADDR || a == sys.CU_POINTER_ATTRIBUTE_RANGE_SIZE
			if v, r := at.get(m, &p); r == sys.CUDA_SUCCESS || !isRange {
				putWord(outs[i], v, at.width)
			}
		}
		return sys.CUDA_SUCCESS
	})
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

// A pointerAttribute is an attribute of addresses: its size in bytes, the version of
// CUDA that has it first, and its value for an address, or why there is none.
type pointerAttribute struct {
	width uintptr
	since int
	get   func(*machine, *pointee) (uint64, sys.CUresult)
}

// known is a value that every address has.
func known[T ~int32 | ~uint32 | ~uint64 | ~uintptr](get func(*pointee) T) func(*machine, *pointee) (uint64, sys.CUresult) {
	return func(_ *machine, p *pointee) (uint64, sys.CUresult) { return uint64(get(p)), sys.CUDA_SUCCESS }
}

// yesOrNo is known for 0 and 1.
func yesOrNo(is func(*pointee) bool) func(*machine, *pointee) (uint64, sys.CUresult) {
	return known(func(p *pointee) uint64 { return asWord(is(p)) })
}

var never = yesOrNo(func(*pointee) bool { return false })

var pointerAttributes = map[sys.CUpointer_attribute]pointerAttribute{
	sys.CU_POINTER_ATTRIBUTE_CONTEXT:                    {8, 0, known((*pointee).context)},
	sys.CU_POINTER_ATTRIBUTE_MEMORY_TYPE:                {4, 0, known((*pointee).memoryType)},
	sys.CU_POINTER_ATTRIBUTE_DEVICE_POINTER:             {8, 0, (*machine).devicePointer},
	sys.CU_POINTER_ATTRIBUTE_HOST_POINTER:               {8, 0, (*machine).hostPointer},
	sys.CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:                {4, 0, yesOrNo((*pointee).syncs)},
	sys.CU_POINTER_ATTRIBUTE_BUFFER_ID:                  {8, 0, known((*pointee).bufferID)},
	sys.CU_POINTER_ATTRIBUTE_IS_MANAGED:                 {4, 0, never},
	sys.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:             {4, 0, (*machine).ordinal},
	sys.CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE: {4, 0, yesOrNo((*pointee).exportable)},
	sys.CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:           {8, 0, (*machine).rangeStart},
	sys.CU_POINTER_ATTRIBUTE_RANGE_SIZE:                 {8, 0, (*machine).rangeSize},
	sys.CU_POINTER_ATTRIBUTE_MAPPED:                     {4, 0, yesOrNo((*pointee).there)},
	sys.CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:       {8, 0, known((*pointee).handleTypes)},
	sys.CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE: {4, 0, never},
	sys.CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:               {4, 0, (*machine).access},
	sys.CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:             {8, 0, known((*pointee).poolHandle)},
	sys.CU_POINTER_ATTRIBUTE_MAPPING_SIZE:               {8, 11070, known(func(p *pointee) uintptr { _, size := p.extent(); return size })},
	sys.CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:          {8, 11070, known(func(p *pointee) uintptr { base, _ := p.extent(); return base })},
	sys.CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID:            {8, 11070, known((*pointee).blockID)},
	sys.CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE:   {4, 12080, never},
}

// pointerAttribute finds an attribute; its width is 0 if this version does not have it.
func (m *machine) pointerAttribute(a sys.CUpointer_attribute) pointerAttribute {
	if at := pointerAttributes[a]; m.conf.version >= at.since {
		return at
	}
	return pointerAttribute{}
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
	case p.mapping != nil && p.mapping.phys.host():
		return sys.CU_MEMORYTYPE_HOST
	case p.mapping != nil:
		return sys.CU_MEMORYTYPE_DEVICE
	}
	return 0
}

// handleTypes returns how the memory, or its pool, can be shared.
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

// hostPointer is the address itself, if it is none of device memory and the host may use it.
func (m *machine) hostPointer(p *pointee) (uint64, sys.CUresult) {
	if p.mapping != nil && p.mapping.host == 0 {
		return 0, sys.CUDA_ERROR_INVALID_VALUE
	}
	return uint64(p.addr), sys.CUDA_SUCCESS
}

// poolHandle returns the memory's pool, or 0.
func (p *pointee) poolHandle() sys.CUmemoryPool {
	if p.pooled() {
		return p.reservation.pool.handle
	}
	return 0
}

// rangeStart and rangeSize are the allocation of an address: for cuMemAddressReserve
// the whole reservation, whatever is mapped there.
func (m *machine) rangeStart(p *pointee) (uint64, sys.CUresult) {
	base, _, r := p.allocation()
	return uint64(base), r
}

func (m *machine) rangeSize(p *pointee) (uint64, sys.CUresult) {
	_, size, r := p.allocation()
	return uint64(size), r
}

func (p *pointee) allocation() (base, size uintptr, r sys.CUresult) {
	if p.reservation != nil && !p.reservation.allocated() {
		return p.reservation.base, p.reservation.size, r
	}
	base, size = p.extent()
	return base, size, valid(p.there())
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
func (m *machine) ordinal(p *pointee) (uint64, sys.CUresult) {
	n := sys.CUdevice(-2)
	switch {
	case p.block != nil:
		n = m.number(p.block.ctx.dev)
	case p.reservation != nil && p.reservation.opened != nil:
		n = m.number(p.reservation.linear.dev) // that opened it, wherever it is (D16)
	case p.mapping != nil:
		n = m.number(p.mapping.phys.dev)
	}
	return uint64(uint32(n)), sys.CUDA_SUCCESS
}

// syncs reports whether calls without a stream wait for what they do there.
func (p *pointee) syncs() bool {
	return p.block != nil && p.block.syncs || p.mapping != nil && p.mapping.phys.syncs
}

// access returns what the current context's device may do. Without a context that
// is known only for memory that belongs to one.
func (m *machine) access(p *pointee) (uint64, sys.CUresult) {
	ctx, r := m.current()
	may := func(write bool) bool {
		return p.linear() || p.mapping != nil && r == sys.CUDA_SUCCESS && p.mapping.allows(m.number(ctx.dev), write)
	}
	switch {
	case may(true), p.block != nil && !p.block.readOnly:
		return uint64(sys.CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READWRITE), sys.CUDA_SUCCESS
	case may(false), p.block != nil:
		return uint64(sys.CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READ), sys.CUDA_SUCCESS
	}
	return uint64(sys.CU_POINTER_ATTRIBUTE_ACCESS_FLAG_NONE), sys.CUDA_SUCCESS
}
