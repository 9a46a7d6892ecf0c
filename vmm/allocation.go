package vmm

import (
	"errors"
	"fmt"
	"os"
	"sync"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/internal/made"
	"golang.org/x/sys/unix"
)

// An Allocation is physical memory on a device, which can be exported as a
// file descriptor. The caller owns it. It is safe for concurrent use.
type Allocation struct {
	dev    *cu.Device
	handle *cu.MemHandle
	own    bool // made here, so it can be exported

	mu sync.Mutex
	fd *os.File // exported once, handed out as duplicates
}

// Create makes size bytes of physical memory, which read as zeros, on dev.
// size is a multiple of the granularity ([Granularity]).
func Create(dev *cu.Device, size uint64) (*Allocation, error) {
	return createFor(dev, size, cu.HandleFD)
}

// createFor makes memory for types of handle.
func createFor(dev *cu.Device, size uint64, types cu.HandleType) (*Allocation, error) {
	h, err := dev.CreateMemory(size, types)
	if err != nil {
		return nil, fmt.Errorf("creating %d bytes on device %s: %w", size, dev, err)
	}
	return &Allocation{dev: dev, handle: h, own: true}, nil
}

// ImportAllocation makes an Allocation of memory that another process exported:
// size bytes on dev, as that process says. f stays the caller's and may be closed
// at once. It is for who maps several allocations, of several devices maybe, in one
// [Reservation]; [Import] does all for a buffer. It does not find out a lie about
// size: [Reservation.Map] does.
//
// Errors: [cu.ErrUnknown] for a descriptor that is no device memory; a
// [*DescriptorError] for memory on another device.
func ImportAllocation(dev *cu.Device, f *os.File, size uint64) (*Allocation, error) {
	return importAllocation(dev, func() (*cu.MemHandle, error) { return dev.Driver().ImportMemory(f, size) })
}

// importAllocation makes an Allocation of what get imports.
func importAllocation(dev *cu.Device, get func() (*cu.MemHandle, error)) (*Allocation, error) {
	h, err := get()
	if err != nil {
		return nil, err
	}
	a := &Allocation{dev: dev, handle: h}
	if err := a.isOn(dev); err != nil {
		return nil, errors.Join(err, h.Close())
	}
	return a, nil
}

// isOn asks the driver where imported memory is.
func (a *Allocation) isOn(dev *cu.Device) error {
	p, err := a.handle.Properties()
	if err == nil && p.Location != dev.Location() {
		err = badField("device", fmt.Sprintf("is %s, and the memory that came is on %s", dev, p.Location))
	}
	return err
}

// Device returns the device that the memory is on.
func (a *Allocation) Device() *cu.Device { return a.dev }

// Size is the memory's size in bytes.
func (a *Allocation) Size() uint64 { return a.handle.Size() }

// Export returns a new descriptor for the memory, which the caller owns. The
// driver is asked the first time only; later ones are duplicates of the first
// (fcntl(2), F_DUPFD_CLOEXEC). Imported memory gives [ErrNotShareable].
func (a *Allocation) Export() (*os.File, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if err := a.exportOnce(); err != nil {
		return nil, err
	}
	return dup(a.fd)
}

// export makes the descriptor that duplicates are made of, and returns its
// number.
func (a *Allocation) export() (int, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if err := a.exportOnce(); err != nil {
		return -1, err
	}
	return int(a.fd.Fd()), nil
}

// lend returns the descriptor that duplicates are made of, or nil.
func (a *Allocation) lend() *os.File {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.fd
}

// exported reports whether the driver need not be asked any more.
func (a *Allocation) exported() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.fd != nil
}

func (a *Allocation) exportOnce() (err error) {
	switch {
	case !a.own:
		return fmt.Errorf("%w: it was imported or closed; pass on the descriptor it came from", ErrNotShareable)
	case a.fd != nil:
		return nil
	}
	a.fd, err = a.handle.Export()
	return err
}

// Close releases the handle and the remembered descriptor. Mappings of the
// memory stay, and keep it.
func (a *Allocation) Close() error {
	if a == nil {
		return nil
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.fd != nil {
		_ = a.fd.Close() // closing a descriptor that is ours cannot fail in a way that matters
		a.fd = nil
	}
	return a.handle.Close()
}

// dup duplicates f, above the standard descriptors: a driver takes 0 for none.
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
		return nil, fmt.Errorf("duplicating a memory descriptor: %w; each chunk takes two, so use larger chunks or raise the limit on open files (ulimit -n)", err)
	}
	return made.File(fd, f.Name()), nil
}

// Granularity is what sizes of shareable memory on dev must be multiples of,
// in bytes.
func Granularity(dev *cu.Device) (uint64, error) {
	g, _, err := dev.Granularity(cu.HandleFD)
	return g, err
}

// AlignUp rounds size up to a multiple of granularity. ok is false if that
// does not fit in 64 bits or granularity is 0.
func AlignUp(size, granularity uint64) (aligned uint64, ok bool) {
	if granularity == 0 {
		return 0, false
	}
	aligned = (size + granularity - 1) / granularity * granularity
	return aligned, aligned >= size
}
