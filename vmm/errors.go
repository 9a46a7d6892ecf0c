package vmm

import (
	"errors"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/gpumem"
	"github.com/gpufd/gpufd/internal/plain"
)

// Errors of this package; those of the driver are [*cu.Error].
var (
	// ErrSize says that a size is zero, too large, or not a multiple of what it
	// must be.
	ErrSize = errors.New("vmm: bad size")
	// ErrMapped says that a reservation cannot be closed while something is
	// mapped in it.
	ErrMapped = errors.New("vmm: still mapped")
	// ErrOccupied says that a range is already mapped or lies outside its
	// reservation.
	ErrOccupied = errors.New("vmm: range not free")
	// ErrInUse says that a buffer cannot be closed: it is lent ([Buffer.Lend]) or
	// held ([Buffer.Hold]). It is [gpumem.ErrInUse].
	ErrInUse = gpumem.ErrInUse
	// ErrNil says that a device, a driver, an allocation, a context or a buffer is nil.
	ErrNil = errors.New("vmm: a nil argument")
	// ErrCapacity says that a buffer has too little address space: to grow into
	// ([WithCapacity]), or in the reservation that it was given
	// ([WithReservation]).
	ErrCapacity = errors.New("vmm: no address space to grow into")
	// ErrNotShareable says that the memory has no descriptors to export.
	ErrNotShareable = errors.New("vmm: memory was not made to be shared")
	// ErrDescriptor matches every [*DescriptorError].
	ErrDescriptor = gpumem.ErrDescriptor
	// ErrDevice says that imported memory is not on the device that is to map it.
	ErrDevice = errors.New("vmm: memory of another device")
	// ErrFile says that something is not a regular file: a directory, a pipe.
	ErrFile = errors.New("vmm: not a regular file")
	// ErrAccess says that the buffer is mapped with too few rights.
	ErrAccess = errors.New("vmm: the mapping does not allow it")
	// ErrKind says that exporter and importer use drivers of different kinds.
	ErrKind = gpumem.ErrKind
)

// closedError is [cu.ErrClosed] of a thing.
func closedError(what string) error {
	return plain.ErrorOf("vmm: the "+what+" is nil or closed", cu.ErrClosed)
}
