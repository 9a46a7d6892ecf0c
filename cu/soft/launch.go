package soft

import (
	gocontext "context"
	"errors"
	"os"

	"github.com/gpufd/gpufd/cu/soft/internal/ptx"
	"github.com/gpufd/gpufd/cu/sys"
)

// A launch is a kernel with its arguments, which were copied from the caller's.
type launch struct {
	f           *function
	grid, block [3]uint32
	shared      uint32
	params      []byte
	cooperative bool
}

// The ways to hand arguments over in one buffer.
const (
	paramEnd = iota
	paramBuffer
	paramBufferSize
)

// maxExtras limits how many words of an argument list are searched for its end.
const maxExtras = 64

func (m *machine) cuLaunchKernel(h sys.CUfunction, gx, gy, gz, bx, by, bz, shared uint32, s sys.CUstream, params, extra *uintptr) sys.CUresult {
	return m.launchKernel(h, launch{grid: [3]uint32{gx, gy, gz}, block: [3]uint32{bx, by, bz}, shared: shared}, s, params, extra, false)
}

func (m *machine) cuLaunchCooperativeKernel(h sys.CUfunction, gx, gy, gz, bx, by, bz, shared uint32, s sys.CUstream, params *uintptr) sys.CUresult {
	return m.launchKernel(h, launch{grid: [3]uint32{gx, gy, gz}, block: [3]uint32{bx, by, bz}, shared: shared}, s, params, nil, true)
}

// cuLaunchKernelEx knows the attributes that change nothing here, and that of a
// cooperative launch.
func (m *machine) cuLaunchKernelEx(c *sys.CUlaunchConfig, h sys.CUfunction, params, extra *uintptr) sys.CUresult {
	if c == nil || c.NumAttrs > 0 && c.Attrs == nil {
		return m.locked(func() sys.CUresult { return sys.CUDA_ERROR_INVALID_VALUE })
	}
	cooperative := false
	for i := range uintptr(c.NumAttrs) {
		a := &array(c.Attrs, uintptr(c.NumAttrs))[i]
		if r := launchAttribute(a); r != sys.CUDA_SUCCESS {
			return m.refuse(c.HStream, r)
		}
		if a.Id == sys.CU_LAUNCH_ATTRIBUTE_COOPERATIVE {
			cooperative = *a.Value.Cooperative() != 0
		}
	}
	l := launch{
		grid:  [3]uint32{c.GridDimX, c.GridDimY, c.GridDimZ},
		block: [3]uint32{c.BlockDimX, c.BlockDimY, c.BlockDimZ}, shared: c.SharedMemBytes,
	}
	return m.launchKernel(h, l, c.HStream, params, extra, cooperative)
}

// launchAttribute says whether a launch can have an attribute: there are no
// clusters here, and kernels do not overlap.
func launchAttribute(a *sys.CUlaunchAttribute) sys.CUresult {
	switch a.Id {
	case sys.CU_LAUNCH_ATTRIBUTE_IGNORE, sys.CU_LAUNCH_ATTRIBUTE_COOPERATIVE, sys.CU_LAUNCH_ATTRIBUTE_PRIORITY,
		sys.CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW, sys.CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY,
		sys.CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN, sys.CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP,
		sys.CU_LAUNCH_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT:
		return sys.CUDA_SUCCESS
	case sys.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION:
		switch d := *a.Value.ClusterDim(); {
		case d.X == 0 || d.Y == 0 || d.Z == 0:
			return sys.CUDA_ERROR_INVALID_VALUE
		case d.X == 1 && d.Y == 1 && d.Z == 1:
			return sys.CUDA_SUCCESS
		}
		return sys.CUDA_ERROR_NOT_SUPPORTED
	}
	if a.Id <= sys.CU_LAUNCH_ATTRIBUTE_NVLINK_UTIL_CENTRIC_SCHEDULING {
		return sys.CUDA_ERROR_NOT_SUPPORTED
	}
	return sys.CUDA_ERROR_INVALID_VALUE
}

