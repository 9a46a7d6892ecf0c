package soft

import (
	"fmt"

	"github.com/gpufd/gpufd/cu/soft/internal/ptx"
	"github.com/gpufd/gpufd/cu/sys"
)

// LastFault returns the failure of work that the contexts were lost to, or nil. For
// a kernel it names the line of its PTX, the block and the thread. For a bad access,
// by a kernel, a copy or a stream's wait for a word, it names the address and what is
// there: memory that was unmapped before, with its address and size, memory without
// rights, or the nearest memory. The results that a driver returns say much less.
func LastFault() error {
	driver.mu.Lock()
	defer driver.mu.Unlock()
	return driver.lastFault
}

// A former is a range where memory was.
type former struct {
	base, size, in uintptr // in is the base of its reservation, or of its pinned memory
	end            string  // how it ended
}

// maxFormer is how many ranges are remembered.
const maxFormer = 64

// remember records that n bytes from base on are gone, which were in what begins at
// in. Neighbours that end one after the other, such as the chunks of a buffer, are one
// range.
func (s *space) remember(in, base, n uintptr, end string) {
	if i := len(s.former) - 1; i >= 0 {
		last := &s.former[i]
		if last.in == in && last.end == end && (last.base == base+n || base == last.base+last.size) {
			last.base, last.size = min(last.base, base), last.size+n
			return
		}
	}
	if len(s.former) == maxFormer {
		s.former = append(s.former[:0], s.former[1:]...)
	}
	s.former = append(s.former, former{base, n, in, end})
}

// gone returns what was last at an address, if anything is known of it.
func (s *space) gone(addr uintptr) *former {
	for i := len(s.former) - 1; i >= 0; i-- {
		if f := &s.former[i]; addr-f.base < f.size {
			return f
		}
	}
	return nil
}

// nearest returns the mapping that is nearest to an address where none is, or nil.
func (s *space) nearest(addr uintptr) (near *mapping) {
	for _, r := range s.reservations {
		for _, p := range r.mappings {
			if near == nil || p.distance(addr) < near.distance(addr) {
				near = p
			}
		}
	}
	return near
}

// distance returns how many bytes lie between an address and the mapping.
func (p *mapping) distance(addr uintptr) uintptr {
	if addr < p.base {
		return p.base - addr
	}
	return addr - min(addr, p.end()-1)
}

// whatIsAt says why work of a device could not touch an address. The machine is locked.
func (m *machine) whatIsAt(addr uintptr, dev sys.CUdevice) string {
	if p := m.space.mapping(addr); p != nil {
		return fmt.Sprintf("%d bytes are mapped at %#x, %s", p.size, p.base, m.obstacle(p, dev))
	}
	if f := m.space.gone(addr); f != nil {
		return fmt.Sprintf("the %d bytes at %#x were %s before", f.size, f.base, f.end)
	}
	near := m.space.nearest(addr)
	switch {
	case near == nil:
		return "no memory is mapped anywhere"
	case addr < near.base:
		return fmt.Sprintf("nothing is mapped there, %d bytes before the %d bytes at %#x", near.base-addr, near.size, near.base)
	}
	return fmt.Sprintf("nothing is mapped there, %d bytes behind the end of the %d bytes at %#x", addr-near.end(), near.size, near.base)
}

// obstacle says what keeps work of a device from a mapping.
func (m *machine) obstacle(p *mapping, dev sys.CUdevice) string {
	switch {
	case !p.allows(dev, false):
		return fmt.Sprintf("which device %d may not touch", dev)
	case !p.allows(dev, true):
		return fmt.Sprintf("which device %d may only read", dev)
	case p.phys.kind == kindLinear && m.number(p.phys.dev) != dev:
		return fmt.Sprintf("which are another device's, without peer access for device %d", dev)
	}
	return "of a file that somebody has cut short"
}

// die records why work has died, and that the contexts are lost to r, unless they
// are lost already: the first failure stays. It returns what they are lost to. The
// machine is locked.
func (m *machine) die(r sys.CUresult, why error) sys.CUresult {
	if m.health.sticky == sys.CUDA_SUCCESS {
		m.lastFault = why
		m.health.fail(r)
	}
	return m.health.sticky
}

// explain adds to a kernel's fault what is at its address. The machine is locked.
func (m *machine) explain(f *ptx.Fault, dev sys.CUdevice) error {
	if !f.Global {
		return f
	}
	return fmt.Errorf("%w: %s", f, m.whatIsAt(uintptr(f.Address), dev))
}

// fault says why a stream could not write or read a word. The machine is locked.
func (o *memOp) fault(m *machine) error {
	what := "wait for"
	if o.write {
		what = "write of"
	}
	return fmt.Errorf("soft: a stream's %s %d in the %d bytes at %#x: %s",
		what, o.value, o.where.width, o.where.addr, m.whatIsAt(o.where.addr, o.where.dev))
}

// fault says why a transfer could not be done, of which a mapping may be gone. The
// machine is locked.
func (t *transfer) fault(m *machine, gone *mapping) error {
	what := fmt.Sprintf("copy of %d bytes from %#x to %#x", t.n, t.from.addr, t.to.addr)
	if t.pattern != nil {
		what = fmt.Sprintf("fill of %d bytes at %#x", t.n, t.to.addr)
	}
	why := "the file of its memory was cut short by somebody"
	if at, dev := t.barred(m); at != 0 {
		why = fmt.Sprintf("at %#x, %s", at, m.whatIsAt(at, dev))
	} else if gone != nil { // and there is other memory since
		why = fmt.Sprintf("the %d bytes at %#x were taken away under it", gone.size, gone.base)
	}
	return fmt.Errorf("soft: a %s: %s", what, why)
}

// barred returns the first address that a transfer may not touch, and the device
// that may not; 0 is none.
func (t *transfer) barred(m *machine) (at uintptr, dev sys.CUdevice) {
	if o := &t.to; o.place == placeDevice {
		at, dev = m.barred(o.addr, o.reach, o.dev, true), o.dev
	}
	if o := &t.from; at == 0 && t.pattern == nil && o.place == placeDevice {
		at, dev = m.barred(o.addr, o.reach, o.dev, false), o.dev
	}
	return at, dev
}
