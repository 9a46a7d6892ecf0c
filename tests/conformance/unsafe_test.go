package conformance

import (
	"unsafe"

	"github.com/gpufd/gpufd/cu/sys"
)

// at returns the address of a slice's bytes for a call.
func at(b []byte) unsafe.Pointer { return unsafe.Pointer(unsafe.SliceData(b)) }

// hostPointer returns a made-up host address for a call.
func hostPointer(addr uintptr) unsafe.Pointer {
	return *(*unsafe.Pointer)(unsafe.Pointer(&addr))
}

// hostBytes returns memory that the host may use at a device address.
func hostBytes(p sys.CUdeviceptr, n int) []byte {
	return unsafe.Slice((*byte)(hostPointer(uintptr(p))), n)
}

// given is memory whose address was given away as a number: it stays alive, and
// is no stack, which the runtime moves.
var given []unsafe.Pointer

// addressOf returns an address as the number that some calls want.
func addressOf(p unsafe.Pointer) uintptr {
	given = append(given, p)
	return uintptr(p)
}

// export asks for a descriptor of the memory.
func export(c sys.Caller, h sys.CUmemGenericAllocationHandle, kind sys.CUmemAllocationHandleType, flags uint64) (int, sys.CUresult) {
	fd := new(int32)
	r := c.CuMemExportToShareableHandle(unsafe.Pointer(fd), h, kind, flags)
	return int(*fd), r
}

// exportFabric asks for a fabric handle of the memory.
func exportFabric(c sys.Caller, h sys.CUmemGenericAllocationHandle, kind sys.CUmemAllocationHandleType) sys.CUresult {
	return c.CuMemExportToShareableHandle(unsafe.Pointer(new([64]byte)), h, kind, 0)
}

// pinned returns pinned host memory.
func pinned(c sys.Caller, size uintptr, flags uint32) (unsafe.Pointer, sys.CUresult) {
	p := new(unsafe.Pointer)
	r := c.CuMemHostAlloc(p, size, flags)
	return *p, r
}

// addressIn is a slice's address as a unified one. The slice must outlive it.
func addressIn(b []byte) sys.CUdeviceptr { return sys.CUdeviceptr(addressOf(at(b))) }

// attribute asks for an attribute of so many bytes, the result if it is none.
func attribute(c sys.Caller, a sys.CUpointer_attribute, p sys.CUdeviceptr, width int) any {
	w := new([2]uint64)
	if r := c.CuPointerGetAttribute(unsafe.Pointer(w), a, p); r != sys.CUDA_SUCCESS {
		return r
	}
	if width == 4 {
		return uint32(w[0])
	}
	return w[0]
}

// attributes asks for several attributes at once, into words that hold before.
func attributes(c sys.Caller, p sys.CUdeviceptr, before uint64, ids ...sys.CUpointer_attribute) ([]uint64, sys.CUresult) {
	words, data := make([]uint64, len(ids)), make([]unsafe.Pointer, len(ids))
	for i := range ids {
		words[i], data[i] = before, unsafe.Pointer(&words[i])
	}
	r := c.CuPointerGetAttributes(uint32(len(ids)), unsafe.SliceData(ids), unsafe.SliceData(data), p)
	return words, r
}

// setAttribute sets an attribute to a number.
func setAttribute(c sys.Caller, a sys.CUpointer_attribute, p sys.CUdeviceptr, v uint64) sys.CUresult {
	return c.CuPointerSetAttribute(unsafe.Pointer(&v), a, p)
}

// image returns PTX as a call takes it.
func image(text string) unsafe.Pointer { return unsafe.Pointer(sys.CString(text)) }

// wordAt returns the word at a host address.
func wordAt(p unsafe.Pointer) *uint32 { return (*uint32)(p) }

// arguments returns those of a kernel, as cuLaunchKernel takes them.
func arguments(words ...uint64) *unsafe.Pointer {
	list := make([]unsafe.Pointer, len(words))
	for i := range words {
		list[i] = unsafe.Pointer(&words[i])
	}
	return unsafe.SliceData(list)
}
