package cu

import (
	"sync"

	"github.com/ebitengine/purego"

	"github.com/gpufd/gpufd/cu/sys"
)

// Call makes s call f once the work that s has now is done, and returns at once
// (cuLaunchHostFunc). Work given to s later waits for f. A stream that is
// captured is refused ([ErrStreamCaptureUnsupported]).
//
// f runs on a thread of the driver. It must not panic, call the driver through
// any package, or wait for something that does. Other streams may wait while it
// runs, so pass long work to another goroutine. If the context is lost, f is
// never called: wait for the stream, not for f alone.
func (s *Stream) Call(f func()) error {
	const op = "cuLaunchHostFunc"
	if s == nil {
		return unusable(op, "the stream", true)
	}
	inner := s.ctx.inner
	id := hostFuncs.add(f, inner.loss)
	err := s.runUncaptured(op, func(call sys.Caller, h sys.CUstream) sys.CUresult {
		return call.CuLaunchHostFunc(h, hostCallback(), id)
	})
	if err != nil || inner.loss.isLost() { // lost before add, or after
		hostFuncs.take(id)
	}
	return err
}

// hostCallback is the one C function for all host functions: they are never
// freed.
var hostCallback = sync.OnceValue(func() sys.CUhostFn {
	return sys.CUhostFn(purego.NewCallback(func(id uintptr) {
		if f := hostFuncs.take(id); f != nil {
			f()
		}
	}))
})

// hostFuncs holds the functions that wait to be called, by the number that the
// driver has of them.
var hostFuncs pendingFuncs

type pendingFuncs struct {
	mu   sync.Mutex
	last uintptr
	f    map[uintptr]pendingFunc
}

type pendingFunc struct {
	f    func()
	loss *lostState // of its context
}

func (p *pendingFuncs) add(f func(), of *lostState) uintptr {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.f == nil {
		p.f = map[uintptr]pendingFunc{}
	}
	p.last++
	p.f[p.last] = pendingFunc{f, of}
	return p.last
}

// take removes and returns a function, or nil if it is gone.
func (p *pendingFuncs) take(id uintptr) func() {
	p.mu.Lock()
	defer p.mu.Unlock()
	f := p.f[id].f
	delete(p.f, id)
	return f
}

// drop forgets the functions of lost contexts: the driver will not call them.
func (p *pendingFuncs) drop(of *lostState) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for id, f := range p.f {
		if f.loss == of {
			delete(p.f, id)
		}
	}
}
