package share

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/sock"
	"github.com/gpufd/gpufd/vmm"
)

// ErrInUse says that memory cannot be freed because it is offered, or because streams
// may still have to signal or wait there ([Counter]); it is [vmm.ErrInUse]. Of legacy
// memory it is an [*InUseError].
var ErrInUse = vmm.ErrInUse

// ErrMemoryGone says that offered legacy memory was freed behind this package's back.
var ErrMemoryGone = errors.New("share: the memory that is offered is not there any more")

// An InUseError says who keeps legacy memory from being freed.
type InUseError struct {
	Peers []sock.Peer // who has a lease of it
}

// Error names the peers.
func (e *InUseError) Error() string {
	if len(e.Peers) == 0 {
		return "share: the legacy memory is still offered: end the offer before"
	}
	return fmt.Sprintf("share: the legacy memory is still offered, and consumers have it open (%s): revoke their leases and end the offer before", peerNames(e.Peers))
}

// Is matches [ErrInUse].
func (e *InUseError) Is(target error) bool { return target == ErrInUse }

// legacyUnit is what allocations are rounded up to: smaller ones lie together with
// others of the process, which who opens them gets as well.
const legacyUnit = 2 << 20

// A Legacy is device memory that is offered by a handle of legacy IPC, to programs
// that take no descriptors: plain memory of cuMemAlloc. The caller owns it. It is
// safe for concurrent use.
//
// Between programs of one's own a [vmm.Buffer] is better. Legacy memory cannot be
// offered read-only, and the handle keeps nothing: CUDA leaves undefined what a
// consumer finds after its owner has freed it, and does not tell the owner who has it
// open. Here the leases do: a consumer closes the memory before its connection, Close
// refuses while there are any leases, and a consumer is attached only when the producer
// has confirmed, after the handle was opened, that it is of the memory that was offered.
type Legacy struct {
	ctx    *cu.Context
	mem    *cu.Memory // nil if somebody else frees it
	ptr    cu.DevicePtr
	handle LegacyHandle
	desc   vmm.Descriptor
	id     uint64 // the driver's, of the allocation

	mu     sync.Mutex
	closed bool
	offers map[*offering]struct{}
}

// NewLegacy allocates size bytes in c (cuMemAlloc), rounded up to whole 2 MiB: of less
// a consumer would be given what lies beside it, too. The content is undefined. c
// stays the caller's, and open until Close.
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

// LegacyAt is size bytes at p of memory that somebody else allocated in this process
// with cuMemAlloc or cudaMalloc, and frees, no sooner than Close: such as a tensor of
// PyTorch. A consumer is given the whole allocation that they are in. An offer waits
// for the work in c before its first consumer is answered, and for none in other
// contexts: c is where the memory is written, for a tensor the primary context.
//
// Errors: those of [cu.Context.IPCHandle]; [vmm.ErrSize] if it is not as large.
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
	m := &Legacy{ctx: c, ptr: p, handle: LegacyHandle{Handle: h, Offset: offset}, offers: map[*offering]struct{}{}}
	m.desc = vmm.Descriptor{Kind: c.Device().Driver().Kind(), Device: c.Device().UUID(), Size: size, Chunks: 1, ChunkSize: whole, Generation: vmm.NewGeneration()}
	if m.id, err = m.allocation(); err != nil {
		return nil, err
	}
	return m, nil
}

// allocation tells the allocation from others that were at its address before or
// will be.
func (m *Legacy) allocation() (id uint64, err error) {
	a, err := m.ctx.PointerAttributes(m.ptr)
	return a.BufferID, err
}

// Ptr is where the memory begins.
func (m *Legacy) Ptr() cu.DevicePtr {
	if m == nil {
		return 0
	}
	return m.ptr
}

// Size is how many bytes count.
func (m *Legacy) Size() uint64 {
	if m == nil {
		return 0
	}
	return m.desc.Size
}

