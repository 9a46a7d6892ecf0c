package soft

import (
	"maps"
	"slices"

	"github.com/gpufd/gpufd/cu/soft/internal/ptx"
	"github.com/gpufd/gpufd/cu/sys"
)

// A library is PTX that is loaded into each context as it is used there.
type library struct {
	handle  sys.CUlibrary
	code    *ptx.Module
	kernels map[string]*kernel // those that were asked for
	modules map[*context]*module
}

// A kernel of a library is a function in every context.
type kernel struct {
	ptx.Kernel
	library *library
	handle  sys.CUkernel
	attrs   map[*device]*funcAttributes
}

// attributes are the kernel's on a device.
func (k *kernel) attributes(d *device) *funcAttributes {
	if k.attrs[d] == nil {
		k.attrs[d] = newFuncAttributes(&k.Kernel)
	}
	return k.attrs[d]
}

// kernel returns a kernel of a library by its name.
func (m *machine) kernel(l *library, name string) (*kernel, sys.CUresult) {
	if k := l.kernels[name]; k != nil {
		return k, sys.CUDA_SUCCESS
	}
	described, ok := l.code.Kernel(name)
	if !ok {
		return nil, sys.CUDA_ERROR_NOT_FOUND
	}
	k := &kernel{Kernel: described, library: l, handle: sys.CUkernel(m.newHandle(kindKernel, 0)), attrs: make(map[*device]*funcAttributes)}
	l.kernels[name] = k
	m.kernels[k.handle] = k
	return k, sys.CUDA_SUCCESS
}

// module returns the library as the current context has it, and loads it there
// first if needed.
func (m *machine) libraryModule(l *library) (*module, sys.CUresult) {
	ctx, r := m.current()
	if r != sys.CUDA_SUCCESS {
		return nil, r
	}
	if mod := l.modules[ctx]; mod != nil {
		return mod, r
	}
	mod, r := m.load(ctx, l.code)
	if r == sys.CUDA_SUCCESS {
		mod.library, l.modules[ctx] = l, mod
	}
	return mod, r
}

// kernelFunction returns a kernel as the current context has it.
func (m *machine) kernelFunction(k *kernel) (*function, sys.CUresult) {
	mod, r := m.libraryModule(k.library)
	if r != sys.CUDA_SUCCESS {
		return nil, r
	}
	return m.function(mod, k.Name)
}

// findLibrary returns a library by its handle.
func (m *machine) findLibrary(h sys.CUlibrary) (*library, sys.CUresult) {
	l, r := find(m, m.libraries, h, kindLibrary, "library", sys.CUDA_ERROR_INVALID_HANDLE)
	return l, firstError(r, m.health.sticky)
}

// findLibraryModule returns a library as the current context has it.
func (m *machine) findLibraryModule(h sys.CUlibrary) (*module, sys.CUresult) {
	l, r := m.findLibrary(h)
	if r != sys.CUDA_SUCCESS {
		return nil, r
	}
	return m.libraryModule(l)
}

// findKernel returns a kernel by its handle.
func (m *machine) findKernel(h sys.CUkernel) (*kernel, sys.CUresult) {
	k, r := find(m, m.kernels, h, kindKernel, "kernel", sys.CUDA_ERROR_INVALID_HANDLE)
	return k, firstError(r, m.health.sticky)
}

func (m *machine) cuLibraryLoadData(out *sys.CUlibrary, image *byte, ids *sys.CUjit_option, values *uintptr, n uint32, options *sys.CUlibraryOption, _ *uintptr, count uint32) sys.CUresult {
	return m.loadLibrary(out, func() (string, sys.CUresult) { return imageText(image) }, n, ids, values, options, count)
}

func (m *machine) cuLibraryLoadFromFile(out *sys.CUlibrary, name *byte, ids *sys.CUjit_option, values *uintptr, n uint32, options *sys.CUlibraryOption, _ *uintptr, count uint32) sys.CUresult {
	return m.loadLibrary(out, func() (string, sys.CUresult) { return fileText(name) }, n, ids, values, options, count)
}

