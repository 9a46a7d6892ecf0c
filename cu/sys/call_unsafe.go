package sys

import (
	"runtime"
	"slices"
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

// call makes a call with args, in C's order, with room for words behind them.
// Every driver call of every package goes through call, callAndPop or callPlaced,
// and through cross.
func (c Caller) call(id funcID, args []uintptr) CUresult {
	fr := frame{word: inRegisters(args), stack: onStack(args)}
	return c.cross(&fr, id, args)
}

// callAndPop makes a call that pushes a context, cuCtxCreate in any ABI, and pops
// it in the same crossing: a later one could be on another thread.
func (c Caller) callAndPop(id funcID, args []uintptr) CUresult {
	fr := frame{word: inRegisters(args), stack: onStack(args), pop: true}
	return c.cross(&fr, id, args)
}

// callPlaced makes a call whose arguments the place methods laid out.
func (c Caller) callPlaced(p *placed, id funcID) CUresult {
	fr := frame{word: &p.word, stack: p.stack, float: p.float}
	r := c.cross(&fr, id, p.arg[:p.nargs])
	runtime.KeepAlive(p)
	return r
}

// cross makes the call, with the hook around it if there is one, and keeps the
// owner alive meanwhile.
func (c Caller) cross(fr *frame, id funcID, args []uintptr) CUresult {
	if c.lib == nil {
		return CUDA_ERROR_NOT_INITIALIZED
	}
	var r CUresult
	if h := c.lib.hook.Load(); h == nil {
		r = c.raw(fr, id)
	} else {
		r = c.hooked(*h, fr, id, args)
	}
	runtime.KeepAlive(c.owner)
	return r
}

// hooked gives the hook copies of frame and arguments, because everything that
// a hook gets moves to the heap.
func (c Caller) hooked(h Hook, fr *frame, id funcID, args []uintptr) CUresult {
	own := fr.clone()
	return h(Call{id: id, args: slices.Clone(args), ctx: c.ctx}, func() CUresult { return c.raw(own, id) })
}

// raw makes the call, after it has resolved what is not resolved yet.
func (c Caller) raw(fr *frame, id funcID) CUresult {
	fr.fn = c.lib.address(id)
	if fr.fn == missing {
		return SymbolMissing
	}
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
	return CUresult(uint32(cgocall(crossingPC, unsafe.Pointer(fr))))
}
