package cu

import (
	"errors"
	"fmt"
	"runtime"
	"sync/atomic"

	"github.com/gpufd/gpufd/cu/sys"
)

// A Function is a kernel in a context, for [Function.Launch] or
// [Function.Prepare]. It owns nothing, keeps its [Module] or [Library] reachable,
// and ends with it. It is safe for concurrent use.
type Function struct {
	ctx   *Context
	owner *gate // of the module or library
	holds any   // that
	fn    sys.CUfunction
	name  string
	types map[string][]string // of parameters of all its kernels, by names: see ptxParams

	params atomic.Pointer[[]Param] // once the driver was asked
}

// Name is the kernel's name, as the code spells it.
func (f *Function) Name() string {
	if f == nil {
		return ""
	}
	return f.name
}

// Context returns the function's context.
func (f *Function) Context() *Context {
	if f == nil {
		return nil
	}
	return f.ctx
}

// Handle returns the driver's own handle, which ends with the module or
// library.
func (f *Function) Handle() sys.CUfunction {
	if f == nil {
		return 0
	}
	return f.fn
}

// functionOf names a kernel in errors: its module or library may be what was closed.
const functionOf = "the kernel, or its module or library,"

// run makes one driver call on the function.
func (f *Function) run(op string, call func(sys.Caller, sys.CUfunction) sys.CUresult) error {
	if f == nil || !f.owner.enter() {
		return unusable(op, functionOf, f == nil)
	}
	defer runtime.KeepAlive(f)
	defer f.owner.leave()
	return f.ctx.run(op, func(c sys.Caller) sys.CUresult { return call(c, f.fn) })
}

// readName asks for the name (cuFuncGetName, CUDA 12.3).
func (f *Function) readName() error {
	p := new(*byte)
	return f.run("cuFuncGetName", func(call sys.Caller, h sys.CUfunction) sys.CUresult {
		r := call.CuFuncGetName(p, h)
		if r == sys.CUDA_SUCCESS {
			f.name = sys.GoString(*p, maxName)
		}
		return r
	})
}

// maxName limits how much of a name is read; those of C++ are long.
const maxName = 1 << 16

// A Param is one parameter of a kernel: where it lies among the others.
type Param struct {
	Offset, Size uint64 // in bytes
}

// Params lists the kernel's parameters (cuFuncGetParamInfo, CUDA 12.4). The
// driver knows their sizes but not their types ([Function.ParamTypes]). The caller owns
// the slice.
func (f *Function) Params() ([]Param, error) {
	p, err := f.parameters()
	return append([]Param(nil), p...), err
}

// maxParams is more parameters than a kernel can have.
const maxParams = 1 << 15

// parameters asks the driver once.
func (f *Function) parameters() ([]Param, error) {
	if f == nil {
		return nil, unusable("cuFuncGetParamInfo", functionOf, true)
	}
	if p := f.params.Load(); p != nil {
		return *p, nil
	}
	all := []Param{}
	for len(all) < maxParams {
		offset, size := new(uintptr), new(uintptr)
		err := f.run("cuFuncGetParamInfo", func(call sys.Caller, h sys.CUfunction) sys.CUresult {
			return call.CuFuncGetParamInfo(h, uintptr(len(all)), offset, size)
		})
		if errors.Is(err, ErrInvalidValue) {
			break // the last was
		}
		if err != nil {
			return nil, err
		}
		all = append(all, Param{uint64(*offset), uint64(*size)})
	}
	f.params.Store(&all)
	return all, nil
}

// FunctionAttribute names a property of a function: CUfunction_attribute.
type FunctionAttribute uint32

// The attributes of a function.
const (
	FunctionMaxThreadsPerBlock      = FunctionAttribute(sys.CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK)
	FunctionSharedSize              = FunctionAttribute(sys.CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES)
	FunctionConstSize               = FunctionAttribute(sys.CU_FUNC_ATTRIBUTE_CONST_SIZE_BYTES)
	FunctionLocalSize               = FunctionAttribute(sys.CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES)
	FunctionRegisters               = FunctionAttribute(sys.CU_FUNC_ATTRIBUTE_NUM_REGS)
	FunctionPTXVersion              = FunctionAttribute(sys.CU_FUNC_ATTRIBUTE_PTX_VERSION)
	FunctionBinaryVersion           = FunctionAttribute(sys.CU_FUNC_ATTRIBUTE_BINARY_VERSION)
	FunctionCacheModeL1             = FunctionAttribute(sys.CU_FUNC_ATTRIBUTE_CACHE_MODE_CA)
	FunctionMaxDynamicShared        = FunctionAttribute(sys.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES)        // may be set
	FunctionPreferredSharedCarveout = FunctionAttribute(sys.CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT)     // may be set
	FunctionClusterSizeMustBeSet    = FunctionAttribute(sys.CU_FUNC_ATTRIBUTE_CLUSTER_SIZE_MUST_BE_SET)             // CUDA 11.8
	FunctionRequiredClusterWidth    = FunctionAttribute(sys.CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH)               // CUDA 11.8; may be set
	FunctionRequiredClusterHeight   = FunctionAttribute(sys.CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_HEIGHT)              // CUDA 11.8; may be set
	FunctionRequiredClusterDepth    = FunctionAttribute(sys.CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_DEPTH)               // CUDA 11.8; may be set
	FunctionNonPortableClusterSize  = FunctionAttribute(sys.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED)    // CUDA 11.8; may be set
	FunctionClusterScheduling       = FunctionAttribute(sys.CU_FUNC_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE) // CUDA 11.8; may be set
)

