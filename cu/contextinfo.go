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

// SetFlags sets the context's flags, those of the primary context for everybody
// in this process (cuCtxSetFlags, CUDA 12.1; on older drivers
// [Device.SetPrimaryFlags] does that, and nothing does it for other contexts).
// [ContextMapHost] stays as it was when the context was made.
func (c *Context) SetFlags(flags ContextFlags) error {
	return c.run("cuCtxSetFlags", func(call sys.Caller) sys.CUresult { return call.CuCtxSetFlags(uint32(flags)) })
}

// ID tells the context from every other one in this process, at any time; a
// handle may come back (cuCtxGetId, CUDA 12.0).
func (c *Context) ID() (uint64, error) {
	v := new(uint64)
	err := c.run("cuCtxGetId", func(call sys.Caller) sys.CUresult { return call.CuCtxGetId(c.inner.ctx, v) })
	return *v, err
}

// APIVersion is the version of the driver API that the context was made with,
// as the driver counts those: 3020 since CUDA 3.2 (cuCtxGetApiVersion). The
// driver's own is [Driver.Version].
func (c *Context) APIVersion() (int, error) {
	v := new(uint32)
	err := c.run("cuCtxGetApiVersion", func(call sys.Caller) sys.CUresult { return call.CuCtxGetApiVersion(c.inner.ctx, v) })
	return int(*v), err
}

// StreamPriorityRange returns the priorities that streams can have, from the
// least to the greatest. A lower number is a greater priority, so that least
// is not below greatest; both are 0 on devices without priorities
// (cuCtxGetStreamPriorityRange).
func (c *Context) StreamPriorityRange() (least, greatest int, err error) {
	l, g := new(int32), new(int32)
	err = c.run("cuCtxGetStreamPriorityRange", func(call sys.Caller) sys.CUresult {
		return call.CuCtxGetStreamPriorityRange(l, g)
	})
	return int(*l), int(*g), err
}
