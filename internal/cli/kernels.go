package cli

import (
	"context"
	"errors"
	"time"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/internal/pattern"
	"github.com/gpufd/gpufd/kernels"
)

// Kernels writes and checks the pattern on the device, in a stream of its own. Other work
// on the memory must be done before. The caller owns it.
type Kernels struct {
	set *kernels.Set // nil: the CPU does the work
	ctx *cu.Context
}

// NewKernels loads the kernels into ctx, which Close leaves open.
func NewKernels(ctx *cu.Context) (*Kernels, error) {
	set, err := kernels.Load(ctx)
	if err != nil {
		return nil, err
	}
	return &Kernels{set: set, ctx: ctx}, nil
}

// OnGPU reports whether the kernels are loaded. Without them the CPU has to do the
// work: do not call Fill or Check.
func (k *Kernels) OnGPU() bool { return k.set != nil }

// Close unloads the kernels. A second Close does nothing.
func (k *Kernels) Close() error {
	if k == nil {
		return nil
	}
	return k.set.Close()
}

// Fill writes size bytes of the pattern to dst. It calls progress with how many are
// written so far.
func (k *Kernels) Fill(ctx context.Context, dst cu.DevicePtr, size uint64, salt uint32, progress func(done uint64) error) error {
	return k.each(ctx, size, progress, func(s *cu.Stream, offset, n uint64) error {
		if err := k.set.FillAsync(s, dst.Add(offset), n, offset/pattern.Size, salt); err != nil {
			return err
		}
		return s.Synchronize(ctx)
	})
}

// Check compares size bytes at src with the pattern, and calls progress as
// [Kernels.Fill] does.
func (k *Kernels) Check(ctx context.Context, src cu.DevicePtr, size uint64, salt uint32, progress func(done uint64) error) (wrong pattern.Mismatch, err error) {
	err = k.each(ctx, size, progress, func(s *cu.Stream, offset, n uint64) error {
		m, err := k.set.Check(ctx, s, src.Add(offset), n, offset/pattern.Size, salt)
		if err == nil && m.Wrong == 0 {
			err = k.distrust(ctx, s, src.Add(offset), min(n, control), offset/pattern.Size, salt)
		}
		wrong.Add(pattern.Mismatch(m))
		return err
	})
	return wrong, err
}

// control is how many bytes of a good piece are checked against another salt.
const control = 16

// distrust checks good data against another salt, which must fail: a kernel that never
// ran finds all data good.
func (k *Kernels) distrust(ctx context.Context, s *cu.Stream, src cu.DevicePtr, n, first uint64, salt uint32) error {
	m, err := k.set.Check(ctx, s, src, n, first, salt^1)
	if err == nil && m.Wrong != pattern.Count(n) {
		err = errors.New("the kernel that checks the data does not run: it finds wrong data good")
	}
	return err
}

// piece is how many bytes a kernel works on at a time, which takes some milliseconds.
var piece = map[cu.Kind]uint64{cu.CUDA: 4 << 30, cu.Soft: 1 << 20}

// Piece returns how many bytes of dev's memory a kernel should work on at a time, so that
// it takes some milliseconds.
func Piece(dev *cu.Device) uint64 { return piece[dev.Driver().Kind()] }

// grace is how long a kernel may take to end after its wait was given up.
const grace = 10 * time.Second

// each does all pieces of size bytes. When it returns, for whatever reason, no kernel uses the memory
// any more.
func (k *Kernels) each(ctx context.Context, size uint64, progress func(done uint64) error, do func(s *cu.Stream, offset, n uint64) error) (err error) {
	s, err := k.ctx.NewStream()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	for offset := uint64(0); offset < size; {
		n := min(Piece(k.ctx.Device()), size-offset)
		if err := do(s, offset, n); err != nil {
			return errors.Join(err, settle(ctx, s))
		}
		offset += n
		if err := progress(offset); err != nil {
			return err
		}
	}
	return nil
}

// settle waits for the work of s if ctx has ended and so nothing else does.
func settle(ctx context.Context, s *cu.Stream) error {
	if ctx.Err() == nil {
		return nil
	}
	late, cancel := context.WithTimeout(context.Background(), grace)
	defer cancel()
	return s.Synchronize(late)
}
