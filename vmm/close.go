package vmm

import (
	"context"
	"errors"
	"fmt"
	"runtime"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/internal/plain"
)

// Close waits for work that was queued before it ([cu.Driver.WaitQueued]), unmaps the buffer, frees its
// address space and releases its memory, which lives on in peers and in other views.
//
// If the work is not done within [cu.WithCloseLimit], or a stream is being captured, or the buffer is
// lent or held, Close returns [ErrInUse], nothing has changed, and it may be called again; likewise if
// unmapping failed. A second Close does nothing.
func (b *Buffer) Close() error {
	if b == nil || b.content == nil {
		return nil
	}
	return b.closeWhenUnused(context.Background())
}

// Release is [Buffer.Close] that waits until ctx ends; if it never does, Release is Close.
func (b *Buffer) Release(ctx context.Context) error {
	if b == nil || b.content == nil {
		return nil
	}
	if err := plain.ContextErr(ctx); err != nil {
		return err
	}
	return b.closeWhenUnused(ctx)
}

// CloseNow is [Buffer.Close] without waiting: the caller knows that no work uses the buffer. A kernel or copy
// that does loses every context of the process.
func (b *Buffer) CloseNow() error {
	return b.unused("close", func() error {
		if err := errors.Join(b.content.close(), closeAll(b.content.chunks)); err != nil {
			return err
		}
		b.lost.Stop()
		return nil
	})
}

// Unmap does the first half of Close: it waits, unmaps the buffer and frees its address space, so
// that nothing reaches the memory through it. Close then releases the memory, which takes
// longer where it was exported and can happen where nobody waits. Between the two, the buffer
// counts as closed for everything else. Unmap fails as Close does, and can be tried again.
func (b *Buffer) Unmap() error {
	if b == nil || b.content == nil {
		return nil
	}
	if err := b.awaitUnused(context.Background(), "unmap"); err != nil {
		return err
	}
	return b.unused("unmap", func() error { return b.content.close() })
}

// unused calls f with the buffer locked and marked as closed, unless that is in use.
func (b *Buffer) unused(what string, f func() error) error {
	if b == nil || b.content == nil {
		return nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.checkUsers(what); err != nil {
		return err
	}
	b.closed = true
	return f()
}

// checkUsers returns ErrInUse while the buffer is lent or held. It runs with mu held.
func (b *Buffer) checkUsers(what string) error {
	users := b.users()
	if users == "" {
		return nil
	}
	return fmt.Errorf("%w: cannot %s the buffer at %s with %s", ErrInUse, what, b.content.ptr(), users)
}

// closeWhenUnused closes the buffer when the work is done, or says that it is in use.
func (b *Buffer) closeWhenUnused(ctx context.Context) error {
	if err := b.awaitUnused(ctx, "close"); err != nil {
		return err
	}
	return b.CloseNow()
}

// awaitUnused waits until no queued work uses the buffer. It returns ErrInUse at once if somebody holds it.
func (b *Buffer) awaitUnused(ctx context.Context, what string) error {
	b.mu.Lock()
	err := b.checkUsers(what)
	b.mu.Unlock()
	if err != nil || b.content.closed.Load() { // by Unmap
		return err
	}
	return b.content.res.awaitWork(ctx, "buffer", b.content.ptr())
}

// awaitWork waits until no queued work uses what is mapped at p, or returns ErrInUse.
func (r *reservation) awaitWork(ctx context.Context, what string, p cu.DevicePtr) error {
	return r.drv.WaitToClose(ctx, fmt.Sprintf("vmm: the %s at %s", what, p))
}

// Close waits for queued work as [Buffer.Close] does, unmaps the view and frees its address space. If it
// returns [ErrInUse], nothing has changed. A second Close does nothing.
func (v *View) Close() error {
	if v == nil || v.inner == nil || v.inner.closed.Load() && v.inner.mapped() == 0 {
		return nil
	}
	if err := v.inner.res.awaitWork(context.Background(), "view", v.inner.res.ptr); err != nil {
		return err
	}
	return v.CloseNow()
}

// CloseNow is [View.Close] without waiting, as [Buffer.CloseNow].
func (v *View) CloseNow() error {
	if v == nil || v.inner == nil {
		return nil
	}
	defer runtime.KeepAlive(v)
	return v.inner.close()
}

// Close waits for queued work as [Buffer.Close] does, and ends the mapping. If it returns [ErrInUse],
// nothing has changed. A second Close does nothing.
func (m *Mapping) Close() error {
	if m == nil || m.inner == nil || m.inner.closed.Load() {
		return nil
	}
	if err := m.inner.res.awaitWork(context.Background(), "mapping", m.inner.ptr()); err != nil {
		return err
	}
	return m.CloseNow()
}

// CloseNow is [Mapping.Close] without waiting, as [Buffer.CloseNow].
func (m *Mapping) CloseNow() error {
	if m == nil || m.inner == nil {
		return nil
	}
	defer runtime.KeepAlive(m)
	return m.inner.close()
}
