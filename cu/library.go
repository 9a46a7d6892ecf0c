package cu

import (
	"errors"
	"runtime"

	"github.com/gpufd/gpufd/cu/sys"
)

// A Library is code loaded for all contexts of a process, also later ones, in
// place of one [Module] in each (CUDA 12.0). The caller owns it. It is safe for
// concurrent use.
//
// The garbage collector does not unload a lost Library: a graph may still launch
// its kernels.
type Library struct{ *libraryHandle }

type libraryHandle struct {
	gate
	drv     *Driver
	library sys.CUlibrary
	jit     *jit
	types   map[string][]string
}

// LoadLibrary loads PTX, a cubin or a fatbin without a context
// (cuLibraryLoadData). It copies image. Errors are those of [Context.LoadModule],
// and a [*SymbolError] before CUDA 12.0. Unless the environment's
// CUDA_MODULE_LOADING is EAGER, the driver compiles at the first request for a
// kernel, which then returns the errors of bad code.
func (d *Driver) LoadLibrary(image []byte, opts ...JITOption) (*Library, error) {
	const op = "cuLibraryLoadData"
	code, err := loadable(op, image)
	if err != nil {
		return nil, err
	}
	types := ptxParams(image)
	return d.newLibrary(op, opts, types, func(out *sys.CUlibrary, n uint32, options *sys.CUjit_option, values *uintptr) sys.CUresult {
		return d.call.CuLibraryLoadData(out, code, options, values, n, nil, nil, 0)
	})
}

// LoadLibraryFile is [Driver.LoadLibrary] for a file (cuLibraryLoadFromFile).
// [ErrFileNotFound]: it cannot be read; [ErrInvalidValue]: it is not a regular
// file.
func (d *Driver) LoadLibraryFile(path string, opts ...JITOption) (*Library, error) {
	const op = "cuLibraryLoadFromFile"
	file, err := readable(op, path)
	if err != nil {
		return nil, err
	}
	return d.newLibrary(op, opts, ptxParamsOf(path), func(out *sys.CUlibrary, n uint32, options *sys.CUjit_option, values *uintptr) sys.CUresult {
		return d.call.CuLibraryLoadFromFile(out, file, options, values, n, nil, nil, 0)
	})
}

func (d *Driver) newLibrary(op string, opts []JITOption, types map[string][]string, load func(*sys.CUlibrary, uint32, *sys.CUjit_option, *uintptr) sys.CUresult) (*Library, error) {
	if err := d.loss.refuse(op); err != nil {
		return nil, err
	}
	h, j := new(sys.CUlibrary), newJIT(opts)
	r := j.load(func(n uint32, options *sys.CUjit_option, values *uintptr) sys.CUresult {
		return load(h, n, options, values)
	})
	if err := d.check(op, r); err != nil {
		d.loss.notice(err)
		return nil, j.explain(err)
	}
	l := &libraryHandle{drv: d, library: *h, jit: j, types: types}
	d.libraries.Store(l, nil)
	return &Library{l}, nil
}

// Handle returns the driver's own handle.
func (l *Library) Handle() sys.CUlibrary {
	if l == nil {
		return 0
	}
	return l.library
}

// Log returns what the compiler said of a library that it compiled, once it has.
func (l *Library) Log() string {
	if l == nil {
		return ""
	}
	return l.jit.said()
}

// Close waits in the driver for the kernels that run, and unloads the library
// (cuLibraryUnload). Its kernels and their functions are [ErrClosed] from then
// on; do not launch graphs that have them. A second Close does nothing.
func (l *Library) Close() error {
	if l == nil {
		return nil
	}
	defer runtime.KeepAlive(l)
	if !l.gate.close() {
		return nil
	}
	if l.drv.loss.isLost() { // as a context's Close does with what is in it
		return nil
	}
	defer l.drv.libraries.Delete(l.libraryHandle)
	return l.drv.check("cuLibraryUnload", l.drv.call.CuLibraryUnload(l.library))
}

// run makes one driver call on the library, without a context.
func (l *Library) run(op string, f func(sys.Caller, sys.CUlibrary) sys.CUresult) error {
	if l == nil || !l.enter() {
		return unusable(op, "the library", l == nil)
	}
	defer runtime.KeepAlive(l)
	defer l.leave()
	if err := l.drv.loss.refuse(op); err != nil {
		return err
	}
	err := l.drv.check(op, f(l.drv.call, l.library))
	l.drv.loss.notice(err)
	return l.jit.explain(err)
}

// runIn is run with a context.
func (l *Library) runIn(c *Context, op string, f func(sys.Caller, sys.CUlibrary) sys.CUresult) error {
	if c == nil {
		return unusable(op, "the context", true)
	}
	if l == nil || !l.enter() {
		return unusable(op, "the library", l == nil)
	}
	defer runtime.KeepAlive(l)
	defer runtime.KeepAlive(c)
	defer l.leave()
	if err := l.drv.refuseOther(op, "the library", c.inner.dev.drv); err != nil {
		return err
	}
	return l.jit.explain(c.run(op, func(call sys.Caller) sys.CUresult { return f(call, l.library) }))
}

