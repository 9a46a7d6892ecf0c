package channel

import (
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpufd/gpufd/cu"
)

// A cursor is the memory of one reader and the writer, mapped here and known to the device.
type cursor struct {
	words
	reg  *cu.HostRegistration
	base cu.DevicePtr
}

// openCursor maps a file of that size, and registers it with the context.
func openCursor(ctx *cu.Context, f *os.File, size uint64) (c *cursor, err error) {
	raw, err := f.SyscallConn()
	if err != nil {
		return nil, err
	}
	c = &cursor{}
	if cerr := raw.Control(func(fd uintptr) { c.words, err = mapWords(fd, size) }); cerr != nil || err != nil {
		return nil, errors.Join(cerr, err)
	}
	c.reg, err = ctx.RegisterHost(c.b, cu.RegisterMapped|cu.RegisterPortable)
	if err == nil {
		if c.base = c.reg.Ptr(); c.base == 0 {
			err = errors.New("streams cannot address registered memory here")
		}
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("channel: registering cursors of %d bytes: %w", size, err), c.close())
	}
	return c, nil
}

// device is the address of a word for streams.
func (c *cursor) device(off int) cu.DevicePtr { return c.base.Add(uint64(off)) }

// close ends the cursor. No stream may have to do with it any more: one that waits there
// would keep the driver here for ever (E11). Nothing has changed if it returns ErrInUse. The context has to be
// open: one that is being closed unregisters memory at a time that close would not know.
func (c *cursor) close() error {
	if c.b == nil {
		return nil
	}
	if err := c.reg.Close(); err != nil && !errors.Is(err, cu.ErrContextLost) {
		if !errors.Is(err, ErrInUse) {
			c.b = nil // it stays mapped, because the driver may still know it
		}
		return err
	}
	err := unix.Munmap(c.b)
	c.b = nil
	return os.NewSyscallError("munmap", err)
}

// How long a wait looks at a word: without yielding, and without sleeping, which is longer if
// the wait before was short; and the pauses of one that has to look again, because a stream that
// writes the word wakes nobody.
const (
	aloneFor = 3 * time.Microsecond
	spinFor  = 50 * time.Microsecond
	spinMost = 4 * spinFor // more than it takes to be woken, or two that sleep in turn would go on so
	pollMin  = 20 * time.Microsecond
	pollMax  = 250 * time.Microsecond
	sleepMax = 10 * time.Millisecond // also where a bell rings: so long a context's end may go unnoticed
)
