package cu

import "github.com/gpufd/gpufd/cu/sys"

// PitchedMemory is device memory in rows, each aligned well for the device. The
// caller owns it.
type PitchedMemory struct {
	Memory
	pitch, width, height uint64
}

// AllocPitch allocates height rows of width bytes with undefined content, and
// chooses a pitch that aligns them well (cuMemAllocPitch). elementSize is how
// much a kernel reads or writes at once: 4, 8 or 16 bytes, else
// [ErrInvalidValue].
func (c *Context) AllocPitch(width, height uint64, elementSize uint32) (*PitchedMemory, error) {
	m := &PitchedMemory{Memory{new(memoryHandle), c}, 0, width, height}
	return made(m, c.create("cuMemAllocPitch_v2", m.memoryHandle, func(call sys.Caller) sys.CUresult {
		p, pitch := new(sys.CUdeviceptr), new(uintptr)
		r := call.CuMemAllocPitch_v2(p, pitch, uintptr(width), uintptr(height), elementSize)
		if r == sys.CUDA_SUCCESS {
			m.ptr, m.pitch, m.size = DevicePtr(*p), uint64(*pitch), uint64(*pitch)*height
		}
		return r
	}))
}

// Ptr returns the memory's address, 0 after Close.
func (m *PitchedMemory) Ptr() DevicePtr {
	if m == nil {
		return 0
	}
	return m.Memory.Ptr()
}

// Pitch returns the bytes from the start of a row to that of the next.
func (m *PitchedMemory) Pitch() uint64 {
	if m == nil {
		return 0
	}
	return m.pitch
}

// Width returns the size of a row in bytes, as asked for.
func (m *PitchedMemory) Width() uint64 {
	if m == nil {
		return 0
	}
	return m.width
}

// Height returns the number of rows.
func (m *PitchedMemory) Height() uint64 {
	if m == nil {
		return 0
	}
	return m.height
}

// Side returns the memory as one side of a copy, from its first byte on.
func (m *PitchedMemory) Side() Side {
	if m == nil {
		return Side{}
	}
	return DeviceSide(m, m.pitch)
}

// Close frees the memory, as [Memory.Close] does.
func (m *PitchedMemory) Close() error {
	if m == nil {
		return nil
	}
	return m.Memory.Close()
}
