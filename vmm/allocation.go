package vmm

import (
	"errors"
	"fmt"
	"os"
	"sync"

	"github.com/gpufd/gpufd/cu"
)

// An Allocation is physical memory on a device, or of the host, that can be exported as
// a file descriptor. The caller owns it. It is safe for concurrent use.
type Allocation struct {
	dev    *cu.Device // nil for memory of the host
	place  cu.Location
	handle *cu.MemHandle // nil in an Allocation that nobody has made
	own    bool          // made here, so it can be exported

	mu sync.Mutex
	fd *os.File // exported once, or kept from an import; handed out as duplicates
}

// Create makes size bytes of physical memory on dev, which read as zeros. size is
// a multiple of the granularity ([Granularity]).
func Create(dev *cu.Device, size uint64) (*Allocation, error) {
	if dev == nil {
		return nil, noDevice("creating memory")
	}
	return createFor(dev, size, cu.HandleFD)
}

// noDevice returns the error of an operation that was given a nil device.
func noDevice(op string) error {
	return fmt.Errorf("%w: %s needs a device; get one from Driver.Device or Driver.Devices", ErrNil, op)
}

// createFor makes memory for types of handle.
func createFor(dev *cu.Device, size uint64, types cu.HandleType) (*Allocation, error) {
	h, err := dev.CreateMemory(size, types)
	if err != nil {
		return nil, fmt.Errorf("vmm: creating %d bytes on device %s: %w", size, dev, err)
	}
	return &Allocation{dev: dev, place: dev.Location(), handle: h, own: true}, nil
}

// ImportAllocation makes an Allocation of memory that another process exported:
// size bytes on dev, as that process says. The caller keeps f and may close it at
// once. Use it to map several allocations, perhaps of several devices, in one
// [Reservation]; [Import] does everything for a buffer. [Reservation.Map] finds
// out if size is a lie; ImportAllocation does not.
//
// Errors: [cu.ErrUnknown] for a descriptor that is not memory; a [*DescriptorError]
// for memory on another device, or of the host: for that see [ImportHost].
func ImportAllocation(dev *cu.Device, f *os.File, size uint64) (*Allocation, error) {
	if dev == nil {
		return nil, noDevice("importing memory")
	}
	h, err := dev.Driver().ImportMemory(f, size)
	if err != nil {
		return nil, err
	}
	return importedOn(dev, h)
}

// importedOn makes an Allocation of h, which it takes over. h has to be memory of
// dev.
func importedOn(dev *cu.Device, h *cu.MemHandle) (*Allocation, error) {
	p, err := h.Properties()
	if err == nil && p.Location != dev.Location() {
		err = badField("device", fmt.Sprintf("is %s, but the memory is on %s", dev, p.Location))
	}
	if err != nil {
		return nil, errors.Join(err, h.Close())
	}
	return &Allocation{dev: dev, place: dev.Location(), handle: h}, nil
}

// Device returns the device that the memory is on, nil for memory of the host.
func (a *Allocation) Device() *cu.Device {
	if a == nil {
		return nil
	}
	return a.dev
}

// Size returns the memory's size in bytes.
func (a *Allocation) Size() uint64 {
	if a == nil || a.handle == nil {
		return 0
	}
	return a.handle.Size()
}

// Export returns a new descriptor for the memory, which the caller owns. It asks
// the driver the first time only; later descriptors are duplicates of the first
// (fcntl(2), F_DUPFD_CLOEXEC). Memory of [ImportAllocation] gives
// [ErrNotShareable].
func (a *Allocation) Export() (*os.File, error) {
	if a == nil {
		return nil, closedError("allocation")
	}
	f, err := a.lend()
	if err != nil {
		return nil, err
	}
	return dup(f)
}

// lend returns the descriptor that duplicates are made of.
func (a *Allocation) lend() (f *os.File, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case a.handle == nil:
		return nil, closedError("allocation")
	case a.fd != nil:
		return a.fd, nil
	case !a.own:
		return nil, fmt.Errorf("%w: it was imported or is closed; import the buffer WithReexport, or pass on the descriptor that it came from", ErrNotShareable)
	}
	a.fd, err = a.handle.Export()
	return a.fd, err
}

// Close releases the handle and the kept descriptor. Mappings of the memory stay,
// and keep it.
func (a *Allocation) Close() error {
	if a == nil || a.handle == nil {
		return nil
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.fd != nil {
		_ = a.fd.Close() // closing our own descriptor cannot fail in a way that matters
		a.fd = nil
	}
	return a.handle.Close()
}

func closeAll(chunks []*Allocation) error {
	var errs []error
	for _, c := range chunks {
		errs = append(errs, c.Close())
	}
	return errors.Join(errs...)
}

// Granularity returns the number of bytes that sizes of shareable memory on dev
// must be multiples of.
func Granularity(dev *cu.Device) (uint64, error) {
	if dev == nil {
		return 0, noDevice("the granularity")
	}
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
