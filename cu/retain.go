package cu

import (
	"maps"
	"runtime"
	"slices"
	"sync"

	"github.com/gpufd/gpufd/cu/sys"
)

// handles is a set of references to contexts.
type handles struct {
	mu   sync.Mutex
	open map[*contextHandle]struct{}
}

// references are the open references to one context. The driver counts those to a
// primary context, too, but none to a created one.
type references struct {
	handles
	null  sync.Mutex // held while the null stream is asked what it has to do: see marking
	tails tails
}

func (r *handles) add(h *contextHandle) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.open == nil {
		r.open = map[*contextHandle]struct{}{}
	}
	r.open[h] = struct{}{}
}

// drop undoes add, and returns how many there are left.
func (r *handles) drop(h *contextHandle) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.open, h)
	return len(r.open)
}

func (r *handles) has(h *contextHandle) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	_, has := r.open[h]
	return has
}

func (r *handles) all() []*contextHandle {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Collect(maps.Keys(r.open))
}

// references returns those to the context of h.
func (h *contextHandle) references() *references {
	if h.created != nil {
		return h.created
	}
	return &h.dev.primaries
}

func (h *contextHandle) remember() {
	h.references().add(h)
	h.dev.drv.open.add(h)
	if h.created == nil {
		h.dev.users.Add(1)
	}
}

// forget undoes remember.
func (h *contextHandle) forget() {
	h.references().drop(h)
	h.dev.drv.open.drop(h)
	if h.created == nil {
		h.dev.users.Done()
	}
}

// Retain returns another reference to the context, which the caller owns and ends
// with Close (cuDevicePrimaryCtxRetain; none for a context of
// [Device.NewContext]). The context ends when all references are closed. Each
// closes only what was made in it: queued work goes on after the reference of its
// stream is closed.
//
// Errors: [ErrClosed]; [ErrContextLost] once the contexts of the process are
// lost.
func (c *Context) Retain() (*Context, error) {
	if c == nil {
		return nil, unusable(retainOp, "the context", true)
	}
	defer runtime.KeepAlive(c)
	h := c.inner
	h.dev.reset.RLock() // before the gate, for which ResetPrimary waits
	defer h.dev.reset.RUnlock()
	if !h.enter() {
		return nil, unusable(retainOp, "the context", false)
	}
	defer h.leave()
	if h.created == nil {
		return h.dev.context(retainOp, nil, h.dev.retainPrimary)
	}
	return h.dev.context("cuCtxCreate_v2", h.created, func(ctx *sys.CUcontext) sys.CUresult {
		*ctx = h.ctx
		return sys.CUDA_SUCCESS
	})
}
