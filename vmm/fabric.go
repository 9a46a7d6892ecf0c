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
func (b *Buffer) ExportFabric() (Descriptor, []cu.FabricHandle, error) {
	if b == nil || b.content == nil {
		return Descriptor{}, nil, cu.ErrClosed
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return Descriptor{}, nil, cu.ErrClosed
	}
	if b.imported || b.opts.types&cu.HandleFabric == 0 {
		return Descriptor{}, nil, fmt.Errorf("%w: the buffer was made without WithFabric, or by another process", ErrNotShareable)
	}
	handles := make([]cu.FabricHandle, len(b.content.chunks))
	for i, c := range b.content.chunks {
		var err error
		if handles[i], err = c.handle.ExportFabric(); err != nil {
			return Descriptor{}, nil, fmt.Errorf("exporting chunk %d of %d: %w", i+1, len(b.content.chunks), err)
		}
	}
	return b.describe(), handles, nil
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
		return nil, b.opts.giveUp(fmt.Errorf("%w: WithReexport keeps descriptors; fabric handles have none", ErrNotShareable))
	}
	err = b.importChunks(d, func(i int) (*Allocation, error) {
		h, err := dev.Driver().ImportFabric(handles[i], d.ChunkSize)
		if err != nil {
			return nil, err
		}
		return importedOn(dev, h)
	})
	if err != nil {
		return nil, err
	}
	return b, nil
}