// String gives the attribute's name in C.
func (a FunctionAttribute) String() string { return sys.CUfunction_attribute(a).String() }

// Attribute returns one attribute of the function (cuFuncGetAttribute).
// [ErrInvalidValue] means that the driver does not know it.
func (f *Function) Attribute(a FunctionAttribute) (int, error) {
	v := new(int32)
	err := f.run("cuFuncGetAttribute", func(call sys.Caller, h sys.CUfunction) sys.CUresult {
		return call.CuFuncGetAttribute(v, sys.CUfunction_attribute(a), h)
	})
	return int(*v), err
}

// SetAttribute sets an attribute that may be set, for later launches
// (cuFuncSetAttribute).
func (f *Function) SetAttribute(a FunctionAttribute, v int) error {
	const op = "cuFuncSetAttribute"
	if err := fits32(op, v); err != nil {
		return err
	}
	return f.run(op, func(call sys.Caller, h sys.CUfunction) sys.CUresult {
		return call.CuFuncSetAttribute(h, sys.CUfunction_attribute(a), int32(v))
	})
}

// fits32 refuses a number that C's int cannot hold: cut off it would be another.
func fits32(op string, v int) error {
	if int(int32(v)) == v {
		return nil
	}
	return &Error{Op: op, Result: ErrInvalidValue, Detail: fmt.Sprintf("%d does not fit 32 bits", v)}
}

// FunctionAttributes are the attributes that every driver knows. Sizes are in
// bytes.
type FunctionAttributes struct {
	MaxThreadsPerBlock int // given the registers that it uses
	Shared             int // per block, without what the launch adds
	Const              int // for all threads
	Local              int // per thread
	Registers          int // per thread
	PTXVersion         int // of the PTX's target: 75 is compute_75
	BinaryVersion      int // of the machine code: 90 is sm_90
	MaxDynamicShared   int // most that a launch may add: see SetMaxDynamicShared
}

// Attributes returns the attributes that every driver knows
// (cuFuncGetAttribute).
func (f *Function) Attributes() (a FunctionAttributes, err error) {
	for attribute, field := range map[FunctionAttribute]*int{
		FunctionMaxThreadsPerBlock: &a.MaxThreadsPerBlock,
		FunctionSharedSize:         &a.Shared,
		FunctionConstSize:          &a.Const,
		FunctionLocalSize:          &a.Local,
		FunctionRegisters:          &a.Registers,
		FunctionPTXVersion:         &a.PTXVersion,
		FunctionBinaryVersion:      &a.BinaryVersion,
		FunctionMaxDynamicShared:   &a.MaxDynamicShared,
	} {
		if *field, err = f.Attribute(attribute); err != nil {
			return FunctionAttributes{}, err
		}
	}
	return a, nil
}

// SetMaxDynamicShared lets launches add up to bytes of shared memory. It is
// needed beyond 48 KiB less the kernel's own; the device's limit is
// [AttributeMaxSharedMemoryPerBlockOptin]
// (CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES).
func (f *Function) SetMaxDynamicShared(bytes uint32) error {
	return f.SetAttribute(FunctionMaxDynamicShared, int(bytes))
}

// SetCacheConfig sets the kernel's preferred division of L1 cache and shared
// memory, where the device has a choice (cuFuncSetCacheConfig).
func (f *Function) SetCacheConfig(c CacheConfig) error {
	return f.run("cuFuncSetCacheConfig", func(call sys.Caller, h sys.CUfunction) sys.CUresult {
		return call.CuFuncSetCacheConfig(h, sys.CUfunc_cache(c))
	})
}

// MaxActiveBlocks returns how many blocks of that many threads, each with shared
// bytes of dynamic shared memory, a multiprocessor runs at once
// (cuOccupancyMaxActiveBlocksPerMultiprocessor).
func (f *Function) MaxActiveBlocks(threads int, shared uint64) (int, error) {
	const op = "cuOccupancyMaxActiveBlocksPerMultiprocessor"
	if err := fits32(op, threads); err != nil {
		return 0, err
	}
	n := new(int32)
	err := f.run(op, func(call sys.Caller, h sys.CUfunction) sys.CUresult {
		return call.CuOccupancyMaxActiveBlocksPerMultiprocessor(n, h, int32(threads), uintptr(shared))
	})
	return int(*n), err
}

// SuggestedBlock returns the number of threads per block with which the most
// threads run at once, and how many such blocks fill the device
// (cuOccupancyMaxPotentialBlockSize). A block has shared bytes of dynamic shared
// memory and, unless limit is 0, at most limit threads.
func (f *Function) SuggestedBlock(shared uint64, limit int) (threads, blocks int, err error) {
	const op = "cuOccupancyMaxPotentialBlockSize"
	if err := fits32(op, limit); err != nil {
		return 0, 0, err
	}
	grid, block := new(int32), new(int32)
	err = f.run(op, func(call sys.Caller, h sys.CUfunction) sys.CUresult {
		return call.CuOccupancyMaxPotentialBlockSize(grid, block, h, 0, uintptr(shared), int32(limit))
	})
	return int(*block), int(*grid), err
}
