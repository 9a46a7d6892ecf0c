package cu

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"

	"github.com/gpufd/gpufd/cu/sys"
)

// A Context is where copies, streams and kernels of one device live: its
// primary context ([Device.PrimaryContext]) or another ([Device.NewContext]).
// It is safe for concurrent use. The caller owns it.
type Context struct {
	inner *contextHandle
	null  *Stream
}

// contextHandle is what a lost Context leaves behind for its cleanup. Nothing
// in it may refer to the Context, or that would never be lost.
type contextHandle struct {
	gate
	dev      *Device
	ctx      sys.CUcontext
	call     sys.Caller  // with ctx
	created  *references // to the same context, made by cuCtxCreate; nil of the primary one
	loss     *lostState
	mu       sync.Mutex
	children map[closer]struct{}
	ended    []Unclosed // what Close found
	stack    Stack      // where it was made
}

// abandoned ends a Context that nobody can reach any more. A kernel may be using
// memory in it: then it is reported and stays. Driver calls may block, and all
// cleanups share one goroutine.
func (h *contextHandle) abandoned() {
	if kept := h.memory(); kept > 0 && !h.isClosed() {
		h.dev.drv.ReportLeak(Leak{What: fmt.Sprintf("a context with %d bytes of memory on device %s", kept, h.dev), Stack: h.stack})
		return
	}
	go h.close()
}

// memory returns how many bytes are allocated or pinned in the context.
func (h *contextHandle) memory() (n uint64) {
	for _, u := range h.unclosed() {
		n += u.Bytes
	}
	return n
}

// A closer is what a context owns.
type closer interface {
	close() bool // its gate's, as the next
	isClosed() bool
	closeIn(ctx *contextHandle) error // after that
	unclosed() Unclosed
}

// Device returns the context's device.
func (c *Context) Device() *Device {
	if c == nil {
		return nil
	}
	return c.inner.dev
}

// Handle returns the driver's own handle. [Context.Caller] keeps c reachable.
func (c *Context) Handle() sys.CUcontext {
	if c == nil {
		return 0
	}
	return c.inner.ctx
}

// Close waits for the calls in flight, closes what was made in c and releases the
// primary context (cuDevicePrimaryCtxRelease). A context of [Device.NewContext]
// is destroyed when no reference of [Context.Retain] is open any more
// (cuCtxDestroy).
//
// The last Close of a context waits in the driver for all work in it, even of
// closed streams. It never returns if a stream waits for a value that nobody
// writes: write the value first, see [Stream.WaitValue32].
func (c *Context) Close() error {
	if c == nil {
		return nil
	}
	defer runtime.KeepAlive(c)
	return c.inner.close()
}

func (h *contextHandle) close() error {
	if !h.gate.close() {
		return nil
	}
	defer h.forget()
	err := h.closeChildren()
	left := h.references().drop(h)
	if left == 0 {
		h.references().tails.drop(h)
	}
	return errors.Join(err, h.giveBack(left))
}

// closeChildren ends what was made in the context. No call is under way in it any
// more.
func (h *contextHandle) closeChildren() error {
	h.mu.Lock()
	children := h.children
	h.ended = h.unclosedChildren()
	h.children = nil
	h.mu.Unlock()
	var errs []error
	for c := range children {
		switch c.(type) {
		case *streamMemoryHandle, *externalBufferHandle: // before the stream that it is freed in, the memory that it is a part of
			errs = append(errs, h.closeChild(c))
			delete(children, c)
		}
	}
	for c := range children {
		errs = append(errs, h.closeChild(c))
	}
	return errors.Join(errs...)
}

// closeChild ends c after the calls on it. In a lost context it leaves the
// driver's part to the end of the context: the driver would refuse the call, or
// crash if another context has been destroyed.
func (h *contextHandle) closeChild(c closer) error {
	if !c.close() || h.loss.isLost() {
		return nil
	}
	return c.closeIn(h)
}

// adopt makes the context close c. It is called inside a run.
func (h *contextHandle) adopt(c closer) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.children[c] = struct{}{}
}

// releaseUnused is release for memory, whose Close first waits for work that may use it. what names the memory.
func (c *Context) releaseUnused(child closer, what func() string) error {
	defer runtime.KeepAlive(c)
	if child.isClosed() || c.inner.isClosed() {
		return nil
	}
	if err := c.inner.dev.drv.WaitToClose(context.Background(), what()); err != nil {
		return err
	}
	return c.release(child)
}

// release closes child for its owner, unless that was done or the context does it.
func (c *Context) release(child closer) error {
	defer runtime.KeepAlive(c)
	h := c.inner
	if !h.enter() {
		return nil
	}
	defer h.leave()
	defer h.disown(child) // behind it: WaitQueued waits for streams that are being closed
	return h.closeChild(child)
}

// owns reports whether the context would close c.
func (h *contextHandle) owns(c closer) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	_, mine := h.children[c]
	return mine
}

// disown takes c from the context, which no longer closes it. It is false if c
// was taken before, or the context closes it.
func (h *contextHandle) disown(c closer) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	_, mine := h.children[c]
	delete(h.children, c)
	return mine
}

// Synchronize waits until all work in the context is done or ctx ends
// (cuCtxSynchronize). The end of ctx ends the wait for the null stream and for
// open streams of this [Driver]. For other work the driver waits without end:
// that of closed streams, and of streams that got more after they were seen idle.
func (c *Context) Synchronize(ctx context.Context) error {
	if c == nil {
		return unusable("cuCtxSynchronize", "the context", true)
	}
	if ctx.Done() != nil {
		if err := c.waitForStreams(ctx); err != nil {
			return err
		}
	}
	return c.run("cuCtxSynchronize", func(call sys.Caller) sys.CUresult {
		if c.inner.dev.drv.captures.in(c.inner.ctx) { // the driver would refuse too, and spoil the capture
			return sys.CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED
		}
		return call.CuCtxSynchronize()
	})
}

// waitForStreams polls the null stream, which waits for others too, and then
// every stream that is still open.
func (c *Context) waitForStreams(ctx context.Context) error {
	for _, h := range append([]*streamHandle{c.null.streamHandle}, c.inner.streams()...) {
		s := Stream{h, c}
		if err := poll(ctx, s.Query); err != nil && !h.isClosed() {
			return err
		}
	}
	return nil
}

// streams returns the open streams of the context, of all references to it.
func (h *contextHandle) streams() (open []*streamHandle) {
	for _, ref := range h.references().all() {
		open = append(open, ref.ownStreams()...)
	}
	return open
}

// ownStreams returns the open streams that were made in h itself.
func (h *contextHandle) ownStreams() (open []*streamHandle) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for c := range h.children {
		if s, ok := c.(*streamHandle); ok {
			open = append(open, s)
		}
	}
	return open
}

// MemInfo returns the device's free and total memory in bytes
// (cuMemGetInfo).
func (c *Context) MemInfo() (free, total uint64, err error) {
	f, t := new(uintptr), new(uintptr)
	err = c.run("cuMemGetInfo_v2", func(call sys.Caller) sys.CUresult { return call.CuMemGetInfo_v2(f, t) })
	return uint64(*f), uint64(*t), err
}
