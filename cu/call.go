package cu

import (
	"runtime"

	"github.com/gpufd/gpufd/cu/sys"
)

// Three methods make every driver call of this package:
//
//   - run makes a call with a handle that can be closed: a Context, and what is made
//     in one, a Library, a Pool, a MemHandle. It refuses a nil or closed handle
//     ([ErrClosed]), keeps it open until the call is over, and turns the result into
//     an error. It binds the context, if there is one, and refuses a lost one
//     ([ContextLostError]). A Stream has runIn, for work of a context; launch, for launches;
//     and borrow, for copies between contexts.
//   - create is run for a call that makes something for a context to own. What a
//     Stream or Graph makes is adopted within their run.
//   - check turns a result into an error: for a Driver or Device, which are never
//     closed, and for calls that close.
//
// Within them, older and answer handle results that are no errors.

// run makes one driver call with the context bound. Close waits for it.
func (c *Context) run(op string, f func(sys.Caller) sys.CUresult) error {
	if c == nil || !c.inner.enter() {
		return unusable(op, "the context", c == nil)
	}
	defer runtime.KeepAlive(c)
	defer c.inner.leave()
	if err := c.inner.loss.refuse(op); err != nil {
		return err
	}
	return c.inner.check(op, f(c.inner.call))
}

// create is run for a call that makes child, which the context closes unless its
// owner has done so.
func (c *Context) create(op string, child closer, f func(sys.Caller) sys.CUresult) error {
	return c.run(op, func(call sys.Caller) sys.CUresult {
		r := f(call)
		if r == sys.CUDA_SUCCESS {
			c.inner.adopt(child)
		}
		return r
	})
}

// made returns v, or nil if making it failed.
func made[T any](v *T, err error) (*T, error) {
	if err != nil {
		return nil, err
	}
	return v, nil
}

// ask returns what a query stores; run is that of a stream, graph or the like.
func ask[H, T any](run func(string, func(sys.Caller, H) sys.CUresult) error, op string, query func(sys.Caller, H, *T) sys.CUresult) (T, error) {
	v := new(T)
	err := run(op, func(call sys.Caller, h H) sys.CUresult { return query(call, h, v) })
	return *v, err
}

// check is the driver's check, and remembers a result that the context does not
// survive.
func (h *contextHandle) check(op string, r sys.CUresult) error {
	if r == sys.CUDA_SUCCESS {
		return nil
	}
	err := h.dev.drv.check(op, r)
	h.loss.notice(err)
	return err
}

// run makes one driver call on the stream.
func (s *Stream) run(op string, f func(sys.Caller, sys.CUstream) sys.CUresult) error {
	if s == nil || !s.enter() {
		return unusable(op, "the stream", s == nil)
	}
	defer s.leave()
	return s.ctx.run(op, func(call sys.Caller) sys.CUresult { return f(call, s.stream) })
}

// runUncaptured is run for a call that cannot be captured. It is refused while the stream is.
func (s *Stream) runUncaptured(op string, f func(sys.Caller, sys.CUstream) sys.CUresult) error {
	return s.run(op, func(call sys.Caller, h sys.CUstream) sys.CUresult {
		if r := s.ctx.inner.refuseCaptured(call, h); r != sys.CUDA_SUCCESS {
			return r
		}
		return f(call, h)
	})
}

// runIn is run for work of c, such as its kernels and events, which a stream of
// another context cannot do.
func (s *Stream) runIn(c *Context, op string, f func(sys.Caller, sys.CUstream) sys.CUresult) error {
	if s != nil && s.ctx.inner.ctx != c.inner.ctx {
		return &Error{Op: op, Result: ErrInvalidHandle, Detail: "the stream belongs to another context"}
	}
	return s.run(op, f)
}

// launch is runIn for launches, the most frequent calls. On a stream of c itself
// it does not enter the context, which saves a fifth of what this package adds to
// a call (BenchmarkHotCalls): Close waits for the calls on the streams that the
// context owns. It does not own the null stream.
func (s *Stream) launch(c *Context, op string, f func(sys.Caller, sys.CUstream) sys.CUresult) error {
	if s == nil || s.stream == 0 || s.ctx.inner != c.inner {
		return s.runIn(c, op, f)
	}
	if !s.enter() {
		return unusable(op, "the stream", false)
	}
	defer s.leave()
	inner := c.inner
	if inner.isClosed() {
		return unusable(op, "the context", false)
	}
	if err := inner.loss.refuse(op); err != nil {
		return err
	}
	return inner.check(op, f(inner.call, s.stream))
}

// older returns r or, if the driver lacks the function, the result of its older
// ABI, f. Errors name the older one, which every driver has.
func older(r sys.CUresult, f func() sys.CUresult) sys.CUresult {
	if r == sys.SymbolMissing {
		return f()
	}
	return r
}

// answer stores the answer of a query: not ready is no error.
func answer(r sys.CUresult, ready *bool) sys.CUresult {
	if r == sys.CUDA_ERROR_NOT_READY {
		return sys.CUDA_SUCCESS
	}
	*ready = r == sys.CUDA_SUCCESS
	return r
}