// loadLibrary needs no context. Errors in the PTX show here; on an H200 they show
// when the library is used.
func (m *machine) loadLibrary(out *sys.CUlibrary, text func() (string, sys.CUresult), n uint32, ids *sys.CUjit_option, values *uintptr, options *sys.CUlibraryOption, count uint32) sys.CUresult {
	o, ok := newJITOptions(n, ids, values)
	ok = ok && out != nil && validLibraryOptions(options, count)
	if r := m.locked(func() sys.CUresult { return valid(ok) }); r != sys.CUDA_SUCCESS {
		return r
	}
	code, r := m.compile(text, o)
	if r != sys.CUDA_SUCCESS {
		return r
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	l := &library{code: code, kernels: make(map[string]*kernel), modules: make(map[*context]*module)}
	l.handle = sys.CUlibrary(m.newHandle(kindLibrary, 0))
	m.libraries[l.handle] = l
	*out = l.handle
	return r
}

// validLibraryOptions refuses unknown options.
func validLibraryOptions(options *sys.CUlibraryOption, n uint32) bool {
	if n == 0 {
		return true
	}
	return options != nil && n <= uint32(sys.CU_LIBRARY_NUM_OPTIONS) &&
		!slices.ContainsFunc(array(options, uintptr(n)), func(o sys.CUlibraryOption) bool { return o >= sys.CU_LIBRARY_NUM_OPTIONS })
}

// cuLibraryUnload waits for the work of the contexts that the library is in.
func (m *machine) cuLibraryUnload(h sys.CUlibrary) sys.CUresult {
	m.mu.Lock()
	l, r := m.findLibrary(h)
	if l == nil {
		m.mu.Unlock()
		return r
	}
	var work []*op
	contexts := slices.Collect(maps.Keys(l.modules))
	for _, ctx := range contexts {
		work = append(work, ctx.tails(everyStream)...)
	}
	delete(m.libraries, h)
	for _, k := range l.kernels {
		delete(m.kernels, k.handle)
	}
	m.mu.Unlock()
	for _, o := range work {
		<-o.done
	}
	for _, ctx := range contexts {
		ctx.prints.flush()
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, mod := range l.modules {
		m.unload(mod)
	}
	return r
}

func (m *machine) cuLibraryGetKernel(out *sys.CUkernel, h sys.CUlibrary, name *byte) sys.CUresult {
	return with(m, m.findLibrary, h, func(l *library) sys.CUresult {
		s := sys.GoString(name, maxImage)
		if out == nil || s == "" {
			return sys.CUDA_ERROR_INVALID_VALUE
		}
		k, r := m.kernel(l, s)
		if r == sys.CUDA_SUCCESS {
			*out = k.handle
		}
		return r
	})
}

func (m *machine) cuLibraryGetKernelCount(out *uint32, h sys.CUlibrary) sys.CUresult {
	return value(m, m.findLibrary, h, out, func(l *library) uint32 { return uint32(len(l.code.Entries())) })
}

// cuLibraryEnumerateKernels stores as many as there is room for.
func (m *machine) cuLibraryEnumerateKernels(out *sys.CUkernel, n uint32, h sys.CUlibrary) sys.CUresult {
	return with(m, m.findLibrary, h, func(l *library) sys.CUresult {
		return enumerate(out, n, l.code, func(name string) sys.CUkernel {
			k, _ := m.kernel(l, name)
			return k.handle
		})
	})
}

func (m *machine) cuLibraryGetModule(out *sys.CUmodule, h sys.CUlibrary) sys.CUresult {
	return value(m, m.findLibraryModule, h, out, func(mod *module) sys.CUmodule { return mod.handle })
}

func (m *machine) cuLibraryGetGlobal(ptr *sys.CUdeviceptr, size *uintptr, h sys.CUlibrary, name *byte) sys.CUresult {
	return with(m, m.findLibraryModule, h, func(mod *module) sys.CUresult { return mod.global(ptr, size, name) })
}

func (m *machine) cuKernelGetFunction(out *sys.CUfunction, h sys.CUkernel) sys.CUresult {
	return with(m, m.findKernel, h, func(k *kernel) sys.CUresult {
		f, r := m.kernelFunction(k)
		if r != sys.CUDA_SUCCESS {
			return r
		}
		return set(out, f.handle)
	})
}

func (m *machine) cuKernelGetLibrary(out *sys.CUlibrary, h sys.CUkernel) sys.CUresult {
	return value(m, m.findKernel, h, out, func(k *kernel) sys.CUlibrary { return k.library.handle })
}

func (m *machine) cuKernelGetName(out **byte, h sys.CUkernel) sys.CUresult {
	return value(m, m.findKernel, h, out, func(k *kernel) *byte { return cString(k.Name) })
}

func (m *machine) cuKernelGetParamInfo(h sys.CUkernel, index uintptr, offset, size *uintptr) sys.CUresult {
	return with(m, m.findKernel, h, func(k *kernel) sys.CUresult { return paramInfo(&k.Kernel, index, offset, size) })
}

func (m *machine) cuKernelGetAttribute(out *int32, a sys.CUfunction_attribute, h sys.CUkernel, dev sys.CUdevice) sys.CUresult {
	return withBoth(m, m.findKernel, h, m.device, dev, func(k *kernel, d *device) sys.CUresult { return k.attributes(d).get(out, a, &k.Kernel, k.library.code) })
}

func (m *machine) cuKernelSetAttribute(a sys.CUfunction_attribute, v int32, h sys.CUkernel, dev sys.CUdevice) sys.CUresult {
	return withBoth(m, m.findKernel, h, m.device, dev, func(k *kernel, d *device) sys.CUresult { return k.attributes(d).set(a, v, &k.Kernel) })
}

// cuKernelSetCacheConfig has no cache to share out.
func (m *machine) cuKernelSetCacheConfig(h sys.CUkernel, c sys.CUfunc_cache, dev sys.CUdevice) sys.CUresult {
	return withBoth(m, m.findKernel, h, m.device, dev, func(*kernel, *device) sys.CUresult { return valid(c <= sys.CU_FUNC_CACHE_PREFER_EQUAL) })
}
