package soft

import (
	"math"

	"github.com/gpufd/gpufd/cu/soft/internal/ptx"
	"github.com/gpufd/gpufd/cu/sys"
)

// A function is a kernel of a module.
type function struct {
	ptx.Kernel
	mod    *module
	handle sys.CUfunction
	attrs  *funcAttributes
}

// A block's shared memory: without asking for more, with asking, and what the
// system takes of it.
const (
	sharedDefault  = 48 << 10
	sharedOptIn    = 227 << 10
	sharedReserved = 1 << 10
	sharedPerSM    = sharedOptIn + sharedReserved
)

// maxRegisters is the most registers that a function reports: the parser counts
// virtual ones, and every block has to fit.
const maxRegisters = 64

// funcAttributes are a function's that can be set.
type funcAttributes struct {
	values map[sys.CUfunction_attribute]int32
}

func newFuncAttributes(k *ptx.Kernel) *funcAttributes {
	return &funcAttributes{map[sys.CUfunction_attribute]int32{
		sys.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:    int32(sharedDefault - k.Shared),
		sys.CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT: -1,
	}}
}

// dynamic returns the most dynamic shared memory that a block may have.
func (a *funcAttributes) dynamic() uint32 {
	return uint32(a.values[sys.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES])
}

// get stores an attribute of a function of a module.
func (a *funcAttributes) get(out *int32, which sys.CUfunction_attribute, k *ptx.Kernel, code *ptx.Module) sys.CUresult {
	v := a.values[which]
	switch which {
	case sys.CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
		v = int32(maxThreads(k))
	case sys.CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES:
		v = int32(k.Shared)
	case sys.CU_FUNC_ATTRIBUTE_CONST_SIZE_BYTES:
		v = constBytes(code)
	case sys.CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES:
		v = int32(k.Local)
	case sys.CU_FUNC_ATTRIBUTE_NUM_REGS:
		v = int32(registers(k))
	case sys.CU_FUNC_ATTRIBUTE_PTX_VERSION:
		v = int32(code.Architecture())
	case sys.CU_FUNC_ATTRIBUTE_BINARY_VERSION:
		v = 10*computeMajor + computeMinor
	default:
		if which >= sys.CU_FUNC_ATTRIBUTE_MAX {
			return sys.CUDA_ERROR_INVALID_VALUE
		}
	}
	return set(out, v)
}

// maxThreads returns how many threads a block of the kernel may have.
func maxThreads(k *ptx.Kernel) int {
	most := int(attributes[sys.CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK])
	if k.MaxThreads > 0 {
		return min(most, k.MaxThreads)
	}
	return most
}

func registers(k *ptx.Kernel) int { return min(maxRegisters, max(k.Registers, 8)) }

// constBytes returns the size of the module's constants.
func constBytes(code *ptx.Module) (n int32) {
	for _, v := range code.Variables() {
		if v.Constant {
			n += int32(v.Size)
		}
	}
	return n
}

// set changes an attribute that may be set, if the device has that much.
func (a *funcAttributes) set(which sys.CUfunction_attribute, v int32, k *ptx.Kernel) sys.CUresult {
	least, most := int32(0), int32(0)
	switch which {
	case sys.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
		most = int32(sharedOptIn - k.Shared)
	case sys.CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT:
		least, most = -1, 100
	case sys.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED:
		most = math.MaxInt32
	case sys.CU_FUNC_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE:
		most = 2
	case sys.CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH, sys.CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_HEIGHT, sys.CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_DEPTH:
		if v > 1 {
			return sys.CUDA_ERROR_NOT_SUPPORTED // the devices have no clusters
		}
		most = 1
	default:
		return sys.CUDA_ERROR_INVALID_VALUE
	}
	if v < least || v > most {
		return sys.CUDA_ERROR_INVALID_VALUE
	}
	a.values[which] = v
	return sys.CUDA_SUCCESS
}

