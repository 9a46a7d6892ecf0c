package share

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/gpumem"
	"github.com/gpufd/gpufd/internal/plain"
	"github.com/gpufd/gpufd/internal/serve"
	"github.com/gpufd/gpufd/internal/wire"
	"github.com/gpufd/gpufd/sock"
	"github.com/gpufd/gpufd/vmm"
)

// errMemoryClosed says that legacy memory is nil, or was closed.
var errMemoryClosed = plain.ErrorOf("share: the legacy memory was closed", ErrClosed)

// legacyUnit is what allocations are rounded up to. Smaller ones share 2 MiB with others
// of the process, which a consumer would get as well.
const legacyUnit = 2 << 20

// A Legacy is plain memory of cuMemAlloc that is offered by a handle of legacy IPC, to
// programs that cannot take descriptors. The caller owns it. It is safe for concurrent use.
//
// Between your own programs a [vmm.Buffer] is better. Legacy memory cannot be offered
// read-only, and a handle does not keep it: CUDA leaves undefined what a consumer finds
// after the owner has freed the memory, and does not tell the owner which consumers have
// it open. Leases do that here. A consumer closes the memory before its connection; Close
// refuses while there are leases; and Attach succeeds only when the producer has confirmed
// that the opened memory is the offered one. When the offer ends, it waits as long as for any
// step ([ListenOptions].Timeout) until consumers have closed the memory, so that it can be freed; else its
// error matches [ErrStillOpen], also for those whose leases were revoked before. Programs that do
// not use this package open the whole allocation.
type Legacy struct {
	ctx    *cu.Context
	mem    *cu.Memory // nil if somebody else frees it
	ptr    cu.DevicePtr
	handle gpumem.LegacyHandle
	desc   vmm.Descriptor
	id     uint64 // the driver's, of the allocation

	mu     sync.Mutex
	closed bool
	offers map[*serve.Offering]struct{}
}

// NewLegacy allocates size bytes in c (cuMemAlloc), rounded up to a multiple of 2 MiB: a
// consumer of a smaller allocation would get its neighbours, too. The content is
// undefined. The caller keeps c, and leaves it open until Close.
//
// Errors: [vmm.ErrSize]; those of [cu.Context.Alloc] and [cu.Context.IPCHandle].
func NewLegacy(c *cu.Context, size uint64) (*Legacy, error) {
	whole, ok := vmm.AlignUp(size, legacyUnit)
	if !ok || size == 0 {
		return nil, fmt.Errorf("%w: %d bytes", vmm.ErrSize, size)
	}
	if c == nil {
		return nil, errors.New("share: no context to allocate legacy memory in (nil)")
	}
	mem, err := c.Alloc(whole)
	if err != nil {
		return nil, err
	}
	m, err := LegacyAt(c, mem.Ptr(), size)
	if err != nil {
		return nil, errors.Join(err, mem.Close())
	}
	m.mem = mem
	return m, nil
}

// LegacyAt returns a Legacy of size bytes at p, in memory that other code of this process
// has allocated with cuMemAlloc or cudaMalloc, such as a tensor of PyTorch. That code must
// not free it before Close. A consumer gets the whole allocation around the bytes. c is
// the context in which the memory is written, for a tensor the primary context: an offer
// waits for the work in c, and in no other context, before it serves its first consumer.
//
// Errors: those of [cu.Context.IPCHandle]; [vmm.ErrSize] if the allocation is too small.
func LegacyAt(c *cu.Context, p cu.DevicePtr, size uint64) (*Legacy, error) {
	if c == nil {
		return nil, fmt.Errorf("share: no context of the memory at %s (nil)", p)
	}
	h, offset, err := c.IPCHandle(p)
	if err != nil {
		return nil, err
	}
	_, whole, err := c.AddressRange(p)
	if err != nil {
		return nil, err
	}
	if size == 0 || size > whole || offset > whole-size {
		return nil, fmt.Errorf("%w: %d bytes at %d of an allocation of %d", vmm.ErrSize, size, offset, whole)
	}
	m := &Legacy{ctx: c, ptr: p, handle: gpumem.LegacyHandle{Handle: h, Offset: offset}, offers: map[*serve.Offering]struct{}{}}
	m.desc = vmm.Descriptor{Kind: c.Device().Driver().Kind(), Device: c.Device().UUID(), Size: size, Chunks: 1, ChunkSize: whole, Generation: gpumem.NewGeneration()}
	if m.id, err = m.allocation(); err != nil {
		return nil, err
	}
	return m, nil
}

