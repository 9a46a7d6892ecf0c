package cu

import (
	"errors"
	"runtime"

	"github.com/gpufd/gpufd/cu/sys"
)

// PrimaryContext retains the device's primary context, which the CUDA runtime,
// PyTorch and every caller of this method share (cuDevicePrimaryCtxRetain). The
// first retain in a process creates it, which takes a few hundred milliseconds.
// The caller owns a reference, which Close releases
// (cuDevicePrimaryCtxRelease).
//
// Errors: [ErrContextLost] once the contexts of the process are lost;
// [ErrDeviceUnavailable] where the [ComputeMode] forbids it; [ErrOutOfMemory].
func (dev *Device) PrimaryContext() (*Context, error) {
	dev.reset.RLock()
	defer dev.reset.RUnlock()
	return dev.context(retainOp, nil, dev.retainPrimary)
}

const retainOp = "cuDevicePrimaryCtxRetain"

func (dev *Device) retainPrimary(ctx *sys.CUcontext) sys.CUresult {
	return dev.drv.call.CuDevicePrimaryCtxRetain(ctx, dev.dev)
}

// NewContext creates a context apart from the primary one, with its own memory,
// streams and limits (cuCtxCreate_v4, or what older drivers have; cuCtxDestroy).
// The caller owns it. It is current on no thread.
//
// Most programs want [Device.PrimaryContext]: each context costs 0.1 s and 0.5
// GiB of device memory (H200), the CUDA runtime and its libraries do not use this
// one, and a failure in one is a failure in all ([ErrContextLost]).
//
// Errors: [ErrInvalidValue] for flags that the driver does not know or that
// contradict each other; else those of PrimaryContext.
func (dev *Device) NewContext(flags ContextFlags) (*Context, error) {
	return dev.context("cuCtxCreate_v2", &references{}, func(ctx *sys.CUcontext) sys.CUresult {
		call := dev.drv.call
		r := older(call.CuCtxCreate_v4(ctx, nil, uint32(flags), dev.dev), func() sys.CUresult {
			return call.CuCtxCreate_v3(ctx, nil, 0, uint32(flags), dev.dev)
		})
		return older(r, func() sys.CUresult { return call.CuCtxCreate_v2(ctx, uint32(flags), dev.dev) })
	})
}

// context makes a Context of what get gives for its caller's caller, unless the device is
// lost. created are the references to a context that cuCtxCreate made, nil for the primary one.
func (dev *Device) context(op string, created *references, get func(*sys.CUcontext) sys.CUresult) (*Context, error) {
	if err := dev.drv.loss.refuse(op); err != nil {
		return nil, err
	}
	ctx := new(sys.CUcontext)
	if err := dev.check(op, get(ctx)); err != nil {
		return nil, err
	}
	c := &Context{inner: &contextHandle{
		dev: dev, ctx: *ctx, call: dev.drv.call.With(*ctx), created: created,
		loss: &dev.drv.loss, children: map[closer]struct{}{}, stack: Here(1),
	}}
	c.null = &Stream{&streamHandle{}, c}
	c.inner.remember()
	runtime.AddCleanup(c, (*contextHandle).abandoned, c.inner)
	return c, nil
}

// check is the driver's check, and remembers a result that no context survives.
func (dev *Device) check(op string, r sys.CUresult) error {
	err := dev.drv.check(op, r)
	dev.drv.loss.notice(err)
	return err
}

// giveBack ends the context for the driver: the last thing that is done to it. left is how many references are.
func (h *contextHandle) giveBack(left int) error {
	call := h.dev.drv.call
	if h.created != nil {
		if left > 0 {
			return nil
		}
		return h.check("cuCtxDestroy_v2", call.CuCtxDestroy_v2(h.ctx))
	}
	return h.check("cuDevicePrimaryCtxRelease", older(call.CuDevicePrimaryCtxRelease_v2(h.dev.dev), func() sys.CUresult {
		return call.CuDevicePrimaryCtxRelease(h.dev.dev)
	}))
}

// PrimaryState returns the flags of the device's primary context, and whether
// it exists in this process, whoever retains it (cuDevicePrimaryCtxGetState).
func (dev *Device) PrimaryState() (flags ContextFlags, active bool, err error) {
	f, a := new(uint32), new(int32)
	err = dev.drv.check("cuDevicePrimaryCtxGetState", dev.drv.call.CuDevicePrimaryCtxGetState(dev.dev, f, a))
	return ContextFlags(*f), *a != 0, err
}

// SetPrimaryFlags sets the flags of the device's primary context for the whole
// process, now if it exists and until it ends (cuDevicePrimaryCtxSetFlags_v2).
// [ContextMapHost] is always on; do not pass it.
func (dev *Device) SetPrimaryFlags(flags ContextFlags) error {
	call := dev.drv.call
	r := older(call.CuDevicePrimaryCtxSetFlags_v2(dev.dev, uint32(flags)), func() sys.CUresult {
		return call.CuDevicePrimaryCtxSetFlags(dev.dev, uint32(flags))
	})
	return dev.drv.check("cuDevicePrimaryCtxSetFlags", r)
}

// ResetPrimary destroys the device's primary context in this process with all
// that is in it, and sets its flags to 0 (cuDevicePrimaryCtxReset_v2). The next
// [Device.PrimaryContext] makes a new one. It does not ask who else uses the
// context: the driver may crash if the CUDA runtime, another library or another
// [Driver] of this process uses what it had there. It is for the end of tests and
// for programs that know all that runs in them.
//
// It first closes the references that dev gave out. Contexts of
// [Device.NewContext] and memory of [Device.CreateMemory] stay. Like Close it
// waits in the driver for the work there is. It does not bring lost contexts
// back.
func (dev *Device) ResetPrimary() error {
	dev.reset.Lock()
	defer dev.reset.Unlock()
	errs := dev.closePrimaries()
	call := dev.drv.call
	r := older(call.CuDevicePrimaryCtxReset_v2(dev.dev), func() sys.CUresult { return call.CuDevicePrimaryCtxReset(dev.dev) })
	return errors.Join(errs, dev.check("cuDevicePrimaryCtxReset", r))
}

// closePrimaries closes the open references to the primary context, and waits for
// others that are being closed.
func (dev *Device) closePrimaries() error {
	var errs []error
	for _, h := range dev.primaries.all() {
		errs = append(errs, h.close())
	}
	dev.users.Wait()
	return errors.Join(errs...)
}
