package share

import (
	"context"
	"time"

	"github.com/gpufd/gpufd/fence"
	"github.com/gpufd/gpufd/internal/plain"
	"github.com/gpufd/gpufd/internal/serve"
	"github.com/gpufd/gpufd/internal/wire"
)

// Close waits for work that was queued before it ([cu.Driver.WaitQueued]), unmaps the memory, says farewell to
// the producer, and ends the lease. So the producer learns that nothing of this process uses the memory any
// more, except other mappings of it ([vmm.View]) and exported descriptors, which are the caller's to close
// before. Of memory that is detached Close frees the address space, unless that is of [AttachOptions].Reservation.
//
// If the work is not done within [cu.WithCloseLimit], a stream is being captured, or the buffer is held
// ([vmm.Buffer.Hold]), as by a counter, or offered on, Close returns [ErrInUse], nothing has changed, and it may be
// called again. After Close it does nothing, as on nil.
func (a *Attachment) Close() error {
	if a.isZero() {
		return nil
	}
	return a.closeBy(func() error { return a.memory.Release(context.Background()) })
}

// Release is [Attachment.Close] that waits until ctx ends; if it never does, Release is Close.
func (a *Attachment) Release(ctx context.Context) error {
	if a.isZero() {
		return nil
	}
	if err := plain.ContextErr(ctx); err != nil {
		return err
	}
	return a.closeBy(func() error { return a.memory.Release(ctx) })
}

// CloseNow is [Attachment.Close] without waiting: the caller knows that no work uses the memory. A kernel or copy
// that does loses every context of the process. For legacy memory it is Close.
func (a *Attachment) CloseNow() error {
	if a.isZero() {
		return nil
	}
	return a.closeBy(a.memory.CloseNow)
}

// closeBy closes the memory by a function that may wait, and then ends the lease. Memory that Resume has given to
// another attachment is not this one's to close.
func (a *Attachment) closeBy(free func() error) error {
	a.owner.Lock()
	if a.given {
		a.owner.Unlock()
		return nil
	}
	a.closing++
	a.owner.Unlock()
	err := free()
	a.owner.Lock()
	defer a.owner.Unlock()
	a.closing--
	if err == nil {
		err = a.room.Close()
	}
	if err != nil {
		return err
	}
	a.closed = true
	a.leave()
	return a.endLease(true)
}

// abandon ends the lease and leaves the memory mapped: it cannot be closed now. Close may do so later.
func (a *Attachment) abandon() {
	a.owner.Lock()
	defer a.owner.Unlock()
	if !a.given {
		a.closed = true
		_ = a.endLease(false)
	}
}

// isClosed reports whether a Close, Release or CloseNow has freed the memory, or the attachment was abandoned.
func (a *Attachment) isClosed() bool {
	a.owner.Lock()
	defer a.owner.Unlock()
	return a.closed
}

// endLease ends the connection, and waits until its reader has ended. released says that
// the memory is closed.
func (a *Attachment) endLease(released bool) (err error) {
	a.once.Do(func() {
		t := a.lastLeaseConn(released)
		if released {
			a.sayFarewell(t)
		}
		a.stop()
		a.unlink()
		serve.DropCursors(a.cursors)
		err = t.transport.Conn.Close()
		a.awaitFiles()
		<-a.done
		for _, w := range append(a.former, t.fence.Watch) {
			if w != nil {
				w.Stop(errClosed)
			}
		}
		a.behind.Wait()
	})
	return err
}

// awaitFiles waits until the descriptors are closed that came with the offer. A lying peer's may
// take long.
func (a *Attachment) awaitFiles() {
	select {
	case <-a.filesClosed:
	case <-time.After(serve.Goodbye):
	}
}

// lastLeaseConn returns the current lease, and makes it the last one.
func (a *Attachment) lastLeaseConn(released bool) *leaseConn {
	a.swap.Lock()
	defer a.swap.Unlock()
	a.shut, a.gone = true, released
	return a.now.Load()
}

// sayFarewell says that this side does not use the memory any more, to a producer that
// waits to hear it. After a verdict no farewell is due.
func (a *Attachment) sayFarewell(t *leaseConn) {
	if t.says.Told && !a.judged.Load() && (!serve.IsClosed(t.done) || a.awaitsRelease(t)) {
		_ = t.transport.SayLast(context.Background(), wire.Farewell{})
	}
}

// Fenced returns a channel that is closed when the producer is fenced ([fence.Fenced]): the lease
// has ended and the process that listens has died, in either order. Where that cannot be
// known, and after Close, the channel is never closed, and [Attachment.AwaitFence] says so.
// The zero Attachment's is closed.
func (a *Attachment) Fenced() <-chan struct{} {
	if a.isZero() {
		return serve.Closed
	}
	return a.now.Load().fence.Fenced()
}

// AwaitFence waits until the lease has ended and the producer is fenced as wanted; [fence.Fenced]
// means that it does not write the memory any more. With a context that is done, it only
// checks. A producer is [fence.Released] when it has ended its offer or this lease in order. That
// does not mean that it has stopped using the memory, which is its own.
//
// The error is a [*fence.Error]. It matches [fence.ErrUnknown], at once, where the end cannot be
// known, and after Close; else it holds what ended ctx.
func (a *Attachment) AwaitFence(ctx context.Context, want fence.Kind) error {
	if a.isZero() {
		return errClosed
	}
	return a.now.Load().fence.AwaitFence(ctx, want)
}
