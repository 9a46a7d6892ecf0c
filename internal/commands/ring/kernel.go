package ring

import (
	"context"
	"errors"
	"fmt"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/internal/cli"
	"github.com/gpufd/gpufd/kernels"
)

// The kernel that fills, of package kernels or of the file of --module: its name,
// and the module that it is in.
const (
	kernelName   = "fill_bytes"
	kernelModule = "memory"
)

// threads are those of a block.
const threads = 256

// A filler fills memory with the kernel.
type filler struct {
	fn     *cu.Function
	blocks uint64 // that the device runs at once
	piece  uint64 // bytes that it fills at a time
}

// loadFiller loads the kernel, from a file if there is one.
func loadFiller(ctx *cu.Context, file string) (f filler, err error) {
	module, err := loadModule(ctx, file)
	if err != nil {
		return f, err
	}
	f.fn, err = module.Function(kernelName)
	if errors.Is(err, cu.ErrNotFound) {
		return f, fmt.Errorf("--module %s has no kernel %s, which takes an address, a u64 number of bytes and a u8 value: %w", file, kernelName, err)
	}
	if err != nil {
		return f, err
	}
	per, err := f.fn.MaxActiveBlocks(threads, 0)
	if err != nil {
		return f, err
	}
	processors, err := ctx.Device().Attribute(cu.AttributeMultiprocessorCount)
	f.blocks, f.piece = uint64(max(per, 1))*uint64(processors), cli.Piece(ctx.Device())
	return f, err
}

func loadModule(ctx *cu.Context, file string) (m *cu.Module, err error) {
	if file != "" {
		if m, err = ctx.LoadModuleFile(file); err != nil {
			err = fmt.Errorf("--module %s: %w", file, err)
		}
		return m, err
	}
	for _, b := range kernels.Builtins() {
		if b.Name == kernelModule {
			return ctx.LoadModule([]byte(b.PTX))
		}
	}
	return nil, fmt.Errorf("package kernels has no module %s", kernelModule)
}

// fill fills size bytes at dst, at least one, and waits until that or ctx is done. It
// calls progress after each piece.
func (f filler) fill(ctx context.Context, s *cu.Stream, dst cu.DevicePtr, size uint64, value byte, progress func() error) error {
	for offset := uint64(0); offset < size; offset += f.piece {
		err := f.fillPiece(ctx, s, dst.Add(offset), min(f.piece, size-offset), value)
		if err == nil {
			err = progress()
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// fillPiece is fill for one piece.
func (f filler) fillPiece(ctx context.Context, s *cu.Stream, dst cu.DevicePtr, size uint64, value byte) error {
	blocks := min((size-1)/threads+1, f.blocks)
	err := f.fn.Launch(s, cu.LaunchConfig{Grid: cu.Dim3{X: uint32(blocks)}, Block: cu.Dim3{X: threads}}, dst, size, value)
	if err != nil {
		return err
	}
	return s.Synchronize(ctx)
}
