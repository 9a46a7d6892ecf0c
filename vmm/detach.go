package vmm

import (
	"context"
	"errors"
	"fmt"

	"github.com/gpufd/gpufd/internal/plain"
)

// Detach is [Buffer.Release] of imported memory that keeps the address space: nothing is mapped there then, and the
// memory is free once nobody else has it. Import the memory again, or other memory, [WithReservation] to have it at the
// same address. The caller owns the Reservation. It is nil if the buffer was imported WithReservation: then the
// address space is the caller's already.
//
// Detach returns [ErrInUse] where Close does, and while the buffer has views; then nothing has changed. After
// another error part of the memory may be unmapped already: use none of it, and call Detach or Close again. After Detach
// the buffer is closed.
func (b *Buffer) Detach(ctx context.Context) (*Reservation, error) {
	if err := plain.ContextErr(ctx); err != nil {
		return nil, err
	}
	if b == nil || b.content == nil {
		return nil, closedError("buffer")
	}
	if err := b.whileOpen(b.checkDetach); err != nil {
		return nil, err
	}
	if err := b.awaitUnused(ctx, "detach"); err != nil {
		return nil, err
	}
	var r *Reservation
	err := b.whileOpen(func() (err error) {
		if err = b.checkDetach(); err == nil {
			r, err = b.content.detach()
		}
		if b.closed = err == nil; b.closed {
			b.lost.Stop()
		}
		return err
	})
	return r, err
}

// checkDetach returns why the buffer cannot be detached now. It runs with mu held.
func (b *Buffer) checkDetach() error {
	switch n := b.views.Load(); {
	case !b.imported:
		return errors.New("vmm: only imported memory can be detached: what was made here would be lost")
	case n > 0:
		return fmt.Errorf("%w: cannot detach the buffer at %s with %s; close them first", ErrInUse, b.content.ptr(), plain.Count(int(n), "view"))
	}
	return b.checkUsers("detach")
}

// detach unmaps and releases the memory, and hands the address space on, if that is its own. It may be called again.
func (c *content) detach() (*Reservation, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := errors.Join(c.drop(0), closeAll(c.chunks)); err != nil {
		return nil, err
	}
	c.closed.Store(true)
	if c.res != &c.own {
		return nil, nil
	}
	c.own.closed.Store(true)
	return owned(&reservation{drv: c.own.drv, ptr: c.own.ptr, size: c.own.size}), nil
}
