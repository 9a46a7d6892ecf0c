package cu

import (
	"unsafe"

	"github.com/gpufd/gpufd/cu/sys"
)

// getPool reads an attribute of a pool. T is its type in C.
func getPool[T int32 | uint64](p *Pool, a sys.CUmemPool_attribute) (T, error) {
	v := new(T)
	err := p.run("cuMemPoolGetAttribute", func(call sys.Caller, h sys.CUmemoryPool) sys.CUresult {
		return call.CuMemPoolGetAttribute(h, a, unsafe.Pointer(v))
	})
	return *v, err
}

// setPool sets an attribute of a pool. T is its type in C.
func setPool[T int32 | uint64](p *Pool, a sys.CUmemPool_attribute, value T) error {
	v := new(T)
	*v = value
	return p.run("cuMemPoolSetAttribute", func(call sys.Caller, h sys.CUmemoryPool) sys.CUresult {
		return call.CuMemPoolSetAttribute(h, a, unsafe.Pointer(v))
	})
}

// SetAccess sets what each of devices may do with memory of the pool, allocated
// before or later (cuMemPoolSetAccess). The pool's own device keeps all rights.
func (p *Pool) SetAccess(a Access, devices ...*Device) error {
	desc := make([]sys.CUmemAccessDesc, len(devices))
	for i, dev := range devices {
		desc[i] = sys.CUmemAccessDesc{Location: dev.location(), Flags: sys.CUmemAccess_flags(a)}
	}
	return p.run("cuMemPoolSetAccess", func(call sys.Caller, h sys.CUmemoryPool) sys.CUresult {
		return call.CuMemPoolSetAccess(h, unsafe.SliceData(desc), uintptr(len(desc)))
	})
}

// exportPool stores a descriptor of the pool in fd.
func exportPool(call sys.Caller, h sys.CUmemoryPool, fd *int32) sys.CUresult {
	return call.CuMemPoolExportToShareableHandle(unsafe.Pointer(fd), h, sys.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0)
}
