package vmm

import (
	"context"
	"fmt"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/internal/plain"
)

// Load reads files into the buffer by way of pinned memory, each range in one
// or more pieces. When it returns without an error, all of it has arrived, and
// later work on the device sees it. Load has streams of its own: finish work that
// reads or writes those parts of the buffer before.
//
// Load copies from the page cache what is there (preadv2(2), RWF_NOWAIT), and
// reads other files directly (open(2), O_DIRECT) where the file system allows
// that.
//
// ctx ends Load, after the reads that are under way. Then, and after any failure,
// some of the ranges' bytes in the buffer are new and some are as before;
// nothing else is left behind. While Load runs, the buffer cannot be closed
// ([ErrInUse]). Load uses the primary context of the buffer's device. The driver
// frees pinned memory when all work in that context is done (cuMemFreeHost), so
// none of its streams may wait for something that comes only after Load.
//
// Errors: [ErrSize] for a range that reaches beyond the buffer or overlaps with
// another there; [ErrFile] for a directory or a pipe; [io.ErrUnexpectedEOF] for a
// file that is too short, also if it shrinks meanwhile; [ErrAccess] for a buffer
// that is mapped read-only; those of [cu.Context.AllocHost]. Errors of files name
// the file and the offset.
func (b *Buffer) Load(ctx context.Context, ranges []FileRange, o TransferOptions) error {
	if err := b.canTransfer(ctx, "loading"); err != nil {
		return err
	}
	if err := b.loadable(ranges); err != nil {
		return err
	}
	return b.transfer(ctx, &transfer{options: o, doing: "loading", work: load}, ranges)
}

// canTransfer refuses a buffer that is closed, and a missing context.
func (b *Buffer) canTransfer(ctx context.Context, what string) error {
	if b.Ptr() == 0 {
		return closedError("buffer")
	}
	if ctx == nil {
		return fmt.Errorf("%w: %s needs a context", ErrNil, what)
	}
	return plain.ContextErr(ctx)
}

// load fills one slot while the other is copied.
func load(ctx context.Context, w *worker) error {
	for i := 0; ; i++ {
		s := &w.slots[i%2]
		if err := w.arrive(ctx, s); err != nil {
			return err
		}
		p, ok, err := w.next(ctx)
		if err != nil {
			return err
		}
		if !ok {
			return w.arrive(ctx, &w.slots[(i+1)%2])
		}
		b, err := p.src.read(s.bytes, p.At, p.Size)
		if err != nil {
			return err
		}
		if err := cu.CopyToDeviceAsync(s.stream, w.base.Add(p.Offset), b); err != nil {
			return err
		}
		s.piece = p
	}
}

// arrive waits for the copy of s, if one is under way.
func (w *worker) arrive(ctx context.Context, s *slot) error {
	if s.piece.Size == 0 {
		return nil
	}
	if err := s.stream.Synchronize(ctx); err != nil {
		return err
	}
	w.arrived(s.piece.Size)
	s.piece = piece{}
	return nil
}
