package vmm

import (
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/internal/plain"
)

// checkDescriptor finds what is wrong with d without asking the driver of dev.
func checkDescriptor(dev *cu.Device, d Descriptor) error {
	if dev == nil {
		return noDevice("checking a description")
	}
	if d.Kind != dev.Driver().Kind() {
		return fmt.Errorf("%w: the exporter uses the %q driver and this process %q; run both with the same one",
			ErrKind, d.Kind, dev.Driver().Kind())
	}
	if d.Device != dev.UUID() {
		return fmt.Errorf("%w: it is on %s, and device %s was asked for", ErrDevice, d.Device, dev)
	}
	g, err := Granularity(dev)
	if err != nil {
		return err
	}
	if d.ChunkSize%g != 0 {
		return badField("chunk size", fmt.Sprintf("is %d, no multiple of the granularity %d", d.ChunkSize, g))
	}
	return d.Plausible()
}

// Import makes a buffer of memory that another process exported: it imports each
// of files, reserves address space, maps and sets access (read-only unless
// [WithAccess] says otherwise). The caller keeps the files and may close them as
// soon as Import has returned. If a step fails, nothing is left behind.
//
// Errors: [ErrKind], [ErrDevice] or a [*DescriptorError] for a description that does not fit dev;
// [cu.ErrUnknown] for a descriptor that is not device memory; a [*DescriptorError] also if the
// driver finds that the memory does not have the size or the device that d says.
func Import(dev *cu.Device, d Descriptor, files []*os.File, opts ...ImportOption) (*Buffer, error) {
	b, err := planImport(dev, d, len(files), opts)
	if err != nil {
		return nil, err
	}
	return b.importChunks(d, func(i int) (*Allocation, error) { return b.importFile(files[i]) })
}

// importFile imports one chunk. It duplicates the descriptor only after the
// driver has taken it for memory: until then a peer may have sent anything.
func (b *Buffer) importFile(f *os.File) (*Allocation, error) {
	h, err := b.dev.Driver().ImportUncollected(f, b.chunk)
	if err != nil {
		return nil, err
	}
	a, err := importedOn(b.dev, h)
	if err != nil || !b.opts.reexport {
		return a, err
	}
	if a.fd, err = dup(f); err != nil {
		return nil, errors.Join(err, a.Close())
	}
	return a, nil
}

// planImport makes a buffer without content for the chunks that came, after all
// checks that need no driver.
func planImport(dev *cu.Device, d Descriptor, came int, opts []ImportOption) (*Buffer, error) {
	b := &Buffer{
		dev: dev, opts: options{access: cu.ReadOnly}, imported: true, generation: d.Generation,
		granularity: d.Granularity, chunk: d.ChunkSize, capacity: uint64(d.Chunks) * d.ChunkSize,
	}
	for _, o := range opts {
		if o != nil {
			o.applyImport(&b.opts)
		}
	}
	err := checkDescriptor(dev, d)
	if err == nil && came != d.Chunks {
		err = badField("number of chunks", fmt.Sprintf("is %d, but %s came", d.Chunks, plain.Count(came, "descriptor")))
	}
	if err == nil && slices.Contains(b.opts.peers, nil) {
		err = noDevice("WithPeers")
	}
	if err == nil {
		err = b.opts.roomFor(b.capacity)
	}
	if err != nil {
		return nil, err
	}
	return b, nil
}

// importChunks imports each chunk with get and maps them. A lost buffer is
// reported as made by its caller's caller.
func (b *Buffer) importChunks(d Descriptor, get func(chunk int) (*Allocation, error)) (*Buffer, error) {
	chunks := make([]*Allocation, d.Chunks)
	for i := range chunks {
		var err error
		if chunks[i], err = get(i); err != nil {
			err = errors.Join(fmt.Errorf("vmm: importing chunk %d of %d: %w", i+1, d.Chunks, err), closeAll(chunks[:i]))
			return nil, err
		}
	}
	if err := b.assemble(chunks, d.Size); err != nil {
		return nil, sizeLie(err)
	}
	return b, nil
}

// sizeLie says what a refused mapping means: the memory is smaller than its
// exporter says, as the driver maps whole allocations only.
func sizeLie(err error) error {
	var e *cu.Error
	if errors.As(err, &e) && e.Op == "cuMemMap" && (e.Result == cu.ErrNotSupported || e.Result == cu.ErrInvalidValue) {
		return &DescriptorError{Field: "chunk size", Reason: "is not the size of the memory that came", Err: err}
	}
	return err
}

func badField(name, reason string) error { return &DescriptorError{Field: name, Reason: reason} }
