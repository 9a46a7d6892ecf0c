package soft

import (
	"math"

	"github.com/gpufd/gpufd/cu/soft/internal/ptx"
	"github.com/gpufd/gpufd/cu/sys"
)

// A context is a primary context between its first retain and its last
// release, or one of cuCtxCreate. It owns streams, events and the memory of
// cuMemAlloc and cuMemHostAlloc; memory of cuMemCreate belongs to the process
// (D20a).
type context struct {
	*health   // the machine's
	handle    sys.CUcontext
	dev       *device
	destroyed bool
	attached  int // of cuCtxCreate and cuCtxAttach; a primary context has 0
	api       uint32
	flags     uint32
	limits    map[sys.CUlimit]uintptr
	cache     sys.CUfunc_cache
	peers     map[*context]bool // that cuCtxEnablePeerAccess has let it access
	legacy    *stream
	perThread map[int]*stream
	streams   map[*stream]bool // destroyed ones too, while they have work
	heap      *ptx.Heap        // of its kernels; nil before the first
	prints    printed          // by its kernels
}

// A health is how the process' contexts are: those of all devices are lost
// together, for what is left of it.
type health struct {
	sticky sys.CUresult   // set by the first failure of asynchronous work
	ends   map[int]func() // what ends the kernels that run
	ended  int            // how many there have been
}

// onLoss calls end when the contexts are lost, unless forget was called before.
// The machine is locked for all three.
func (h *health) onLoss(end func()) (forget func()) {
	if h.ends == nil {
		h.ends = make(map[int]func())
	}
	h.ended++
	id, ends := h.ended, h.ends
	ends[id] = end
	return func() { delete(ends, id) }
}

// primary reports whether the context is its device's primary one.
func (ctx *context) primary() bool { return ctx.attached == 0 }

// A thread is what the driver keeps of an OS thread: its stack of contexts,
// the current one last.
type thread struct {
	stack       []sys.CUcontext
	captureMode sys.CUstreamCaptureMode
}

// current returns the calling thread's context, if calls can be made in it.
func (m *machine) current() (*context, sys.CUresult) {
	if r := m.ready(); r != sys.CUDA_SUCCESS {
		return nil, r
	}
	h := m.currentHandle()
	if h == 0 {
		return nil, sys.CUDA_ERROR_INVALID_CONTEXT
	}
	return m.context(h)
}

// anywhere returns why a call is refused that needs no current context, but no
// bad one either.
func (m *machine) anywhere() sys.CUresult {
	r := m.ready()
	if r == sys.CUDA_SUCCESS && m.currentHandle() != 0 {
		_, r = m.current()
	}
	return r
}

// context returns a context by its handle, or why it takes no calls.
func (m *machine) context(h sys.CUcontext) (*context, sys.CUresult) {
	ctx := m.contexts[h]
	switch {
	case ctx == nil && m.isA(kindContext, uint64(h)):
		return nil, sys.CUDA_ERROR_CONTEXT_IS_DESTROYED
	case ctx == nil:
		return nil, sys.CUDA_ERROR_INVALID_CONTEXT
	case ctx.destroyed:
		return nil, sys.CUDA_ERROR_CONTEXT_IS_DESTROYED
	}
	return ctx, ctx.sticky
}

// contextOr is context for calls where a null handle means the current one.
func (m *machine) contextOr(h sys.CUcontext) (*context, sys.CUresult) {
	if h == 0 {
		return m.current()
	}
	if r := m.ready(); r != sys.CUDA_SUCCESS {
		return nil, r
	}
	return m.context(h)
}

// known is contextOr for the few calls that a lost context answers still: those
// that ask what it is.
func (m *machine) known(h sys.CUcontext) (*context, sys.CUresult) {
	ctx, r := m.contextOr(h)
	if ctx != nil {
		r = sys.CUDA_SUCCESS
	}
	return ctx, r
}

// named is known for the calls that an ended primary context answers, too.
func (m *machine) named(h sys.CUcontext) (*context, sys.CUresult) {
	ctx, r := m.known(h)
	if r != sys.CUDA_ERROR_CONTEXT_IS_DESTROYED {
		return ctx, r
	}
	if h == 0 {
		h = m.currentHandle()
	}
	for _, d := range m.devices {
		if d.last != nil && d.last.handle == h {
			return d.last, sys.CUDA_SUCCESS
		}
	}
	return nil, r
}

// currentHandle returns the calling thread's current context, or 0. A thread
// that the kernel gave the number of a dead one inherits its context; Go's
// threads hardly ever die.
func (m *machine) currentHandle() sys.CUcontext {
	t := m.threads[threadID()]
	if t == nil || len(t.stack) == 0 {
		return 0
	}
	return t.stack[len(t.stack)-1]
}

// thread returns the calling thread's state.
func (m *machine) thread() *thread {
	id := threadID()
	if m.threads[id] == nil {
		m.threads[id] = new(thread)
	}
	return m.threads[id]
}

// knows reports whether h is or was a context.
func (m *machine) knows(h sys.CUcontext) bool {
	return m.contexts[h] != nil || m.isA(kindContext, uint64(h))
}

// cuCtxSetCurrent succeeds for destroyed and poisoned contexts; the call after
// it fails (D20a).
func (m *machine) cuCtxSetCurrent(h sys.CUcontext) sys.CUresult {
	return m.locked(func() sys.CUresult {
		if h != 0 && !m.knows(h) {
			return m.misuse(sys.CUDA_ERROR_INVALID_CONTEXT, "cuCtxSetCurrent(%#x): no context", h)
		}
		t := m.thread()
		if n := len(t.stack); n > 0 {
			t.stack = t.stack[:n-1]
		}
		if h != 0 {
			t.stack = append(t.stack, h)
		}
		return sys.CUDA_SUCCESS
	})
}

