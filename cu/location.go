package cu

import (
	"fmt"

	"github.com/gpufd/gpufd/cu/sys"
)

// LocationType is a kind of place for memory: CUmemLocationType.
type LocationType uint32

// The kinds of place.
const (
	LocationDevice          = LocationType(sys.CU_MEM_LOCATION_TYPE_DEVICE)            // a device, by its number
	LocationHost            = LocationType(sys.CU_MEM_LOCATION_TYPE_HOST)              // the host, any NUMA node
	LocationHostNUMA        = LocationType(sys.CU_MEM_LOCATION_TYPE_HOST_NUMA)         // a NUMA node of the host, by its number
	LocationHostNUMACurrent = LocationType(sys.CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT) // the NUMA node of the calling thread
)

// A Location is a place that can hold memory, or have access to it: a device or
// the host. The host's came with CUDA 12.2.
type Location struct {
	Type LocationType
	ID   int // of the device or NUMA node; else 0
}

// Location returns the device as a place of memory.
func (dev *Device) Location() Location { return Location{LocationDevice, int(dev.dev)} }

func (dev *Device) location() sys.CUmemLocation { return dev.Location().raw() }

// HostLocation returns the host, on any NUMA node.
func HostLocation() Location { return Location{Type: LocationHost} }

// HostNUMALocation returns one NUMA node of the host.
func HostNUMALocation(node int) Location { return Location{LocationHostNUMA, node} }

// String gives "device 0", "host", "host NUMA node 1" and the like.
func (l Location) String() string {
	switch l.Type {
	case LocationDevice:
		return fmt.Sprintf("device %d", l.ID)
	case LocationHost:
		return "host"
	case LocationHostNUMA:
		return fmt.Sprintf("host NUMA node %d", l.ID)
	case LocationHostNUMACurrent:
		return "host, this NUMA node"
	}
	return fmt.Sprintf("Location(%d, %d)", uint32(l.Type), l.ID)
}

func (l Location) raw() sys.CUmemLocation {
	return sys.CUmemLocation{Type: sys.CUmemLocationType(l.Type), Id: int32(l.ID)}
}

func locationOf(l sys.CUmemLocation) Location { return Location{LocationType(l.Type), int(l.Id)} }

// LocationAccess is what one place may do with a mapping.
type LocationAccess struct {
	Location Location
	Access   Access
}

// AllocationType says how physical memory behaves: CUmemAllocationType.
type AllocationType uint32

// AllocationPinned is memory that stays where it was created.
const AllocationPinned = AllocationType(sys.CU_MEM_ALLOCATION_TYPE_PINNED)

// MemUsage says what special use memory is for.
type MemUsage uint16

// The special uses of memory. They can be combined.
const (
	UsageTilePool     = MemUsage(sys.CU_MEM_CREATE_USAGE_TILE_POOL)     // backs sparse arrays
	UsageHWDecompress = MemUsage(sys.CU_MEM_CREATE_USAGE_HW_DECOMPRESS) // for the decompression engine
)

// MemProperties describe physical memory, existing or to be created:
// CUmemAllocationProp.
type MemProperties struct {
	Type          AllocationType // 0 means AllocationPinned
	Location      Location       // where it is
	HandleTypes   HandleType     // how it can be shared
	Compressible  bool           // asked for; the driver may have given plain memory
	GPUDirectRDMA bool           // other PCIe devices can reach it
	Usage         MemUsage
}

func (p MemProperties) raw() *sys.CUmemAllocationProp {
	prop := &sys.CUmemAllocationProp{
		Type:                 sys.CUmemAllocationType(p.Type),
		RequestedHandleTypes: sys.CUmemAllocationHandleType(p.HandleTypes),
		Location:             p.Location.raw(),
	}
	if p.Type == 0 {
		prop.Type = sys.CU_MEM_ALLOCATION_TYPE_PINNED
	}
	if p.Compressible {
		prop.AllocFlags.CompressionType = uint8(sys.CU_MEM_ALLOCATION_COMP_GENERIC)
	}
	if p.GPUDirectRDMA {
		prop.AllocFlags.GpuDirectRDMACapable = 1
	}
	prop.AllocFlags.Usage = uint16(p.Usage)
	return prop
}

func propertiesOf(prop *sys.CUmemAllocationProp) MemProperties {
	return MemProperties{
		Type:          AllocationType(prop.Type),
		Location:      locationOf(prop.Location),
		HandleTypes:   HandleType(prop.RequestedHandleTypes),
		Compressible:  prop.AllocFlags.CompressionType == uint8(sys.CU_MEM_ALLOCATION_COMP_GENERIC),
		GPUDirectRDMA: prop.AllocFlags.GpuDirectRDMACapable != 0,
		Usage:         MemUsage(prop.AllocFlags.Usage),
	}
}
