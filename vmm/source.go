package vmm

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/gpufd/gpufd/internal/descriptor/fdtrace"
)

// The alignment of direct reads, in the file and in memory, and the smallest size
// that is worth one.
const (
	directAlign = 4096
	directMin   = 256 << 10
)

// A source reads a file: from the page cache if that has it, else directly into
// the caller's memory where the file system allows that.
type source struct {
	file     *os.File
	buffered atomic.Bool // direct reads are unwanted, or were refused
	once     sync.Once
	direct   *os.File // set by once; nil if it cannot be opened
}

// read fills some of slot with size bytes of the file from at on, and returns
// those. slot is aligned for direct reads and has room for the blocks that they
// touch.
func (s *source) read(slot []byte, at, size uint64) ([]byte, error) {
	skip := at % directAlign
	if size >= directMin && !s.buffered.Load() && !s.cached(at, size) {
		if s.readDirect(slot, at-skip, skip+size) {
			return slot[skip : skip+size], nil
		}
	}
	b := slot[skip : skip+size]
	n, err := s.file.ReadAt(b, int64(at))
	switch {
	case n == len(b):
		return b, nil
	case errors.Is(err, io.EOF):
		return nil, tooShort(s.file, at, size, at+uint64(n))
	}
	return nil, fileError("reading", s.file, at+uint64(n), err)
}

// cached reports whether the page cache seems to have size bytes from at on, or
// cannot tell. It reads the first byte and the last, without waiting (preadv2(2),
// RWF_NOWAIT).
func (s *source) cached(at, size uint64) bool {
	return s.hasByte(at) && s.hasByte(at+size-1)
}

func (s *source) hasByte(at uint64) bool {
	raw, err := s.file.SyscallConn()
	if err != nil {
		return true
	}
	var b [1]byte
	var answer error
	err = raw.Control(func(fd uintptr) {
		_, answer = unix.Preadv2(int(fd), [][]byte{b[:]}, int64(at), unix.RWF_NOWAIT)
	})
	return err != nil || answer != unix.EAGAIN
}

// readDirect reads n bytes from at on, which is aligned, into slot. If it fails
// nobody tries it again: a buffered read will say what is wrong with the file.
func (s *source) readDirect(slot []byte, at, n uint64) bool {
	s.once.Do(s.openDirect)
	whole, ok := AlignUp(n, directAlign)
	if s.direct == nil || !ok {
		s.buffered.Store(true)
		return false
	}
	got, _ := s.direct.ReadAt(slot[:whole], int64(at)) // at the end of the file it is less than whole
	if uint64(got) < n {
		s.buffered.Store(true)
		return false
	}
	return true
}

// openDirect opens the file once more, with O_DIRECT. The caller's descriptor stays
// as it is.
func (s *source) openDirect() {
	raw, err := s.file.SyscallConn()
	if err != nil {
		return
	}
	fd, opened := -1, err
	err = raw.Control(func(old uintptr) {
		fd, opened = unix.Open(fmt.Sprintf("/proc/self/fd/%d", old), unix.O_RDONLY|unix.O_DIRECT|unix.O_CLOEXEC, 0)
	})
	if err == nil && opened == nil {
		s.direct = fdtrace.File(fd, s.file.Name())
	}
}

// close leaves the caller's file open.
func (s *source) close() error {
	if s.direct == nil {
		return nil
	}
	return s.direct.Close()
}
