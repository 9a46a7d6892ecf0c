package sock

import (
	"os"

	"github.com/gpufd/gpufd/internal/descriptor/fdtrace"
)

const (
	// MaxRecord is the longest record, in bytes.
	MaxRecord = 64 << 10

	// MaxFDs is the largest number of descriptors in one record.
	MaxFDs = 64
)

// Record is what Receive returns. The receiver owns Data, a copy of 1 to MaxRecord
// bytes, and Files. It closes the files with Close, which closes all that Take has not
// taken, or with CloseFiles or DropFiles.
type Record struct {
	Data  []byte
	Files []*os.File // 0 to MaxFDs, close-on-exec
}

// Take returns file number i, which the caller then owns and closes. It returns nil
// if there is no such file, or if it was taken before.
func (r *Record) Take(i int) *os.File {
	if r == nil || i < 0 || i >= len(r.Files) {
		return nil
	}
	f := r.Files[i]
	r.Files[i] = nil
	return f
}

// Close closes the files that were not taken, with CloseFiles. It may be called again
// and on nil.
func (r *Record) Close() error {
	if r == nil {
		return nil
	}
	files := r.Files
	r.Files = nil
	return CloseFiles(files)
}

// receivedFiles returns an *os.File for each descriptor that a peer sent.
func receivedFiles(fds []int, from sender) []*os.File {
	if len(fds) == 0 {
		return nil
	}
	files := make([]*os.File, len(fds))
	for i, fd := range fds {
		files[i] = fdtrace.File(fd, "received")
		from.sent(files[i])
	}
	return files
}
