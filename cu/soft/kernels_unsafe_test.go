package soft

import (
	"encoding/binary"
	"sync"
	"unsafe"

	"github.com/ebitengine/purego"
	"github.com/gpufd/gpufd/cu/sys"
)

// text2c returns PTX as a call takes it.
func text2c(text string) unsafe.Pointer { return unsafe.Pointer(sys.CString(text)) }

// callArguments are a kernel's, as cuLaunchKernel takes them.
type callArguments struct {
	values   [][8]byte
	pointers []unsafe.Pointer
}

func arguments(values ...any) *callArguments {
	a := &callArguments{values: make([][8]byte, len(values))}
	for i, v := range values {
		if _, err := binary.Encode(a.values[i][:], binary.LittleEndian, v); err != nil {
			panic(err)
		}
		a.pointers = append(a.pointers, unsafe.Pointer(&a.values[i]))
	}
	return a
}

func (a *callArguments) list() *unsafe.Pointer { return unsafe.SliceData(a.pointers) }

// extraArguments are arguments in one buffer.
type extraArguments struct {
	buffer []byte
	size   *uintptr
	words  []uintptr
}

func extraOf(buffer []byte, size uintptr) *extraArguments {
	e := &extraArguments{buffer: buffer, size: &size}
	e.words = []uintptr{paramBuffer, uintptr(at(buffer)), paramBufferSize, uintptr(unsafe.Pointer(e.size)), paramEnd}
	return e
}

func (e *extraArguments) list() *uintptr { return unsafe.SliceData(e.words) }

// A jitLog is options that ask for the error log.
type jitLog struct {
	buffer []byte
	ids    []sys.CUjit_option
	values []uintptr
}

func newJITLog(size uint32) *jitLog {
	l := &jitLog{buffer: make([]byte, size)}
	l.ids = []sys.CUjit_option{sys.CU_JIT_ERROR_LOG_BUFFER, sys.CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES, sys.CU_JIT_OPTIMIZATION_LEVEL}
	l.values = []uintptr{uintptr(at(l.buffer)), uintptr(size), 2}
	return l
}

func (l *jitLog) load(c sys.Caller, text string) sys.CUresult {
	return c.CuModuleLoadDataEx(new(sys.CUmodule), text2c(text), uint32(len(l.ids)), &l.ids[0], &l.values[0])
}

// errors returns the log and how long the driver says that it is.
func (l *jitLog) errors() (string, uintptr) {
	return sys.GoString(&l.buffer[0], len(l.buffer)), l.values[1]
}

// sharedNeed is a C function for cuOccupancyMaxPotentialBlockSize.
var sharedNeed = sync.OnceValue(func() sys.CUoccupancyB2DSize {
	return sys.CUoccupancyB2DSize(purego.NewCallback(func(threads int32) uintptr { return 100 * uintptr(threads) }))
})
