package soft

import "github.com/gpufd/gpufd/cu/sys"

// attributes are the answers of all devices to cuDeviceGetAttribute; other
// attributes read 0. Those that the driver does not implement are 0 on purpose.
var attributes = map[sys.CUdevice_attribute]int32{
	sys.CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK:                         1024,
	sys.CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X:                               1024,
	sys.CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y:                               1024,
	sys.CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z:                               64,
	sys.CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X:                                1<<31 - 1,
	sys.CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y:                                65535,
	sys.CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z:                                65535,
	sys.CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK:                   sharedDefault,
	sys.CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY:                         64 << 10,
	sys.CU_DEVICE_ATTRIBUTE_WARP_SIZE:                                     32,
	sys.CU_DEVICE_ATTRIBUTE_MAX_PITCH:                                     1<<31 - 1,
	sys.CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK:                       65536,
	sys.CU_DEVICE_ATTRIBUTE_CLOCK_RATE:                                    1000000,
	sys.CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT:                             512,
	sys.CU_DEVICE_ATTRIBUTE_GPU_OVERLAP:                                   1,
	sys.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT:                          4,
	sys.CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY:                           1,
	sys.CU_DEVICE_ATTRIBUTE_SURFACE_ALIGNMENT:                             512,
	sys.CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS:                            1,
	sys.CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE:                             1000000,
	sys.CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH:                       64,
	sys.CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE:                                 1 << 20,
	sys.CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR:                threadsPerSM,
	sys.CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT:                            2,
	sys.CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING:                            1,
	sys.CU_DEVICE_ATTRIBUTE_TEXTURE_PITCH_ALIGNMENT:                       32,
	sys.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:                      computeMajor,
	sys.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR:                      computeMinor,
	sys.CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED:                   1,
	sys.CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR:          sharedPerSM,
	sys.CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR:              registersPerSM,
	sys.CU_DEVICE_ATTRIBUTE_SINGLE_TO_DOUBLE_PRECISION_PERF_RATIO:         2,
	sys.CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM:       1,
	sys.CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED:                       1,
	sys.CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED:             1,
	sys.CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN:             sharedOptIn,
	sys.CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK:              sharedReserved,
	sys.CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH:                            1,
	sys.CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS:                 1,
	sys.CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE_NOR:                 1,
	sys.CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED:           1,
	sys.CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED:   1,
	sys.CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED:                  1, // D20
	sys.CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR:                 blocksPerSM,
	sys.CU_DEVICE_ATTRIBUTE_MAX_PERSISTING_L2_CACHE_SIZE:                  maxPersisting,
	sys.CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED:                        1,
	sys.CU_DEVICE_ATTRIBUTE_MEMPOOL_SUPPORTED_HANDLE_TYPES:                int32(sys.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
	sys.CU_DEVICE_ATTRIBUTE_MEM_SYNC_DOMAIN_COUNT:                         1,
	sys.CU_DEVICE_ATTRIBUTE_NUMA_ID:                                       -1,
	sys.CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID:                                  0,
	sys.CU_DEVICE_ATTRIBUTE_HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED: 1,
	sys.CU_DEVICE_ATTRIBUTE_GPU_PCI_DEVICE_ID:                             0x0001_10de,
}

func (m *machine) cuDeviceGetAttribute(value *int32, a sys.CUdevice_attribute, dev sys.CUdevice) sys.CUresult {
	return with(m, m.device, dev, func(d *device) sys.CUresult {
		if a == 0 || a >= sys.CU_DEVICE_ATTRIBUTE_MAX {
			return sys.CUDA_ERROR_INVALID_VALUE
		}
		switch {
		case a == sys.CU_DEVICE_ATTRIBUTE_PCI_BUS_ID:
			return set(value, d.bus())
		case m.conf.vmm == 0 && takesVMM(a), m.conf.version < hostNUMA && a == sys.CU_DEVICE_ATTRIBUTE_HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED:
			return set(value, 0)
		case a == sys.CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED:
			if m.conf.version < 12000 { // drivers before do not have it
				return sys.CUDA_ERROR_INVALID_VALUE
			}
			return set(value, int32(m.conf.ipc))
		case a >= sys.CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_MEM_OPS_V1 && a <= sys.CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE_NOR_V1 && m.conf.version < memOps2:
			return set(value, 1)
		}
		return set(value, attributes[a])
	})
}