func (m *machine) cuCtxPushCurrent(h sys.CUcontext) sys.CUresult {
	return m.locked(func() sys.CUresult {
		if h == 0 {
			return sys.CUDA_ERROR_INVALID_VALUE
		}
		if !m.knows(h) {
			return m.misuse(sys.CUDA_ERROR_INVALID_CONTEXT, "cuCtxPushCurrent(%#x): no context", h)
		}
		t := m.thread()
		t.stack = append(t.stack, h)
		return sys.CUDA_SUCCESS
	})
}

func (m *machine) cuCtxPopCurrent(out *sys.CUcontext) sys.CUresult {
	return m.locked(func() sys.CUresult {
		t := m.thread()
		n := len(t.stack)
		if n == 0 {
			return sys.CUDA_ERROR_INVALID_CONTEXT
		}
		setOptional(out, t.stack[n-1])
		t.stack = t.stack[:n-1]
		return sys.CUDA_SUCCESS
	})
}

func (m *machine) cuCtxGetCurrent(out *sys.CUcontext) sys.CUresult {
	return m.locked(func() sys.CUresult { return set(out, m.currentHandle()) })
}

func (m *machine) cuCtxGetDevice(out *sys.CUdevice) sys.CUresult {
	return m.cuCtxGetDevice_v2(out, 0)
}

func (m *machine) cuCtxGetDevice_v2(out *sys.CUdevice, h sys.CUcontext) sys.CUresult {
	return value(m, m.named, h, out, func(ctx *context) sys.CUdevice { return m.number(ctx.dev) })
}

// The versions that cuCtxGetApiVersion returns: for contexts that cuCtxCreate
// of CUDA 2.0 made, and for those since CUDA 3.2.
const (
	firstAPI = 3010
	laterAPI = 3020
)

func (m *machine) cuCtxGetApiVersion(h sys.CUcontext, out *uint32) sys.CUresult {
	r := value(m, m.known, h, out, func(ctx *context) uint32 { return ctx.api })
	if h != 0 && r == sys.CUDA_ERROR_CONTEXT_IS_DESTROYED {
		return sys.CUDA_ERROR_INVALID_CONTEXT
	}
	return r
}

func (m *machine) cuCtxGetId(h sys.CUcontext, out *uint64) sys.CUresult {
	return with(m, m.known, h, func(ctx *context) sys.CUresult {
		if r := ctx.state(); h == 0 && r != sys.CUDA_SUCCESS {
			return r
		}
		return set(out, contextNumber(uint64(ctx.handle)))
	})
}

// Stream priorities, the greatest being the lowest number.
const (
	leastPriority    = 0
	greatestPriority = -5
)

func (m *machine) cuCtxGetStreamPriorityRange(least, greatest *int32) sys.CUresult {
	return withContext(m, m.current, func(*context) sys.CUresult {
		setOptional(least, leastPriority)
		setOptional(greatest, greatestPriority)
		return sys.CUDA_SUCCESS
	})
}

func (m *machine) cuCtxSynchronize() sys.CUresult { return m.cuCtxSynchronize_v2(0) }

func (m *machine) cuCtxSynchronize_v2(h sys.CUcontext) sys.CUresult {
	return m.afterWork(func() (*context, sys.CUresult) {
		ctx, r := m.contextOr(h)
		if r == sys.CUDA_SUCCESS {
			r = ctx.refuse()
		}
		return ctx, r
	}, nil)
}

// afterWork waits for the work of the context that find returns, and then calls
// then, unless that is nil. The machine is locked for both, and not for the wait.
// Without a context, or with an error, there is nothing to wait for, and find's
// result is the call's.
func (m *machine) afterWork(find func() (*context, sys.CUresult), then func() sys.CUresult) sys.CUresult {
	m.mu.Lock()
	ctx, r := find()
	if ctx == nil || r != sys.CUDA_SUCCESS {
		m.mu.Unlock()
		return r
	}
	work := ctx.tails(everyStream)
	m.mu.Unlock()
	if r = m.await(ctx, work); r != sys.CUDA_SUCCESS || then == nil {
		return r
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return then()
}

// await waits for work, unlocked, shows what kernels have printed, and returns the
// context's state after it.
func (m *machine) await(ctx *context, work []*op) sys.CUresult {
	for _, o := range work {
		<-o.done
	}
	ctx.prints.flush()
	m.mu.Lock()
	defer m.mu.Unlock()
	m.shrinkAll(ctx.dev, math.MaxUint64)
	return ctx.sticky
}

// tails returns the last unfinished work of the context's streams that want
// names, and forgets destroyed streams that have finished.
func (ctx *context) tails(want func(*stream) bool) (work []*op) {
	for s := range ctx.streams {
		switch {
		case s.busy() && want(s):
			work = append(work, s.tail)
		case s.destroyed && !s.busy():
			delete(ctx.streams, s)
		}
	}
	return work
}

// everyStream is what tails is given to return all.
func everyStream(*stream) bool { return true }

// fail poisons all contexts of the process: every later call in
// them returns r, and there will be no new ones. The first failure stays.
func (h *health) fail(r sys.CUresult) {
	if h.sticky == sys.CUDA_SUCCESS {
		h.sticky = r
		for _, end := range h.ends {
			end()
		}
	}
}
