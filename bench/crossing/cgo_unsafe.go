//go:build cgo

package main

// #cgo CFLAGS: -O2
// #include "bench.h"
import "C"

import (
	"runtime"
	"unsafe"
)

const (
	reportName = "crossing"
	baseWay    = plainCgo
)

const functionsText = "The functions are C of our own, compiled on their own.\n"

const cgoText = `- **cgo, set-current + call** is two calls, which no program can make like that: the goroutine may go to another
  thread in between. With **LockOSThread** it may not.
- **executor goroutine**: one goroutine has a locked thread with the context, and makes through cgo the calls that
  come by channel.
`

// want is what a call of each form gives.
var want = [numForms]uint64{none: 42, four: 1 + 2*2 + 3*3 + 4*4, eleven: 285 + 10, out: 7, newOut: 7}

// makeWays returns every way, all of them to the same C functions.
func makeWays() ([]way, error) {
	fs := functions{
		f0: address(C.bench_f0), f4: address(C.bench_f4), f11: address(C.bench_f11),
		out: address(C.bench_out), setCurrent: address(C.bench_set_current),
	}
	return append(waysOfGo(fs), cgo(), cgoBound(), cgoLocked(), cgoExecutor()), nil
}

func address(fn unsafe.Pointer) uintptr { return uintptr(fn) }

// bound reports whether w sets the context.
func bound(w way) bool {
	C.bench_set_current(0)
	w.run[none](1)
	return C.bench_current() == boundContext
}

func cgo() way {
	return way{plainCgo, [numForms]func(int) uint64{
		none: func(n int) uint64 {
			var r C.int
			for range n {
				r = C.bench_f0()
			}
			return uint64(r)
		},
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
		out: func(n int) uint64 {
			x := C.uintptr_t(unset)
			for range n {
				C.bench_out(&x)
			}
			return uint64(x)
		},
		newOut: func(n int) (last uint64) {
			for range n {
				x := C.uintptr_t(unset)
				C.bench_out(&x)
				last = uint64(x)
			}
			return last
		},
	}}
}

// cgoBound makes two calls, whose thread the goroutine may change in between:
// no program can do that, it is the least that setting a context could cost.
func cgoBound() way {
	return way{boundCgo, [numForms]func(int) uint64{
		none: func(n int) uint64 {
			var r C.int
			for range n {
				C.bench_set_current(boundContext)
				r = C.bench_f0()
			}
			return uint64(r)
		},
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
		out: func(n int) uint64 {
			x := C.uintptr_t(unset)
			for range n {
				C.bench_set_current(boundContext)
				C.bench_out(&x)
			}
			return uint64(x)
		},
		newOut: func(n int) (last uint64) {
			for range n {
				x := C.uintptr_t(unset)
				C.bench_set_current(boundContext)
				C.bench_out(&x)
				last = uint64(x)
			}
			return last
		},
	}}
}

// cgoLocked is what a program has to do that sets a context through cgo.
func cgoLocked() way {
	return way{lockedCgo, [numForms]func(int) uint64{
		none: func(n int) uint64 {
			var r C.int
			for range n {
				runtime.LockOSThread()
				C.bench_set_current(boundContext)
				r = C.bench_f0()
				runtime.UnlockOSThread()
			}
			return uint64(r)
		},
		four: func(n int) uint64 {
			var r C.int
			for range n {
				runtime.LockOSThread()
				C.bench_set_current(boundContext)
				r = C.bench_f4(1, 2, 3, 4)
				runtime.UnlockOSThread()
			}
			return uint64(r)
		},
		eleven: func(n int) uint64 {
			var r C.int
			for range n {
				runtime.LockOSThread()
				C.bench_set_current(boundContext)
				r = C.bench_f11(1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 0)
				runtime.UnlockOSThread()
			}
			return uint64(r)
		},
		out: func(n int) uint64 {
			x := C.uintptr_t(unset)
			for range n {
				runtime.LockOSThread()
				C.bench_set_current(boundContext)
				C.bench_out(&x)
				runtime.UnlockOSThread()
			}
			return uint64(x)
		},
		newOut: func(n int) (last uint64) {
			for range n {
				x := C.uintptr_t(unset)
				runtime.LockOSThread()
				C.bench_set_current(boundContext)
				C.bench_out(&x)
				runtime.UnlockOSThread()
				last = uint64(x)
			}
			return last
		},
	}}
}
