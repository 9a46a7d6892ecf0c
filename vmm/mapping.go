package vmm

import (
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/gpufd/gpufd/cu"
)

// A Mapping is an allocation in a reservation. It keeps both alive, and the
// caller owns it. A Mapping that is lost without Close is reported and stays
// mapped.
type Mapping struct {
	inner *mapping     // nil in a Mapping that Map has not made
	res   *Reservation // so that it is not collected before
}

// mapping is what a lost Mapping leaves behind; it keeps the reservation and the
// memory from being collected.
type mapping struct {
	res    *reservation
	alloc  *Allocation
	offset uint64
	size   uint64
	made   cu.Stack
	closed atomic.Bool // written under mu

	mu         sync.Mutex
	hostAccess cu.Access // to memory of the host
}

// Map maps the whole of a into r, offset bytes from its start. offset is a
// multiple of the granularity. Nobody may use the mapping before
// [Mapping.SetAccess].
func (r *Reservation) Map(offset uint64, a *Allocation) (*Mapping, error) {
	defer runtime.KeepAlive(r)
	switch {
	case a == nil:
		return nil, fmt.Errorf("%w: Map needs an allocation", ErrNil)
	case r == nil || r.inner == nil:
		return nil, closedError("reservation")
	case a.handle == nil:
		return nil, closedError("allocation")
	}
	if err := r.inner.mapAt(offset, a); err != nil {
		return nil, err
	}
	m := &mapping{res: r.inner, alloc: a, offset: offset, size: a.Size(), made: cu.Here(0)}
	outer := &Mapping{m, r}
	runtime.AddCleanup(outer, (*mapping).lost, m)
	return outer, nil
}

// Ptr returns the mapping's first address, 0 after Close.
func (m *Mapping) Ptr() cu.DevicePtr {
	if m == nil || m.inner == nil || m.inner.closed.Load() {
		return 0
	}
	return m.inner.ptr()
}

func (m *mapping) ptr() cu.DevicePtr { return m.res.ptr.Add(m.offset) }

// Size returns the mapping's size in bytes, that of its allocation.
func (m *Mapping) Size() uint64 {
	if m == nil || m.inner == nil {
		return 0
	}
	return m.inner.size
}

// SetAccess sets what devices may do with the mapping. Without devices, it sets
// what the memory's own device may do; memory of the host has none ([ErrNil]).
func (m *Mapping) SetAccess(a cu.Access, devices ...*cu.Device) error {
	if m == nil || m.inner == nil {
		return closedError("mapping")
	}
	defer runtime.KeepAlive(m)
	if slices.Contains(devices, nil) {
		return fmt.Errorf("%w: one of the %d devices for SetAccess", ErrNil, len(devices))
	}
	if len(devices) == 0 && m.inner.alloc.host() {
		return fmt.Errorf("%w: memory of %s has no device of its own; name those that are to use it", ErrNil, m.inner.alloc.place)
	}
	if len(devices) == 0 {
		devices = []*cu.Device{m.inner.alloc.dev}
	}
	m.inner.mu.Lock()
	defer m.inner.mu.Unlock()
	if m.inner.closed.Load() {
		return closedError("mapping")
	}
	return m.inner.res.setAccess(m.inner.offset, m.inner.size, a, devices...)
}

func (m *mapping) close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed.Load() {
		return nil
	}
	if err := m.res.unmap(m.offset, m.size); err != nil {
		return err
	}
	m.closed.Store(true)
	return nil
}

// lost runs when the garbage collector finds a lost mapping.
func (m *mapping) lost() {
	if !m.closed.Load() {
		m.res.reportLost(m.offset, m.size, m.made)
	}
}

// reportLost reports what is still mapped and nobody can unmap any more.
func (r *reservation) reportLost(offset, size uint64, made cu.Stack) {
	r.drv.ReportLeak(cu.Leak{
		What:  fmt.Sprintf("mapping of %d bytes at %s", size, r.ptr.Add(offset)),
		Stack: made,
	})
}
