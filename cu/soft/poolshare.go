package soft

import (
	"encoding/binary"

	"github.com/gpufd/gpufd/cu/sys"
	"golang.org/x/sys/unix"
)

// A control is a file without memory, above all the one that represents a pool to
// other processes. A process that has it open or mapped keeps all memory of the
// pool, even after the exporter has died.
type control struct {
	trailer
	alias uintptr
}

// newControl makes one of the kind and name in t for a device.
func (m *machine) newControl(d *device, t trailer) (*control, sys.CUresult) {
	t.ordinal, t.uuid = d.ordinal, d.uuid
	fd, err := m.store.createControl(&t)
	if err != nil {
		return nil, sys.CUDA_ERROR_OPERATING_SYSTEM
	}
	c, r := m.adoptControl(fd, t)
	unix.Close(fd) // the mapping holds the file
	if r != sys.CUDA_SUCCESS {
		_ = m.store.reclaimControl(&t)
	}
	return c, r
}

// adoptControl maps the file behind fd, which the caller keeps.
func (m *machine) adoptControl(fd int, t trailer) (*control, sys.CUresult) {
	alias, err := mapShared(fd, trailerSize)
	if err != nil {
		return nil, sys.CUDA_ERROR_OUT_OF_MEMORY
	}
	return &control{t, alias}, sys.CUDA_SUCCESS
}

// dropControl undoes adoptControl. The file goes with its last user.
func (m *machine) dropControl(c *control) {
	unmap(c.alias, trailerSize)
	_ = m.store.reclaimControl(&c.trailer)
}

// cuMemPoolExportToShareableHandle gives out an fd of its own each time.
func (m *machine) cuMemPoolExportToShareableHandle(out *int32, h sys.CUmemoryPool, t sys.CUmemAllocationHandleType, flags uint64) sys.CUresult {
	return with(m, m.findPool, h, func(p *pool) sys.CUresult {
		if out == nil || flags != 0 || t != sys.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || p.types&t == 0 {
			return sys.CUDA_ERROR_INVALID_VALUE
		}
		fd, err := m.store.reopen(&p.control.trailer)
		if err != nil {
			return sys.CUDA_ERROR_OPERATING_SYSTEM
		}
		*out, p.exported = int32(fd), true
		return sys.CUDA_SUCCESS
	})
}

// cuMemPoolImportFromShareableHandle needs no context and leaves the fd to the
// caller. Each import is a pool of its own.
func (m *machine) cuMemPoolImportFromShareableHandle(out *sys.CUmemoryPool, osHandle uintptr, t sys.CUmemAllocationHandleType, flags uint64) sys.CUresult {
	return m.locked(func() sys.CUresult {
		fd := int(int32(osHandle))
		if out == nil || fd == 0 || flags != 0 || t != sys.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR {
			return sys.CUDA_ERROR_INVALID_VALUE
		}
		c, d, r := m.openControl(fd)
		if r != sys.CUDA_SUCCESS {
			return r
		}
		p := m.newPool(d)
		p.control, p.imports = c, make(map[[8]byte]*reservation)
		*out = p.handle
		return r
	})
}

// openControl maps the file behind fd, if it is a pool. It checks a copy of the
// fd.
func (m *machine) openControl(fd int) (*control, *device, sys.CUresult) {
	own, t, r := ownCopy(fd)
	if r != sys.CUDA_SUCCESS {
		return nil, nil, r
	}
	defer unix.Close(own)
	if t.kind != kindControl {
		return nil, nil, sys.CUDA_ERROR_NOT_SUPPORTED // memory of cuMemCreate
	}
	d := m.deviceOf(t)
	if d == nil {
		return nil, nil, sys.CUDA_ERROR_INVALID_DEVICE
	}
	c, r := m.adoptControl(own, *t)
	return c, d, r
}

// pointerMagic begins what an exported pointer is; the number is the format's
// version.
const pointerMagic = "gpufdpp1"

// A poolPointer is what cuMemPoolExportPointer says of an allocation: its block's
// trailer, without what the pool says, and its own size.
type poolPointer struct {
	Pool, Block [8]byte
	File, Size  uint64
}

func (e *poolPointer) encode() (b [64]uint8) {
	copy(b[:], pointerMagic)
	binary.Encode(b[len(pointerMagic):], binary.LittleEndian, e)
	return b
}

// decodePointer reads what encode gives; ok is false for anything else.
func decodePointer(b [64]uint8) (e poolPointer, ok bool) {
	binary.Decode(b[len(pointerMagic):], binary.LittleEndian, &e)
	return e, e.encode() == b && e.Size > 0 && e.Size <= e.File
}

// cuMemPoolExportPointer requires a pool that was exported before.
func (m *machine) cuMemPoolExportPointer(out *sys.CUmemPoolPtrExportData, ptr sys.CUdeviceptr) sys.CUresult {
	return m.locked(func() sys.CUresult {
		v := m.allocationAt(ptr)
		if out == nil || v == nil || v.pool == nil || !v.pool.exported {
			return sys.CUDA_ERROR_INVALID_VALUE
		}
		t := &v.mappings[0].phys.trailer
		e := poolPointer{Pool: t.pool, Block: t.id, File: t.size, Size: uint64(v.mappings[0].size)}
		out.Reserved = e.encode()
		return sys.CUDA_SUCCESS
	})
}

// cuMemPoolImportPointer returns the same address for the same memory until it
// is freed: imports are not counted.
func (m *machine) cuMemPoolImportPointer(out *sys.CUdeviceptr, h sys.CUmemoryPool, data *sys.CUmemPoolPtrExportData) sys.CUresult {
	return with(m, m.findPool, h, func(p *pool) sys.CUresult {
		if out == nil || data == nil || !p.imported() {
			return sys.CUDA_ERROR_INVALID_VALUE
		}
		e, ok := decodePointer(data.Reserved)
		if !ok || e.Pool != p.control.id {
			return sys.CUDA_ERROR_INVALID_VALUE
		}
		v := p.imports[e.Block]
		if v == nil {
			var r sys.CUresult
			if v, r = m.importBlock(p, e); r != sys.CUDA_SUCCESS {
				return r
			}
			p.imports[e.Block] = v
		}
		return set(out, sys.CUdeviceptr(v.base))
	})
}

// importBlock maps memory of another process' pool, if it is there.
func (m *machine) importBlock(p *pool, e poolPointer) (*reservation, sys.CUresult) {
	want := trailer{kind: kindBlock, ordinal: p.dev.ordinal, size: e.File, uuid: p.dev.uuid, id: e.Block, pool: e.Pool}
	fd, err := m.store.open(&want)
	if err != nil {
		return nil, sys.CUDA_ERROR_INVALID_VALUE
	}
	phys, r := m.adoptOpened(fd, want, p.dev, sys.CUDA_ERROR_INVALID_VALUE)
	if r != sys.CUDA_SUCCESS {
		return nil, r
	}
	phys.lent = true
	v, r := m.place(p, phys, uintptr(e.Size))
	if r != sys.CUDA_SUCCESS {
		phys.hold()
		m.drop(phys)
	}
	return v, r
}
