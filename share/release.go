package share

import (
	"context"
	"errors"
	"time"

	"github.com/gpufd/gpufd/fence"
	"github.com/gpufd/gpufd/internal/plain"
	"github.com/gpufd/gpufd/internal/serve"
	"github.com/gpufd/gpufd/internal/wire"
)

// Close unmaps the memory, says farewell to the producer, and ends the lease. Kernels that
// still use the memory fail: [Attachment.Release] waits for them. While the buffer is held
// ([vmm.Buffer.Hold]), as by a counter, Close ends the lease without a farewell, keeps the
// memory, and returns [ErrInUse]: end the hold, and then call Close again. An attachment
// made with Reoffer stays as it is while its memory is offered on or held. Close may be
// called again and on nil.
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

// isClosed reports whether there was a Close or Release.
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
	case <-a.closing:
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

// Release first waits for the work in the primary contexts of the devices that can use the
// memory ([vmm.Buffer.Users]), and then does what Close does. So the producer learns that
// nothing of this process uses the memory any more, and may use it again. The caller waits
// for work in other contexts, and closes other mappings of the memory ([vmm.View]) and
// exported descriptors of it.
//
// If Release fails, the attachment stays as it is. The error is that of ctx, [ErrInUse] as
// for Close, or the driver's. After Close, Release does nothing.
func (a *Attachment) Release(ctx context.Context) error {
	if err := plain.ContextErr(ctx); err != nil {
		return err
	}
	if a.isZero() {
		return errClosed
	}
	a.owner.Lock()
	defer a.owner.Unlock()
	if a.given {
		return nil
	}
	if err := a.synchronize(ctx); err != nil {
		return err
	}
	if err := a.memory.Close(); err != nil {
		return err
	}
	a.closed = true
	return a.endLease(true)
}

func (a *Attachment) synchronize(ctx context.Context) error {
	if buf := a.Buffer(); buf != nil {
		return synchronize(ctx, buf)
	}
	return a.Device().Synchronize(ctx)
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
