package vmm

import (
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/gpumem"
)

// A Buffer is mapped device memory that can be shared: one or more chunks of
// physical memory of equal size, side by side in one piece of address space. The
// caller owns it. It is safe for concurrent use.
type Buffer struct {
	dev         *cu.Device
	granularity uint64
	chunk       uint64
	capacity    uint64
	imported    bool
	opts        options
	content     *content // nil in a Buffer that nobody has made
	views       *atomic.Int64
	lost        runtime.Cleanup

	mu         sync.Mutex
	size       uint64
	generation uint64
	loans      int
	holds      []*Hold
	closed     bool
}

// content is what a lost Buffer leaves behind.
type content struct {
	view
	chunks []*Allocation // grows under the buffer's lock
}

// New makes a buffer of at least size bytes on dev, which read as zeros: it
// reserves address space, creates physical memory, maps it and sets access. If a
// step fails, nothing is left behind. [NewWait] waits for memory that is not
// free.
//
// Errors: [ErrSize], and those of [cu.Device.CreateMemory]; expect
// [cu.ErrOutOfMemory] and [cu.ErrNotSupported].
func New(dev *cu.Device, size uint64, opts ...NewOption) (*Buffer, error) {
	return newBuffer(dev, size, opts, func(_ uint64, create func() error) error { return create() })
}

// newBuffer makes a buffer. It calls try, which calls create as often as it likes
// to make that many bytes of physical memory.
func newBuffer(dev *cu.Device, size uint64, opts []NewOption, try func(size uint64, create func() error) error) (*Buffer, error) {
	b := &Buffer{dev: dev, opts: options{access: cu.ReadWrite, types: cu.HandleFD}, generation: gpumem.NewGeneration()}
	for _, o := range opts {
		if o != nil {
			o.applyNew(&b.opts)
		}
	}
	n, err := b.plan(size)
	if err != nil {
		return nil, err
	}
	var chunks []*Allocation
	err = try(uint64(n)*b.chunk, func() (err error) {
		chunks, err = b.create(n)
		return err
	})
	if err != nil {
		return nil, err
	}
	if err := b.assemble(chunks, size); err != nil {
		return nil, err
	}
	return b, nil
}

// assemble maps chunks. It takes them over, even if it fails. A lost buffer is reported as made by its caller's caller.
func (b *Buffer) assemble(chunks []*Allocation, size uint64) error {
	c := &content{view: view{dev: b.dev, peers: b.opts.peers, chunk: b.chunk, made: b.opts.stack()}, chunks: chunks}
	if err := c.reserve(b.capacity, b.opts.room); err != nil {
		return errors.Join(err, closeAll(chunks))
	}
	if err := c.add(chunks, b.opts.access); err != nil {
		return errors.Join(err, c.close(), closeAll(chunks))
	}
	b.content, b.size, b.views = c, size, new(atomic.Int64)
	b.lost = runtime.AddCleanup(b, (*content).lost, c)
	return nil
}

// lost runs when the garbage collector finds a lost buffer: it reports what is
// mapped, which stays so, and releases the handles.
func (c *content) lost() {
	c.view.lost()
	go closeAll(c.chunks) // may block
}

