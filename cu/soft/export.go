package soft

import (
	"slices"

	"github.com/gpufd/gpufd/cu/sys"
	"golang.org/x/sys/unix"
)

// cuMemExportToShareableHandle gives out an fd of its own each time, closed on
// exec. The fd alone keeps the memory (D11) and carries no rights (D5).
func (m *machine) cuMemExportToShareableHandle(out *int32, h sys.CUmemGenericAllocationHandle, t sys.CUmemAllocationHandleType, flags uint64) sys.CUresult {
	return with(m, m.findAllocation, h, func(a *handle) sys.CUresult {
		if out == nil || flags != 0 || a.phys.types&t == 0 {
			return sys.CUDA_ERROR_INVALID_VALUE
		}
		switch t {
		case sys.CU_MEM_HANDLE_TYPE_FABRIC:
			fabricAt(out).Data = m.fabricHandle(a.phys)
			return sys.CUDA_SUCCESS
		case sys.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR:
		default:
			return sys.CUDA_ERROR_INVALID_VALUE
		}
		fd, err := m.store.reopen(&a.phys.trailer)
		if err != nil {
			return sys.CUDA_ERROR_OPERATING_SYSTEM
		}
		return set(out, int32(fd))
	})
}

// cuMemImportFromShareableHandle needs no context (D7) and leaves the fd to
// the caller. Each import has a handle of its own.
func (m *machine) cuMemImportFromShareableHandle(out *sys.CUmemGenericAllocationHandle, osHandle uintptr, t sys.CUmemAllocationHandleType) sys.CUresult {
	return m.locked(func() sys.CUresult {
		if out != nil && osHandle != 0 && t == sys.CU_MEM_HANDLE_TYPE_FABRIC && m.conf.imex != 0 {
			return m.importFabric(out, osHandle)
		}
		fd := int(int32(osHandle))
		if out == nil || fd == 0 { // D8
			return sys.CUDA_ERROR_INVALID_VALUE
		}
		switch t {
		case sys.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR:
			return m.importFile(out, fd)
		case sys.CU_MEM_HANDLE_TYPE_WIN32, sys.CU_MEM_HANDLE_TYPE_WIN32_KMT, sys.CU_MEM_HANDLE_TYPE_FABRIC:
			return sys.CUDA_ERROR_NOT_SUPPORTED
		}
		return sys.CUDA_ERROR_INVALID_VALUE
	})
}

// importFile imports the file behind fd, if cuMemCreate made it. It checks and
// maps a copy of the fd, so that a caller who closes the original meanwhile
// cannot make it map another file than it checked.
func (m *machine) importFile(out *sys.CUmemGenericAllocationHandle, fd int) sys.CUresult {
	own, t, r := ownCopy(fd)
	if r != sys.CUDA_SUCCESS {
		return r
	}
	defer unix.Close(own)
	if t.kind != kindGeneric || t.size%granularity != 0 {
		return sys.CUDA_ERROR_UNKNOWN // D8
	}
	d := m.deviceOf(t)
	if d == nil {
		return sys.CUDA_ERROR_INVALID_DEVICE
	}
	p, r := m.adopt(own, *t, d)
	if r == sys.CUDA_SUCCESS {
		*out = m.newAllocation(p)
	}
	return r
}

// ownCopy duplicates an fd, which the caller closes, and reads what it is.
// Anything that this package did not make is CUDA_ERROR_UNKNOWN (D8).
func ownCopy(fd int) (own int, t *trailer, r sys.CUresult) {
	own, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err == unix.EMFILE {
		return -1, nil, sys.CUDA_ERROR_OPERATING_SYSTEM
	}
	if err != nil {
		return -1, nil, sys.CUDA_ERROR_UNKNOWN
	}
	t, ok := readTrailer(own)
	if !ok {
		unix.Close(own)
		return -1, nil, sys.CUDA_ERROR_UNKNOWN
	}
	return own, t, sys.CUDA_SUCCESS
}

// deviceOf returns the visible device that memory is on, or the host, or nil.
func (m *machine) deviceOf(t *trailer) *device {
	if t.host() && t.uuid == m.node.uuid {
		return m.node
	}
	i := slices.IndexFunc(m.devices, func(d *device) bool { return d.uuid == t.uuid && d.ordinal == t.ordinal })
	if i < 0 {
		return nil
	}
	return m.devices[i]
}

// cuMemGetAllocationPropertiesFromHandle says of imported memory that it
// cannot be exported, whatever it was made for (D6).
func (m *machine) cuMemGetAllocationPropertiesFromHandle(out *sys.CUmemAllocationProp, h sys.CUmemGenericAllocationHandle) sys.CUresult {
	return with(m, m.findAllocation, h, func(a *handle) sys.CUresult {
		return set(out, sys.CUmemAllocationProp{
			Type:                 sys.CU_MEM_ALLOCATION_TYPE_PINNED,
			RequestedHandleTypes: a.phys.types,
			Location:             m.locationOf(a.phys),
		})
	})
}

// cuMemRetainAllocationHandle returns the handle of the memory mapped at an
// address, counted once more, or again if it was released.
func (m *machine) cuMemRetainAllocationHandle(out *sys.CUmemGenericAllocationHandle, addr uintptr) sys.CUresult {
	return m.locked(func() sys.CUresult {
		p := m.space.mapping(addr)
		if out == nil || p == nil || p.phys.kind != kindGeneric {
			return sys.CUDA_ERROR_INVALID_VALUE
		}
		if a := m.handles[p.phys.handle]; a != nil {
			a.refs++
			return set(out, p.phys.handle)
		}
		return set(out, m.newAllocation(p.phys))
	})
}
