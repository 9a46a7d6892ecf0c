package soft

import (
	"encoding/binary"
	"unsafe"

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

// forget overwrites the arguments.
func (a *callArguments) forget() { clear(a.values) }

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
