package soft

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/gpufd/gpufd/cu/sys"
)

// deviceName is what cuDeviceGetName says.
const deviceName = "gpufd software device"

// Compute capability of the devices.
const (
	computeMajor = 9
	computeMinor = 0
)

// A device is a visible one. Its ordinal is the machine's, not CUDA's, which
// is the place in machine.devices and depends on CUDA_VISIBLE_DEVICES.
type device struct {
	ordinal int
	uuid    [16]byte
	memory  uint64
	last    *context // the latest primary context, active or ended; its handle stays
	flags   uint32   // of the primary context, as they were set
	primary *context // nil while inactive
	retains int

	defaultPool *pool // nil until asked for
	pool        *pool // of cuDeviceSetMemPool
}

// visibleDevices returns the devices that CUDA_VISIBLE_DEVICES leaves, in its
// order. Like libcuda it takes entries up to the first that names no device, and
// none at all if one is named twice.
func visibleDevices(c config, s *store) []*device {
	all := make([]*device, c.devices)
	for i := range all {
		all[i] = &device{ordinal: i, uuid: s.uuid(i), memory: c.memory}
	}
	if c.visible == nil {
		return all
	}
	var visible []*device
	for entry := range strings.SplitSeq(*c.visible, ",") {
		d := findDevice(all, strings.TrimSpace(entry))
		if d == nil {
			break
		}
		if slices.Contains(visible, d) {
			return nil
		}
		visible = append(visible, d)
	}
	return visible
}

// findDevice finds an index or a "GPU-…" UUID; a prefix will do if it fits one
// device only.
func findDevice(all []*device, entry string) *device {
	prefix, ok := strings.CutPrefix(entry, "GPU-")
	if !ok {
		n, err := strconv.Atoi(entry)
		if err != nil || n < 0 || n >= len(all) {
			return nil
		}
		return all[n]
	}
	var found *device
	for _, d := range all {
		if prefix != "" && strings.HasPrefix(uuidText(d.uuid), strings.ToLower(prefix)) {
			if found != nil {
				return nil
			}
			found = d
		}
	}
	return found
}

// uuidText spells a UUID as nvidia-smi does, without the "GPU-".
func uuidText(u [16]byte) string {
	return fmt.Sprintf("%x-%x-%x-%x-%x", u[:4], u[4:6], u[6:8], u[8:10], u[10:])
}

// device returns the visible device d.
func (m *machine) device(d sys.CUdevice) (*device, sys.CUresult) {
	if r := m.ready(); r != sys.CUDA_SUCCESS {
		return nil, r
	}
	if d < 0 || int(d) >= len(m.devices) {
		return nil, sys.CUDA_ERROR_INVALID_DEVICE
	}
	return m.devices[d], sys.CUDA_SUCCESS
}

// number returns CUDA's number of a visible device.
func (m *machine) number(d *device) sys.CUdevice {
	if i := slices.Index(m.devices, d); i >= 0 {
		return sys.CUdevice(i)
	}
	return sys.CU_DEVICE_INVALID
}

func (m *machine) cuDeviceGet(dev *sys.CUdevice, ordinal int32) sys.CUresult {
	return with(m, m.device, sys.CUdevice(ordinal), func(*device) sys.CUresult { return set(dev, sys.CUdevice(ordinal)) })
}

func (m *machine) cuDeviceGetCount(count *int32) sys.CUresult {
	return m.locked(func() sys.CUresult { return set(count, int32(len(m.devices))) })
}

func (m *machine) cuDeviceGetName(name *byte, size int32, dev sys.CUdevice) sys.CUresult {
	return with(m, m.device, dev, func(*device) sys.CUresult { return setString(name, size, deviceName) })
}

func (m *machine) cuDeviceGetUuid(uuid *sys.CUuuid, dev sys.CUdevice) sys.CUresult {
	return value(m, m.device, dev, uuid, func(d *device) sys.CUuuid { return sys.CUuuid{Bytes: d.uuid} })
}

func (m *machine) cuDeviceTotalMem_v2(bytes *uint64, dev sys.CUdevice) sys.CUresult {
	return value(m, m.device, dev, bytes, func(d *device) uint64 { return d.memory })
}

func (m *machine) cuDeviceComputeCapability(major, minor *int32, dev sys.CUdevice) sys.CUresult {
	return with(m, m.device, dev, func(*device) sys.CUresult {
		if major == nil || minor == nil {
			return sys.CUDA_ERROR_INVALID_VALUE
		}
		return firstError(set(major, computeMajor), set(minor, computeMinor))
	})
}

// cuDeviceGetProperties is of CUDA 1; attributes have replaced it.
func (m *machine) cuDeviceGetProperties(out *sys.CUdevprop, dev sys.CUdevice) sys.CUresult {
	a := attributes
	return value(m, m.device, dev, out, func(*device) sys.CUdevprop {
		return sys.CUdevprop{
			MaxThreadsPerBlock: a[sys.CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK],
			MaxThreadsDim: [3]int32{a[sys.CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X],
				a[sys.CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y], a[sys.CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z]},
			MaxGridSize: [3]int32{a[sys.CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X],
				a[sys.CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y], a[sys.CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z]},
			SharedMemPerBlock:   a[sys.CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK],
			TotalConstantMemory: a[sys.CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY],
			SIMDWidth:           a[sys.CU_DEVICE_ATTRIBUTE_WARP_SIZE],
			MemPitch:            a[sys.CU_DEVICE_ATTRIBUTE_MAX_PITCH],
			RegsPerBlock:        a[sys.CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK],
			ClockRate:           a[sys.CU_DEVICE_ATTRIBUTE_CLOCK_RATE],
			TextureAlign:        a[sys.CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT],
		}
	})
}

// cuDeviceGetExecAffinitySupport says no: that needs MPS. Like the real one it
// takes any type.
func (m *machine) cuDeviceGetExecAffinitySupport(out *int32, _ sys.CUexecAffinityType, dev sys.CUdevice) sys.CUresult {
	return with(m, m.device, dev, func(*device) sys.CUresult { return set(out, 0) })
}
