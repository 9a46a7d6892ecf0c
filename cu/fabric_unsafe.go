package cu

import (
	"errors"
	"runtime"
	"unsafe"

	"github.com/gpufd/gpufd/cu/sys"
)

// SupportsFabric reports whether the device can create memory for fabric handles.
// That needs an IMEX channel, which the attribute ignores (D20 of docs/driver-facts.md), so
// SupportsFabric tries with the least memory possible. It is false if the driver
// says [ErrNotPermitted] or [ErrNotSupported]; it returns other errors.
func (dev *Device) SupportsFabric() (bool, error) {
	if can, err := dev.supports(AttributeHandleTypeFabricSupported); err == nil && !can {
		return false, nil
	}
	g, _, err := dev.Granularity(HandleFabric)
	if err != nil {
		return false, err
	}
	m, err := dev.CreateMemory(g, HandleFabric)
	if errors.Is(err, ErrNotPermitted) || errors.Is(err, ErrNotSupported) {
		return false, nil
	}
	return err == nil, errors.Join(err, m.Close())
}

// ExportFabric returns a handle that names the memory to other processes
// (cuMemExportToShareableHandle). [ErrInvalidValue]: it was not created for
// [HandleFabric].
func (m *MemHandle) ExportFabric() (FabricHandle, error) {
	raw := new(sys.CUmemFabricHandle)
	err := m.run("cuMemExportToShareableHandle", func(call sys.Caller, h sys.CUmemGenericAllocationHandle) sys.CUresult {
		return call.CuMemExportToShareableHandle(unsafe.Pointer(raw), h, sys.CU_MEM_HANDLE_TYPE_FABRIC, 0)
	})
	return raw.Data, err
}

// ImportFabric makes a handle for memory that another process exported, perhaps
// on another machine (cuMemImportFromShareableHandle). size is as for
// [Driver.ImportMemory]. No context is needed. [ErrNotPermitted] or
// [ErrNotSupported]: there is no IMEX channel.
func (d *Driver) ImportFabric(h FabricHandle, size uint64) (*MemHandle, error) {
	raw := &sys.CUmemFabricHandle{Data: h}
	var pin runtime.Pinner // the call takes the address as a number
	pin.Pin(raw)
	defer pin.Unpin()
	out := new(sys.CUmemGenericAllocationHandle)
	r := d.call.CuMemImportFromShareableHandle(out, uintptr(unsafe.Pointer(raw)), sys.CU_MEM_HANDLE_TYPE_FABRIC)
	if err := d.check("cuMemImportFromShareableHandle", r); err != nil {
		return nil, err
	}
	return d.newMemHandle(*out, size), nil
}
