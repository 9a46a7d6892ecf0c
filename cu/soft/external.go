package soft

import (
	"crypto/rand"

	"github.com/gpufd/gpufd/cu/sys"
	"golang.org/x/sys/unix"
)

// An external is memory that a context took over from another API as a
// descriptor. Vulkan's stand-in here is a memfd; memory of cuMemCreate will do,
// too (C42).
type external struct {
	ctx   *context
	phys  *physical
	size  uint64 // as the caller says, which is not checked
	whole bool   // it is dedicated
}

// findExternal returns what cuImportExternalMemory gave out.
func (m *machine) findExternal(h sys.CUexternalMemory) (*external, sys.CUresult) {
	return find(m, m.external, h, kindExternal, "external memory", sys.CUDA_ERROR_INVALID_HANDLE)
}

// cuImportExternalMemory takes the descriptor over, and closes it, also if it turns out not to be such memory. It is
// the caller's after every other failure.
func (m *machine) cuImportExternalMemory(out *sys.CUexternalMemory, desc *sys.CUDA_EXTERNAL_MEMORY_HANDLE_DESC) sys.CUresult {
	return withContext(m, m.current, func(ctx *context) sys.CUresult {
		switch {
		case out == nil, desc == nil, desc.Flags&^sys.CUDA_EXTERNAL_MEMORY_DEDICATED != 0, desc.Size == 0, !isExternalType(desc.Type):
			return sys.CUDA_ERROR_INVALID_VALUE
		case desc.Type != sys.CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD:
			return sys.CUDA_ERROR_NOT_SUPPORTED
		}
		fd := int(*desc.HandleFd())
		p, r := m.adoptExternal(ctx, fd)
		if r == sys.CUDA_SUCCESS || r == sys.CUDA_ERROR_UNKNOWN {
			unix.Close(fd)
		}
		if r != sys.CUDA_SUCCESS {
			return r
		}
		p.hold()
		*out = sys.CUexternalMemory(m.newHandle(kindExternal, contextNumber(uint64(ctx.handle))))
		m.external[*out] = &external{ctx, p, desc.Size, desc.Flags&sys.CUDA_EXTERNAL_MEMORY_DEDICATED != 0}
		return sys.CUDA_SUCCESS
	})
}

// isExternalType reports whether a driver of CUDA 13.0 knows a type of handles.
func isExternalType(t sys.CUexternalMemoryHandleType) bool {
	return t >= sys.CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD && t <= sys.CU_EXTERNAL_MEMORY_HANDLE_TYPE_NVSCIBUF
}

// adoptExternal maps memory of a context's device, or a memfd of anybody.
func (m *machine) adoptExternal(ctx *context, fd int) (*physical, sys.CUresult) {
	own, t, r := ownCopy(fd)
	if r == sys.CUDA_ERROR_UNKNOWN {
		return m.adoptMemfd(ctx, fd)
	}
	if r != sys.CUDA_SUCCESS {
		return nil, r
	}
	defer unix.Close(own)
	switch {
	case t.kind != kindGeneric:
		return nil, sys.CUDA_ERROR_UNKNOWN
	case m.deviceOf(t) != ctx.dev:
		return nil, sys.CUDA_ERROR_INVALID_DEVICE
	}
	return m.adopt(own, *t, ctx.dev)
}

// adoptMemfd maps a memfd, whatever its content, which does not count as device
// memory. Anything but a memfd that is open for reading and writing is
// CUDA_ERROR_UNKNOWN.
func (m *machine) adoptMemfd(ctx *context, fd int) (*physical, sys.CUresult) {
	own, err := keepFile(fd)
	if err != nil {
		return nil, sys.CUDA_ERROR_UNKNOWN
	}
	defer unix.Close(own)
	var st unix.Stat_t
	_, sealErr := unix.FcntlInt(uintptr(own), unix.F_GET_SEALS, 0)
	flags, flagsErr := unix.FcntlInt(uintptr(own), unix.F_GETFL, 0)
	if sealErr != nil || flagsErr != nil || flags&unix.O_ACCMODE != unix.O_RDWR || unix.Fstat(own, &st) != nil || st.Size == 0 || st.Nlink != 0 {
		return nil, sys.CUDA_ERROR_UNKNOWN
	}
	t := trailer{kind: kindLinear, ordinal: ctx.dev.ordinal, size: uint64(st.Size), uuid: ctx.dev.uuid}
	rand.Read(t.id[:])
	p, r := m.adopt(own, t, ctx.dev)
	if r == sys.CUDA_SUCCESS {
		p.lent = true
	}
	return p, r
}

// cuDestroyExternalMemory leaves mapped buffers as they are.
func (m *machine) cuDestroyExternalMemory(h sys.CUexternalMemory) sys.CUresult {
	return with(m, m.findExternal, h, func(e *external) sys.CUresult {
		m.dropExternal(h, e)
		return sys.CUDA_SUCCESS
	})
}

func (m *machine) dropExternal(h sys.CUexternalMemory, e *external) {
	delete(m.external, h)
	m.drop(e.phys)
}

// dropExternals ends the external memory of a context.
func (m *machine) dropExternals(ctx *context) {
	for h, e := range m.external {
		if e.ctx == ctx {
			m.dropExternal(h, e)
		}
	}
}

// cuExternalMemoryGetMappedBuffer maps a part of the memory as memory of the
// context, to be freed with cuMemFree. It checks the range against the size that the
// import was told, and that dedicated memory is mapped from its beginning; where the memory itself ends before,
// the buffer does.
func (m *machine) cuExternalMemoryGetMappedBuffer(out *sys.CUdeviceptr, h sys.CUexternalMemory, desc *sys.CUDA_EXTERNAL_MEMORY_BUFFER_DESC) sys.CUresult {
	return withContext(m, m.current, func(*context) sys.CUresult {
		e, r := m.findExternal(h)
		if r != sys.CUDA_SUCCESS {
			return r
		}
		if out == nil || desc == nil || desc.Flags != 0 || desc.Size == 0 ||
			desc.Offset > e.size || desc.Size > e.size-desc.Offset || desc.Offset >= e.phys.size || e.whole && desc.Offset != 0 {
			return sys.CUDA_ERROR_INVALID_VALUE
		}
		n := uintptr(min(desc.Size, e.phys.size-desc.Offset))
		v, r := m.placeLinear(e.ctx, e.phys.part(uintptr(desc.Offset), n), n)
		if r == sys.CUDA_SUCCESS {
			v.external = true
			*out = sys.CUdeviceptr(v.base)
		}
		return r
	})
}

// part returns n bytes of p from offset on. It holds p.
func (p *physical) part(offset, n uintptr) *physical {
	p.hold()
	part := &physical{trailer: p.trailer, dev: p.dev, alias: p.alias + offset, number: p.number, of: p}
	part.kind, part.size = kindLinear, uint64(roundUp(n, linearUnit))
	return part
}