// launchKernel puts a kernel on a stream, with a copy of its arguments.
func (m *machine) launchKernel(h sys.CUfunction, l launch, hStream sys.CUstream, params, extra *uintptr, cooperative bool) sys.CUresult {
	return withBoth(m, m.findStream, hStream, m.findFunction, h, func(s *stream, f *function) sys.CUresult {
		if l.f = f; f.mod.ctx != s.ctx {
			return sys.CUDA_ERROR_INVALID_HANDLE
		}
		if r := l.prepare(params, extra, cooperative); r != sys.CUDA_SUCCESS {
			return r
		}
		m.enqueue(s, &op{traits: l.traits(), run: func() sys.CUresult { return m.runKernel(&l) }})
		return sys.CUDA_SUCCESS
	})
}

// cuGraphAddKernelNode_v2 makes launches of something, with a copy of its arguments.
func (m *machine) cuGraphAddKernelNode_v2(out *sys.CUgraphNode, h sys.CUgraph, deps *sys.CUgraphNode, n uintptr, p *sys.CUDA_KERNEL_NODE_PARAMS) sys.CUresult {
	return m.add(out, h, deps, n, func() (*work, sys.CUresult) {
		if p == nil {
			return nil, sys.CUDA_ERROR_INVALID_VALUE
		}
		l := launch{
			grid:  [3]uint32{p.GridDimX, p.GridDimY, p.GridDimZ},
			block: [3]uint32{p.BlockDimX, p.BlockDimY, p.BlockDimZ}, shared: p.SharedMemBytes,
		}
		f := p.Func
		if f == 0 {
			f = sys.CUfunction(p.Kern)
		}
		var r sys.CUresult
		if l.f, r = m.findFunction(f); r != sys.CUDA_SUCCESS {
			return nil, r
		}
		if r := l.prepare(pointers(p.KernelParams), p.Extra, false); r != sys.CUDA_SUCCESS {
			return nil, r
		}
		return &work{traits: l.traits(), run: func() sys.CUresult { return m.runKernel(&l) }}, r
	})
}

// traits returns what a graph knows of a launch. An update may change everything
// but the device.
func (l *launch) traits() traits {
	return traits{kind: sys.CU_GRAPH_NODE_TYPE_KERNEL, shape: l.f.mod.ctx.dev}
}

// prepare checks a launch and copies its arguments.
func (l *launch) prepare(params, extra *uintptr, cooperative bool) sys.CUresult {
	if r := l.valid(); r != sys.CUDA_SUCCESS {
		return r
	}
	l.cooperative = cooperative
	if cooperative && volume(l.grid) > uint64(l.resident()) {
		return sys.CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE
	}
	return l.copyParams(params, extra)
}

// resident returns how many blocks can wait for each other. Local memory counts
// here, but not for occupancy: a GPU has it elsewhere.
func (l *launch) resident() int {
	threads := int(volume(l.block))
	return min(l.f.blocksOf(threads, uintptr(l.shared))*multiprocessors(), l.f.Resident(threads, int(l.shared)))
}

// volume returns how many there are; none of the dimensions is too large for that.
func volume(d [3]uint32) uint64 { return uint64(d[0]) * uint64(d[1]) * uint64(d[2]) }

// valid refuses a grid, blocks or shared memory that the device does not have.
func (l *launch) valid() sys.CUresult {
	for i := range 3 {
		grid := attributes[sys.CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X+sys.CUdevice_attribute(i)]
		block := attributes[sys.CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X+sys.CUdevice_attribute(i)]
		if l.grid[i] == 0 || l.grid[i] > uint32(grid) || l.block[i] == 0 || l.block[i] > uint32(block) {
			return sys.CUDA_ERROR_INVALID_VALUE
		}
		if want := l.f.Required[i]; want != 0 && l.block[i] != uint32(want) {
			return sys.CUDA_ERROR_INVALID_VALUE
		}
	}
	if volume(l.block) > uint64(maxThreads(&l.f.Kernel)) || l.shared > l.f.attrs.dynamic() {
		return sys.CUDA_ERROR_INVALID_VALUE
	}
	return sys.CUDA_SUCCESS
}

