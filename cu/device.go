package cu

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/gpufd/gpufd/cu/sys"
	"github.com/gpufd/gpufd/internal/plain"
)

// A Device is a GPU, or a MIG instance, that the driver shows to this process.
// It owns nothing and is never closed.
type Device struct {
	drv     *Driver
	dev     sys.CUdevice
	ordinal int
	uuid    UUID
	name    string

	mig bool

	granularities sync.Map // HandleType → [2]uint64, as the driver said

	reset     sync.RWMutex   // ResetPrimary against PrimaryContext
	primaries references     // to the primary context
	users     sync.WaitGroup // as many

	pools sync.RWMutex // SetPool and the end of a pool against AllocAsync
	pool  *Pool        // the current one, if SetPool made it that
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

// readUUID asks for the UUID. For a MIG instance cuDeviceGetUuid_v2 (CUDA 11.4)
// returns its own, and the older function its parent's. No call says whether a
// device is a MIG instance: it is one if they differ.
func (dev *Device) readUUID() error {
	id, parent := new(sys.CUuuid), new(sys.CUuuid)
	op, r := "cuDeviceGetUuid_v2", dev.drv.call.CuDeviceGetUuid_v2(id, dev.dev)
	older := dev.drv.call.CuDeviceGetUuid(parent, dev.dev)
	switch {
	case r == sys.SymbolMissing:
		op, r, id = "cuDeviceGetUuid", older, parent
	case older == sys.CUDA_SUCCESS:
		dev.mig = *id != *parent
	}
	dev.uuid = UUID(id.Bytes)
	return dev.drv.check(op, r)
}

// Driver returns the driver that dev belongs to.
func (dev *Device) Driver() *Driver { return dev.drv }

// Ordinal returns the device's place in this process's order, from 0.
func (dev *Device) Ordinal() int { return dev.ordinal }

// Name returns the product's name, e.g. "NVIDIA H200" (cuDeviceGetName).
func (dev *Device) Name() string { return dev.name }

// UUID returns the device's name in every process. A MIG instance has its own
// where the driver is of CUDA 11.4 or newer (cuDeviceGetUuid_v2).
func (dev *Device) UUID() UUID { return dev.uuid }

// IsMIG reports whether the device is a MIG instance: then its UUID is not its
// GPU's (cuDeviceGetUuid_v2, cuDeviceGetUuid). It is false where the driver has
// only one of the two functions.
func (dev *Device) IsMIG() bool { return dev.mig }

// String returns ordinal, name and UUID, which begins with GPU- or MIG-.
func (dev *Device) String() string {
	id := dev.uuid.String()
	if dev.mig {
		id = "MIG-" + strings.TrimPrefix(id, "GPU-")
	}
	return fmt.Sprintf("%d: %s (%s)", dev.ordinal, dev.name, id)
}

// PCIBusID returns the device's PCI address, e.g. "0000:3b:00.0": domain, bus,
// device and function in hexadecimal (cuDeviceGetPCIBusId). All MIG instances of
// a GPU have the same.
func (dev *Device) PCIBusID() (string, error) {
	id := new([32]byte)
	err := dev.drv.check("cuDeviceGetPCIBusId", dev.drv.call.CuDeviceGetPCIBusId(&id[0], int32(len(id)), dev.dev))
	return sys.GoString(&id[0], len(id)), err
}

// TotalMemory returns the device's memory in bytes (cuDeviceTotalMem).
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

// Attributes returns all attributes that this package names and the driver knows
// (cuDeviceGetAttribute).
func (dev *Device) Attributes() (map[Attribute]int, error) {
	all := map[Attribute]int{}
	for a := Attribute(1); a < Attribute(sys.CU_DEVICE_ATTRIBUTE_MAX); a++ {
		v, err := dev.Attribute(a)
		switch {
		case err == nil:
			all[a] = v
		case !errors.Is(err, ErrInvalidValue):
			return nil, err
		}
	}
	return all, nil
}

// ParseAttribute returns the attribute with that name in C, in upper or lower
// case, with or without CU_DEVICE_ATTRIBUTE_.
func ParseAttribute(name string) (a Attribute, ok bool) {
	a, ok = attributes[strings.TrimPrefix(strings.ToUpper(name), "CU_DEVICE_ATTRIBUTE_")]
	return a, ok
}

// ComputeMode says how many processes may use a device; nvidia-smi -c sets it.
type ComputeMode int

// The compute modes. With the last two, making a context can fail with
// [ErrDeviceUnavailable].
const (
	ComputeModeDefault          = ComputeMode(sys.CU_COMPUTEMODE_DEFAULT)           // any number of processes
	ComputeModeProhibited       = ComputeMode(sys.CU_COMPUTEMODE_PROHIBITED)        // none
	ComputeModeExclusiveProcess = ComputeMode(sys.CU_COMPUTEMODE_EXCLUSIVE_PROCESS) // one at a time
)

// String gives the mode's name in C.
func (m ComputeMode) String() string { return sys.CUcomputemode(m).String() }

// ComputeMode returns the device's compute mode (cuDeviceGetAttribute).
func (dev *Device) ComputeMode() (ComputeMode, error) {
	v, err := dev.Attribute(AttributeComputeMode)
	return ComputeMode(v), err
}

// ComputeCapability returns the device's compute capability, e.g. 9, 0.
func (dev *Device) ComputeCapability() (major, minor int, err error) {
	if major, err = dev.Attribute(AttributeComputeCapabilityMajor); err == nil {
		minor, err = dev.Attribute(AttributeComputeCapabilityMinor)
	}
	return major, minor, err
}

// SupportsVMM reports whether the device has virtual memory management
// (CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED).
func (dev *Device) SupportsVMM() (bool, error) {
	return dev.supports(AttributeVirtualMemoryManagementSupported)
}

// SupportsFD reports whether the device's memory can be exported as a POSIX
// file descriptor
// (CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED).
func (dev *Device) SupportsFD() (bool, error) {
	return dev.supports(AttributeHandleTypePosixFileDescriptorSupported)
}

// supports reports whether a yes-or-no attribute is yes.
func (dev *Device) supports(a Attribute) (bool, error) {
	v, err := dev.Attribute(a)
	return v != 0, err
}

// Synchronize is [Context.Synchronize] for the device's primary context, if that
// is active in this process (cuDevicePrimaryCtxGetState).
func (dev *Device) Synchronize(ctx context.Context) error {
	if err := plain.ContextErr(ctx); err != nil {
		return err
	}
	if _, active, err := dev.PrimaryState(); err != nil || !active {
		return err
	}
	c, err := dev.PrimaryContext()
	if err != nil {
		return err
	}
	defer c.Close()
	return c.Synchronize(ctx)
}