// findFunction returns a function by its handle, or by that of a kernel, as the
// current context has it. The machine is locked.
func (m *machine) findFunction(h sys.CUfunction) (*function, sys.CUresult) {
	if r := m.ready(); r != sys.CUDA_SUCCESS {
		return nil, r
	}
	if f := m.functions[h]; f != nil {
		return f, f.mod.ctx.state()
	}
	if k := m.kernels[sys.CUkernel(h)]; k != nil {
		return m.kernelFunction(k)
	}
	if h == 0 {
		return nil, sys.CUDA_ERROR_INVALID_HANDLE
	}
	if m.isA(kindKernel, uint64(h)) {
		return nil, m.misuse(sys.CUDA_ERROR_INVALID_HANDLE, "kernel %#x used after it was destroyed", uint64(h))
	}
	return nil, m.deadHandle(kindFunction, uint64(h), "function", sys.CUDA_ERROR_INVALID_HANDLE)
}

func (m *machine) cuFuncGetAttribute(out *int32, a sys.CUfunction_attribute, h sys.CUfunction) sys.CUresult {
	return with(m, m.findFunction, h, func(f *function) sys.CUresult { return f.attrs.get(out, a, &f.Kernel, f.mod.code) })
}

func (m *machine) cuFuncSetAttribute(h sys.CUfunction, a sys.CUfunction_attribute, v int32) sys.CUresult {
	return with(m, m.findFunction, h, func(f *function) sys.CUresult { return f.attrs.set(a, v, &f.Kernel) })
}

func (m *machine) cuFuncGetParamInfo(h sys.CUfunction, index uintptr, offset, size *uintptr) sys.CUresult {
	return with(m, m.findFunction, h, func(f *function) sys.CUresult { return paramInfo(&f.Kernel, index, offset, size) })
}

// paramInfo says where a parameter is among the others; its size may be left out.
func paramInfo(k *ptx.Kernel, index uintptr, offset, size *uintptr) sys.CUresult {
	if offset == nil || index >= uintptr(len(k.Params)) {
		return sys.CUDA_ERROR_INVALID_VALUE
	}
	*offset = uintptr(k.Params[index].Offset)
	setOptional(size, uintptr(k.Params[index].Size))
	return sys.CUDA_SUCCESS
}

func (m *machine) cuFuncGetName(out **byte, h sys.CUfunction) sys.CUresult {
	return value(m, m.findFunction, h, out, func(f *function) *byte { return cString(f.Name) })
}

func (m *machine) cuFuncGetModule(out *sys.CUmodule, h sys.CUfunction) sys.CUresult {
	return value(m, m.findFunction, h, out, func(f *function) sys.CUmodule { return f.mod.handle })
}

// cuFuncLoad has nothing to load: PTX is loaded at once.
func (m *machine) cuFuncLoad(h sys.CUfunction) sys.CUresult {
	return with(m, m.findFunction, h, func(*function) sys.CUresult { return sys.CUDA_SUCCESS })
}

func (m *machine) cuFuncIsLoaded(out *sys.CUfunctionLoadingState, h sys.CUfunction) sys.CUresult {
	return with(m, m.findFunction, h, func(*function) sys.CUresult { return set(out, sys.CU_FUNCTION_LOADING_STATE_LOADED) })
}

// cuFuncSetCacheConfig has no cache to share out.
func (m *machine) cuFuncSetCacheConfig(h sys.CUfunction, c sys.CUfunc_cache) sys.CUresult {
	return with(m, m.findFunction, h, func(*function) sys.CUresult { return valid(c <= sys.CU_FUNC_CACHE_PREFER_EQUAL) })
}

// cuFuncSetSharedMemConfig changes nothing, see cuCtxSetSharedMemConfig.
func (m *machine) cuFuncSetSharedMemConfig(h sys.CUfunction, c sys.CUsharedconfig) sys.CUresult {
	return with(m, m.findFunction, h, func(*function) sys.CUresult { return valid(c <= sys.CU_SHARED_MEM_CONFIG_EIGHT_BYTE_BANK_SIZE) })
}
