package sys

import (
	"reflect"
	"runtime"
	"sync"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
)

// grow moves the goroutine's stack by needing more than it has.
//
//go:noinline
func grow(depth int) byte {
	var room [1024]byte
	room[depth%len(room)] = byte(depth)
	if depth == 0 {
		return room[0]
	}
	return grow(depth-1) + room[depth%len(room)]
}

// onFreshStack runs f on a goroutine whose stack is small and so must move to
// grow.
func onFreshStack(f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	<-done
}

// The driver's C functions do not run Go, but the software driver's do: they
// move the caller's stack and collect garbage under its variables.
func TestResultsSurviveStackGrowthAndCollection(t *testing.T) {
	c := library(map[string]uintptr{
		bindSymbol: wordFunc(t, 1, func([]uintptr) uintptr { grow(200); runtime.GC(); return 0 }),
		"cuMemGetInfo_v2": wordFunc(t, 2, func(w []uintptr) uintptr {
			grow(400)
			runtime.GC()
			store(w[0], ^uintptr(0x1234))
			store(w[1], ^uintptr(0x5678))
			return 0
		}),
	}).Caller()
	for range 20 {
		for _, c := range []Caller{c, c.With(1)} {
			onFreshStack(func() {
				var free, total uintptr
				require.Zero(t, c.CuMemGetInfo_v2(&free, &total))
				require.Equal(t, ^uintptr(0x1234), free)
				require.Equal(t, ^uintptr(0x5678), total)
			})
		}
	}
}

// litter grows and overwrites the stacks that other goroutines left.
func litter() {
	var wg sync.WaitGroup
	for range 32 {
		wg.Go(func() { grow(8) })
	}
	wg.Wait()
}

// The words of a call lie on the caller's stack, which moves if cuCtxSetCurrent
// is the software driver's, and is another goroutine's by then.
func TestArgumentsSurviveAContextThatMovesTheStack(t *testing.T) {
	var got []uintptr
	args := distinctWords(maxArgs)
	c := library(map[string]uintptr{
		bindSymbol: wordFunc(t, 1, func([]uintptr) uintptr { grow(400); litter(); return 0 }),
		someSymbol: wordFunc(t, maxArgs, func(w []uintptr) uintptr { got = w; return 5 }),
	}).Caller().With(1)
	for range 20 {
		onFreshStack(func() {
			var w [maxArgs]uintptr
			copy(w[:], args)
			require.Equal(t, CUresult(5), c.call(someFunction, w[:]))
			require.Equal(t, args, got)
		})
	}
}

func TestCalleeReadsAndWritesOurMemory(t *testing.T) {
	c := library(map[string]uintptr{
		"cuDeviceGetName": wordFunc(t, 3, func(w []uintptr) uintptr {
			copy(unsafe.Slice(at[byte](w[0]), w[1]), "soft GPU\x00")
			return 0
		}),
		"cuGetErrorName": wordFunc(t, 2, func(w []uintptr) uintptr {
			store(w[1], CString(CUresult(w[0]).String()))
			return 0
		}),
		"cuMemcpyHtoD_v2": wordFunc(t, 3, func(w []uintptr) uintptr {
			sum := uintptr(0)
			for _, b := range unsafe.Slice(at[byte](w[1]), w[2]) {
				sum += uintptr(b)
			}
			return sum
		}),
	}).Caller()

	name := make([]byte, 64)
	require.Zero(t, c.CuDeviceGetName(&name[0], int32(len(name)), 0))
	require.Equal(t, "soft GPU", GoString(&name[0], len(name)))

	var text *byte
	require.Zero(t, c.CuGetErrorName(CUDA_ERROR_OUT_OF_MEMORY, &text))
	require.Equal(t, "CUDA_ERROR_OUT_OF_MEMORY", GoString(text, 64))

	data := []byte{1, 2, 3, 250}
	require.Equal(t, CUresult(256), c.CuMemcpyHtoD_v2(1, unsafe.Pointer(&data[0]), uintptr(len(data))))
}

// collected makes the garbage collector finish a cycle and run the cleanups
// of what it found: it waits for one of its own.
func collected() {
	for range 2 {
		ran := make(chan struct{})
		runtime.AddCleanup(new([64]byte), func(ran chan struct{}) { close(ran) }, ran)
		runtime.GC()
		<-ran
	}
}

// tracked is Go memory that tells when it was collected.
func tracked() (p unsafe.Pointer, gone chan struct{}) {
	gone = make(chan struct{})
	b := new([64]byte)
	runtime.AddCleanup(b, func(gone chan struct{}) { close(gone) }, gone)
	return unsafe.Pointer(b), gone
}

func isClosed(c chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

func TestWhatTheDriverWasGivenLivesUntilTheCallIsOver(t *testing.T) {
	var gone chan struct{}
	inside := func([]reflect.Value) uintptr {
		collected()
		if isClosed(gone) {
			return uintptr(CUDA_ERROR_ILLEGAL_ADDRESS)
		}
		return 0
	}
	c := library(map[string]uintptr{
		someSymbol:             newCFunc(t, shapeOf(Caller.CuInit), inside),
		"cuMemcpyHtoD_v2":      newCFunc(t, shapeOf(Caller.CuMemcpyHtoD_v2), inside),
		"cuIpcOpenEventHandle": newCFunc(t, shapeOf(Caller.CuIpcOpenEventHandle), inside),
	}).Caller()

	// Each makes its memory itself and keeps no reference beside the call's.
	tests := map[string]func() CUresult{
		"an argument": func() CUresult {
			var p unsafe.Pointer
			p, gone = tracked()
			return c.CuMemcpyHtoD_v2(1, p, 64)
		},
		"an argument beside a struct": func() CUresult {
			var p unsafe.Pointer
			p, gone = tracked()
			return c.CuIpcOpenEventHandle((*CUevent)(p), CUipcEventHandle{})
		},
		"the owner of the handle": func() CUresult {
			var p unsafe.Pointer
			p, gone = tracked()
			return c.Keep(p).CuInit(0)
		},
	}
	for name, hook := range map[string]Hook{
		"": nil, " and a hook": func(_ Call, next func() CUresult) CUresult { collected(); return next() },
	} {
		for what, call := range tests {
			t.Run(what+name, func(t *testing.T) {
				c.Library().SetHook(hook)
				onFreshStack(func() { require.Zero(t, call(), "collected while the driver had it") })
				for range 10 {
					if collected(); isClosed(gone) {
						return
					}
				}
				t.Error("still reachable after the call")
			})
		}
	}
}
