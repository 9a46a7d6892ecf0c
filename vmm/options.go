package vmm

import (
	"fmt"

	"github.com/gpufd/gpufd/cu"
)

// A NewOption changes how [New] and [NewWait] make a buffer.
type NewOption interface{ applyNew(*options) }

// An ImportOption changes how [Import] and [ImportFabric] make a buffer.
type ImportOption interface{ applyImport(*options) }

// An Option is both a [NewOption] and an [ImportOption].
type Option interface {
	NewOption
	ImportOption
}

type options struct {
	chunk    uint64
	capacity uint64
	access   cu.Access
	types    cu.HandleType // that memory is made for
	room     *Reservation  // or nil
	peers    []*cu.Device  // that may use imported memory, besides its own
	reexport bool          // keep descriptors of imported memory
	made     *cu.Stack     // where a lost buffer says that it was made; nil is where it is
}

// newOption is an option of New alone.
type newOption func(*options)

func (f newOption) applyNew(o *options) { f(o) }

// importOption is an option of Import alone.
type importOption func(*options)

func (f importOption) applyImport(o *options) { f(o) }

// anyOption is an option of New and Import.
type anyOption func(*options)

func (f anyOption) applyNew(o *options)    { f(o) }
func (f anyOption) applyImport(o *options) { f(o) }

// WithChunkSize makes the buffer of chunks of size bytes, rounded up to the
// granularity; at most [MaxChunks] of them. Without it a buffer is one chunk. To
// share it, each chunk costs an export and a descriptor.
func WithChunkSize(size uint64) NewOption { return newOption(func(o *options) { o.chunk = size }) }

// WithCapacity reserves address space for size bytes, so that the buffer can grow
// without moving.
func WithCapacity(size uint64) NewOption { return newOption(func(o *options) { o.capacity = size }) }

// WithPeers lets other devices use imported memory as its own device does, by
// peer access. Import fails without that: see [cu.Device.CanAccessPeer].
func WithPeers(devices ...*cu.Device) ImportOption {
	return importOption(func(o *options) { o.peers = append(o.peers, devices...) })
}

// WithAccess sets what the memory's device may do with the buffer here. The
// default is read-write for [New] and read-only for [Import].
func WithAccess(a cu.Access) Option { return anyOption(func(o *options) { o.access = a }) }

// WithReexport keeps duplicates of the descriptors that the memory came by
// (F_DUPFD_CLOEXEC), one for each chunk, until Close. With them the buffer can be
// exported and lent like one made here, with the same generation and shape. A
// [Loan] says how much access may be given on. Memory of [ImportFabric] came
// without descriptors: [ErrNotShareable].
func WithReexport() ImportOption { return importOption(func(o *options) { o.reexport = true }) }

// WithReservation maps the buffer at the beginning of r. The caller keeps r, and
// closes it after the buffer. Buffers can be mapped in it one after the other, at
// the same address. If r is too small the error is [ErrCapacity], if it is in use
// [ErrOccupied]; more room stays unused. Reserving takes some of the time of
// [Import], and can be done before there is anything to import.
func WithReservation(r *Reservation) Option {
	return anyOption(func(o *options) { o.room = r })
}

// WithStack sets the stack that is reported if the buffer is lost without Close, in place of that
// of Import's caller. Taking a stack ([cu.Here]) is 1 to 10 microseconds of [Import], and can be
// done before there is anything to import.
func WithStack(s cu.Stack) ImportOption { return importOption(func(o *options) { o.made = &s }) }

// stack is where the buffer is made: the caller's caller's caller, unless WithStack has said.
func (o *options) stack() cu.Stack {
	if o.made != nil {
		return *o.made
	}
	return cu.Here(2)
}

// roomFor checks the reservation that was given.
func (o *options) roomFor(size uint64) error {
	if o.room != nil && o.room.Size() < size {
		return fmt.Errorf("%w: a reservation of %d bytes for a buffer of %d", ErrCapacity, o.room.Size(), size)
	}
	return nil
}
