package vmm

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"

	"github.com/gpufd/gpufd/cu"
)

// A FileRange is a part of a file, and its place in a buffer.
type FileRange struct {
	File   *os.File // a regular file, which stays the caller's
	At     uint64   // where in the file they begin, in bytes
	Offset uint64   // where in the buffer they begin, in bytes
	Size   uint64   // bytes
}

func (s FileRange) at() uint64     { return s.At }
func (s FileRange) offset() uint64 { return s.Offset }

// check finds what is wrong with s for a buffer of size bytes, and returns the size of
// its file.
func (s FileRange) check(size uint64) (fileSize uint64, err error) {
	if s.File == nil {
		return 0, fmt.Errorf("vmm: a range of no file: %w", os.ErrInvalid)
	}
	info, err := s.File.Stat()
	if err != nil {
		return 0, fmt.Errorf("vmm: %w", err)
	}
	if !info.Mode().IsRegular() {
		return 0, fmt.Errorf("%w: %s is %s", ErrFile, s.File.Name(), kindOf(info.Mode()))
	}
	if s.Offset > size || s.Size > size-s.Offset {
		return 0, fmt.Errorf("%w: %d bytes of %s do not fit at %d into a buffer of %d", ErrSize, s.Size, s.File.Name(), s.Offset, size)
	}
	const most = 1<<63 - 1 // off_t
	if s.At > most || s.Size > most-s.At {
		return 0, fmt.Errorf("%w: %d bytes at %d of %s: no file is so large", ErrSize, s.Size, s.At, s.File.Name())
	}
	return uint64(info.Size()), nil
}

// kindOf names a file that is not regular.
func kindOf(m fs.FileMode) string {
	switch {
	case m.IsDir():
		return "a directory"
	case m&fs.ModeNamedPipe != 0:
		return "a pipe"
	case m&fs.ModeSocket != 0:
		return "a socket"
	}
	return "a device"
}

// disjoint refuses ranges that overlap; begin says where each begins.
func disjoint(ranges []FileRange, where string, begin func(FileRange) uint64) error {
	sorted := slices.DeleteFunc(slices.Clone(ranges), func(s FileRange) bool { return s.Size == 0 })
	slices.SortFunc(sorted, func(a, b FileRange) int { return cmp.Compare(begin(a), begin(b)) })
	for i := 1; i < len(sorted); i++ {
		a, b := sorted[i-1], sorted[i]
		if begin(b)-begin(a) < a.Size {
			return fmt.Errorf("%w: two ranges overlap in %s: %d bytes at %d, and %d at %d",
				ErrSize, where, a.Size, begin(a), b.Size, begin(b))
		}
	}
	return nil
}

// loadable finds what is wrong with ranges to be loaded into b.
func (b *Buffer) loadable(ranges []FileRange) error {
	size := b.Size()
	for _, s := range ranges {
		has, err := s.check(size)
		if err != nil {
			return err
		}
		if s.At > has || s.Size > has-s.At {
			return tooShort(s.File, s.At, s.Size, has)
		}
	}
	if b.Access() != cu.ReadWrite {
		return fmt.Errorf("%w: Load needs a buffer that is mapped read-write", ErrAccess)
	}
	return disjoint(ranges, "the buffer", FileRange.offset)
}

// storable finds what is wrong with ranges to be stored from b.
func (b *Buffer) storable(ranges []FileRange) error {
	size, of := b.Size(), map[*os.File][]FileRange{}
	for _, s := range ranges {
		if _, err := s.check(size); err != nil {
			return err
		}
		of[s.File] = append(of[s.File], s)
	}
	if b.Access() == cu.NoAccess {
		return fmt.Errorf("%w: Store needs a buffer that is mapped for reading", ErrAccess)
	}
	for f, s := range of {
		if err := disjoint(s, f.Name(), FileRange.at); err != nil {
			return err
		}
	}
	return nil
}

// tooShort says that f, of has bytes, is too short for size bytes at offset at.
func tooShort(f *os.File, at, size, has uint64) error {
	return fmt.Errorf("vmm: %s has %d bytes; %d are needed from offset %d on: %w", f.Name(), has, size, at, io.ErrUnexpectedEOF)
}

// fileError names file and offset once.
func fileError(doing string, f *os.File, at uint64, err error) error {
	var path *fs.PathError
	if errors.As(err, &path) {
		err = path.Err
	}
	return fmt.Errorf("vmm: %s %s at offset %d: %w", doing, f.Name(), at, err)
}
