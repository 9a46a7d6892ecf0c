package share

import (
	"context"
	"errors"

	"github.com/gpufd/gpufd/share/internal/wire"
)

// Close unmaps the memory, says farewell to the producer, and ends the lease. It does not
// wait for kernels that use the memory, which fail then: [Attachment.Release] does. While
// the buffer is held, as it is by a [Counter], the lease ends without a farewell, the memory
// stays, and the error is [ErrInUse]: close the counter, and this again. An attachment made
// [WithReoffer] goes on as it is while its memory is offered on or held. Close may be called
// again and on nil.
func (a *Attachment) Close() error {
	if a.isZero() {
		return nil
	}
	a.owner.Lock()
	defer a.owner.Unlock()
	if a.given {
		return nil
	}
	err := a.memory.Close()
	if a.reoffer && errors.Is(err, ErrInUse) {
		return err
	}
	a.closed = true
	return errors.Join(err, a.endLease(err == nil))
}

// endLease ends the connection, and waits until its reader has. released says that the
// memory is closed.
func (a *Attachment) endLease(released bool) (err error) {
	a.once.Do(func() {
		if released {
			a.sayFarewell()
		}
		a.stop()
		err = a.transport.conn.Close()
		<-a.done
		if a.fence.watch != nil {
			a.fence.watch.stop(ErrClosed)
			a.behind.Wait()
		}
	})
	return err
}

// Release is Close that waits for the work that uses the memory before, in the device's
// primary context: the producer is told that nothing of this process uses the memory any
// more, and may use it again. Work in other contexts is the caller's to wait for, and so are
// other mappings of the memory ([vmm.View]) and exported descriptors of it.
//
// Where it fails the attachment stays as it is: with what ended ctx; with [ErrInUse], as
// Close; with what the driver says. Once it is closed Release does nothing.
func (a *Attachment) Release(ctx context.Context) error {
	if a.isZero() {
		return ErrClosed
	}
	a.owner.Lock()
	defer a.owner.Unlock()
	if a.given {
		return nil
	}
	if err := a.Device().Synchronize(ctx); err != nil {
		return err
	}
	if err := a.memory.Close(); err != nil {
		return err
	}
	a.closed = true
	return a.endLease(true)
}

// sayFarewell says that the memory is not used here any more, to a producer that waits to
// hear it. Who gave a verdict has taken leave.
func (a *Attachment) sayFarewell() {
	if a.says.Told && !a.judged.Load() && (!isClosed(a.done) || a.awaitsRelease()) {
		_ = a.transport.sayLast(context.Background(), wire.Farewell{})
	}
}

// awaitsRelease reports whether the producer keeps the connection until the memory is closed
// here.
func (a *Attachment) awaitsRelease() bool { return a.offer.AwaitsRelease && a.writes }

// watchProcess watches the producer's process until Close.
func (a *Attachment) watchProcess(from *attaching) {
	var w *watch
	if from.process != nil {
		w = newWatch(context.Background(), from.process)
		a.behind.Go(w.run)
	}
	a.fence = newFence(from.transport.conn.Peer(), a.says, w, from.unwatched, a.done)
}

// Fenced is closed when the producer is fenced ([Fenced]): the lease has ended, and the
// process that listens has died, in either order. Where that cannot be known, and after
// Close, it never is, and [Attachment.AwaitFence] says so. Of the zero Attachment it is
// closed.
func (a *Attachment) Fenced() <-chan struct{} {
	if a.isZero() {
		return closed
	}
	return a.fence.channel()
}

// AwaitFence waits until the lease has ended and the producer is fenced as wanted, for who
// has to know that it writes the memory no more; with a context that is done it only asks.
// A producer is [Released] when it has ended its offer or this lease of it in order. That
// says nothing of the memory, which is the producer's own.
//
// The error is a [*FenceError]: [ErrNoFence] at once where it cannot be known, also after
// Close; what ended ctx.
func (a *Attachment) AwaitFence(ctx context.Context, want Fence) error {
	if a.isZero() {
		return ErrClosed
	}
	return a.fence.awaitFence(ctx, want)
}
