//go:build cgo

package main

// #cgo CFLAGS: -O2
// #include "bench.h"
import "C"

import (
	"fmt"

	"github.com/ebitengine/purego"

	"github.com/gpufd/gpufd/cu/sys"
)

// Names of ways.
const (
	ours     = "ours"
	plainCgo = "cgo"
)

// A way is a way to call C: a function that makes n calls in a loop of its own, so that nothing but the loop is
// added to each, and returns the result of the last.
type way struct {
	name string
	run  func(n int) uint64
}

// want is what each call returns.
const want = 1 + 2*2 + 3*3 + 4*4

// makeWays returns every way, all of them to the same C function.
func makeWays() []way {
	f4 := uintptr(C.bench_f4)
	c := sys.NewLibrary(func(symbol string) (uintptr, error) {
		if symbol == "cuStreamWriteValue64_v2" {
			return f4, nil
		}
		return 0, fmt.Errorf("no %s here", symbol)
	}).Caller()
	var typed func(stream uintptr, addr, value uint64, flags uint32) int32
	purego.RegisterFunc(&typed, f4)
	return []way{
		{ours, func(n int) uint64 {
			var r sys.CUresult
			for range n {
				r = c.CuStreamWriteValue64_v2(1, 2, 3, 4)
			}
			return uint64(r)
		}},
		{plainCgo, func(n int) uint64 {
			var r C.int
			for range n {
				r = C.bench_f4(1, 2, 3, 4)
			}
			return uint64(r)
		}},
		{"purego.SyscallN", func(n int) uint64 {
			var r uintptr
			for range n {
				r, _, _ = purego.SyscallN(f4, 1, 2, 3, 4)
			}
			return uint64(uint32(r))
		}},
		{"purego.RegisterFunc", func(n int) uint64 {
			var r int32
			for range n {
				r = typed(1, 2, 3, 4)
			}
			return uint64(r)
		}},
	}
}
