package vmm

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/internal/descriptor/fdtrace"
)

// Export returns the buffer's description and one descriptor per chunk, which the
// caller owns. The driver exports each chunk the first time only. Finish the work on the memory before you tell a peer:
// [cu.Device.Synchronize]. Imported memory gives [ErrNotShareable], unless it was
// imported [WithReexport].
func (b *Buffer) Export() (Descriptor, []*os.File, error) { return b.exportPart(whole) }

// ExportRange is Export of a part of the buffer. offset is a multiple of the
// chunk size; the part ends with the chunk that holds its last byte.
func (b *Buffer) ExportRange(offset, size uint64) (Descriptor, []*os.File, error) {
	return b.exportPart(func(Descriptor) (uint64, uint64) { return offset, size })
}

// exportPart exports duplicates of the descriptors of a part.
func (b *Buffer) exportPart(part func(Descriptor) (offset, size uint64)) (d Descriptor, files []*os.File, err error) {
	err = b.export(part, func(part Descriptor, kept []*os.File) (err error) {
		d = part
		files, err = dupAll(kept)
		return err
	})
	return d, files, err
}

// A Loan is the description of a buffer with descriptors that stay the buffer's.
// Whoever offers the buffer passes those on, which costs no duplicates. The Loan's owner ends
// it with Close; until then the buffer cannot be closed ([ErrInUse]). It does not
// contain what the buffer grows by later.
type Loan struct {
	Descriptor Descriptor
	Files      []*os.File // one per chunk, not to be closed or used after Close

	// Access is the most that may be given on: ReadWrite, or the buffer's own if
	// its memory was imported. The descriptors themselves carry no rights.
	Access cu.Access

	buf  *Buffer
	over bool // under buf.mu
}

// Lend is [Buffer.Export] of the buffer's own descriptors.
func (b *Buffer) Lend() (*Loan, error) {
	l := &Loan{buf: b}
	err := b.export(whole, func(d Descriptor, kept []*os.File) error {
		l.Descriptor, l.Files, l.Access = d, kept, cu.ReadWrite
		if b.imported {
			l.Access = b.opts.access
		}
		b.loans++
		return nil
	})
	if err != nil {
		return nil, err
	}
	return l, nil
}

// Close ends the loan. It may be called again and on nil, and does not fail.
func (l *Loan) Close() error {
	if l == nil || l.buf == nil {
		return nil
	}
	l.buf.mu.Lock()
	defer l.buf.mu.Unlock()
	if !l.over {
		l.over = true
		l.buf.loans--
	}
	return nil
}

func whole(d Descriptor) (offset, size uint64) { return 0, d.Size }

// export exports a part, all in one state of the buffer, and calls use with the
// descriptors that the buffer keeps.
func (b *Buffer) export(part func(Descriptor) (offset, size uint64), use func(Descriptor, []*os.File) error) error {
	return b.whileOpen(func() error {
		d := b.describe()
		offset, size := part(d)
		if size == 0 || offset%d.ChunkSize != 0 || offset > d.Size || size > d.Size-offset {
			return fmt.Errorf("%w: %d bytes at offset %d of a buffer of %d in chunks of %d",
				ErrSize, size, offset, d.Size, d.ChunkSize)
		}
		first := int(offset / d.ChunkSize)
		d.Size, d.Chunks = size, int((size-1)/d.ChunkSize+1)
		files, err := lendAll(b.content.chunks[first : first+d.Chunks])
		if err != nil {
			return err
		}
		return use(d, files)
	})
}

// lendAll returns the descriptors that duplicates are made of.
func lendAll(chunks []*Allocation) (files []*os.File, err error) {
	files = make([]*os.File, len(chunks))
	for i, c := range chunks {
		if files[i], err = c.lend(); err != nil {
			return nil, err
		}
	}
	return files, nil
}

// dupAll duplicates the files in kept.
func dupAll(kept []*os.File) (files []*os.File, err error) {
	for _, k := range kept {
		f, err := dup(k)
		if err != nil {
			closeFiles(files)
			return nil, err
		}
		files = append(files, f)
	}
	return files, nil
}

func closeFiles(files []*os.File) {
	for _, f := range files {
		_ = f.Close()
	}
}

// dup duplicates f, but never as a standard descriptor: a driver takes 0 for
// none.
func dup(f *os.File) (*os.File, error) {
	raw, err := f.SyscallConn()
	if err != nil {
		return nil, err
	}
	var fd int
	var dupErr error
	err = raw.Control(func(old uintptr) { fd, dupErr = unix.FcntlInt(old, unix.F_DUPFD_CLOEXEC, 3) })
	if err == nil {
		err = os.NewSyscallError("fcntl F_DUPFD_CLOEXEC", dupErr)
	}
	if err != nil {
		return nil, fmt.Errorf("duplicating a memory descriptor: %w; each chunk needs two: use larger chunks or raise the limit on open files (ulimit -n)", err)
	}
	return fdtrace.File(fd, f.Name()), nil
}
