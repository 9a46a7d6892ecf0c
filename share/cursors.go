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

// MaxCursors is the largest memory of its own that a lease may have, in bytes.
const MaxCursors = 16 << 20

// cursorSeals keep the size of a file of cursors, and nothing else: both sides write it.
const cursorSeals = descriptor.Size

// WithCursors gives each lease size bytes of host memory of its own, which the consumer and
// this process write and nobody else has: a file of zeros of fixed size (memfd_create(2)).
// Before it sends the consumer anything, Offer calls begin with the file, on the goroutine
// of the connection; begin maps the file and takes care of the lease. The server owns the
// file and closes it when the lease has ended. If begin fails, the consumer is refused
// ([RefusedBusy]) with the text of the error.
//
// A consumer that does not take such memory ([WithCursorsOf]) is refused
// ([RefusedUnsupported]). The other side may write the memory at any time: copy first, then
// check.
func WithCursors(size uint64, begin func(l *Lease, f *os.File) error) OfferOption {
	return offerOption(func(o *serve.Terms) {
		o.Cursors = &serve.CursorTerms{Size: size}
		if begin != nil {
			o.Cursors.Begin = func(l *serve.Lease, f *os.File) error { return begin((*Lease)(l), f) }
		}
	})
}

// check returns what is wrong with the option, or nil; a nil option is fine.
func checkCursors(c *serve.CursorTerms) error {
	switch {
	case c == nil:
		return nil
	case c.Begin == nil:
		return errors.New("share: WithCursors without a function (nil)")
	case c.Size == 0 || c.Size > MaxCursors:
		return fmt.Errorf("share: WithCursors(%d): want 1 to %d bytes", c.Size, MaxCursors)
	}
	return nil
}

// WithCursorsOf lets Attach take memory of this lease's own ([WithCursors],
// [Attachment.Cursors]) of up to most bytes; more is [ErrTooLarge]. Without this option a
// producer that gives such memory refuses.
func WithCursorsOf(most uint64) AttachOption {
	return attachOption(func(o *attachOptions) { o.maxCursors = most })
}

// Cursors returns the memory of this lease alone ([WithCursors]), or nil if the offer has
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
		return errors.Join(fmt.Errorf("%w: cursors: %w", ErrWire, err), sock.CloseFiles(files))
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
