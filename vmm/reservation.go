package vmm

import (
	"cmp"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/internal/mapped"
	"github.com/gpufd/gpufd/internal/plain"
)

// A Reservation is device address space to map memory in. The caller owns it;
// Close frees it once nothing is mapped there. The garbage collector frees a lost
// Reservation that is empty.
type Reservation struct {
	inner *reservation // nil in a Reservation that Reserve has not made
}

// reservation is the state that the driver does not keep for us: it would unmap
// twice, or more than was mapped, and report success.
type reservation struct {
	drv    *cu.Driver
	ptr    cu.DevicePtr
	size   uint64
	closed atomic.Bool // written under mu

	mu     sync.Mutex
	mapped []place // of mappings, ascending
}

// A place is where something is mapped in a reservation.
type place struct {
	offset   uint64
	imported bool // it is memory of another process
}

func (p place) compare(offset uint64) int { return cmp.Compare(p.offset, offset) }

// Reserve reserves size bytes of address space, a multiple of the granularity.
func Reserve(drv *cu.Driver, size uint64) (*Reservation, error) {
	if drv == nil {
		return nil, fmt.Errorf("%w: reserving %d bytes of address space needs a driver", ErrNil, size)
	}
	r := &reservation{}
	if err := r.reserve(drv, size); err != nil {
		return nil, err
	}
	return owned(r), nil
}

// owned returns a Reservation that frees r if it is lost.
func owned(r *reservation) *Reservation {
	outer := &Reservation{r}
	runtime.AddCleanup(outer, func(r *reservation) { go r.close() }, r)
	return outer
}

// reserve makes r a reservation.
func (r *reservation) reserve(drv *cu.Driver, size uint64) error {
	p, err := drv.ReserveAddress(size, 0, 0)
	if err != nil {
		return fmt.Errorf("vmm: reserving %d bytes of address space: %w", size, err)
	}
	r.drv, r.ptr, r.size = drv, p, size
	return nil
}

// Ptr returns the reservation's first address, 0 after Close.
func (r *Reservation) Ptr() cu.DevicePtr {
	if r == nil || r.inner == nil || r.inner.closed.Load() {
		return 0
	}
	return r.inner.ptr
}

// Size returns the reservation's size in bytes.
func (r *Reservation) Size() uint64 {
	if r == nil || r.inner == nil {
		return 0
	}
	return r.inner.size
}

// Close frees the address space. While something is mapped there it fails with
// [ErrMapped] and changes nothing.
func (r *Reservation) Close() error {
	if r == nil || r.inner == nil {
		return nil
	}
	return r.inner.close()
}

func (r *reservation) close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed.Load() {
		return nil
	}
	if len(r.mapped) > 0 {
		return fmt.Errorf("%w: reservation at %s with %s", ErrMapped, r.ptr, plain.Count(len(r.mapped), "mapping"))
	}
	if err := r.drv.FreeAddress(r.ptr, r.size); err != nil {
		return err
	}
	r.closed.Store(true)
	return nil
}

// mapAt maps the whole of a at offset.
func (r *reservation) mapAt(offset uint64, a *Allocation) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed.Load() {
		return closedError("reservation")
	}
	size := a.Size()
	i, taken := slices.BinarySearchFunc(r.mapped, offset, place.compare)
	if err := r.checkFree(offset, size, taken); err != nil {
		return err
	}
	p := r.ptr.Add(offset)
	if err := r.drv.Map(p, size, 0, a.handle); err != nil {
		return fmt.Errorf("vmm: mapping %d bytes at %s: %w", size, p, err)
	}
	r.mapped = slices.Insert(r.mapped, i, place{offset, !a.own})
	if !a.own {
		mapped.Add(1)
	}
	return nil
}

// checkFree returns an error unless size bytes at offset can be mapped.
func (r *reservation) checkFree(offset, size uint64, taken bool) error {
	if offset > r.size || size > r.size-offset {
		return fmt.Errorf("%w: %d bytes at offset %d of a reservation of %d", ErrOccupied, size, offset, r.size)
	}
	if taken {
		return fmt.Errorf("%w: offset %d is mapped", ErrOccupied, offset)
	}
	return nil // any other overlap the driver refuses
}

// unmap unmaps all mappings in size bytes at offset.
func (r *reservation) unmap(offset, size uint64) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.drv.Unmap(r.ptr.Add(offset), size); err != nil {
		return err
	}
	i, _ := slices.BinarySearchFunc(r.mapped, offset, place.compare)
	j, _ := slices.BinarySearchFunc(r.mapped, offset+size, place.compare)
	for _, p := range r.mapped[i:j] {
		if p.imported {
			mapped.Add(-1)
		}
	}
	r.mapped = slices.Delete(r.mapped, i, j)
	return nil
}

// setAccess gives devices rights on mapped ranges.
func (r *reservation) setAccess(offset, size uint64, a cu.Access, devices ...*cu.Device) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed.Load() {
		return closedError("reservation")
	}
	return r.drv.SetAccess(r.ptr.Add(offset), size, a, devices...)
}

// setAccessEach gives places rights on a mapped range.
func (r *reservation) setAccessEach(offset, size uint64, rights ...cu.LocationAccess) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed.Load() {
		return closedError("reservation")
	}
	return r.drv.SetAccessEach(r.ptr.Add(offset), size, rights...)
}
