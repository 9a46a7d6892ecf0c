package cu

import (
	"runtime"

	"github.com/gpufd/gpufd/cu/sys"
)

// A Module is code for a device, loaded into a context: kernels
// ([Module.Function]) and variables ([Module.Global]). The caller owns it; its
// context's Close ends it. It is safe for concurrent use.
type Module struct {
	*moduleHandle
	ctx *Context
}

// moduleHandle is the part of a Module that its context closes.
type moduleHandle struct {
	gate
	module sys.CUmodule
	jit    *jit // nil for a file
	types  map[string][]string
}

// LoadModule loads a cubin, a fatbin or PTX, which the driver compiles
// (cuModuleLoadDataEx). It copies image; PTX needs no zero at its end.
//
// If the compiler says what is wrong, the error is a [*BuildError]. Results:
// [ErrInvalidPTX]; [ErrUnsupportedPTXVersion] for PTX newer than the driver;
// [ErrNoBinaryForGPU] for code of other devices; [ErrInvalidImage].
func (c *Context) LoadModule(image []byte, opts ...JITOption) (*Module, error) {
	const op = "cuModuleLoadDataEx"
	code, err := loadable(op, image)
	if err != nil {
		return nil, err
	}
	j := newJIT(opts)
	m, err := c.newModule(op, j, func(call sys.Caller, out *sys.CUmodule) sys.CUresult {
		return j.load(func(n uint32, options *sys.CUjit_option, values *uintptr) sys.CUresult {
			return call.CuModuleLoadDataEx(out, code, n, options, values)
		})
	})
	if err != nil {
		return nil, j.explain(err)
	}
	m.types = ptxParams(image)
	return m, nil
}

// LoadModuleFile loads a file of PTX, a cubin or a fatbin (cuModuleLoad).
// [ErrFileNotFound]: it cannot be read; [ErrInvalidValue]: it is not a regular
// file. It gives no log: [Context.LoadModule] does.
func (c *Context) LoadModuleFile(path string) (*Module, error) {
	const op = "cuModuleLoad"
	file, err := readable(op, path)
	if err != nil {
		return nil, err
	}
	m, err := c.newModule(op, nil, func(call sys.Caller, out *sys.CUmodule) sys.CUresult {
		return call.CuModuleLoad(out, file)
	})
	if err != nil {
		return nil, err
	}
	m.types = ptxParamsOf(path)
	return m, nil
}

// newModule makes the module that one driver call stores.
func (c *Context) newModule(op string, j *jit, load func(sys.Caller, *sys.CUmodule) sys.CUresult) (*Module, error) {
	m := &Module{&moduleHandle{jit: j}, c}
	return made(m, c.create(op, m.moduleHandle, func(call sys.Caller) sys.CUresult { return load(call, &m.module) }))
}

// Context returns the module's context.
func (m *Module) Context() *Context {
	if m == nil {
		return nil
	}
	return m.ctx
}

// Handle returns the driver's own handle.
func (m *Module) Handle() sys.CUmodule {
	if m == nil {
		return 0
	}
	return m.module
}

// Log returns what the compiler said of a module that it compiled, mostly
// nothing: see [JITVerboseLog]. A module from a file has none.
func (m *Module) Log() string {
	if m == nil {
		return ""
	}
	return m.jit.said()
}

// Close waits in the driver for all work of the context, and unloads the module
// with its variables (cuModuleUnload). Its functions are [ErrClosed] from then
// on; do not launch graphs that have them. A second Close, or one after the
// context's, does nothing.
func (m *Module) Close() error {
	if m == nil {
		return nil
	}
	return m.ctx.release(m.moduleHandle)
}

func (m *moduleHandle) closeIn(h *contextHandle) error {
	return h.check("cuModuleUnload", h.call.CuModuleUnload(m.module))
}

// run makes one driver call on the module.
func (m *Module) run(op string, f func(sys.Caller, sys.CUmodule) sys.CUresult) error {
	if m == nil || !m.enter() {
		return unusable(op, "the module", m == nil)
	}
	defer runtime.KeepAlive(m)
	defer m.leave()
	return m.ctx.run(op, func(call sys.Caller) sys.CUresult { return f(call, m.module) })
}

// Function returns the kernel with that name as in the code; C++ mangles it
// unless it is extern "C" (cuModuleGetFunction). [ErrNotFound]: there is none;
// the error names the others, if the driver can list them.
func (m *Module) Function(name string) (*Function, error) {
	const op = "cuModuleGetFunction"
	spelt, err := cString(op, name)
	if err != nil {
		return nil, err
	}
	fn := new(sys.CUfunction)
	err = m.run(op, func(call sys.Caller, h sys.CUmodule) sys.CUresult {
		return call.CuModuleGetFunction(fn, h, spelt)
	})
	if err != nil {
		return nil, noKernel(err, name, "module", m.Functions)
	}
	return m.function(*fn, name), nil
}

func (m *Module) function(fn sys.CUfunction, name string) *Function {
	return &Function{ctx: m.ctx, owner: &m.gate, holds: m, fn: fn, name: name, types: m.types}
}

// Functions lists the module's kernels with their names, in no particular order
// (cuModuleGetFunctionCount, cuModuleEnumerateFunctions, cuFuncGetName; CUDA
// 12.4).
func (m *Module) Functions() ([]*Function, error) {
	return enumerate(m.run, "cuModuleGetFunctionCount", sys.Caller.CuModuleGetFunctionCount,
		"cuModuleEnumerateFunctions", sys.Caller.CuModuleEnumerateFunctions,
		func(h sys.CUfunction) (*Function, error) {
			f := m.function(h, "")
			return f, f.readName()
		})
}

// Global returns the address of a module's variable, and its size in bytes
// (cuModuleGetGlobal). The variable is there until the module's Close.
// [ErrNotFound]: there is none with that name.
func (m *Module) Global(name string) (p DevicePtr, size uint64, err error) {
	const op = "cuModuleGetGlobal_v2"
	spelt, err := cString(op, name)
	if err != nil {
		return 0, 0, err
	}
	ptr, n := new(sys.CUdeviceptr), new(uintptr)
	err = m.run(op, func(call sys.Caller, h sys.CUmodule) sys.CUresult {
		return call.CuModuleGetGlobal_v2(ptr, n, h, spelt)
	})
	return DevicePtr(*ptr), uint64(*n), noVariable(err, name)
}