// A Kernel is a kernel of a [Library], in no context yet. It owns nothing, keeps
// its library reachable, and ends with it.
type Kernel struct {
	lib    *Library
	kernel sys.CUkernel
	name   string
}

// Kernel returns the kernel with that name (cuLibraryGetKernel). [ErrNotFound]:
// there is none; the error names the others, if the driver can list them.
func (l *Library) Kernel(name string) (*Kernel, error) {
	const op = "cuLibraryGetKernel"
	spelt, err := cString(op, name)
	if err != nil {
		return nil, err
	}
	k := new(sys.CUkernel)
	err = l.run(op, func(call sys.Caller, h sys.CUlibrary) sys.CUresult {
		return call.CuLibraryGetKernel(k, h, spelt)
	})
	if err != nil {
		return nil, noKernel(err, name, "library", l.Kernels)
	}
	return &Kernel{l, *k, name}, nil
}

// Kernels lists the library's kernels with their names, in no particular order
// (cuLibraryGetKernelCount, cuLibraryEnumerateKernels, cuKernelGetName; CUDA
// 12.4).
func (l *Library) Kernels() ([]*Kernel, error) {
	return enumerate(l.run, "cuLibraryGetKernelCount", sys.Caller.CuLibraryGetKernelCount,
		"cuLibraryEnumerateKernels", sys.Caller.CuLibraryEnumerateKernels,
		func(h sys.CUkernel) (*Kernel, error) {
			k := &Kernel{lib: l, kernel: h}
			return k, k.readName()
		})
}

// enumerate lists what a module or library holds. item makes each from its handle.
func enumerate[O, H, T any](run func(string, func(sys.Caller, O) sys.CUresult) error,
	countOp string, count func(sys.Caller, *uint32, O) sys.CUresult,
	listOp string, list func(sys.Caller, *H, uint32, O) sys.CUresult,
	item func(H) (T, error),
) ([]T, error) {
	n := new(uint32)
	err := run(countOp, func(call sys.Caller, owner O) sys.CUresult { return count(call, n, owner) })
	if err != nil || *n == 0 {
		return nil, err
	}
	handles := make([]H, *n)
	err = run(listOp, func(call sys.Caller, owner O) sys.CUresult { return list(call, &handles[0], *n, owner) })
	if err != nil {
		return nil, err
	}
	all := make([]T, len(handles))
	for i, h := range handles {
		var failed error
		all[i], failed = item(h)
		err = errors.Join(err, failed)
	}
	return all, err
}

// readName asks for the name (cuKernelGetName, CUDA 12.3).
func (k *Kernel) readName() error {
	p := new(*byte)
	return k.lib.run("cuKernelGetName", func(call sys.Caller, _ sys.CUlibrary) sys.CUresult {
		r := call.CuKernelGetName(p, k.kernel)
		if r == sys.CUDA_SUCCESS {
			k.name = sys.GoString(*p, maxName)
		}
		return r
	})
}

// Name is the kernel's name, as the code spells it.
func (k *Kernel) Name() string {
	if k == nil {
		return ""
	}
	return k.name
}

// Handle returns the driver's own handle, which ends with the library.
func (k *Kernel) Handle() sys.CUkernel {
	if k == nil {
		return 0
	}
	return k.kernel
}

// Function returns the kernel for launches in c, with the code for its device
// (cuKernelGetFunction). The driver may have to load that, and waits then as
// [Context.LoadModule] does.
func (k *Kernel) Function(c *Context) (*Function, error) {
	const op = "cuKernelGetFunction"
	if k == nil {
		return nil, unusable(op, "the kernel", true)
	}
	fn := new(sys.CUfunction)
	err := k.lib.runIn(c, op, func(call sys.Caller, _ sys.CUlibrary) sys.CUresult {
		return call.CuKernelGetFunction(fn, k.kernel)
	})
	if err != nil {
		return nil, err
	}
	return &Function{ctx: c, owner: &k.lib.gate, holds: k, fn: *fn, name: k.name, types: k.lib.types}, nil
}

// Global returns the address of a library's variable in c, and its size in bytes
// (cuLibraryGetGlobal). [ErrNotFound]: there is none with that name.
func (l *Library) Global(c *Context, name string) (p DevicePtr, size uint64, err error) {
	const op = "cuLibraryGetGlobal"
	spelt, err := cString(op, name)
	if err != nil {
		return 0, 0, err
	}
	ptr, n := new(sys.CUdeviceptr), new(uintptr)
	err = l.runIn(c, op, func(call sys.Caller, h sys.CUlibrary) sys.CUresult {
		return call.CuLibraryGetGlobal(ptr, n, h, spelt)
	})
	return DevicePtr(*ptr), uint64(*n), noVariable(err, name)
}
