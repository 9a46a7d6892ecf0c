package main

import (
	"context"
	"time"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/internal/cli"
	"github.com/gpufd/gpufd/internal/pattern"
)

// A verifier copies the memory to the host piece by piece and compares it with
// the pattern; the next piece is copied while one is compared.
type verifier struct {
	*consumer
	size uint64
	meta pattern.Meta
	told time.Time // when the producer last heard of progress
}

// A piece is a part of the memory that has been copied to the host.
type piece struct {
	offset uint64
	data   []byte
	err    error
}

// verify returns a *pattern.Mismatch if the data is wrong.
func (v *verifier) verify(ctx context.Context) (err error) {
	if v.meta, err = v.consumer.meta(); err != nil {
		return err
	}
	wrong, err := v.compare(ctx)
	if err != nil {
		return err
	}
	v.app.Say("copied", cli.Fields{"bytes": v.size}, "Copied %d bytes from GPU to host", v.size)
	fields := cli.Fields{"ok": wrong.Wrong == 0, "integers": v.meta.Count, "wrong": wrong.Wrong}
	if wrong.Wrong == 0 {
		v.app.Say("verified", fields, "Data verification PASSED (%d integers verified)", v.meta.Count)
		return nil
	}
	fields["index"], fields["want"], fields["got"] = wrong.Index, wrong.Want, wrong.Got
	v.app.Say("verified", fields, "Data verification FAILED (%d of %d integers are wrong, the first at index %d: want 0x%08x, got 0x%08x)",
		wrong.Wrong, v.meta.Count, wrong.Index, wrong.Want, wrong.Got)
	return &wrong
}

func (v *verifier) compare(ctx context.Context) (wrong pattern.Mismatch, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	pieces, free := v.copyAhead(ctx)
	for p := range pieces {
		if p.err != nil {
			return wrong, p.err
		}
		wrong.Add(pattern.Check(p.data, p.offset/pattern.Size, v.meta.Salt))
		free <- p.data
		if err := v.progress(ctx, p.offset+uint64(len(p.data))); err != nil {
			return wrong, err
		}
	}
	return wrong, context.Cause(ctx)
}

// copyAhead copies piece after piece into the buffers that it finds in free,
// and ends early with an error or with ctx.
func (v *verifier) copyAhead(ctx context.Context) (pieces chan piece, free chan []byte) {
	pieces, free = make(chan piece), make(chan []byte, 2)
	for n := range uint64(cap(free)) {
		if n*pattern.Piece < v.size {
			free <- make([]byte, min(pattern.Piece, v.size))
		}
	}
	go func() {
		defer close(pieces)
		_ = pattern.Pieces(v.size, func(offset, n uint64) error {
			select {
			case host := <-free:
				p := piece{offset: offset, data: host[:n]}
				p.err = cu.CopyToHost(v.ctx, nil, p.data, v.att.Buffer().Ptr().Add(offset))
				return v.hand(ctx, pieces, p)
			case <-ctx.Done():
				return ctx.Err()
			}
		})
	}()
	return pieces, free
}

func (v *verifier) hand(ctx context.Context, pieces chan<- piece, p piece) error {
	select {
	case pieces <- p:
		return p.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// progress shows how far the check is, and tells the producer a few times a
// second.
func (v *verifier) progress(ctx context.Context, done uint64) error {
	v.app.Progress("verifying", done, v.size)
	if time.Since(v.told) < 250*time.Millisecond {
		return nil
	}
	v.told = time.Now()
	return v.att.Progress(ctx, done, v.size)
}
