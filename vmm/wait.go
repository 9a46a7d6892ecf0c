package vmm

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/internal/plain"
)

// The pauses between two attempts to create memory double between these. Each is
// a random part of that, at least half: processes that wait for the same memory
// should not go on snatching parts of it from each other.
const (
	waitMin = 10 * time.Millisecond
	waitMax = 500 * time.Millisecond
)

// NewWait is [New] that waits for physical memory where New fails with
// [cu.ErrOutOfMemory]. It tries again, with pauses that grow from 10 ms to half a
// second, until others have freed enough or ctx ends. The error then matches
// cu.ErrOutOfMemory, ctx.Err() and the cause, and says how long it took and how
// much is free. While NewWait waits it holds no part of the memory: two processes
// with half each would wait for each other. ctx limits the waiting; if it has ended
// before, NewWait does nothing else. A size larger than the device's memory fails at
// once.
func NewWait(ctx context.Context, dev *cu.Device, size uint64, opts ...NewOption) (*Buffer, error) {
	return newBuffer(dev, size, opts, func(size uint64, create func() error) error {
		return await(ctx, dev, size, create)
	})
}

// await calls create until it does not fail for want of physical memory, or ctx ends. A create that
// fails leaves nothing behind. size is how much it makes.
func await(ctx context.Context, dev *cu.Device, size uint64, create func() error) error {
	if ctx == nil {
		return fmt.Errorf("%w: waiting for memory needs a context; New does not wait", ErrNil)
	}
	if err := plain.ContextErr(ctx); err != nil {
		return err
	}
	start := time.Now()
	err := create()
	if !WouldWait(err) || !couldHold(dev, size) {
		return err
	}
	for pause := waitMin; WouldWait(err); pause = min(2*pause, waitMax) {
		if !sleep(ctx, pause/2+rand.N(pause/2)) {
			return gaveUp(ctx, dev, size, time.Since(start), err)
		}
		err = create()
	}
	return err
}

// WouldWait reports whether err, of [New] or [Buffer.Grow], is what [NewWait] waits for: the device
// has no physical memory free. A lack of address space, which is [cu.ErrOutOfMemory] too, is not.
func WouldWait(err error) bool {
	var e *cu.Error
	return errors.As(err, &e) && e.Op == "cuMemCreate" && e.Result == cu.ErrOutOfMemory
}

// couldHold reports whether the device has so much memory, free or not.
func couldHold(dev *cu.Device, size uint64) bool {
	total, err := dev.TotalMemory()
	return err != nil || size <= total
}

// sleep returns false if ctx was done first.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// gaveUp returns the error of a wait that was given up.
func gaveUp(ctx context.Context, dev *cu.Device, size uint64, waited time.Duration, err error) error {
	return fmt.Errorf("vmm: %d bytes on device %s did not become free in %s, %s: %w; %w",
		size, dev, waited.Round(time.Millisecond), freeWords(dev), plain.ContextErr(ctx), err)
}

// freeWords says how much of a device is free. It needs a context for that.
func freeWords(dev *cu.Device) string {
	ctx, err := dev.PrimaryContext()
	if err != nil {
		return "free memory unknown (" + err.Error() + ")"
	}
	free, total, err := ctx.MemInfo()
	if err = errors.Join(err, ctx.Close()); err != nil {
		return "free memory unknown (" + err.Error() + ")"
	}
	return fmt.Sprintf("%d of %d bytes free", free, total)
}
