package soft

import (
	"fmt"
	"regexp"
	"strconv"

	"github.com/gpufd/gpufd/cu/sys"
)

// A pciAddress is domain, bus, device and function.
type pciAddress [4]uint64

// address makes up a device's address: each is on its own bus.
func (d *device) address() pciAddress { return pciAddress{0, uint64(d.bus()), 0, 0} }

func (d *device) bus() int32 { return int32(d.ordinal) + 1 }

// String spells an address as the driver does.
func (a pciAddress) String() string {
	return fmt.Sprintf("%04x:%02x:%02x.%x", a[0], a[1], a[2], a[3])
}

// pciText is what the driver takes for an address: domain or function may be
// missing, and it ignores what follows.
var pciText = regexp.MustCompile(`^\s*(?:([0-9a-fA-F]+):)?([0-9a-fA-F]+):([0-9a-fA-F]+)(?:\.([0-9a-fA-F]+))?`)

func parsePCI(s string) (a pciAddress, ok bool) {
	parts := pciText.FindStringSubmatch(s)
	if parts == nil || parts[1] == "" && parts[4] == "" {
		return a, false
	}
	for i, text := range parts[1:] {
		n, err := strconv.ParseUint("0"+text, 16, 32)
		if err != nil {
			return a, false
		}
		a[i] = n
	}
	return a, true
}

// cuDeviceGetPCIBusId cuts what does not fit and says so.
func (m *machine) cuDeviceGetPCIBusId(id *byte, size int32, dev sys.CUdevice) sys.CUresult {
	return with(m, m.device, dev, func(d *device) sys.CUresult {
		text := d.address().String()
		r := setString(id, size, text)
		if r == sys.CUDA_SUCCESS && int(size) <= len(text) {
			r = sys.CUDA_ERROR_INVALID_VALUE
		}
		return r
	})
}

func (m *machine) cuDeviceGetByPCIBusId(dev *sys.CUdevice, id *byte) sys.CUresult {
	return m.locked(func() sys.CUresult {
		a, ok := parsePCI(sys.GoString(id, 64))
		if dev == nil || !ok {
			return sys.CUDA_ERROR_INVALID_VALUE
		}
		for i, d := range m.devices {
			if a == d.address() {
				return set(dev, sys.CUdevice(i))
			}
		}
		return sys.CUDA_ERROR_INVALID_DEVICE
	})
}
