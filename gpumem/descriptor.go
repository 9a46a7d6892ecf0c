package gpumem

import (
	"errors"
	"fmt"
)

// MaxChunks limits the chunks of one buffer: each costs a descriptor in the
// exporter and an import in every peer.
const MaxChunks = 4096

// A Descriptor is what an importer has to know about a buffer: the driver does
// not tell the size of imported memory.
type Descriptor struct {
	Kind        Kind   // the exporter's driver
	Device      UUID   // where the memory is
	Size        uint64 // bytes in use
	ChunkSize   uint64 // bytes of each chunk
	Chunks      int    // how many chunks, with one descriptor each
	Granularity uint64 // of the exporter's device, in bytes
	Generation  uint64 // larger than those of all buffers, and of their shapes, made before on the machine since it started
}

// Plausible finds what is wrong on every device, for callers without one. The
// error is [ErrKind] or a [*DescriptorError].
func (d Descriptor) Plausible() error {
	if d.Kind != CUDA && d.Kind != Soft {
		return fmt.Errorf("%w: the exporter uses the unknown driver %q", ErrKind, d.Kind)
	}
	total := uint64(d.Chunks) * d.ChunkSize
	switch {
	case d.Chunks < 1 || d.Chunks > MaxChunks:
		return badField("number of chunks", fmt.Sprintf("is %d; it must be 1 to %d", d.Chunks, MaxChunks))
	case d.ChunkSize == 0:
		return badField("chunk size", "is 0")
	case total/d.ChunkSize != uint64(d.Chunks):
		return badField("chunk size", fmt.Sprintf("is %d: %d of them are more than 64 bits hold", d.ChunkSize, d.Chunks))
	case d.Granularity == 0 || d.ChunkSize%d.Granularity != 0:
		return badField("granularity", fmt.Sprintf("is %d, which does not divide the chunk size %d", d.Granularity, d.ChunkSize))
	case d.Size == 0 || d.Size > total:
		return badField("size", fmt.Sprintf("is %d; the chunks hold %d", d.Size, total))
	case total-d.Size >= d.ChunkSize:
		return badField("size", fmt.Sprintf("is %d, which needs fewer than %d chunks", d.Size, d.Chunks))
	}
	return nil
}

func badField(name, reason string) error { return &DescriptorError{Field: name, Reason: reason} }

// ErrDescriptor matches every [*DescriptorError].
var ErrDescriptor = errors.New("gpumem: bad descriptor")

// ErrKind says that exporter and importer use drivers of different kinds.
var ErrKind = errors.New("gpumem: drivers of different kinds")

// A DescriptorError says what is wrong with another process's description of
// memory.
type DescriptorError struct {
	Field  string // e.g. "chunk size"
	Reason string
	Err    error // what the driver said, if it was the driver that found out
}

// Error names the field.
func (e *DescriptorError) Error() string {
	if e == nil {
		return ErrDescriptor.Error()
	}
	msg := fmt.Sprintf("the exporter's description is wrong: %s %s", e.Field, e.Reason)
	if e.Err != nil {
		msg += ": " + e.Err.Error()
	}
	return msg
}

// Unwrap returns what the driver said, if anything.
func (e *DescriptorError) Unwrap() error {
	if e == nil {
		return nil
	}
	return e.Err
}

// Is matches [ErrDescriptor].
func (e *DescriptorError) Is(target error) bool { return target == ErrDescriptor }
