package run

import (
	"context"
	"errors"
	"fmt"

	"github.com/gpufd/gpufd/cu"
)

// An Answer is where a kernel leaves two numbers, with what it takes to wait for
// them alone.
type Answer struct {
	Mem    *cu.Memory
	done   *cu.Event
	Stream *cu.Stream // reads it, whatever the kernel's stream does next
	Words  [2]uint64
}

const answerSize = 16 // bytes of the words

// Answer returns an answer that nobody uses.
func (k *Set) Answer() (*Answer, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.closed {
		return nil, setClosed
	}
	if n := len(k.free); n > 0 {
		a := k.free[n-1]
		k.free = k.free[:n-1]
		return a, nil
	}
	a := &Answer{}
	if err := a.open(k.ctx); err != nil {
		return nil, errors.Join(explain(err), a.close())
	}
	k.all = append(k.all, a)
	return a, nil
}

// GiveBack keeps a for the next call. Do not give back a failed one: its kernel
// may still write it.
func (k *Set) GiveBack(a *Answer) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.free = append(k.free, a)
}

func (a *Answer) open(ctx *cu.Context) (err error) {
	if a.Mem, err = ctx.Alloc(answerSize); err != nil {
		return err
	}
	if a.done, err = ctx.NewEvent(cu.EventDisableTiming); err != nil {
		return err
	}
	a.Stream, err = ctx.NewStream()
	return err
}

// explain says what was being made: callers that check data do not expect that to
// need memory.
func explain(err error) error {
	hint := ""
	if errors.Is(err, cu.ErrOutOfMemory) {
		hint = "; leave some memory of the device free"
	}
	return fmt.Errorf("kernels: making %d bytes of memory, an event and a stream for the result of a kernel%s: %w", answerSize, hint, err)
}

func (a *Answer) close() error {
	return errors.Join(a.Mem.Close(), a.done.Close(), a.Stream.Close())
}

// Ask sets the halves of the words to begin, calls launch, whose kernel changes
// them, and waits for that.
func (a *Answer) Ask(ctx context.Context, s *cu.Stream, begin [2]uint32, launch func() error) error {
	for i, w := range begin {
		if err := cu.FillAsync(s, a.Mem.Ptr().Add(8*uint64(i)), w, 2); err != nil {
			return err
		}
	}
	if err := launch(); err != nil {
		return err
	}
	if err := a.done.Record(s); err != nil {
		return err
	}
	if err := a.done.Synchronize(ctx); err != nil {
		return err
	}
	return Read(ctx, a.Stream, a.Words[:], a.Mem.Ptr())
}

// Read copies device memory at src into dst on s, and waits for that.
func Read[T any](ctx context.Context, s *cu.Stream, dst []T, src cu.DevicePtr) error {
	if err := cu.CopyToHostAsync(s, dst, src); err != nil {
		return err
	}
	return s.Synchronize(ctx)
}
