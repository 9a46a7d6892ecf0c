package main

import (
	"fmt"
	"unsafe"

	"github.com/ebitengine/purego"

	"github.com/gpufd/gpufd/cu/sys"
)

// ours is a caller of cu/sys, for whose driver the C functions stand.
func ours(name string, fs functions, ctx sys.CUcontext) way {
	addresses := map[string]uintptr{
		"cuStreamWriteValue64_v2": fs.f4, "cuLaunchKernel": fs.f11,
		"cuCtxSetCurrent": fs.setCurrent,
	}
	c := sys.NewLibrary(func(symbol string) (uintptr, error) {
		if addr, ok := addresses[symbol]; ok {
			return addr, nil
		}
		return 0, fmt.Errorf("no %s here", symbol)
	}).Caller().With(ctx)
	return way{name, [numForms]func(int) uint64{
		four: func(n int) uint64 {
			var r sys.CUresult
			for range n {
				r = c.CuStreamWriteValue64_v2(1, 2, 3, 4)
			}
			return uint64(r)
		},
		eleven: func(n int) uint64 {
			var r sys.CUresult
			params := new(unsafe.Pointer)
			for range n {
				r = c.CuLaunchKernel(1, 2, 3, 4, 5, 6, 7, 8, 9, params, nil)
			}
			return uint64(r)
		},
	}}
}

// syscallN is the dependency's untyped way.
func syscallN(fs functions) way {
	return way{byNumber, [numForms]func(int) uint64{
		four: func(n int) uint64 {
			var r uintptr
			for range n {
				r, _, _ = purego.SyscallN(fs.f4, 1, 2, 3, 4)
			}
			return uint64(uint32(r))
		},
		eleven: func(n int) uint64 {
			var r uintptr
			for range n {
				r, _, _ = purego.SyscallN(fs.f11, 1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 0)
			}
			return uint64(uint32(r))
		},
	}}
}

// registerFunc is the dependency's typed way.
func registerFunc(fs functions) way {
	var (
		f4  func(stream uintptr, addr, value uint64, flags uint32) int32
		f11 func(f uintptr, gx, gy, gz, bx, by, bz, shared uint32, stream, params, extra uintptr) int32
	)
	purego.RegisterFunc(&f4, fs.f4)
	purego.RegisterFunc(&f11, fs.f11)
	return way{byType, [numForms]func(int) uint64{
		four: func(n int) uint64 {
			var r int32
			for range n {
				r = f4(1, 2, 3, 4)
			}
			return uint64(r)
		},
		eleven: func(n int) uint64 {
			var r int32
			for range n {
				r = f11(1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 0)
			}
			return uint64(r)
		},
	}}
}

// waysOfGo are the ways that need no cgo.
func waysOfGo(fs functions) []way {
	return []way{
		ours(oursPlain, fs, 0), ours(oursContext, fs, boundContext), syscallN(fs), registerFunc(fs),
	}
}
