package launch

import (
	"errors"
	"fmt"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/internal/cli"
)

// The largest sizes of a grid and of a block, in X, Y and Z.
var (
	gridLimits  = []cu.Attribute{cu.AttributeMaxGridDimX, cu.AttributeMaxGridDimY, cu.AttributeMaxGridDimZ}
	blockLimits = []cu.Attribute{cu.AttributeMaxBlockDimX, cu.AttributeMaxBlockDimY, cu.AttributeMaxBlockDimZ}
)

// withinLimits refuses sizes that the device or the kernel can never take, and readies
// the kernel for its shared memory.
func (l *launcher) withinLimits(k *kernel) error {
	a, err := k.fn.Attributes()
	if err != nil {
		return err
	}
	if err := l.sizesFit("--grid", l.grid, gridLimits); err != nil {
		return err
	}
	if err := l.sizesFit("--block", l.block, blockLimits); err != nil {
		return err
	}
	// Each is some thousands at most by now.
	threads := l.block[0] * l.block[1] * l.block[2]
	if most := uint64(a.MaxThreadsPerBlock); threads > most {
		return fmt.Errorf("--block %s: that is %s, and kernel %s takes at most %d in a block", &l.block, cli.Count(threads, "thread"), k.name, most)
	}
	if err := l.buffersFit(); err != nil {
		return err
	}
	return l.sharedFits(k, a)
}

func (l *launcher) sizesFit(flag string, d dim, limits []cu.Attribute) error {
	for i, size := range d {
		most, err := l.dev.Attribute(limits[i])
		if err != nil {
			return err
		}
		if size > uint64(most) {
			return fmt.Errorf("%s %s: device %s takes at most %d in %c", flag, &d, l.dev, most, "XYZ"[i])
		}
	}
	return nil
}

// sharedFits checks that the device has enough shared memory for a block, and makes the
// kernel allow it.
func (l *launcher) sharedFits(k *kernel, a cu.FunctionAttributes) error {
	most, err := l.dev.Attribute(cu.AttributeMaxSharedMemoryPerBlockOptin)
	if errors.Is(err, cu.ErrInvalidValue) || err == nil && most == 0 {
		most, err = l.dev.Attribute(cu.AttributeMaxSharedMemoryPerBlock)
	}
	if err != nil {
		return err
	}
	left := uint64(max(most-a.Shared, 0))
	if uint64(l.shared) > left {
		return fmt.Errorf("--shared %s: kernel %s has %d bytes of its own, and a block on device %s can have at most %d", l.shared, k.name, a.Shared, l.dev, most)
	}
	if uint64(l.shared) > uint64(a.MaxDynamicShared) {
		return k.fn.SetMaxDynamicShared(uint32(l.shared))
	}
	return nil
}

// buffersFit refuses buffers that the device could never hold.
func (l *launcher) buffersFit() error {
	total, err := l.dev.TotalMemory()
	if err != nil {
		return err
	}
	left := total
	for i, a := range l.args {
		if a.value != nil {
			continue
		}
		if a.size > left {
			return fmt.Errorf("argument %d, %q, of %s: the buffers are larger than device %s, which has %s",
				i+1, a.text, cli.Human(a.size), l.dev, cli.Human(total))
		}
		left -= a.size
	}
	return nil
}
