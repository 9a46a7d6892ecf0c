// Package run loads kernels into a context and launches them, and waits for the numbers that they
// leave in device memory.
package run

import (
	"errors"
	"fmt"
	"math"
	"sync"

	"github.com/gpufd/gpufd/cu"
)

// A Set is kernels, loaded into a context. It is safe for concurrent use.
type Set struct {
	ctx     *cu.Context
	modules []*cu.Module
	kernels map[string]kernel

	mu     sync.Mutex
	free   []*Answer
	all    []*Answer
	closed bool
}

// A Module is PTX, and the names of the kernels in it.
type Module struct {
	Name, PTX string
	Kernels   []string
}

// A kernel is a function, and the number of its blocks that fill the device.
type kernel struct {
	f      *cu.Function
	blocks uint64
}

// threads is the number of threads in a block. All kernels work with any number.
const threads = 256

// ErrAlignment says that an address is not a multiple of what a kernel needs.
// Nothing reached the driver.
var ErrAlignment = errors.New("kernels: the address is not aligned")

// unusable says what is nil or closed. It matches [cu.ErrClosed].
type unusable string

const (
	neverLoaded = unusable("the kernels were never loaded")
	setClosed   = unusable("the kernels are closed")
)

func (u unusable) Error() string { return "kernels: " + string(u) }

// Unwrap returns [cu.ErrClosed].
func (unusable) Unwrap() error { return cu.ErrClosed }

// Load loads modules into ctx. Errors are those of [cu.Context.LoadModule].
func Load(ctx *cu.Context, modules ...Module) (*Set, error) {
	if ctx == nil {
		return nil, unusable("loading kernels: the context is nil")
	}
	k := &Set{ctx: ctx, kernels: map[string]kernel{}}
	processors, err := ctx.Device().Attribute(cu.AttributeMultiprocessorCount)
	if err != nil {
		return nil, err
	}
	for _, b := range modules {
		if err := k.load(b, processors); err != nil {
			return nil, errors.Join(fmt.Errorf("kernels: %s: %w", b.Name, err), k.Close())
		}
	}
	return k, nil
}

func (k *Set) load(b Module, processors int) error {
	m, err := k.ctx.LoadModule([]byte(b.PTX))
	if err != nil {
		return err
	}
	k.modules = append(k.modules, m)
	for _, name := range b.Kernels {
		f, err := m.Function(name)
		if err != nil {
			return err
		}
		per, err := f.MaxActiveBlocks(threads, 0)
		if err != nil {
			return err
		}
		k.kernels[name] = kernel{f, uint64(max(per, 1)) * uint64(processors)}
	}
	return nil
}

// Close unloads the kernels. Finish their work before: otherwise Close may wait
// for it in the driver, without end, and does not keep their memory. A second
// Close does nothing.
func (k *Set) Close() error {
	if k == nil {
		return nil
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.closed = true
	var errs []error
	for _, a := range k.all {
		errs = append(errs, a.close())
	}
	for _, m := range k.modules {
		errs = append(errs, m.Close())
	}
	k.all, k.free, k.modules = nil, nil, nil
	return errors.Join(errs...)
}

// Launch runs a kernel with a thread for each of n pieces of work, or as many
// threads as the device runs at once: then each takes several pieces.
func (k *Set) Launch(s *cu.Stream, name string, n uint64, args ...any) error {
	if n == 0 {
		return nil
	}
	f := k.kernels[name]
	blocks := min((n-1)/threads+1, f.blocks, math.MaxInt32)
	return f.f.Launch(s, cu.LaunchConfig{Grid: cu.Dim3{X: uint32(blocks)}, Block: cu.Dim3{X: threads}}, args...)
}

// Takes refuses a set that was never loaded, addresses that are not multiples of
// to, and, if there is work, the address 0. The driver would launch at that, and
// lose the context.
func (k *Set) Takes(n uint64, to cu.DevicePtr, ps ...cu.DevicePtr) error {
	if k == nil || k.ctx == nil {
		return neverLoaded
	}
	for _, p := range ps {
		if p == 0 && n > 0 {
			return unusable("there is no memory at address 0, the Ptr of closed memory and of 0 bytes")
		}
		if p%to != 0 {
			return fmt.Errorf("%w: %v is not a multiple of %d", ErrAlignment, p, to)
		}
	}
	return nil
}

// Quads returns the number of 16-byte pieces; the last may be short.
func Quads(bytes uint64) uint64 { return bytes/16 + (bytes%16+15)/16 }

// Usable refuses a set that is closed or was never loaded.
func (k *Set) Usable() error {
	if k == nil || k.ctx == nil {
		return neverLoaded
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.closed {
		return setClosed
	}
	return nil
}

// Context returns the context that the kernels are loaded into.
func (k *Set) Context() *cu.Context { return k.ctx }

// Answers returns how many answers there are, and how many of them nobody uses.
func (k *Set) Answers() (all, free int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return len(k.all), len(k.free)
}

// Mix is the finaliser of splitmix64, which kernels use too.
func Mix(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