// allocation returns the driver's id of the allocation, which differs from those of
// earlier and later allocations at the same address.
func (m *Legacy) allocation() (id uint64, err error) {
	a, err := m.ctx.PointerAttributes(m.ptr)
	return a.BufferID, err
}

// Ptr returns the address of the memory.
func (m *Legacy) Ptr() cu.DevicePtr {
	if m == nil {
		return 0
	}
	return m.ptr
}

// Size returns the size of the offered memory, in bytes.
func (m *Legacy) Size() uint64 {
	if m == nil {
		return 0
	}
	return m.desc.Size
}

// Allocation returns the size of the whole allocation, in bytes. Consumers get all of it.
func (m *Legacy) Allocation() uint64 {
	if m == nil {
		return 0
	}
	return m.desc.ChunkSize
}

// Generation returns the memory's generation, which no other memory of the machine has; see
// [vmm.Descriptor].
func (m *Legacy) Generation() uint64 {
	if m == nil {
		return 0
	}
	return m.desc.Generation
}

// Device returns the device that the memory is on.
func (m *Legacy) Device() *cu.Device {
	if m.isZero() {
		return nil
	}
	return m.ctx.Device()
}

// Close frees what NewLegacy allocated (cuMemFree). After LegacyAt it frees nothing. While
// the memory is offered, Close fails with [ErrInUse], which names the
// consumers with a lease: end the offer first, which tells them. Close may be called again
// and on nil.
//
// A consumer that did not close the memory in time after its lease or offer had ended
// ([ErrStillOpen]) may still have it open. After Close the bytes that this consumer reads
// there are undefined; on an H200 they stay as they were. Nothing that it does there harms
// this process.
func (m *Legacy) Close() error {
	if m.isZero() {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.offers) > 0 {
		return m.inUse()
	}
	m.closed = true
	return m.mem.Close()
}

// inUse returns the error of memory that is offered. It runs with mu held.
func (m *Legacy) inUse() error {
	var peers []sock.Peer
	for o := range m.offers {
		for _, l := range o.Leases() {
			peers = append(peers, l.Peer())
		}
	}
	if len(peers) == 0 {
		return fmt.Errorf("%w: the legacy memory is still offered: end the offer first", ErrInUse)
	}
	return fmt.Errorf("%w: the legacy memory is still offered, and consumers have it open (%s): revoke their leases and end the offer first", ErrInUse, plain.List(peers))
}

// legacySource is legacy memory, which is gone when its owner frees it.
type legacySource struct {
	server *Server
	m      *Legacy
}

func (l legacySource) Lend(o *serve.Offering) (serve.Loan, error) {
	m := l.m
	if m.isZero() {
		return serve.Loan{}, errMemoryClosed
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return serve.Loan{}, errMemoryClosed
	}
	if err := l.Vouch(); err != nil {
		return serve.Loan{}, err
	}
	m.offers[o] = struct{}{}
	return serve.Loan{Memory: m.desc, Handle: new(m.handle), End: func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		delete(m.offers, o)
	}}, nil
}

func (l legacySource) Process() wire.ProcessFlags { return l.server.knownFlags(l.m.ctx.Device()) }

func (l legacySource) Identity() any { return nil }

func (l legacySource) Synchronize(ctx context.Context) error { return l.m.ctx.Synchronize(ctx) }

// Vouch fails if the memory was freed by others, even if other memory is at its address
// by now.
func (l legacySource) Vouch() error {
	id, err := l.m.allocation()
	switch {
	case err != nil:
		return fmt.Errorf("%w: %w", ErrMemoryGone, err)
	case id != l.m.id:
		return fmt.Errorf("%w: what is at %s now is not of generation %d", ErrMemoryGone, l.m.ptr, l.m.desc.Generation)
	}
	return nil
}

// isZero reports whether m is nil or zero: its methods fail with [ErrClosed].
func (m *Legacy) isZero() bool { return m == nil || m.ctx == nil }
