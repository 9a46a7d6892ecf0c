package vmm

import (
	"context"

	"github.com/gpufd/gpufd/cu"
)

// Store writes bytes of the buffer to files, the reverse of [Buffer.Load]. The
// files must be open for writing, and grow as needed. Finish work that writes the
// memory before. Store does not truncate the files and does not wait for the
// disk: use os.File.Truncate and Sync.
//
// If it fails, some of the ranges have been written and some not. Errors:
// [ErrSize] for ranges that reach beyond the buffer, or overlap in a file;
// [ErrFile]; else those of writing, such as ENOSPC, which name the file and the
// offset. ctx ends Store as it ends Load, and Store waits for work as Load does.
func (b *Buffer) Store(ctx context.Context, ranges []FileRange, o TransferOptions) error {
	if err := b.canTransfer(ctx, "storing"); err != nil {
		return err
	}
	if err := b.storable(ranges); err != nil {
		return err
	}
	return b.transfer(ctx, &transfer{options: o, doing: "storing", work: store}, ranges)
}

// store writes one slot to its file while the other is copied.
func store(ctx context.Context, w *worker) error {
	for i := 0; ; i++ {
		p, more, err := w.next(ctx)
		if err != nil {
			return err
		}
		if more {
			s := &w.slots[i%2]
			if err := cu.CopyToHostAsync(s.stream, s.bytes[:p.Size], w.base.Add(p.Offset)); err != nil {
				return err
			}
			s.piece = p
		}
		if err := w.write(ctx, &w.slots[(i+1)%2]); err != nil || !more {
			return err
		}
	}
}

// write writes what s holds, if anything, once its copy is done.
func (w *worker) write(ctx context.Context, s *slot) error {
	p := s.piece
	if p.Size == 0 {
		return nil
	}
	if err := s.stream.Synchronize(ctx); err != nil {
		return err
	}
	if n, err := p.File.WriteAt(s.bytes[:p.Size], int64(p.At)); err != nil {
		return fileError("storing to", p.File, p.At+uint64(n), err)
	}
	w.arrived(p.Size)
	s.piece = piece{}
	return nil
}
