package vmm

import (
	"fmt"
	"runtime"
	"sync"

	"github.com/gpufd/gpufd/cu"
)

// A Reservation is device address space to map memory in. The caller owns it;
// Close gives it back once nothing is mapped there. One that is lost empty is
// freed by the garbage collector.
type Reservation struct {
	inner *reservation
}

// reservation is the state that the driver does not keep for us: it would
// unmap twice, or more than was mapped, and call that a success.
type reservation struct {
	drv  *cu.Driver
	ptr  cu.DevicePtr
	size uint64

	mu     sync.Mutex
	mapped map[uint64]uint64 // offset → size
	closed bool
}

// Reserve reserves size bytes of address space, a multiple of the granularity.
func Reserve(drv *cu.Driver, size uint64) (*Reservation, error) {
	r, err := reserve(drv, size)
	if err != nil {
		return nil, err
	}
	outer := &Reservation{r}
	runtime.AddCleanup(outer, func(r *reservation) { go r.close() }, r)
	return outer, nil
}

func reserve(drv *cu.Driver, size uint64) (*reservation, error) {
	p, err := drv.ReserveAddress(size, 0, 0)
	if err != nil {
		return nil, fmt.Errorf("reserving %d bytes of address space: %w", size, err)
	}
	return &reservation{drv: drv, ptr: p, size: size, mapped: map[uint64]uint64{}}, nil
}

// Ptr is the reservation's first address.
func (r *Reservation) Ptr() cu.DevicePtr { return r.inner.ptr }

// Address is Ptr, or [cu.ErrClosed] after Close.
func (r *Reservation) Address() (cu.DevicePtr, error) {
	r.inner.mu.Lock()
	defer r.inner.mu.Unlock()
	return openAt(r.inner.ptr, r.inner.closed)
}

// Size is the reservation's size in bytes.
func (r *Reservation) Size() uint64 { return r.inner.size }

// Close frees the address space. While something is mapped there it fails with
// [ErrMapped] and changes nothing.
func (r *Reservation) Close() error {
	if r == nil {
		return nil
	}
	return r.inner.close()
}

func (r *reservation) close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return nil
	}
	if len(r.mapped) > 0 {
		return fmt.Errorf("%w: reservation at %s with %d mappings", ErrMapped, r.ptr, len(r.mapped))
	}
	if err := r.drv.FreeAddress(r.ptr, r.size); err != nil {
		return err
	}
	r.closed = true
	return nil
}

// mapAt maps the whole of a at offset.
func (r *reservation) mapAt(offset uint64, a *Allocation) (*mapping, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return nil, cu.ErrClosed
	}
	size := a.Size()
	if err := r.free(offset, size); err != nil {
		return nil, err
	}
	p := r.ptr.Add(offset)
	if err := r.drv.Map(p, size, 0, a.handle); err != nil {
		return nil, fmt.Errorf("mapping %d bytes at %s: %w", size, p, err)
	}
	r.mapped[offset] = size
	return &mapping{res: r, alloc: a, offset: offset, size: size}, nil
}

// free says whether size bytes at offset can be mapped. It runs with mu held.
func (r *reservation) free(offset, size uint64) error {
	if offset > r.size || size > r.size-offset {
		return fmt.Errorf("%w: %d bytes at offset %d of a reservation of %d", ErrOccupied, size, offset, r.size)
	}
	if _, ok := r.mapped[offset]; ok {
		return fmt.Errorf("%w: offset %d is mapped", ErrOccupied, offset)
	}
	return nil // any other overlap the driver refuses
}

func (r *reservation) unmap(offset, size uint64) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.drv.Unmap(r.ptr.Add(offset), size); err != nil {
		return err
	}
	delete(r.mapped, offset)
	return nil
}

// setAccess gives devices rights on mapped ranges.
func (r *reservation) setAccess(offset, size uint64, a cu.Access, devices ...*cu.Device) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return cu.ErrClosed
	}
	return r.drv.SetAccess(r.ptr.Add(offset), size, a, devices...)
}
