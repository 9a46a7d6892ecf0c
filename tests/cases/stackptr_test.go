package cases

import (
	"runtime"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu/sys"
)

//go:noinline
func grow(n int) int { // makes the stack move
	var b [1024]byte
	b[n%1024] = 1
	if n == 0 {
		return int(b[0])
	}
	return grow(n-1) + int(b[n%1024])
}

// A slice whose address the driver is given as a number stays where it is if it is pinned (sys.Address), though
// the goroutine's stack moves, and the driver's answer is in it.
func TestStackPtr(t *testing.T) {
	_, ctx := device(t, patience)
	call := ctx.Caller()
	type answer struct {
		result sys.CUresult
		moved  bool
		log    string
	}
	answers := make(chan answer)
	go func() { // with a stack that is still small
		var pins runtime.Pinner
		defer pins.Unpin()
		log := make([]byte, 512)
		options := []sys.CUjit_option{sys.CU_JIT_ERROR_LOG_BUFFER, sys.CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES}
		values := []uintptr{sys.Address(&pins, log), uintptr(len(log))}
		grow(50)
		image := sys.CString(".version 7.0\n.target sm_60\n.address_size 64\nrubbish\n")
		r := call.CuModuleLoadDataEx(new(sys.CUmodule), unsafe.Pointer(image), 2, &options[0], &values[0])
		answers <- answer{r, uintptr(unsafe.Pointer(&log[0])) != values[0], sys.GoString(&log[0], len(log))}
	}()
	a := <-answers
	require.NotEqual(t, sys.CUDA_SUCCESS, a.result)
	require.False(t, a.moved)
	require.NotEmpty(t, a.log)
}
