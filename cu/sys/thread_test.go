package sys

import (
	"reflect"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

const (
	goroutines       = 64
	callsOfGoroutine = 50
)

// inParallel runs f(1) to f(n), each on a goroutine, on several threads.
func inParallel(t *testing.T, n int, f func(i int)) {
	before := runtime.GOMAXPROCS(max(4, runtime.GOMAXPROCS(0)))
	t.Cleanup(func() { runtime.GOMAXPROCS(before) })
	var wg sync.WaitGroup
	for i := 1; i <= n; i++ {
		wg.Go(func() { f(i) })
	}
	wg.Wait()
}

// The driver here keeps the current context per OS thread, as the real one
// does. Invariant 1: nobody locks a thread, and yet nobody meets another's
// context.
func TestBindAndCallHappenOnOneThread(t *testing.T) {
	var current sync.Map // thread to context
	var threads sync.Map
	var foreign, calls atomic.Int64
	c := library(map[string]uintptr{
		bindSymbol: wordFunc(t, 1, func(w []uintptr) uintptr {
			current.Store(syscall.Gettid(), w[0])
			runtime.Gosched()
			return 0
		}),
		"cuStreamQuery": wordFunc(t, 1, func(w []uintptr) uintptr {
			tid := syscall.Gettid()
			threads.Store(tid, true)
			if ctx, _ := current.Load(tid); ctx != w[0] {
				foreign.Add(1)
			}
			if calls.Add(1)%64 == 0 {
				runtime.GC()
			}
			return garbage | w[0]
		}),
	}).Caller()

	var wrong atomic.Int64
	inParallel(t, goroutines, func(i int) {
		for range callsOfGoroutine {
			if c.With(CUcontext(i)).CuStreamQuery(CUstream(i)) != CUresult(i) {
				wrong.Add(1)
			}
			runtime.Gosched()
		}
	})
	require.Zero(t, foreign.Load(), "calls that met another context")
	require.Zero(t, wrong.Load(), "calls that got another's result")
	require.EqualValues(t, goroutines*callsOfGoroutine, calls.Load())
	used := 0
	threads.Range(func(any, any) bool { used++; return true })
	require.Greater(t, used, 1, "one thread proves nothing")
}

// Every goroutine has its own words and results while stacks move, garbage is
// collected and other frames are in use.
func TestManyGoroutinesCallAtOnce(t *testing.T) {
	var calls atomic.Int64
	addOne := func(out, in uintptr) uintptr {
		grow(int(in % 64))
		if calls.Add(1)%64 == 0 {
			runtime.GC()
		}
		store(out, CUdeviceptr(in+1))
		return 0
	}
	c := library(map[string]uintptr{
		bindSymbol:               wordFunc(t, 1, func([]uintptr) uintptr { return 0 }),
		"cuMemAllocAsync":        wordFunc(t, 3, func(w []uintptr) uintptr { return addOne(w[0], w[1]) }),
		"cuTensorMapEncodeTiled": wordFunc(t, 12, func(w []uintptr) uintptr { return w[11] - w[2] }),
		"cuIpcOpenMemHandle_v2": newCFunc(t, shapeOf(Caller.CuIpcOpenMemHandle_v2), func(args []reflect.Value) uintptr {
			return addOne(uintptr(args[0].Uint()), uintptr(args[1].Interface().(CUipcMemHandle).Reserved[63]))
		}),
	}).Caller()

	var wrong atomic.Int64
	inParallel(t, goroutines, func(i int) {
		var p CUdeviceptr
		for j := range callsOfGoroutine {
			n, h := 1000*i+j, CUipcMemHandle{}
			h.Reserved[63] = byte(n)
			c := c.With(CUcontext(j % 2))
			ok := c.CuMemAllocAsync(&p, uintptr(n), 0) == 0 && p == CUdeviceptr(n+1) &&
				c.CuTensorMapEncodeTiled(nil, 0, uint32(n), 0, nil, nil, nil, nil, 0, 0, 0, CUtensorMapFloatOOBfill(n+i)) == CUresult(i) &&
				c.CuIpcOpenMemHandle_v2(&p, h, uint32(n)) == 0 && p == CUdeviceptr(byte(n))+1
			if !ok {
				wrong.Add(1)
			}
		}
	})
	require.Zero(t, wrong.Load())
}
