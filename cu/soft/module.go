package soft

import (
	"runtime/debug"

	"github.com/gpufd/gpufd/cu/soft/internal/ptx"
	"github.com/gpufd/gpufd/cu/sys"
)

// A module is PTX loaded into a context, which owns it, with the memory of its
// variables.
type module struct {
	ctx       *context
	handle    sys.CUmodule
	code      *ptx.Module
	functions map[string]*function // those that were asked for
	globals   *reservation         // nil if it has no variables
	places    map[string]variable
	library   *library // that it belongs to, or nil
}

// A variable of a module, where it lies.
type variable struct {
	base sys.CUdeviceptr
	size uintptr
}

// load makes a module of PTX in a context.
func (m *machine) load(ctx *context, code *ptx.Module) (*module, sys.CUresult) {
	mod := &module{ctx: ctx, code: code, functions: make(map[string]*function), places: make(map[string]variable)}
	if r := m.placeGlobals(mod); r != sys.CUDA_SUCCESS {
		return nil, r
	}
	mod.handle = sys.CUmodule(m.newHandle(kindModule, contextNumber(uint64(ctx.handle))))
	m.modules[mod.handle] = mod
	return mod, sys.CUDA_SUCCESS
}

// placeGlobals gives the module's variables memory, one behind the other, with
// their initial values.
func (m *machine) placeGlobals(mod *module) sys.CUresult {
	variables := mod.code.Variables()
	var size uintptr
	for _, v := range variables {
		size = roundUp(size, uintptr(max(v.Align, 1)))
		mod.places[v.Name] = variable{sys.CUdeviceptr(size), uintptr(v.Size)}
		size += uintptr(v.Size)
	}
	if size == 0 {
		return sys.CUDA_SUCCESS
	}
	if uint64(size) > mod.ctx.dev.memory {
		return sys.CUDA_ERROR_OUT_OF_MEMORY
	}
	v, r := m.newLinear(mod.ctx, size)
	if r != sys.CUDA_SUCCESS {
		return r
	}
	v.fixed, mod.globals = true, v
	for name, g := range mod.places {
		mod.places[name] = variable{g.base + sys.CUdeviceptr(v.base), g.size}
	}
	return mod.initialise(v)
}

// initialise gives the variables their first values.
func (mod *module) initialise(v *reservation) sys.CUresult {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	phys := v.mappings[0].phys
	_, faulted := touch(func() {
		for name, g := range mod.places {
			copy(bytesAt(phys.alias+uintptr(g.base)-v.base, g.size), mod.code.Initial(name, mod.address))
		}
	})
	if faulted { // the file was cut off already
		return sys.CUDA_ERROR_ILLEGAL_ADDRESS
	}
	return sys.CUDA_SUCCESS
}

// address returns where a variable lies.
func (mod *module) address(name string) uint64 { return uint64(mod.places[name].base) }

// unload ends a module and its functions; nothing uses it any more.
func (m *machine) unload(mod *module) {
	for _, f := range mod.functions {
		delete(m.functions, f.handle)
	}
	if mod.globals != nil {
		m.freeReservation(mod.globals)
	}
	delete(m.modules, mod.handle)
	if mod.library != nil {
		delete(mod.library.modules, mod.ctx)
	}
}

// findModule returns a module that takes calls.
func (m *machine) findModule(h sys.CUmodule) (*module, sys.CUresult) {
	if r := m.ready(); r != sys.CUDA_SUCCESS {
		return nil, r
	}
	if mod := m.modules[h]; mod != nil {
		return mod, mod.ctx.state()
	}
	return nil, m.deadHandle(kindModule, uint64(h), "module", sys.CUDA_ERROR_INVALID_HANDLE)
}

func (m *machine) cuModuleLoad(out *sys.CUmodule, name *byte) sys.CUresult {
	return m.loadText(out, func() (string, sys.CUresult) { return fileText(name) }, jitOptions{})
}

func (m *machine) cuModuleLoadData(out *sys.CUmodule, image *byte) sys.CUresult {
	return m.cuModuleLoadDataEx(out, image, 0, nil, nil)
}

func (m *machine) cuModuleLoadFatBinary(out *sys.CUmodule, image *byte) sys.CUresult {
	return m.cuModuleLoadDataEx(out, image, 0, nil, nil)
}

// cuModuleLoadDataEx takes every option and heeds those for the logs.
func (m *machine) cuModuleLoadDataEx(out *sys.CUmodule, image *byte, n uint32, ids *sys.CUjit_option, values *uintptr) sys.CUresult {
	options, ok := newJITOptions(n, ids, values)
	return m.loadText(out, func() (string, sys.CUresult) {
		if !ok {
			return "", sys.CUDA_ERROR_INVALID_VALUE
		}
		return imageText(image)
	}, options)
}

