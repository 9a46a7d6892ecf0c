package vmm

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/internal/plain"
)

// TransferOptions change how [Buffer.Load] and [Buffer.Store] work. The zero
// value suits most programs.
type TransferOptions struct {
	// Workers is how many goroutines read or write files side by side, with two
	// slots each. 0 stands for GOMAXPROCS, limited to 8 and to what the slots
	// allow.
	Workers int
	// Slot is the size of the pinned memory in which a piece of a file waits for
	// its copy: a multiple of 4,096 bytes; 0 stands for 4 MiB. All slots of a
	// call have 1 GiB at most.
	Slot uint64
	// Buffered makes Load leave what it reads in the page cache, even where it
	// could read directly.
	Buffered bool
	// OnProgress gets the number of bytes that have arrived, and of all bytes,
	// after each piece. One goroutine at a time calls it, and holds up the
	// others.
	OnProgress func(done, total uint64)
}

// The defaults and limits of TransferOptions.
const (
	mostWorkers = 8
	slotDefault = 4 << 20
	pinnedMost  = 1 << 30
)

// settle fills in the defaults.
func (o *TransferOptions) settle() error {
	if o.Slot == 0 {
		o.Slot = slotDefault
	}
	if o.Workers == 0 {
		o.Workers = max(1, min(runtime.GOMAXPROCS(0), mostWorkers, int(pinnedMost/2/o.Slot)))
	}
	if o.Slot%directAlign != 0 {
		return fmt.Errorf("%w: slots of %d bytes are not a multiple of %d", ErrSize, o.Slot, directAlign)
	}
	if o.Workers < 0 || o.Slot > pinnedMost/2 || uint64(o.Workers) > pinnedMost/2/o.Slot {
		return fmt.Errorf("%w: %d workers with two slots of %d bytes each; all slots have %d bytes at most",
			ErrSize, o.Workers, o.Slot, pinnedMost)
	}
	return nil
}

// A piece is a part of one range that fits a slot.
type piece struct {
	FileRange
	src *source
}

// A transfer moves bytes between files and a buffer: workers take one piece after
// the other until there is none, or one of them fails.
type transfer struct {
	dev     *cu.Context
	base    cu.DevicePtr
	options TransferOptions
	doing   string // "loading" or "storing"
	work    func(context.Context, *worker) error

	mu      sync.Mutex
	left    []FileRange
	sources map[*os.File]*source
	done    uint64
	total   uint64
}

// transfer runs t for ranges that have been checked.
func (b *Buffer) transfer(ctx context.Context, t *transfer, ranges []FileRange) (err error) {
	if err := t.options.settle(); err != nil {
		return err
	}
	t.plan(ranges)
	if t.total == 0 {
		return nil
	}
	hold, err := b.Hold(t.doing + " of files")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, hold.Close()) }()
	t.base = b.Ptr()
	if t.dev, err = b.dev.PrimaryContext(); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, t.dev.Close()) }()
	defer func() { err = errors.Join(err, t.closeSources()) }()
	return t.run(ctx)
}

// plan lists the pieces.
func (t *transfer) plan(ranges []FileRange) {
	t.sources = map[*os.File]*source{}
	for _, s := range ranges {
		if s.Size == 0 {
			continue
		}
		t.left = append(t.left, s)
		t.total += s.Size
		if t.sources[s.File] == nil {
			t.sources[s.File] = &source{file: s.File}
			t.sources[s.File].buffered.Store(t.options.Buffered)
		}
	}
}

func (t *transfer) closeSources() error {
	var errs []error
	for _, s := range t.sources {
		errs = append(errs, s.close())
	}
	return errors.Join(errs...)
}

// run returns when all workers have ended. The first failure ends the others,
// before the failed one waits for its copies.
func (t *transfer) run(ctx context.Context) error {
	inner, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	var wg sync.WaitGroup
	var failed sync.Once
	var first error
	tell := func(err error) {
		if err != nil {
			failed.Do(func() { first = err })
			stop(err)
		}
	}
	for range min(uint64(t.options.Workers), t.total/t.options.Slot+uint64(len(t.left))) {
		wg.Go(func() {
			w := &worker{transfer: t}
			tell(w.run(inner))
			tell(w.close())
		})
	}
	wg.Wait()
	if first != nil && errors.Is(first, context.Cause(ctx)) {
		return fmt.Errorf("vmm: %s files ended after %d of %d bytes: %w", t.doing, t.done, t.total, first)
	}
	return first
}

// next returns a piece that nobody has taken. It lies within one slot's length of
// the file, counted from the file's beginning, so that the blocks it touches fit
// a slot.
func (t *transfer) next(ctx context.Context) (p piece, ok bool, err error) {
	if err := plain.ContextErr(ctx); err != nil {
		return piece{}, false, err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.left) == 0 {
		return piece{}, false, nil
	}
	s := &t.left[0]
	p = piece{*s, t.sources[s.File]}
	p.Size = min(s.Size, t.options.Slot-s.At%t.options.Slot)
	s.At, s.Offset, s.Size = s.At+p.Size, s.Offset+p.Size, s.Size-p.Size
	if s.Size == 0 {
		t.left = t.left[1:]
	}
	return p, true, nil
}

// arrived counts n bytes that have reached their place.
func (t *transfer) arrived(n uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.done += n
	if f := t.options.OnProgress; f != nil {
		f(t.done, t.total)
	}
}

// A worker has two slots, so that the copy of one and the file access of the
// other run at the same time.
type worker struct {
	*transfer
	mem   *cu.HostMemory
	slots [2]slot
}

// A slot is pinned memory with a stream for its copies.
type slot struct {
	bytes  []byte
	stream *cu.Stream
	piece  piece // that is being copied; of size 0 if none is
}

func (w *worker) run(ctx context.Context) error {
	if err := w.open(); err != nil {
		return err
	}
	return w.work(ctx, w)
}

func (w *worker) open() (err error) {
	size := w.options.Slot
	if w.mem, err = w.dev.AllocHost(2*size, 0); err != nil {
		return err
	}
	for i := range w.slots {
		s := &w.slots[i]
		s.bytes = w.mem.Bytes()[uint64(i)*size:][:size]
		if s.stream, err = w.dev.NewStream(); err != nil {
			return err
		}
	}
	return nil
}

// close waits for copies under way: freeing pinned memory does that.
func (w *worker) close() error {
	return errors.Join(w.slots[0].stream.Close(), w.slots[1].stream.Close(), w.mem.Close())
}
