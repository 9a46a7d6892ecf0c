package sys

import (
	"unsafe"

	_ "github.com/ebitengine/purego" // the C runtime that runtime.cgocall needs without cgo
)

// crossingPC is the address of the routine in call_*.s; it is defined there.
var crossingPC uintptr

// cgocall runs the C function fn(arg) on the system stack of this goroutine's
// thread. The runtime keeps it open to linkname for purego and its like.
//
//go:linkname cgocall runtime.cgocall
//go:noescape
func cgocall(fn uintptr, arg unsafe.Pointer) int32

// call makes the call that fr holds, whose n arguments lie in word in C's
// order. Every driver call of every package goes through here or callPlaced,
// and through cross.
func (c Caller) call(fr *frame, id funcID, n int) CUresult {
	fr.nstack = 0
	if n > numRegs {
		fr.nstack = uintptr(n - numRegs)
	}
	r := c.cross(fr, id, fr.word[:n])
	fr.free(n)
	return r
}

// callAndPop makes a call that pushes a context, cuCtxCreate in any ABI, and
// pops it in the same crossing: a later one could be on another thread.
func (c Caller) callAndPop(fr *frame, id funcID, n int) CUresult {
	fr.pop = true
	return c.call(fr, id, n)
}

// callPlaced makes a call whose arguments the place methods laid out.
func (c Caller) callPlaced(fr *frame, id funcID) CUresult {
	fr.nstack = uintptr(fr.stackWords())
	n := int(fr.nargs)
	r := c.cross(fr, id, fr.arg[:n])
	fr.free(n)
	return r
}

// cross resolves what is not resolved yet, crosses, and reads the result. A
// hook, if one is set, stands around the crossing.
func (c Caller) cross(fr *frame, id funcID, args []uintptr) CUresult {
	if c.lib == nil {
		return CUDA_ERROR_NOT_INITIALIZED
	}
	fr.keep[maxArgs] = c.owner
	if h := c.lib.hook.Load(); h != nil {
		return (*h)(Call{id: id, args: args, ctx: c.ctx}, func() CUresult { return c.raw(fr, id) })
	}
	return c.raw(fr, id)
}

func (c Caller) raw(fr *frame, id funcID) CUresult {
	fr.fn = c.lib.address(id)
	if fr.fn == missing {
		return SymbolMissing
	}
	fr.bind, fr.bound, fr.after = 0, 0, 0
	if fr.pop {
		if fr.after = c.lib.address(fnCuCtxPopCurrent_v2); fr.after == missing {
			return SymbolMissing
		}
	}
	if c.ctx != 0 {
		fr.bind, fr.ctx = c.lib.address(fnCuCtxSetCurrent), uintptr(c.ctx)
		if fr.bind == missing {
			return bindFailed | SymbolMissing
		}
	}
	cgocall(crossingPC, unsafe.Pointer(fr))
	if fr.bound != 0 {
		return bindFailed | CUresult(fr.bound)
	}
	return CUresult(uint32(fr.result))
}
