package soft

import (
	"runtime/debug"

	"github.com/gpufd/gpufd/cu/sys"
)

// fabricMagic begins a fabric handle; the number is the format's version.
var fabricMagic = [8]byte([]byte("gpufdfh1"))

// fabricHandle names memory of cuMemCreate.
func (m *machine) fabricHandle(p *physical) [64]byte {
	h := ipcHandle{Magic: fabricMagic, At: fromID(p.id), File: p.size, Size: p.size, Ordinal: uint32(p.ordinal)}
	return h.encode(m.store)
}

// importFabric imports memory by its fabric handle, in its own process too, as
// long as somebody has it.
func (m *machine) importFabric(out *sys.CUmemGenericAllocationHandle, addr uintptr) sys.CUresult {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	var b [64]byte
	if _, faulted := touch(func() { b = fabricOf(addr).Data }); faulted {
		return sys.CUDA_ERROR_INVALID_VALUE
	}
	h, ok := decodeIPC(fabricMagic, b, m.store)
	if !ok || h.Serial != [8]byte{} {
		return sys.CUDA_ERROR_INVALID_VALUE
	}
	t := trailer{kind: kindGeneric, ordinal: int(h.Ordinal), size: h.File, uuid: m.store.uuid(int(h.Ordinal)), id: toID(h.At)}
	d := m.deviceOf(&t)
	if d == nil {
		return sys.CUDA_ERROR_INVALID_DEVICE
	}
	fd, err := m.store.openExported(&t, &t)
	if err != nil {
		return sys.CUDA_ERROR_INVALID_VALUE
	}
	p, r := m.adoptOpened(fd, t, d, sys.CUDA_ERROR_INVALID_VALUE)
	if r == sys.CUDA_SUCCESS {
		*out = m.newAllocation(p)
	}
	return r
}