// plan checks sizes against the device's granularity and returns the number of
// chunks.
func (b *Buffer) plan(size uint64) (int, error) {
	if b.dev == nil {
		return 0, noDevice("a buffer")
	}
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

// chunkCount returns how many chunks hold size bytes.
func chunkCount(size, chunk uint64) (int, error) {
	n := (size-1)/chunk + 1
	if n > MaxChunks {
		return 0, fmt.Errorf("%w: %d bytes in chunks of %d are %d chunks, more than %d; use larger chunks",
			ErrSize, size, chunk, n, MaxChunks)
	}
	if n*chunk < size {
		return 0, fmt.Errorf("%w: %d chunks of %d bytes", ErrSize, n, chunk)
	}
	return int(n), nil
}

// create makes n chunks of physical memory.
func (b *Buffer) create(n int) ([]*Allocation, error) {
	chunks := make([]*Allocation, 0, n)
	for range n {
		a, err := createFor(b.dev, b.chunk, b.opts.types)
		if err != nil {
			return nil, errors.Join(err, closeAll(chunks))
		}
		chunks = append(chunks, a)
	}
	return chunks, nil
}

// Grow makes the buffer hold at least size bytes. It appends chunks of the same
// size; addresses in use stay valid. Peers that attached before keep the old
// shape, which is still this memory; the new one has a larger generation. A
// smaller size changes nothing. Without room behind the buffer the error is
// [ErrCapacity]; imported memory cannot grow.
func (b *Buffer) Grow(size uint64) error {
	return b.whileOpen(func() error {
		if err := b.canGrow(size); err != nil || size <= b.size {
			return err
		}
		n, err := chunkCount(size, b.chunk)
		if err != nil {
			return err
		}
		if n -= len(b.content.chunks); n > 0 {
			if err := b.append(n); err != nil {
				return err
			}
		}
		b.size, b.generation = size, gpumem.NewGeneration()
		return nil
	})
}

// whileOpen calls f with the buffer locked, unless that is closed.
func (b *Buffer) whileOpen(f func() error) error {
	if b == nil || b.content == nil {
		return closedError("buffer")
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return closedError("buffer")
	}
	return f()
}

// canGrow says why the buffer cannot have size bytes.
func (b *Buffer) canGrow(size uint64) error {
	switch {
	case size <= b.size:
		return nil
	case b.imported:
		return fmt.Errorf("%w: imported memory cannot grow", ErrCapacity)
	case size > b.capacity:
		return fmt.Errorf("%w: %d bytes wanted, %d reserved; reserve more WithCapacity", ErrCapacity, size, b.capacity)
	}
	return nil
}

// append makes n chunks and maps them behind the others.
func (b *Buffer) append(n int) error {
	more, err := b.create(n)
	if err != nil {
		return err
	}
	if err := b.content.add(more, b.opts.access); err != nil {
		return errors.Join(err, closeAll(more))
	}
	b.content.chunks = append(b.content.chunks, more...)
	return nil
}

// NewView maps the buffer's memory once more, with the access a. All views and the buffer
// show the same bytes. A view does not grow with the buffer. The caller closes it.
func (b *Buffer) NewView(a cu.Access) (*View, error) {
	if b == nil || b.content == nil {
		return nil, closedError("buffer")
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return nil, closedError("buffer")
	}
	v, chunks := &view{dev: b.dev, chunk: b.chunk, made: cu.Here(0)}, b.content.chunks
	if err := v.reserve(uint64(len(chunks))*b.chunk, nil); err != nil {
		return nil, err
	}
	if err := v.add(chunks, a); err != nil {
		return nil, errors.Join(err, v.close())
	}
	v.beside = b.views
	v.beside.Add(1)
	outer := &View{v}
	runtime.AddCleanup(outer, (*view).lost, v)
	return outer, nil
}

// Device returns the device that the memory is on.
func (b *Buffer) Device() *cu.Device {
	if b == nil {
		return nil
	}
	return b.dev
}

// Users returns the devices that can use the memory at Ptr: its own, and those of
// [WithPeers].
func (b *Buffer) Users() []*cu.Device {
	if b == nil {
		return nil
	}
	return append([]*cu.Device{b.dev}, b.opts.peers...)
}

// Ptr returns the buffer's first address in this process, 0 after Close.
func (b *Buffer) Ptr() cu.DevicePtr {
	if b == nil || b.content == nil {
		return 0
	}
	return b.content.ptr()
}

// Access returns what the device may do with the buffer here.
func (b *Buffer) Access() cu.Access {
	if b == nil {
		return cu.NoAccess
	}
	return b.opts.access
}

// Size returns the requested size in bytes.
func (b *Buffer) Size() uint64 {
	if b == nil {
		return 0
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.size
}

// Mapped returns the mapped size in bytes: a multiple of the chunk size.
func (b *Buffer) Mapped() uint64 {
	if b == nil || b.content == nil {
		return 0
	}
	return b.content.mapped()
}

// Describe returns what an importer has to know.
func (b *Buffer) Describe() Descriptor {
	if b == nil || b.content == nil {
		return Descriptor{}
	}
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
		Chunks:      len(b.content.chunks),
		Granularity: b.granularity,
		Generation:  b.generation,
	}
}
