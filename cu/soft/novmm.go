package soft

import "github.com/gpufd/gpufd/cu/sys"

// vmmFunctions are the functions of virtual memory management. With GPUFD_SOFT_VMM=0
// none of them works.
var vmmFunctions = []string{
	"cuMemAddressFree", "cuMemAddressReserve", "cuMemCreate", "cuMemExportToShareableHandle", "cuMemGetAccess",
	"cuMemGetAllocationGranularity", "cuMemGetAllocationPropertiesFromHandle", "cuMemImportFromShareableHandle", "cuMemMap",
	"cuMemRelease", "cuMemRetainAllocationHandle", "cuMemSetAccess", "cuMemUnmap",
}

// vmmDisabled replaces all of them. C does not mind that it takes no arguments.
func (m *machine) vmmDisabled() sys.CUresult {
	return m.locked(func() sys.CUresult { return sys.CUDA_ERROR_NOT_SUPPORTED })
}

// takesVMM reports whether a device without virtual memory management says no to it.
func takesVMM(a sys.CUdevice_attribute) bool {
	switch a {
	case sys.CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,
		sys.CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED,
		sys.CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED,
		sys.CU_DEVICE_ATTRIBUTE_HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED:
		return true
	}
	return false
}
