package share

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/gpufd/gpufd/internal/plain"
	"github.com/gpufd/gpufd/internal/serve"
	"github.com/gpufd/gpufd/internal/wire"
	"github.com/gpufd/gpufd/sock"
	"github.com/gpufd/gpufd/vmm"
)

// detached is what an attachment has while its memory is detached.
type detached struct {
	room *vmm.Reservation // where the memory was mapped
	keep time.Duration    // how long the producer is to keep the lease, or 0
}

// says returns what the producer is told. Times are rounded up to milliseconds.
func (d *detached) says() wire.Detached {
	return wire.Detached{Keep: uint64((d.keep + time.Millisecond - 1) / time.Millisecond)}
}

// Detach gives the memory back and keeps its address: it waits for queued work as [Attachment.Close] does, unmaps the
// memory and releases it. The address space stays reserved. So graphs and pointers stay good for [Attachment.Reattach],
// which maps the memory there again. Nothing may use the address until then: a kernel or copy that does loses every context
// of the process.
//
// kept says that the producer goes on with the lease, which needs no memory here: it holds this version
// of the memory for as long as keep says, or, if that is 0, as long as the connection lives. When keep is over the
// producer revokes the lease ([ErrRevoked]). When the producer ends, [Attachment.Resume] takes the lease up with its successor. Where a lease cannot be kept, Detach says farewell and gives it up: with a
// producer that is older than this, for memory that this side may write, and for a channel. Then, and where the lease had ended
// already, kept is false, and Reattach finds the memory only if the producer still has it.
//
// If the work is not done in the time of [cu.WithCloseLimit], or the buffer is held ([vmm.Buffer.Hold]), offered on, or has views
// ([vmm.Buffer.NewView]), Detach returns [ErrInUse], and nothing has changed. Legacy memory cannot be detached ([ErrHandle]). Detach of
// memory that is detached sets keep anew.
func (a *Attachment) Detach(ctx context.Context, keep time.Duration) (kept bool, err error) {
	if err := plain.ContextErr(ctx); err != nil {
		return false, err
	}
	if a.isZero() {
		return false, errClosed
	}
	if keep < 0 {
		return false, fmt.Errorf("share: a lease cannot be kept for %s: want 0, which is no bound, or more", keep)
	}
	if err := a.unmap(ctx, keep); err != nil {
		return false, err
	}
	return a.keepLease(ctx), nil
}

// unmap gives the memory back, and notes for how long its lease is to be kept.
func (a *Attachment) unmap(ctx context.Context, keep time.Duration) error {
	buf, err := a.beginDetach()
	if err != nil {
		return err
	}
	var room *vmm.Reservation
	if buf != nil {
		room, err = buf.Detach(ctx)
	}
	a.owner.Lock()
	defer a.owner.Unlock()
	a.closing--
	switch {
	case err != nil:
		return err
	case a.closed: // meanwhile
		return errors.Join(errClosed, room.Close())
	}
	a.room = cmp.Or(room, a.room)
	a.swap.Lock() // change looks at it for the lease that it brings
	defer a.swap.Unlock()
	a.asleep.Store(&detached{cmp.Or(a.room, a.opts.Reservation), keep})
	return nil
}

// beginDetach returns the buffer to detach, or nil if it is detached, and keeps Resume and Reattach away.
func (a *Attachment) beginDetach() (*vmm.Buffer, error) {
	a.owner.Lock()
	defer a.owner.Unlock()
	switch {
	case a.closed, a.given:
		return nil, errClosed
	case a.closing > 0:
		return nil, fmt.Errorf("%w: the attachment is being closed or detached", ErrInUse)
	case a.Offer().Legacy != nil:
		return nil, fmt.Errorf("%w: legacy memory cannot be detached, because its producer frees it without regard to a lease that has nothing open", ErrHandle)
	}
	a.closing++
	return a.Buffer(), nil
}

// keepLease tells the producer that the memory is detached, and reports whether it keeps the lease. A lease that it
// would not keep is given up.
func (a *Attachment) keepLease(ctx context.Context) (kept bool) {
	t, d := a.now.Load(), a.asleep.Load()
	if t.takes&wire.TakesDetach == 0 || a.writes || a.cursors != nil {
		_ = a.endLease(true)
		return false
	}
	err := t.transport.Send(context.WithoutCancel(ctx), d.says()) // no longer than a step
	if err != nil && !errors.Is(err, sock.ErrPeerLost) && !errors.Is(err, sock.ErrClosed) {
		_ = a.endLease(true)
	}
	return err == nil && !serve.IsClosed(t.done)
}

// Detached reports whether the memory is detached ([Attachment.Detach]).
func (a *Attachment) Detached() bool {
	return !a.isZero() && a.asleep.Load() != nil && !serve.IsClosed(a.left)
}