// Allocation is the size of the whole allocation in bytes, all of which consumers get.
func (m *Legacy) Allocation() uint64 {
	if m == nil {
		return 0
	}
	return m.desc.ChunkSize
}

// Generation tells the memory from all other that was made on the machine; see
// [vmm.Descriptor].
func (m *Legacy) Generation() uint64 {
	if m == nil {
		return 0
	}
	return m.desc.Generation
}

// Device is where the memory is.
func (m *Legacy) Device() *cu.Device {
	if m.isZero() {
		return nil
	}
	return m.ctx.Device()
}

// Close frees what NewLegacy allocated (cuMemFree); of LegacyAt nothing. As long as
// the memory is offered or prepared it is refused, with an [*InUseError] that names who
// has a lease: end the offer, which tells the consumers, or have it end. It may be
// called again and on nil.
//
// A consumer that has not closed the memory in time after its lease was revoked or its
// offer had ended ([*StillOpenError]) may have it open all the same. What it finds there
// is undefined from now on, and does no harm to others of this process: on an H200 it
// keeps the bytes that were there.
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

// inUse runs with mu held.
func (m *Legacy) inUse() error {
	e := &InUseError{}
	for o := range m.offers {
		o.server.mu.Lock()
		for _, l := range o.live {
			e.Peers = append(e.Peers, l.Peer())
		}
		o.server.mu.Unlock()
	}
	return e
}

// OfferLegacy is [Server.Offer] for legacy memory, which consumers can always write. It
// waits for the work in the memory's context, which need not be the primary one. When
// the offer ends, consumers are waited for that have the memory open, as long as for any
// step ([WithTimeout]), so that it can be freed then. Who attaches with another program
// than this package's opens all of the allocation.
//
// Errors: those of Offer; [ErrClosed] for memory that is closed; [ErrMemoryGone]; a
// [*StillOpenError] that names who had not closed it when the lease or the offer ended,
// also of leases that were revoked before.
func (s *Server) OfferLegacy(ctx context.Context, name string, m *Legacy, opts ...OfferOption) error {
	o, err := s.newOffering(name, legacySource{m}, ReadWrite, opts)
	if err != nil {
		return err
	}
	return o.serve(ctx)
}

// PrepareLegacy is [Server.Prepare] for legacy memory, which consumers open while its
// data is in the making.
//
// Errors: those of Prepare; [ErrClosed] for memory that is closed; [ErrMemoryGone].
func (s *Server) PrepareLegacy(name string, m *Legacy, opts ...OfferOption) (*Prepared, error) {
	return s.prepare(name, legacySource{m}, ReadWrite, opts)
}

// legacySource is legacy memory, which nothing keeps but its owner.
type legacySource struct{ m *Legacy }

func (l legacySource) lend(o *offering) (loan, error) {
	m := l.m
	if m.isZero() {
		return loan{}, ErrClosed
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return loan{}, ErrClosed
	}
	if err := l.vouch(); err != nil {
		return loan{}, err
	}
	m.offers[o] = struct{}{}
	return loan{memory: m.desc, handle: new(m.handle), end: func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		delete(m.offers, o)
	}}, nil
}

func (l legacySource) device() *cu.Device { return l.m.ctx.Device() }

func (l legacySource) synchronize(ctx context.Context) error { return l.m.ctx.Synchronize(ctx) }

// vouch finds memory that was freed by somebody else, also if other memory is at its
// address by now.
func (l legacySource) vouch() error {
	id, err := l.m.allocation()
	switch {
	case err != nil:
		return fmt.Errorf("%w: %w", ErrMemoryGone, err)
	case id != l.m.id:
		return fmt.Errorf("%w: what is at %s now is not of generation %d", ErrMemoryGone, l.m.ptr, l.m.desc.Generation)
	}
	return nil
}

// isZero reports whether there is no memory: everything of it is [ErrClosed].
func (m *Legacy) isZero() bool { return m == nil || m.ctx == nil }
