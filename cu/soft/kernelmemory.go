package soft

import (
	"slices"
	"sync/atomic"

	"github.com/gpufd/gpufd/cu/sys"
)

// A kernelMemory is what a kernel sees of memory: what its context's device may
// read or write, and pinned host memory. It holds what the kernel has touched
// until that has ended, though the kernel may no longer touch what is unmapped
// meanwhile (C40): another thread's access may be under way.
type kernelMemory struct {
	m           *machine
	ctx         *context
	dev         sys.CUdevice
	pieces      atomic.Pointer[[]kernelPiece] // found so far
	withdrawn   []kernelPiece                 // that were pieces
	withdrawals atomic.Uint64
}

// A kernelPiece is memory that was found, with what it holds.
type kernelPiece struct {
	bytes []byte
	begin uint64
	write bool
	phys  *physical
	block *hostBlock
}

// newKernelMemory returns what a kernel of a context is going to see, until drop.
// The machine is locked.
func (m *machine) newKernelMemory(ctx *context) *kernelMemory {
	k := &kernelMemory{m: m, ctx: ctx, dev: m.number(ctx.dev)}
	k.pieces.Store(new([]kernelPiece))
	m.running[k] = true
	return k
}

// find returns the piece that an address is in, if it was found before.
func (k *kernelMemory) find(address uint64, write bool) *kernelPiece {
	known := *k.pieces.Load()
	for i := range known {
		if p := &known[i]; address-p.begin < uint64(len(p.bytes)) && (p.write || !write) {
			return p
		}
	}
	return nil
}

// Piece returns the memory around an address for a kernel.
func (k *kernelMemory) Piece(address uint64, write bool) ([]byte, uint64) {
	if p := k.find(address, write); p != nil {
		return p.bytes, p.begin
	}
	k.m.mu.Lock()
	defer k.m.mu.Unlock()
	if p := k.find(address, write); p != nil { // another core was faster
		return p.bytes, p.begin
	}
	p, ok := k.look(uintptr(address), write)
	if !ok {
		return nil, 0
	}
	known := append(slices.Clip(*k.pieces.Load()), p)
	k.pieces.Store(&known)
	return p.bytes, p.begin
}

// look finds a piece in the machine's tables and holds it.
func (k *kernelMemory) look(addr uintptr, write bool) (p kernelPiece, ok bool) {
	if v := k.m.space.reservation(addr); v != nil {
		at := k.m.space.mapping(addr)
		if at == nil || !at.allows(k.dev, write) || !k.m.reaches(k.ctx, addr) {
			return p, false
		}
		at.phys.hold()
		return kernelPiece{bytes: bytesAt(at.phys.alias, at.size), begin: uint64(at.base), write: write, phys: at.phys}, true
	}
	b, _ := k.m.host.find(addr)
	if b == nil || write && b.readOnly {
		return p, false
	}
	b.pin()
	return kernelPiece{bytes: bytesAt(b.base, b.size), begin: uint64(b.base), write: write, block: b}, true
}

// withdraw takes a range from the kernels that run: they look anew at their next
// access. The machine is locked until the mapping has gone, or has other rights.
func (m *machine) withdraw(base, size uintptr) {
	for k := range m.running {
		k.withdraw(base, size)
	}
}

// withdraw stores what is left before it counts: an access that sees the count
// finds no piece of the range.
func (k *kernelMemory) withdraw(base, size uintptr) {
	var left []kernelPiece
	for _, p := range *k.pieces.Load() {
		if p.begin < uint64(base+size) && uint64(base) < p.begin+uint64(len(p.bytes)) {
			k.withdrawn = append(k.withdrawn, p)
		} else {
			left = append(left, p)
		}
	}
	if len(left) < len(*k.pieces.Load()) {
		k.pieces.Store(&left)
		k.withdrawals.Add(1)
	}
}

// drop releases what the kernel held. The machine is locked.
func (k *kernelMemory) drop() {
	delete(k.m.running, k)
	for _, p := range append(k.withdrawn, *k.pieces.Load()...) {
		if p.phys != nil {
			k.m.drop(p.phys)
		} else {
			p.block.unpin()
		}
	}
}
