package cu

import (
	"bytes"
	"context"
	"fmt"
	"sync"

	"github.com/gpufd/gpufd/cu/sys"
)

// A Device is a GPU, or a MIG instance, that the driver shows to this process.
// It owns nothing and is never closed.
type Device struct {
	drv     *Driver
	dev     sys.CUdevice
	ordinal int
	uuid    UUID
	name    string

	mu      sync.Mutex
	primary primary
}

func (d *Driver) newDevice(ordinal int) (*Device, error) {
	dev := &Device{drv: d, ordinal: ordinal}
	handle := new(sys.CUdevice)
	if err := d.check("cuDeviceGet", d.call.CuDeviceGet(handle, int32(ordinal))); err != nil {
		return nil, err
	}
	dev.dev = *handle
	name := new([256]byte)
	if err := d.check("cuDeviceGetName", d.call.CuDeviceGetName(&name[0], int32(len(name)), dev.dev)); err != nil {
		return nil, err
	}
	text, _, _ := bytes.Cut(name[:], []byte{0})
	dev.name = string(text)
	return dev, dev.readUUID()
}

// readUUID asks for the UUID, which for a MIG instance is its own with
// cuDeviceGetUuid_v2 (CUDA 11.4) and its parent's with the older function.
func (dev *Device) readUUID() error {
	id := new(sys.CUuuid)
	op, r := "cuDeviceGetUuid_v2", dev.drv.call.CuDeviceGetUuid_v2(id, dev.dev)
	if r == sys.SymbolMissing {
		op, r = "cuDeviceGetUuid", dev.drv.call.CuDeviceGetUuid(id, dev.dev)
	}
	dev.uuid = UUID(id.Bytes)
	return dev.drv.check(op, r)
}

// Driver returns the driver that dev belongs to.
func (dev *Device) Driver() *Driver { return dev.drv }

// Ordinal is the device's place in this process' order, from 0.
func (dev *Device) Ordinal() int { return dev.ordinal }

// Name is the product's name, e.g. "NVIDIA H200" (cuDeviceGetName).
func (dev *Device) Name() string { return dev.name }

// UUID names the device in every process (cuDeviceGetUuid_v2).
func (dev *Device) UUID() UUID { return dev.uuid }

// String gives ordinal, name and UUID.
func (dev *Device) String() string {
	return fmt.Sprintf("%d: %s (%s)", dev.ordinal, dev.name, dev.uuid)
}

// TotalMemory is the device's memory in bytes (cuDeviceTotalMem).
func (dev *Device) TotalMemory() (uint64, error) {
	n := new(uintptr)
	err := dev.drv.check("cuDeviceTotalMem_v2", dev.drv.call.CuDeviceTotalMem_v2(n, dev.dev))
	return uint64(*n), err
}

// Attribute returns one attribute of the device (cuDeviceGetAttribute).
// [ErrInvalidValue] means that the driver does not know it.
func (dev *Device) Attribute(a Attribute) (int, error) {
	v := new(int32)
	err := dev.drv.check("cuDeviceGetAttribute", dev.drv.call.CuDeviceGetAttribute(v, sys.CUdevice_attribute(a), dev.dev))
	return int(*v), err
}

// ComputeCapability returns the device's compute capability, e.g. 9, 0.
func (dev *Device) ComputeCapability() (major, minor int, err error) {
	if major, err = dev.Attribute(AttributeComputeCapabilityMajor); err == nil {
		minor, err = dev.Attribute(AttributeComputeCapabilityMinor)
	}
	return major, minor, err
}

// SupportsVMM reports whether the device has virtual memory management:
// cuMemCreate, cuMemMap and their kind.
func (dev *Device) SupportsVMM() (bool, error) {
	v, err := dev.Attribute(AttributeVirtualMemoryManagementSupported)
	return v != 0, err
}

// SupportsFD reports whether the device's memory can be exported as a POSIX
// file descriptor.
func (dev *Device) SupportsFD() (bool, error) {
	v, err := dev.Attribute(AttributeHandleTypePosixFileDescriptorSupported)
	return v != 0, err
}

// Synchronize waits for all work in the device's primary context, if that is
// active in this process (cuDevicePrimaryCtxGetState), or until ctx is done.
// [Context.Synchronize] says what can be given up.
func (dev *Device) Synchronize(ctx context.Context) error {
	flags, active := new(uint32), new(int32)
	r := dev.drv.call.CuDevicePrimaryCtxGetState(dev.dev, flags, active)
	if err := dev.drv.check("cuDevicePrimaryCtxGetState", r); err != nil || *active == 0 {
		return err
	}
	c, err := dev.PrimaryContext()
	if err != nil {
		return err
	}
	defer c.Close()
	return c.Synchronize(ctx)
}
