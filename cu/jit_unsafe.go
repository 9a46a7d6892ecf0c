package cu

import (
	"runtime"
	"strings"
	"unsafe"

	"github.com/gpufd/gpufd/cu/sys"
)

// A JITOption changes how the driver compiles PTX: CUjit_option. It does not
// affect a cubin. [ErrInvalidValue]: the driver does not know or allow it.
type JITOption func(*jit)

// JITCacheMode says whether loads use the L1 cache by default: CUjit_cacheMode.
type JITCacheMode uint32

// The cache modes.
const (
	JITCacheDefault = JITCacheMode(sys.CU_JIT_CACHE_OPTION_NONE) // the compiler's choice
	JITCacheL2      = JITCacheMode(sys.CU_JIT_CACHE_OPTION_CG)   // no L1
	JITCacheL1      = JITCacheMode(sys.CU_JIT_CACHE_OPTION_CA)   // L1
)

// JITMaxRegisters limits the registers of a thread (CU_JIT_MAX_REGISTERS).
func JITMaxRegisters(n uint32) JITOption { return jitOption(sys.CU_JIT_MAX_REGISTERS, n) }

// JITThreadsPerBlock limits registers so that blocks of n threads can run
// (CU_JIT_THREADS_PER_BLOCK). It excludes [JITTarget].
func JITThreadsPerBlock(n uint32) JITOption { return jitOption(sys.CU_JIT_THREADS_PER_BLOCK, n) }

// JITOptimization sets the level of optimisation, 0 to 4, the default
// (CU_JIT_OPTIMIZATION_LEVEL). Above 0 the compiler may fuse a product and a sum
// of floats that name no rounding.
func JITOptimization(level uint32) JITOption { return jitOption(sys.CU_JIT_OPTIMIZATION_LEVEL, level) }

// JITTarget compiles for the given compute capability (CU_JIT_TARGET).
func JITTarget(major, minor uint32) JITOption {
	return jitOption(sys.CU_JIT_TARGET, 10*major+minor)
}

// JITDebugInfo adds debug information and switches optimisation off
// (CU_JIT_GENERATE_DEBUG_INFO).
func JITDebugInfo() JITOption { return jitOption(sys.CU_JIT_GENERATE_DEBUG_INFO, 1) }

// JITLineInfo adds line numbers for profilers (CU_JIT_GENERATE_LINE_INFO).
func JITLineInfo() JITOption { return jitOption(sys.CU_JIT_GENERATE_LINE_INFO, 1) }

// JITVerboseLog adds registers and memory of each kernel to the log, unless the
// code comes from the cache: see CUDA_CACHE_DISABLE (CU_JIT_LOG_VERBOSE).
func JITVerboseLog() JITOption { return jitOption(sys.CU_JIT_LOG_VERBOSE, 1) }

// JITCache sets whether loads use the L1 cache by default (CU_JIT_CACHE_MODE).
func JITCache(m JITCacheMode) JITOption { return jitOption(sys.CU_JIT_CACHE_MODE, uint32(m)) }

func jitOption(o sys.CUjit_option, v uint32) JITOption {
	return func(j *jit) { j.set(o, uintptr(v)) }
}

// A jit holds the options and logs of one compilation. It is on the heap, as it
// goes to functions that are not known here. The driver may compile later than it
// is told to, so the code that it loads keeps the jit.
type jit struct {
	options  []sys.CUjit_option
	values   []uintptr
	log, bad []byte // information; errors
}

// jitLogSize is the room for a log; the driver cuts off what is longer.
const jitLogSize = 16 << 10

func newJIT(opts []JITOption) *jit {
	j := &jit{log: make([]byte, jitLogSize), bad: make([]byte, jitLogSize)}
	j.set(sys.CU_JIT_INFO_LOG_BUFFER, uintptr(unsafe.Pointer(&j.log[0])))
	j.set(sys.CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES, jitLogSize)
	j.set(sys.CU_JIT_ERROR_LOG_BUFFER, uintptr(unsafe.Pointer(&j.bad[0])))
	j.set(sys.CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES, jitLogSize)
	for _, o := range opts {
		o(j)
	}
	return j
}

func (j *jit) set(o sys.CUjit_option, v uintptr) {
	j.options, j.values = append(j.options, o), append(j.values, v)
}

// load calls f with the options.
func (j *jit) load(f func(n uint32, options *sys.CUjit_option, values *uintptr) sys.CUresult) sys.CUresult {
	defer runtime.KeepAlive(j) // the logs, of which the driver has the addresses
	return f(uint32(len(j.options)), &j.options[0], &j.values[0])
}

// explain adds the logs to the error of a load. j may be nil.
func (j *jit) explain(err error) error {
	if j == nil {
		return err
	}
	log, info := text(j.bad), text(j.log)
	if e, ok := err.(*Error); ok && log != "" {
		return &BuildError{Err: e, Log: log, Info: info}
	}
	return err
}

// said returns the log of a load that succeeded.
func (j *jit) said() string {
	if j == nil {
		return ""
	}
	return text(j.log)
}

// text returns a log without the line ends around it.
func text(log []byte) string { return strings.Trim(sys.GoString(&log[0], len(log)), "\n ") }

// A BuildError is an image that the driver could not load, with the compiler's
// message, which mostly names the line. It matches what Err matches.
type BuildError struct {
	Err  *Error
	Log  string // what is wrong
	Info string // other messages, mostly none
}

// Error returns the driver's result and then the log, on lines of its own.
func (e *BuildError) Error() string {
	msg := e.Err.Error()
	for _, log := range []string{e.Log, e.Info} {
		if log != "" {
			msg += "\n" + log
		}
	}
	return msg
}

// Unwrap returns Err.
func (e *BuildError) Unwrap() error { return e.Err }
