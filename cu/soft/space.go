package soft

import (
	"slices"
	"sync/atomic"

	"github.com/gpufd/gpufd/cu/sys"
)

// A space is the device address space: reservations by address, none
// overlapping. Rights are kept here and not by mprotect: a fault would be
// fatal, and rights belong to a mapping, of which memory may have several
// (D2).
type space struct {
	reservations []*reservation
	former       []former // the latest last
}

// A reservation is an address range that the host cannot touch, with the
// memory mapped into it by address.
type reservation struct {
	base, size uintptr
	mappings   []*mapping
	linear     *context // the owner of what cuMemAlloc made, or cuIpcOpenMemHandle
	opened     *opened  // of cuIpcOpenMemHandle
	pool       *pool    // of what cuMemAllocAsync made
	freed      bool     // cuMemFreeAsync was called
	fixed      bool     // it is a module's variables, which go with that
	external   bool     // of cuExternalMemoryGetMappedBuffer
}

// A mapping is one piece of memory at one address.
type mapping struct {
	base, size uintptr
	phys       *physical
	rights     []sys.CUmemAccess_flags // by visible device
	host       sys.CUmemAccess_flags   // the host's, to memory of its own
	id         uint64                  // of CU_POINTER_ATTRIBUTE_BUFFER_ID
	gone       atomic.Bool             // copies and sets under way look at it
}

// allocated reports whether an allocation made it, and not
// cuMemAddressReserve.
func (r *reservation) allocated() bool { return r.linear != nil || r.pool != nil }

func (r *reservation) end() uintptr { return r.base + r.size }

func (p *mapping) end() uintptr { return p.base + p.size }

// allows reports whether a device may read, or write, the mapping. Memory of
// cuMemAlloc is open to copies of every device; for the rest see reaches.
func (p *mapping) allows(dev sys.CUdevice, write bool) bool {
	need := sys.CU_MEM_ACCESS_FLAGS_PROT_READ
	if write {
		need = sys.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
	}
	return p.phys.kind == kindLinear || p.rights[dev]&need == need
}

// open reports whether any device may use the mapping.
func (p *mapping) open() bool {
	return p.phys.kind == kindLinear || slices.ContainsFunc(p.rights, func(f sys.CUmemAccess_flags) bool { return f != 0 })
}

// reservation returns the one that addr is in, or nil.
func (s *space) reservation(addr uintptr) *reservation {
	i, found := slices.BinarySearchFunc(s.reservations, addr, func(r *reservation, a uintptr) int {
		return within(a, r.base, r.end())
	})
	if !found {
		return nil
	}
	return s.reservations[i]
}

// end ends mappings of a reservation, from kernels, copies and sets that are under
// way, too: their next access is an illegal one (C40). how says what happened to
// the memory. The caller takes them off the reservation's list.
func (m *machine) end(r *reservation, how string, mappings ...*mapping) {
	for _, p := range mappings {
		p.gone.Store(true)
		m.withdraw(p.base, p.size)
		m.space.remember(r.base, p.base, p.size, how)
		m.drop(p.phys)
	}
}

// within orders a range before, around or after an address, for a search.
func within(addr, base, end uintptr) int {
	switch {
	case end <= addr:
		return -1
	case base > addr:
		return 1
	}
	return 0
}

// search returns the place of the mapping that addr is in, or where one would
// go.
func (r *reservation) search(addr uintptr) (int, bool) {
	return slices.BinarySearchFunc(r.mappings, addr, func(p *mapping, a uintptr) int {
		return within(a, p.base, p.end())
	})
}

// mapping returns the one that addr is in, or nil.
func (s *space) mapping(addr uintptr) *mapping {
	r := s.reservation(addr)
	if r == nil {
		return nil
	}
	i, found := r.search(addr)
	if !found {
		return nil
	}
	return r.mappings[i]
}

// add makes a reservation of size bytes at a multiple of align, at hint if
// that can be.
func (s *space) add(size, align, hint uintptr) (*reservation, error) {
	base, err := reserve(size, align, hint)
	if err != nil {
		return nil, err
	}
	r := &reservation{base: base, size: size}
	i, _ := slices.BinarySearchFunc(s.reservations, base, func(r *reservation, a uintptr) int {
		return within(a, r.base, r.end())
	})
	s.reservations = slices.Insert(s.reservations, i, r)
	return r, nil
}

// remove gives a reservation's addresses back.
func (s *space) remove(r *reservation) {
	i := slices.Index(s.reservations, r)
	s.reservations = slices.Delete(s.reservations, i, i+1)
	unmap(r.base, r.size)
}

// reserve finds address space, cutting an aligned piece out of a larger one.
func reserve(size, align, hint uintptr) (uintptr, error) {
	if hint != 0 && hint%align == 0 {
		if base, err := mapReserved(hint, size); err == nil {
			if base == hint {
				return base, nil
			}
			unmap(base, size) // a kernel that takes the address for a mere hint
		}
	}
	base, err := mapReserved(0, size+align)
	if err != nil {
		return 0, err
	}
	start := (base + align - 1) / align * align
	unmap(base, start-base)
	unmap(start+size, base+align-start)
	return start, nil
}

// whole returns the places [i, j) of the mappings that make up exactly the
// range, from border to border. covered says whether they leave no hole, cut
// whether a border of the range is inside a mapping.
func (r *reservation) whole(addr, size uintptr) (i, j int, covered, cut bool) {
	end := addr + size
	i, found := r.search(addr)
	cut = found && r.mappings[i].base != addr
	next := addr
	covered = true
	for j = i; j < len(r.mappings) && r.mappings[j].base < end; j++ {
		p := r.mappings[j]
		covered = covered && p.base <= next
		cut = cut || p.end() > end
		next = p.end()
	}
	return i, j, covered && next >= end, cut
}

// holds reports whether the range is inside the reservation.
func (r *reservation) holds(addr, size uintptr) bool {
	return addr >= r.base && size <= r.size && addr-r.base <= r.size-size
}
