package vmm

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"

	"github.com/gpufd/gpufd/cu"
)

// MaxChunks bounds the chunks of one buffer: each costs a descriptor in the
// exporter and an import in every peer.
const MaxChunks = 4096

// A Buffer is device memory, mapped, that can be shared: one or more chunks of
// physical memory of equal size, side by side in one piece of address space.
// The caller owns it. It is safe for concurrent use.
type Buffer struct {
	dev         *cu.Device
	granularity uint64
	chunk       uint64
	capacity    uint64
	imported    bool
	opts        *options
	view        *View

	mu         sync.Mutex
	size       uint64
	generation uint64
	chunks     []*Allocation
	closed     bool
}

// New makes a buffer of at least size bytes, which read as zeros, on dev: it
// reserves address space, creates physical memory, maps it and sets access. If
// a step fails nothing is left behind. Memory that is not free is waited for
// only [WithWait].
//
// Errors: [ErrSize]; those of [cu.Device.CreateMemory], of which
// [cu.ErrOutOfMemory] and [cu.ErrNotSupported] are the ones to expect.
func New(dev *cu.Device, size uint64, opts ...Option) (*Buffer, error) {
	o := newOptions(opts)
	b := &Buffer{dev: dev, opts: o, generation: newGeneration()}
	n, err := b.plan(size)
	if err != nil {
		return nil, o.giveUp(err)
	}
	var chunks []*Allocation
	err = await(o.wait, dev, uint64(n)*b.chunk, o, func() (err error) { chunks, err = b.create(n, o); return err })
	if err != nil {
		return nil, o.giveUp(err)
	}
	return b.assemble(chunks, size)
}

// assemble maps chunks into a new view. It owns them, whatever comes of it. What
// can wait is done when the memory is mapped and that was told.
func (b *Buffer) assemble(chunks []*Allocation, size uint64) (*Buffer, error) {
	v, err := newView(b.dev, b.capacity, b.opts)
	if err != nil {
		return nil, errors.Join(err, closeAll(chunks))
	}
	defer v.watch()
	if err := v.add(chunks, b.opts.access, b.opts); err != nil {
		return nil, errors.Join(err, v.Close(), closeAll(chunks))
	}
	if err := b.opts.mapped(); err != nil {
		return nil, errors.Join(err, v.Close(), closeAll(chunks))
	}
	b.view, b.chunks, b.size = v, chunks, size
	return b, nil
}

// plan checks sizes against the device's granularity and returns the number of
// chunks.
func (b *Buffer) plan(size uint64) (int, error) {
	g, _, err := b.dev.Granularity(b.opts.types)
	if err != nil {
		return 0, err
	}
	b.granularity = g
	whole, ok := AlignUp(size, g)
	if size == 0 || !ok {
		return 0, fmt.Errorf("%w: a buffer of %d bytes", ErrSize, size)
	}
	b.chunk = whole
	if b.opts.chunk != 0 {
		if b.chunk, ok = AlignUp(b.opts.chunk, g); !ok {
			return 0, fmt.Errorf("%w: chunks of %d bytes", ErrSize, b.opts.chunk)
		}
	}
	n, err := chunkCount(size, b.chunk)
	if err != nil {
		return 0, err
	}
	capacity, ok := AlignUp(b.opts.capacity, b.chunk)
	if !ok {
		return 0, fmt.Errorf("%w: capacity of %d bytes", ErrSize, b.opts.capacity)
	}
	b.capacity = max(capacity, uint64(n)*b.chunk)
	return n, b.opts.roomFor(b.capacity)
}

// chunkCount is how many chunks hold size bytes.
func chunkCount(size, chunk uint64) (int, error) {
	n := (size-1)/chunk + 1
	if n > MaxChunks {
		return 0, fmt.Errorf("%w: %d bytes in chunks of %d are %d chunks, of which there may be %d; use larger chunks",
			ErrSize, size, chunk, n, MaxChunks)
	}
	if n*chunk < size {
		return 0, fmt.Errorf("%w: %d chunks of %d bytes", ErrSize, n, chunk)
	}
	return int(n), nil
}

// create makes n chunks of physical memory.
func (b *Buffer) create(n int, o *options) (chunks []*Allocation, err error) {
	err = o.step("create", func(s *Step) error {
		s.Size, s.Chunks = uint64(n)*b.chunk, n
		for range n {
			a, err := createFor(b.dev, b.chunk, b.opts.types)
			if err != nil {
				return errors.Join(err, closeAll(chunks))
			}
			chunks = append(chunks, a)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return chunks, nil
}

func closeAll(chunks []*Allocation) error {
	var errs []error
	for _, c := range chunks {
		errs = append(errs, c.Close())
	}
	return errors.Join(errs...)
}

// Grow makes the buffer hold at least size bytes by appending chunks of the
// size it has; addresses in use stay valid. Peers that attached before keep the
// old shape, which goes on being this memory: the generation tells it from the new
// one, which is larger. A smaller size changes nothing. Without room behind the
// buffer the error is [ErrCapacity]; imported memory cannot grow.
func (b *Buffer) Grow(size uint64) error {
	o, tell := b.opts.later()
	defer tell()
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.closed:
		return cu.ErrClosed
	case size <= b.size:
		return nil
	case b.imported:
		return fmt.Errorf("%w: the memory belongs to who exported it", ErrCapacity)
	case size > b.capacity:
		return fmt.Errorf("%w: %d bytes wanted, %d reserved", ErrCapacity, size, b.capacity)
	}
	n, err := chunkCount(size, b.chunk)
	if err != nil {
		return err
	}
	more, err := b.create(n-len(b.chunks), o)
	if err != nil {
		return err
	}
	if len(more) > 0 {
		if err := b.view.add(more, b.opts.access, o); err != nil {
			return errors.Join(err, closeAll(more))
		}
	}
	b.chunks, b.size = append(b.chunks, more...), size
	b.generation = newGeneration()
	return nil
}

// NewView maps the buffer's memory once more, with other rights. What is
// written through one is seen through the others. A view does not grow with
// the buffer.
func (b *Buffer) NewView(a cu.Access) (*View, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return nil, cu.ErrClosed
	}
	o := &options{}
	v, err := newView(b.dev, uint64(len(b.chunks))*b.chunk, o)
	if err != nil {
		return nil, err
	}
	defer v.watch()
	if err := v.add(b.chunks, a, o); err != nil {
		return nil, errors.Join(err, v.Close())
	}
	return v, nil
}

// Device returns the device that the memory is on.
func (b *Buffer) Device() *cu.Device { return b.dev }

// Ptr is the buffer's first address, in this process.
func (b *Buffer) Ptr() cu.DevicePtr { return b.view.Ptr() }

// Address is Ptr, or [cu.ErrClosed] after Close. [cu.Function.Launch] asks for it.
func (b *Buffer) Address() (cu.DevicePtr, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return openAt(b.Ptr(), b.closed)
}

// Access is what the device may do with the buffer here.
func (b *Buffer) Access() cu.Access { return b.opts.access }

// Size is the size that was asked for, in bytes.
func (b *Buffer) Size() uint64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.size
}

