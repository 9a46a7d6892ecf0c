package consumer

import (
	"context"
	"time"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/internal/cli"
	"github.com/gpufd/gpufd/internal/commands/app"
	"github.com/gpufd/gpufd/internal/pattern"
)

// A verifier compares the memory with the pattern, piece by piece: on the device,
// or on the host, to which the next piece is copied while one is compared.
type verifier struct {
	*consumer
	size  uint64
	meta  pattern.Meta
	told  time.Time // when the producer last heard of progress
	alone bool      // the producer does not hear any more
}

// verify returns a *pattern.Mismatch if the data is wrong.
func (v *verifier) verify(ctx context.Context) (err error) {
	if v.meta, err = v.consumer.meta(); err != nil {
		return err
	}
	v.app.SayWay("verify", "verifying", v.kernels)
	wrong, err := v.compare(ctx)
	if err != nil {
		return err
	}
	if v.kernels.OnGPU() {
		v.app.Say("compared", app.Fields{"bytes": v.size}, "Compared %d bytes on the GPU", v.size)
	} else {
		v.app.Say("copied", app.Fields{"bytes": v.size}, "Copied %d bytes from GPU to host", v.size)
	}
	fields := app.Fields{"ok": wrong.Wrong == 0, "integers": v.meta.Count, "wrong": wrong.Wrong}
	if wrong.Wrong == 0 {
		v.app.Say("verified", fields, "Data verification PASSED (%s verified)", cli.Count(v.meta.Count, "integer"))
		return nil
	}
	fields["index"], fields["want"], fields["got"] = wrong.Index, wrong.Want, wrong.Got
	v.app.Say("verified", fields, "Data verification FAILED (%d of %s wrong, the first at index %d: want 0x%08x, got 0x%08x)",
		wrong.Wrong, cli.Count(v.meta.Count, "integer"), wrong.Index, wrong.Want, wrong.Got)
	return &wrong
}

func (v *verifier) compare(ctx context.Context) (wrong pattern.Mismatch, err error) {
	src := v.att.Ptr()
	if v.kernels.OnGPU() {
		return v.kernels.Check(ctx, src, v.size, v.meta.Salt, func(done uint64) error { return v.progress(ctx, done) })
	}
	err = pattern.Stream(ctx, v.size,
		func(offset uint64, b []byte) error { return cu.CopyToHost(v.ctx, b, src.Add(offset)) },
		func(offset uint64, b []byte) error {
			wrong.Add(pattern.Check(b, offset/pattern.Size, v.meta.Salt))
			return v.progress(ctx, offset+uint64(len(b)))
		})
	return wrong, err
}

// progress shows how far the check is, and tells the producer a few times a second. The
// check goes on without a producer, because its result is worth knowing, but not if the
// memory has to be closed.
func (v *verifier) progress(ctx context.Context, done uint64) error {
	v.app.Progress("verifying", done, v.size)
	if v.isTakenBack() {
		return v.att.Err()
	}
	if v.alone || time.Since(v.told) < 250*time.Millisecond {
		return nil
	}
	v.told = time.Now()
	v.alone = v.att.Progress(ctx, done, v.size) != nil
	return nil
}
