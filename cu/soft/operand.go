package soft

import "github.com/gpufd/gpufd/cu/sys"

// An operand is one side of a copy: a range of memory and whose it is. It is
// nil or it was valid when the call was made; what has become of device memory
// by the time the work is done is looked at again then.
type operand struct {
	addr, size uintptr
	place      place
	block      *hostBlock // of pinned memory
	staged     []byte     // the bytes of pageable memory, copied out
}

// A place is where memory is, or may be.
type place int

const (
	placeDevice   place = iota // mapped into the device address space
	placePinned                // of cuMemHostAlloc
	placePageable              // any other host memory
)

// A side says what a call's argument may be: with unified addressing a device
// pointer may be pinned memory's, a host pointer a device's, and cuMemcpy takes
// anything.
type side struct {
	addr     uintptr
	device   bool // device memory is allowed
	pageable bool // pageable memory is allowed
}

func onDevice(p sys.CUdeviceptr) side { return side{addr: uintptr(p), device: true} }

func onHost(p uintptr) side { return side{addr: p, device: true, pageable: true} }

func anywhere(p sys.CUdeviceptr) side {
	return side{addr: uintptr(p), device: true, pageable: true}
}

// operand finds what n bytes of a side are. Device memory must be accessible
// to the device all through (D5).
func (m *machine) operand(s side, n uintptr, dev sys.CUdevice, write bool) (operand, bool) {
	o := operand{addr: s.addr, size: n}
	if s.addr < lowest || s.addr+n < s.addr {
		return o, false
	}
	if v := m.space.reservation(s.addr); v != nil {
		o.place = placeDevice
		return o, s.device && !v.freed && m.accessible(s.addr, n, dev, write)
	}
	if o.block = m.host.holding(s.addr, n); o.block != nil {
		o.place = placePinned
		return o, true
	}
	o.place = placePageable
	return o, s.pageable
}

// accessible reports whether a device may read, or write, a whole range, which
// may cross from mapping to mapping.
func (m *machine) accessible(addr, n uintptr, dev sys.CUdevice, write bool) bool {
	for n > 0 {
		p := m.space.mapping(addr)
		if p == nil || !p.allows(dev, write) {
			return false
		}
		step := min(n, p.end()-addr)
		addr, n = addr+step, n-step
	}
	return true
}

// A segment is a piece of memory to work on, of device memory if phys is set.
type segment struct {
	phys  *physical
	bytes []byte
}

// view returns the memory that an operand is now, and holds what is the
// device's. ok is false if it is not accessible any more.
func (m *machine) view(o operand, dev sys.CUdevice, write bool) (v []segment, ok bool) {
	switch {
	case o.staged != nil:
		return []segment{{bytes: o.staged}}, true
	case o.place != placeDevice:
		return []segment{{bytes: bytesAt(o.addr, o.size)}}, true
	case !m.accessible(o.addr, o.size, dev, write):
		return nil, false
	}
	for addr, n := o.addr, o.size; n > 0; {
		p := m.space.mapping(addr)
		step := min(n, p.end()-addr)
		p.phys.hold()
		v = append(v, segment{p.phys, bytesAt(p.phys.alias+addr-p.base, step)})
		addr, n = addr+step, n-step
	}
	return v, true
}

// dropView ends the holds of views.
func (m *machine) dropView(v []segment) {
	for _, s := range v {
		if s.phys != nil {
			m.drop(s.phys)
		}
	}
}