// copyParams takes the arguments, either one pointer for each or one buffer.
func (l *launch) copyParams(params, extra *uintptr) sys.CUresult {
	l.params = make([]byte, l.f.ParamBytes())
	switch {
	case params != nil && extra != nil:
		return sys.CUDA_ERROR_INVALID_VALUE
	case extra != nil:
		return l.copyBuffer(extra)
	case params == nil && len(l.params) > 0:
		return sys.CUDA_ERROR_INVALID_VALUE
	}
	for i, p := range l.f.Params {
		at := array(params, uintptr(len(l.f.Params)))[i]
		if at < lowest { // the real driver crashes
			return sys.CUDA_ERROR_INVALID_VALUE
		}
		copy(l.params[p.Offset:p.Offset+p.Size], bytesAt(at, uintptr(p.Size)))
	}
	return sys.CUDA_SUCCESS
}

// copyBuffer takes the arguments as they lie in the kernel's parameters.
func (l *launch) copyBuffer(extra *uintptr) sys.CUresult {
	var at, size uintptr
	for i := uintptr(0); ; i += 2 {
		if i >= maxExtras {
			return sys.CUDA_ERROR_INVALID_VALUE
		}
		switch words := array(extra, i+2); words[i] {
		case paramEnd:
			return l.fill(at, size)
		case paramBuffer:
			at = words[i+1]
		case paramBufferSize:
			if words[i+1] < lowest {
				return sys.CUDA_ERROR_INVALID_VALUE
			}
			size = *sizeAt(words[i+1])
		default:
			return sys.CUDA_ERROR_INVALID_VALUE
		}
	}
}

// fill copies the arguments' bytes. It accepts too few, and refuses too many, as
// an H200 does.
func (l *launch) fill(at, size uintptr) sys.CUresult {
	switch {
	case at < lowest || size == 0:
		return sys.CUDA_ERROR_INVALID_VALUE
	case size > uintptr(len(l.params)):
		return sys.CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES
	}
	copy(l.params, bytesAt(at, size))
	return sys.CUDA_SUCCESS
}

// runKernel is the work itself. A context that is lost ends its kernels.
func (m *machine) runKernel(l *launch) sys.CUresult {
	mod := l.f.mod
	stop, cancel := gocontext.WithCancel(gocontext.Background())
	defer cancel()
	m.mu.Lock()
	memory := m.newKernelMemory(mod.ctx)
	stack := int(mod.ctx.limits[sys.CU_LIMIT_STACK_SIZE])
	if mod.ctx.heap == nil {
		mod.ctx.heap = ptx.NewHeap(uint64(mod.ctx.limits[sys.CU_LIMIT_MALLOC_HEAP_SIZE]))
	}
	mod.ctx.prints.limit(int(mod.ctx.limits[sys.CU_LIMIT_PRINTF_FIFO_SIZE]))
	lost, forget := mod.ctx.sticky, mod.ctx.onLoss(cancel)
	m.mu.Unlock()
	if lost != sys.CUDA_SUCCESS {
		cancel() // since it was looked at last
	}
	err := mod.code.Run(stop, l.f.Name, ptx.Launch{
		Grid: l.grid, Block: l.block, Shared: int(l.shared), Params: l.params,
		Stack: stack, Memory: memory, Withdrawals: &memory.withdrawals, Address: mod.address, Touch: touch, Cooperative: l.cooperative,
		Stdout: &mod.ctx.prints, Stderr: os.Stderr, Heap: mod.ctx.heap,
	})
	m.mu.Lock()
	defer m.mu.Unlock()
	forget()
	memory.drop()
	var fault *ptx.Fault
	switch {
	case err == nil:
		return sys.CUDA_SUCCESS
	case errors.As(err, &fault):
		return m.die(faultResult(fault), m.explain(fault, memory.dev))
	}
	return firstError(mod.ctx.sticky, sys.CUDA_ERROR_LAUNCH_FAILED)
}

// faultResult returns the result that a context is lost to when a kernel dies.
func faultResult(f *ptx.Fault) sys.CUresult {
	switch f.Kind {
	case ptx.IllegalAddress, ptx.StackOverflow: // so an H200 says
		return sys.CUDA_ERROR_ILLEGAL_ADDRESS
	case ptx.MisalignedAddress:
		return sys.CUDA_ERROR_MISALIGNED_ADDRESS
	case ptx.BadJump:
		return sys.CUDA_ERROR_INVALID_PC
	case ptx.Assert:
		return sys.CUDA_ERROR_ASSERT
	}
	return sys.CUDA_ERROR_LAUNCH_FAILED
}
