package share

import (
	"errors"
	"fmt"
	"os"

	"github.com/gpufd/gpufd/internal/descriptor"
	"github.com/gpufd/gpufd/internal/serve"
	"github.com/gpufd/gpufd/internal/wire"
	"github.com/gpufd/gpufd/sock"
)

// maxCursors is the largest memory of its own that a lease may have, in bytes.
const maxCursors = 16 << 20

// cursorSeals keep the size of a file of cursors, and nothing else: both sides write it.
const cursorSeals = descriptor.Size

// Cursors returns the memory of this lease alone ([OfferOptions].CursorSize), or nil if the offer has
// none. The attachment owns the file and closes it; mappings of it stay.
func (a *Attachment) Cursors() *os.File {
	if a.isZero() {
		return nil
	}
	return a.cursors
}

// addCursors takes the memory that comes behind the offer. It owns files, one descriptor,
// also if it fails.
func (a *attaching) addCursors(files []*os.File) error {
	if !a.whole || a.awaitsDataFile() || a.offer.CursorSize == 0 || a.cursors != nil {
		return errors.Join(serve.Unexpected(wire.Cursors{}, "where none belongs"), sock.CloseFiles(files))
	}
	if err := checkSealed(files[0], a.offer.CursorSize, cursorSeals); err != nil {
		return errors.Join(fmt.Errorf("%w: cursors: %w", wire.ErrMalformed, err), sock.CloseFiles(files))
	}
	a.cursors = files[0]
	return nil
}

// awaitsDataFile reports whether application data has still to come behind the offer.
func (a *attaching) awaitsDataFile() bool { return a.offer.DataSize != 0 && a.data == nil }

// isComplete reports whether all that belongs to the offer is here.
func (a *attaching) isComplete() bool {
	return a.whole && !a.awaitsDataFile() && (a.offer.CursorSize == 0 || a.cursors != nil)
}
