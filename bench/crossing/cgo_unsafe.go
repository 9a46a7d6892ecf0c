//go:build cgo

package main

// #cgo CFLAGS: -O2
// #include "bench.h"
import "C"

import (
	"unsafe"
)

const (
	reportName = "crossing"
	baseWay    = plainCgo
)

const functionsText = "The functions are C of our own, compiled on their own.\n"

const cgoText = `- **cgo, set-current + call** is two calls, which no program can make like that: the goroutine may go to another
  thread in between.
`

// want is what a call of each form gives.
var want = [numForms]uint64{four: 1 + 2*2 + 3*3 + 4*4, eleven: 285 + 10}

// makeWays returns every way, all of them to the same C functions.
func makeWays() ([]way, error) {
	fs := functions{
		f4: address(C.bench_f4), f11: address(C.bench_f11),
		setCurrent: address(C.bench_set_current),
	}
	return append(waysOfGo(fs), cgo(), cgoBound()), nil
}

func address(fn unsafe.Pointer) uintptr { return uintptr(fn) }

// bound reports whether w sets the context.
func bound(w way) bool {
	C.bench_set_current(0)
	w.run[four](1)
	return C.bench_current() == boundContext
}

func cgo() way {
	return way{plainCgo, [numForms]func(int) uint64{
		four: func(n int) uint64 {
			var r C.int
			for range n {
				r = C.bench_f4(1, 2, 3, 4)
			}
			return uint64(r)
		},
		eleven: func(n int) uint64 {
			var r C.int
			for range n {
				r = C.bench_f11(1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 0)
			}
			return uint64(r)
		},
	}}
}

// cgoBound makes two calls, whose thread the goroutine may change in between:
// no program can do that, it is the least that setting a context could cost.
func cgoBound() way {
	return way{boundCgo, [numForms]func(int) uint64{
		four: func(n int) uint64 {
			var r C.int
			for range n {
				C.bench_set_current(boundContext)
				r = C.bench_f4(1, 2, 3, 4)
			}
			return uint64(r)
		},
		eleven: func(n int) uint64 {
			var r C.int
			for range n {
				C.bench_set_current(boundContext)
				r = C.bench_f11(1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 0)
			}
			return uint64(r)
		},
	}}
}
