//go:build cgo

package main

import (
	"context"
	"errors"

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
	module   *cu.Module
	function sys.CUfunction // an empty kernel
	launched *cu.Launch     // of it, prepared
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

// loadKernel loads the empty kernel.
func (s *stage) loadKernel() (err error) {
	if s.module, err = s.ctx.LoadModule([]byte(emptyKernel)); err != nil {
		return err
	}
	f, err := s.module.Function("empty")
	if err != nil {
		return err
	}
	s.function = f.Handle()
	s.launched, err = f.Prepare(cu.LaunchConfig{Grid: cu.Dim3{X: 1}, Block: cu.Dim3{X: 1}})
	return err
}

// close ends what was opened, in the order in which it is used.
func (s *stage) close() error {
	return errors.Join(s.module.Close(), s.host.Close(), s.there.Close(), s.here.Close(), s.event.Close(), s.stream.Close(), s.ctx.Close())
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
