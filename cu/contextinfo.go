package cu

import (
	"github.com/gpufd/gpufd/cu/sys"
)

// Flags returns the context's flags (cuCtxGetFlags). Those of the primary
// context hold [ContextMapHost].
func (c *Context) Flags() (ContextFlags, error) {
	v := new(uint32)
	err := c.run("cuCtxGetFlags", func(call sys.Caller) sys.CUresult { return call.CuCtxGetFlags(v) })
	return ContextFlags(*v), err
}

// SetFlags sets the context's flags, those of the primary context for the whole
// process (cuCtxSetFlags, CUDA 12.1; older drivers have only
// [Device.SetPrimaryFlags]). [ContextMapHost] stays as it was.
func (c *Context) SetFlags(flags ContextFlags) error {
	return c.run("cuCtxSetFlags", func(call sys.Caller) sys.CUresult { return call.CuCtxSetFlags(uint32(flags)) })
}

// ID returns a number that no other context of this process has or had, while
// handles may come back (cuCtxGetId, CUDA 12.0).
func (c *Context) ID() (uint64, error) {
	v := new(uint64)
	err := c.run("cuCtxGetId", func(call sys.Caller) sys.CUresult { return call.CuCtxGetId(c.inner.ctx, v) })
	return *v, err
}

// APIVersion returns the version of the driver API that the context was made
// with: 3020 since CUDA 3.2 (cuCtxGetApiVersion). See also [Driver.Version].
func (c *Context) APIVersion() (int, error) {
	v := new(uint32)
	err := c.run("cuCtxGetApiVersion", func(call sys.Caller) sys.CUresult { return call.CuCtxGetApiVersion(c.inner.ctx, v) })
	return int(*v), err
}

// StreamPriorityRange returns the range of stream priorities
// (cuCtxGetStreamPriorityRange). Lower is more urgent, so least ≥ greatest; both
// are 0 on devices without priorities.
func (c *Context) StreamPriorityRange() (least, greatest int, err error) {
	l, g := new(int32), new(int32)
	err = c.run("cuCtxGetStreamPriorityRange", func(call sys.Caller) sys.CUresult {
		return call.CuCtxGetStreamPriorityRange(l, g)
	})
	return int(*l), int(*g), err
}
