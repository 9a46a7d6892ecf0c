package serve

import (
	"os"

	"github.com/gpufd/gpufd/internal/descriptor"
	"github.com/gpufd/gpufd/internal/wire"
	"github.com/gpufd/gpufd/sock"
)

// beginCursors makes the lease's own memory and calls CursorTerms.Begin.
func (l *Lease) beginCursors() {
	c := l.offering.opts.Cursors
	if c == nil {
		return
	}
	f, err := descriptor.Fixed("gpufd cursors", int64(c.Size))
	if err == nil {
		l.cursors = f
		err = c.Begin(l, f)
	}
	if err != nil {
		l.refused = wire.Refuse{Code: wire.RefusedBusy, Text: err.Error()}
	}
}

// withCursors adds to the records of the offer the one that brings the lease's own memory.
func (l *Lease) withCursors(records []parcel) []parcel {
	if l.cursors == nil {
		return records
	}
	return append(records[:len(records):len(records)], parcel{wire.Encode(wire.Cursors{}), []*os.File{l.cursors}})
}

// DropCursors closes the memory of a lease, or of an attaching that failed.
func DropCursors(f *os.File) {
	if f != nil {
		_ = sock.CloseFiles([]*os.File{f})
	}
}
