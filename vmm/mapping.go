package vmm

import (
	"fmt"
	"runtime"
	"sync"

	"github.com/gpufd/gpufd/cu"
)

// A Mapping is an allocation in a reservation. It holds both, and the caller
// owns it. A Mapping that is lost without Close is reported and stays mapped.
type Mapping struct {
	inner *mapping
	res   *Reservation // so that it is not collected before
}

// mapping is what a lost Mapping or View leaves behind; it keeps the
// reservation and the memory from being collected.
type mapping struct {
	res    *reservation
	alloc  *Allocation
	offset uint64
	size   uint64

	mu     sync.Mutex
	closed bool
}

// Map maps the whole of a at offset bytes into r, both multiples of the
// granularity. Nobody may use it before [Mapping.SetAccess].
func (r *Reservation) Map(offset uint64, a *Allocation) (*Mapping, error) {
	defer runtime.KeepAlive(r)
	m, err := r.inner.mapAt(offset, a)
	if err != nil {
		return nil, err
	}
	outer := &Mapping{m, r}
	runtime.AddCleanup(outer, reportLost, lost{cu.Here(0), []*mapping{m}})
	return outer, nil
}

// Ptr is the mapping's first address.
func (m *Mapping) Ptr() cu.DevicePtr { return m.inner.res.ptr.Add(m.inner.offset) }

// Address is Ptr, or [cu.ErrClosed] after Close.
func (m *Mapping) Address() (cu.DevicePtr, error) { return openAt(m.Ptr(), m.inner.isClosed()) }

// openAt is p, unless what lies there is closed.
func openAt(p cu.DevicePtr, closed bool) (cu.DevicePtr, error) {
	if closed {
		return 0, cu.ErrClosed
	}
	return p, nil
}

// Size is the mapping's size in bytes, that of its allocation.
func (m *Mapping) Size() uint64 { return m.inner.size }

// SetAccess sets what devices, or if there are none the memory's own, may do
// with the mapping.
func (m *Mapping) SetAccess(a cu.Access, devices ...*cu.Device) error {
	defer runtime.KeepAlive(m)
	if len(devices) == 0 {
		devices = []*cu.Device{m.inner.alloc.dev}
	}
	m.inner.mu.Lock()
	defer m.inner.mu.Unlock()
	if m.inner.closed {
		return cu.ErrClosed
	}
	return m.inner.res.setAccess(m.inner.offset, m.inner.size, a, devices...)
}

// Close ends the mapping. It does not wait for kernels that use it.
func (m *Mapping) Close() error {
	if m == nil {
		return nil
	}
	defer runtime.KeepAlive(m)
	return m.inner.close()
}

func (m *mapping) close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return nil
	}
	if err := m.res.unmap(m.offset, m.size); err != nil {
		return err
	}
	m.closed = true
	return nil
}

func (m *mapping) isClosed() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.closed
}

// lost is what the garbage collector reports on.
type lost struct {
	stack cu.Stack
	maps  []*mapping
}

// reportLost tells of the mappings that are still there, in one.
func reportLost(l lost) {
	var size uint64
	var first *mapping
	for _, m := range l.maps {
		if m.isClosed() {
			continue
		}
		if first == nil {
			first = m
		}
		size += m.size
	}
	if first == nil {
		return
	}
	first.res.drv.ReportLeak(cu.Leak{
		What:  fmt.Sprintf("mapping of %d bytes at %s", size, first.res.ptr.Add(first.offset)),
		Stack: l.stack,
	})
}