// Mapped is the size that is mapped, in bytes: a multiple of the chunk size.
func (b *Buffer) Mapped() uint64 { return b.view.Mapped() }

// Describe returns what an importer has to know.
func (b *Buffer) Describe() Descriptor {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.describe()
}

func (b *Buffer) describe() Descriptor {
	return Descriptor{
		Kind:        b.dev.Driver().Kind(),
		Device:      b.dev.UUID(),
		Size:        b.size,
		ChunkSize:   b.chunk,
		Chunks:      len(b.chunks),
		Granularity: b.granularity,
		Generation:  b.generation,
	}
}

// Export returns the buffer's description and one descriptor per chunk, which
// the caller owns. The driver exports each chunk the first time only, which is
// a step. The exporter's work on the memory should be done before a peer is
// told: [cu.Device.Synchronize].
func (b *Buffer) Export() (Descriptor, []*os.File, error) {
	return b.export(whole, dupAll)
}

func whole(d Descriptor) (offset, size uint64) { return 0, d.Size }

// Lend is [Buffer.Export] without duplicates: the descriptors are the buffer's,
// end with it, and are not to be closed. It is for who passes them on while the
// buffer is open.
func (b *Buffer) Lend() (Descriptor, []*os.File, error) {
	return b.export(whole, lendAll)
}

// ExportRange is Export of a part of the buffer. offset is a multiple of the
// chunk size; the part ends with the chunk that holds its last byte.
func (b *Buffer) ExportRange(offset, size uint64) (Descriptor, []*os.File, error) {
	return b.export(func(Descriptor) (uint64, uint64) { return offset, size }, dupAll)
}

// export exports the part that it is told to, all in one state of the buffer,
// and has take turn chunks into files.
func (b *Buffer) export(part func(Descriptor) (offset, size uint64), take func([]*Allocation) ([]*os.File, error)) (Descriptor, []*os.File, error) {
	o, tell := b.opts.later()
	defer tell()
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return Descriptor{}, nil, cu.ErrClosed
	}
	d := b.describe()
	offset, size := part(d)
	if size == 0 || offset%d.ChunkSize != 0 || offset > d.Size || size > d.Size-offset {
		return d, nil, fmt.Errorf("%w: %d bytes at offset %d of a buffer of %d in chunks of %d",
			ErrSize, size, offset, d.Size, d.ChunkSize)
	}
	first := int(offset / d.ChunkSize)
	d.Size, d.Chunks = size, int((size-1)/d.ChunkSize+1)
	chunks := b.chunks[first : first+d.Chunks]
	if err := exportAll(chunks, o); err != nil {
		return d, nil, err
	}
	files, err := take(chunks)
	return d, files, err
}

// exportAll has the driver export those of chunks that it has not yet, a step
// if there are any.
func exportAll(chunks []*Allocation, o *options) error {
	chunks = slices.DeleteFunc(slices.Clone(chunks), (*Allocation).exported)
	if len(chunks) == 0 {
		return nil
	}
	return o.step("export", func(s *Step) error {
		for i, c := range chunks {
			fd, err := c.export()
			if err != nil {
				return err
			}
			if i == 0 {
				s.FD = fd
			}
			s.Size += c.Size()
			s.Chunks++
		}
		return nil
	})
}

// lendAll returns the descriptors that duplicates are made of.
func lendAll(chunks []*Allocation) ([]*os.File, error) {
	files := make([]*os.File, len(chunks))
	for i, c := range chunks {
		files[i] = c.lend()
	}
	return files, nil
}

// dupAll returns a descriptor of each chunk.
func dupAll(chunks []*Allocation) (files []*os.File, err error) {
	for _, c := range chunks {
		f, err := c.Export()
		if err != nil {
			closeFiles(files)
			return nil, err
		}
		files = append(files, f)
	}
	return files, nil
}

func closeFiles(files []*os.File) {
	for _, f := range files {
		_ = f.Close()
	}
}

// Close unmaps the buffer, frees its address space and releases its memory,
// which lives on in the peers that have it and in other views. It does not wait
// for kernels that use it. A second Close does nothing; one that failed to
// unmap can be tried again.
func (b *Buffer) Close() error {
	if b == nil {
		return nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
	return errors.Join(b.view.Close(), closeAll(b.chunks))
}
