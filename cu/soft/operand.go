package soft

import (
	"math/bits"
	"slices"

	"github.com/gpufd/gpufd/cu/sys"
)

// An extent is the bytes that a copy moves: depth layers of height rows of width
// bytes. Each side has its own layout.
type extent struct{ width, height, depth uintptr }

// line returns an extent of n bytes in a row.
func line(n uintptr) extent { return extent{n, 1, 1} }

// empty reports whether there is nothing to move.
func (b extent) empty() bool { return b.width == 0 || b.height == 0 || b.depth == 0 }

// An operand is one side of a copy: memory and its owner. It is nil or was valid
// when the call was made; the work looks again at device memory.
type operand struct {
	extent
	addr          uintptr // of the first row
	reach         uintptr // bytes from there to the end of the last
	pitch, stride uintptr // from row to row, and from layer to layer
	dev           sys.CUdevice
	place         place
	block         *hostBlock // of pinned memory
	staged        []byte     // the bytes of pageable memory, copied out
}

// pin keeps the operand's memory, if it is pinned memory; unpin ends that.
func (o *operand) pin() {
	if o.block != nil {
		o.block.pin()
	}
}

func (o *operand) unpin() {
	if o.block != nil {
		o.block.unpin()
	}
}

// rows are the addresses of the operand's rows, of which a line has one.
func (o *operand) rows(yield func(addr uintptr) bool) {
	for z := range o.depth {
		for y := range o.height {
			if !yield(o.addr + z*o.stride + y*o.pitch) {
				return
			}
		}
	}
}

// A place is where memory is, or may be.
type place int

const (
	placeDevice   place = iota // mapped into the device address space
	placePinned                // of cuMemHostAlloc
	placePageable              // any other host memory
)

// A side says what a call's argument may be: with unified addressing a device
// pointer may be to pinned memory, a host pointer to a device's, and cuMemcpy
// takes anything.
type side struct {
	addr          uintptr
	device        bool     // device memory is allowed
	pageable      bool     // pageable memory is allowed
	pitch, stride uintptr  // of rows and layers, if there are several
	ctx           *context // that looks at it, if not the stream's
}

func onDevice(p sys.CUdeviceptr) side { return side{addr: uintptr(p), device: true} }

func onHost(p uintptr) side { return side{addr: p, device: true, pageable: true} }

func anywhere(p sys.CUdeviceptr) side {
	return side{addr: uintptr(p), device: true, pageable: true}
}

// reach is how many bytes from its first on a side uses of its memory. Nobody
// has more memory than an address can count.
func (s side) reach(b extent) (n uintptr, ok bool) {
	over1, layers := bits.Mul64(uint64(b.depth-1), uint64(s.stride))
	over2, rows := bits.Mul64(uint64(b.height-1), uint64(s.pitch))
	sum, carry1 := bits.Add64(layers, rows, 0)
	sum, carry2 := bits.Add64(sum, uint64(b.width), 0)
	_, carry3 := bits.Add64(sum, uint64(s.addr), 0)
	return uintptr(sum), over1|over2|carry1|carry2|carry3 == 0
}

// operand finds out what a side is. The device must have access to all of the
// device memory (D5), also between the rows.
func (m *machine) operand(s side, b extent, dev sys.CUdevice, write bool) (operand, bool) {
	o := operand{extent: b, addr: s.addr, pitch: s.pitch, stride: s.stride, dev: dev}
	if s.ctx != nil {
		o.dev = m.number(s.ctx.dev)
	}
	n, ok := s.reach(b)
	if s.addr < lowest || !ok {
		return o, false
	}
	o.reach = n
	o.join()
	if v := m.space.reservation(s.addr); v != nil {
		o.place = placeDevice
		return o, s.device && !v.freed && m.accessible(s.addr, n, o.dev, write)
	}
	if o.block = m.host.holding(s.addr, n); o.block != nil {
		o.place = placePinned
		return o, !write || !o.block.readOnly
	}
	o.place = placePageable
	return o, s.pageable
}

// join makes one of rows, and of layers, that follow on each other.
func (o *operand) join() {
	if o.height > 1 && o.pitch == o.width {
		o.width, o.height = o.width*o.height, 1
	}
	if o.depth > 1 && o.height == 1 && o.stride == o.width {
		o.width, o.depth = o.width*o.depth, 1
	}
}

// accessible reports whether a device may read, or write, a whole range, even
// across mappings.
func (m *machine) accessible(addr, n uintptr, dev sys.CUdevice, write bool) bool {
	return m.barred(addr, n, dev, write) == 0
}

// barred returns the first address of a range that a device may not read, or write;
// 0 is none.
func (m *machine) barred(addr, n uintptr, dev sys.CUdevice, write bool) uintptr {
	for n > 0 {
		p := m.space.mapping(addr)
		if p == nil || !p.allows(dev, write) {
			return addr
		}
		step := min(n, p.end()-addr)
		addr, n = addr+step, n-step
	}
	return 0
}

// A segment is a piece of memory to work on, of device memory if at is set.
type segment struct {
	at    *mapping
	bytes []byte
}

// gone reports whether the memory was unmapped since the view was made.
func (s segment) gone() bool { return s.at != nil && s.at.gone.Load() }

// lost returns the first mapping of a view that is gone, or nil.
func lost(v []segment) *mapping {
	if i := slices.IndexFunc(v, segment.gone); i >= 0 {
		return v[i].at
	}
	return nil
}

// view returns the operand's memory as it is now, and holds the device's. ok is
// false if it is no longer accessible.
func (m *machine) view(o *operand, write bool) (v []segment, ok bool) {
	switch {
	case o.staged != nil:
		return []segment{{bytes: o.staged}}, true
	case o.place != placeDevice:
		for addr := range o.rows {
			v = append(v, segment{bytes: bytesAt(addr, o.width)})
		}
		return v, true
	case !m.accessible(o.addr, o.reach, o.dev, write):
		return nil, false
	}
	for addr := range o.rows {
		for n := o.width; n > 0; {
			p := m.space.mapping(addr)
			step := min(n, p.end()-addr)
			p.phys.hold()
			v = append(v, segment{p, bytesAt(p.phys.alias+addr-p.base, step)})
			addr, n = addr+step, n-step
		}
	}
	return v, true
}

// dropView ends the holds of views.
func (m *machine) dropView(v []segment) {
	for _, s := range v {
		if s.at != nil {
			m.drop(s.at.phys)
		}
	}
}
