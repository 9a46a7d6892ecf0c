//go:build cgo

package main

import (
	"context"
	"errors"
	"fmt"
	"unsafe"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/sys"
)

// The sizes that are copied. The larger is that of all memory of a stage.
const (
	small = 4 << 10
	large = 1 << 20
)

// A stage is what the calls are made with: one context, one stream and one of
// everything else. Whoever opens it closes it.
type stage struct {
	drv      *cu.Driver
	dev      *cu.Device
	ctx      *cu.Context
	call     sys.Caller // with the context
	stream   *cu.Stream
	event    *cu.Event
	here     *cu.Memory
	there    *cu.Memory
	host     *cu.HostMemory
	function sys.CUfunction // an empty kernel; 0 where the driver runs none
	module   sys.CUmodule
}

// newStage sets the stage on the first device.
func newStage(drv *cu.Driver) (*stage, error) {
	s := &stage{drv: drv}
	if err := s.set(); err != nil {
		return nil, errors.Join(err, s.close())
	}
	return s, nil
}

func (s *stage) set() (err error) {
	if s.dev, err = s.drv.Device(0); err != nil {
		return err
	}
	if s.ctx, err = s.dev.PrimaryContext(); err != nil {
		return err
	}
	s.call = s.ctx.Caller()
	if s.stream, err = s.ctx.NewStream(); err != nil {
		return err
	}
	if s.event, err = s.ctx.NewEvent(cu.EventDisableTiming); err != nil {
		return err
	}
	if s.here, err = s.ctx.Alloc(large); err != nil {
		return err
	}
	if s.there, err = s.ctx.Alloc(large); err != nil {
		return err
	}
	if s.host, err = s.ctx.AllocHost(large, 0); err != nil {
		return err
	}
	return s.loadKernel()
}

// emptyKernel does nothing, on any GPU that has virtual memory management.
const emptyKernel = `.version 6.0
.target sm_60
.address_size 64
.visible .entry empty() { ret; }
`

// loadKernel loads the empty kernel, if the driver runs kernels.
func (s *stage) loadKernel() error {
	r := s.call.CuModuleLoadData(&s.module, unsafe.Pointer(sys.CString(emptyKernel)))
	if r == sys.CUDA_ERROR_NOT_SUPPORTED && s.drv.Kind() == cu.Soft {
		return nil
	}
	if r == sys.CUDA_SUCCESS {
		r = s.call.CuModuleGetFunction(&s.function, s.module, sys.CString("empty"))
	}
	return failure("loading the empty kernel", r)
}

// close ends what was opened, in the order in which it is used.
func (s *stage) close() error {
	var err error
	if s.module != 0 {
		err = failure("cuModuleUnload", s.call.CuModuleUnload(s.module))
	}
	return errors.Join(err, s.host.Close(), s.there.Close(), s.here.Close(), s.event.Close(), s.stream.Close(), s.ctx.Close())
}

// drain waits for the stream, outside the time.
func (s *stage) drain() error { return s.stream.Synchronize(context.Background()) }

// address is where the driver has a function, for C; 0 if it lacks it.
func (s *stage) address(symbol string) uintptr {
	a, err := s.drv.Caller().Library().Lookup(symbol)
	if err != nil {
		return 0
	}
	return a
}

// failure is r as an error, nil for success.
func failure(what string, r sys.CUresult) error {
	if r == sys.CUDA_SUCCESS {
		return nil
	}
	return fmt.Errorf("%s: %w", what, cu.Result(r))
}
