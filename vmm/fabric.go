package vmm

import (
	"fmt"

	"github.com/gpufd/gpufd/cu"
)

// WithFabric makes the buffer's memory for fabric handles as well as descriptors:
// see [Buffer.ExportFabric]. Without an IMEX channel [New] fails with
// [cu.ErrNotPermitted], which says what is missing (D20 of docs/driver-facts.md).
// [cu.Device.SupportsFabric] tells beforehand.
func WithFabric() NewOption { return newOption(func(o *options) { o.types |= cu.HandleFabric }) }

// ExportFabric returns the buffer's description and a fabric handle for each
// chunk: values that can be sent in any way, on this machine and to others of the
// NVLink domain. They keep nothing alive, so keep the buffer open until the peer
// has imported them. Finish the work on the memory before you tell a peer. A
// buffer that was not made [WithFabric] gives [ErrNotShareable].
func (b *Buffer) ExportFabric() (d Descriptor, handles []cu.FabricHandle, err error) {
	err = b.whileOpen(func() error {
		if b.imported || b.opts.types&cu.HandleFabric == 0 {
			return fmt.Errorf("%w: the buffer was made without WithFabric, or by another process", ErrNotShareable)
		}
		for i, c := range b.content.chunks {
			h, err := c.handle.ExportFabric()
			if err != nil {
				return fmt.Errorf("vmm: exporting chunk %d of %d: %w", i+1, len(b.content.chunks), err)
			}
			handles = append(handles, h)
		}
		d = b.describe()
		return nil
	})
	if err != nil {
		return Descriptor{}, nil, err
	}
	return d, handles, nil
}

// ImportFabric is [Import] for memory that comes as fabric handles. If a step
// fails, nothing is left behind. Errors besides those of Import:
// [cu.ErrNotPermitted] or [cu.ErrNotSupported] without an IMEX channel,
// [cu.ErrInvalidValue] for bytes that are no handle.
func ImportFabric(dev *cu.Device, d Descriptor, handles []cu.FabricHandle, opts ...ImportOption) (*Buffer, error) {
	b, err := planImport(dev, d, len(handles), opts)
	if err != nil {
		return nil, err
	}
	if b.opts.reexport {
		return nil, fmt.Errorf("%w: WithReexport keeps descriptors; fabric handles have none", ErrNotShareable)
	}
	return b.importChunks(d, func(i int) (*Allocation, error) {
		h, err := dev.Driver().ImportFabric(handles[i], d.ChunkSize)
		if err != nil {
			return nil, err
		}
		return importedOn(dev, h)
	})
}
