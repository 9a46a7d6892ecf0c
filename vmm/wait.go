package vmm

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/internal/wait"
)

// The pauses between two attempts to create memory double between these. Each
// is drawn at random, from half of it on: those who wait for the same memory
// should not go on snatching parts of it from each other.
const (
	waitMin = 10 * time.Millisecond
	waitMax = 500 * time.Millisecond
)

// WithWait has [New] wait for physical memory that is not free, where it would
// fail with [cu.ErrOutOfMemory]: it tries again, with pauses that grow from 10
// ms to half a second, until others have given back enough or ctx is done. The
// error then matches cu.ErrOutOfMemory, ctx.Err() and the cause, and says how
// long it took and how much is free. While New waits it holds no part of the
// memory: two who held half each would wait for each other. ctx bounds nothing
// but the waiting. More than the device has fails at once.
func WithWait(ctx context.Context) Option { return func(o *options) { o.wait = ctx } }

// GrowWait is [Buffer.Grow] that waits for physical memory, as New does with
// [WithWait]. The buffer can be used, and closed, meanwhile.
func (b *Buffer) GrowWait(ctx context.Context, size uint64) error {
	return await(ctx, b.dev, size, b.opts, func() error { return b.Grow(size) })
}

// await calls create until it does not want physical memory any more, or ctx is
// done; a nil ctx never waits. What fails in create leaves nothing behind. size
// is how much has to be there in the end. To have waited is a step.
func await(ctx context.Context, dev *cu.Device, size uint64, o *options, create func() error) error {
	start := time.Now()
	err := create()
	if ctx == nil || !WouldWait(err) || !couldHold(dev, size) {
		return err
	}
	s := Step{Op: "wait", Size: size}
	for pause := waitMin; WouldWait(err); pause = min(2*pause, waitMax) {
		if !sleep(ctx, pause/2+rand.N(pause/2)) {
			return waitedInVain(ctx, dev, size, time.Since(start), err)
		}
		s.Took = time.Since(start)
		err = create()
	}
	if err == nil && o.onStep != nil {
		o.onStep(s)
	}
	return err
}

// WouldWait reports whether err, of [New] or [Buffer.Grow], is what [WithWait] and
// [Buffer.GrowWait] wait for: that the device has no physical memory free. Want of
// address space, which gives [cu.ErrOutOfMemory] too, is not.
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

// waitedInVain is what a wait that was given up ends with.
func waitedInVain(ctx context.Context, dev *cu.Device, size uint64, waited time.Duration, err error) error {
	return fmt.Errorf("waited %s in vain for %d bytes on device %s, %s: %w; %w",
		waited.Round(time.Millisecond), size, dev, freeWords(dev), wait.Err(ctx), err)
}

// freeWords says how much of a device is free, for which there has to be a
// context.
func freeWords(dev *cu.Device) string {
	ctx, err := dev.PrimaryContext()
	if err != nil {
		return "which does not say how much is free (" + err.Error() + ")"
	}
	free, total, err := ctx.MemInfo()
	if err = errors.Join(err, ctx.Close()); err != nil {
		return "which does not say how much is free (" + err.Error() + ")"
	}
	return fmt.Sprintf("of whose %d bytes %d are free", total, free)
}