// loadText loads what text returns into the current context. Reading PTX takes a
// while, so the machine is not locked meanwhile.
func (m *machine) loadText(out *sys.CUmodule, text func() (string, sys.CUresult), o jitOptions) sys.CUresult {
	m.mu.Lock()
	ctx, r := m.current()
	m.mu.Unlock()
	if r == sys.CUDA_SUCCESS && out == nil {
		r = sys.CUDA_ERROR_INVALID_VALUE
	}
	if r != sys.CUDA_SUCCESS {
		return r
	}
	code, r := m.compile(text, o)
	if r != sys.CUDA_SUCCESS {
		return r
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if r := ctx.state(); r != sys.CUDA_SUCCESS {
		return r
	}
	mod, r := m.load(ctx, code)
	if r == sys.CUDA_SUCCESS {
		*out = mod.handle
	}
	return r
}

// cuModuleUnload waits for the context's work, which may use the module. It
// refuses a library's, which goes with the library.
func (m *machine) cuModuleUnload(h sys.CUmodule) sys.CUresult {
	m.mu.Lock()
	mod, r := m.findModule(h)
	if r == sys.CUDA_SUCCESS && mod.library != nil {
		r = sys.CUDA_ERROR_NOT_PERMITTED
	}
	if r != sys.CUDA_SUCCESS {
		m.mu.Unlock()
		return r
	}
	work := mod.ctx.tails(everyStream)
	m.mu.Unlock()
	r = m.await(mod.ctx, work)
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.modules[h] != mod {
		return m.misuse(sys.CUDA_ERROR_INVALID_HANDLE, "cuModuleUnload(%#x) twice at once", uint64(h))
	}
	m.unload(mod)
	return r
}

// function returns a kernel of the module by its name.
func (m *machine) function(mod *module, name string) (*function, sys.CUresult) {
	if f := mod.functions[name]; f != nil {
		return f, sys.CUDA_SUCCESS
	}
	k, ok := mod.code.Kernel(name)
	if !ok {
		return nil, sys.CUDA_ERROR_NOT_FOUND
	}
	f := &function{mod: mod, Kernel: k, attrs: newFuncAttributes(&k)}
	if mod.library != nil {
		kernel, _ := m.kernel(mod.library, name)
		f.attrs = kernel.attributes(mod.ctx.dev)
	}
	f.handle = sys.CUfunction(m.newHandle(kindFunction, contextNumber(uint64(mod.ctx.handle))))
	mod.functions[name] = f
	m.functions[f.handle] = f
	return f, sys.CUDA_SUCCESS
}

func (m *machine) cuModuleGetFunction(out *sys.CUfunction, h sys.CUmodule, name *byte) sys.CUresult {
	return with(m, m.findModule, h, func(mod *module) sys.CUresult {
		s := sys.GoString(name, maxImage)
		if out == nil || s == "" {
			return sys.CUDA_ERROR_INVALID_VALUE
		}
		f, r := m.function(mod, s)
		if r == sys.CUDA_SUCCESS {
			*out = f.handle
		}
		return r
	})
}

func (m *machine) cuModuleGetFunctionCount(out *uint32, h sys.CUmodule) sys.CUresult {
	return value(m, m.findModule, h, out, func(mod *module) uint32 { return uint32(len(mod.code.Entries())) })
}

// cuModuleEnumerateFunctions stores as many as there is room for.
func (m *machine) cuModuleEnumerateFunctions(out *sys.CUfunction, n uint32, h sys.CUmodule) sys.CUresult {
	return with(m, m.findModule, h, func(mod *module) sys.CUresult {
		return enumerate(out, n, mod.code, func(name string) sys.CUfunction {
			f, _ := m.function(mod, name)
			return f.handle
		})
	})
}

// enumerate stores the handles of the entries of a module, as many as there is room for.
func enumerate[H any](out *H, n uint32, code *ptx.Module, handle func(name string) H) sys.CUresult {
	if out == nil {
		return sys.CUDA_ERROR_INVALID_VALUE
	}
	names := code.Entries()
	for i, name := range names[:min(int(n), len(names))] {
		array(out, uintptr(n))[i] = handle(name)
	}
	return sys.CUDA_SUCCESS
}

func (m *machine) cuModuleGetGlobal_v2(ptr *sys.CUdeviceptr, size *uintptr, h sys.CUmodule, name *byte) sys.CUresult {
	return with(m, m.findModule, h, func(mod *module) sys.CUresult { return mod.global(ptr, size, name) })
}

// global finds a variable. One of the results may be left out.
func (mod *module) global(ptr *sys.CUdeviceptr, size *uintptr, name *byte) sys.CUresult {
	s := sys.GoString(name, maxImage)
	if s == "" || ptr == nil && size == nil {
		return sys.CUDA_ERROR_INVALID_VALUE
	}
	v, ok := mod.places[s]
	if _, kernel := mod.code.Kernel(s); kernel {
		return sys.CUDA_ERROR_INVALID_VALUE
	}
	if !ok {
		return sys.CUDA_ERROR_NOT_FOUND
	}
	setOptional(ptr, v.base)
	setOptional(size, v.size)
	return sys.CUDA_SUCCESS
}

// cuModuleGetLoadingMode returns the default since CUDA 12.2; before, modules
// were loaded at once.
func (m *machine) cuModuleGetLoadingMode(out *sys.CUmoduleLoadingMode) sys.CUresult {
	return m.locked(func() sys.CUresult {
		if m.conf.version < 12020 {
			return set(out, sys.CU_MODULE_EAGER_LOADING)
		}
		return set(out, sys.CU_MODULE_LAZY_LOADING)
	})
}
