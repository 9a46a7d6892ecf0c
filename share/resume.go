package share

import (
	"context"
	"errors"
	"fmt"

	"github.com/gpufd/gpufd/internal/plain"
	"github.com/gpufd/gpufd/internal/serve"
	"github.com/gpufd/gpufd/internal/wire"
)

// Resume takes a new lease of the memory after the lease has ended, without mapping it
// again. It needs a producer that offers memory of the same generation under the same name
// at the same path: the old producer after a restart, or another one. Resume asks for what
// Attach asked for, with the same options except [AttachOptions].NewerThan and [AttachOptions].Reservation,
// which do not apply. No descriptors are sent. ctx bounds it as it does
// Attach.
//
// The new Attachment owns the memory from then on. It has its own lease, Done and notices,
// and its Offer is the new one, whose application data may differ. This one is then closed,
// except that its Ptr and Buffer stay those of the new one. After an error this one has the
// memory as before, and Resume may be called again. Close waits for a Resume under way.
//
// Memory that is detached ([Attachment.Detach]) stays so: the new lease keeps it for Reattach, for as long as Detach said,
// counted from now. An attachment that [Follow] gave is in its loop then, as after Reattach.
//
// Resume does not check the bytes: any process that had the memory may have written there.
//
// Errors: [ErrStale] if the name stands for other memory now: close this attachment and
// attach again; [ErrUnsupported] from a producer that is too old; [ErrHandle] for legacy
// memory; [ErrClosed]; an error if the lease has not ended; and those of [Attach], except
// those of mapping.
func (a *Attachment) Resume(ctx context.Context) (*Attachment, error) {
	if err := plain.ContextErr(ctx); err != nil {
		return nil, err
	}
	if a.isZero() {
		return nil, errClosed
	}
	a.owner.Lock()
	defer a.owner.Unlock()
	switch {
	case a.closed, a.given:
		return nil, errClosed
	case a.closing > 0:
		return nil, fmt.Errorf("%w: the attachment is being closed", ErrInUse)
	case a.Offer().Legacy != nil:
		return nil, fmt.Errorf("%w: legacy memory cannot be resumed, because nothing keeps it without a lease", ErrHandle)
	case !serve.IsClosed(a.done):
		return nil, errors.New("share: the lease has not ended: resume it after Done")
	case a.asleep.Load() != nil && (a.writes || a.cursors != nil):
		return nil, errors.New("share: nobody keeps a lease that may write, or that a channel is in, while its memory is detached: Reattach")
	}
	from := a.resuming()
	from.room, from.asleep = a.room, a.asleep.Load()
	if from.asleep == nil {
		from.opts.within = nil // the new attachment is the caller's, not Follow's
	} else {
		from.line = a.line
	}
	next, err := from.attach(ctx)
	if err != nil {
		return nil, err
	}
	if next.Detached() {
		_ = next.keepLease(ctx)
	}
	a.give()
	_ = a.endLease(false) // its connection has ended already
	return next, nil
}

// resuming returns an attaching to the memory that is mapped here.
func (a *Attachment) resuming() *attaching {
	opts := *a.opts
	opts.NewerThan, opts.Reservation = 0, nil
	return &attaching{opts: &opts, path: a.path, name: a.Offer().Name, dev: a.dev, resumes: a}
}

// generation returns the generation of the memory to resume, or 0.
func (a *attaching) generation() uint64 {
	if a.resumes == nil {
		return 0
	}
	return a.resumes.Offer().Descriptor.Generation
}

// checkResumed compares what is offered with what is mapped here.
func (a *attaching) checkResumed() error {
	switch have := a.resumes.Offer().Descriptor; {
	case a.offer.Memory != have:
		return fmt.Errorf("%w: %+v is offered where %+v was to be resumed", serve.ErrUnexpected, a.offer.Memory, have)
	case a.asleep != nil && a.takes&wire.TakesDetach == 0:
		return fmt.Errorf("%w: the producer keeps no lease of memory that is detached: Reattach", ErrUnsupported)
	case a.opts.Access > a.offer.Access:
		return fmt.Errorf("%w: %s asked for, %s offered", serve.ErrUnexpected, a.opts.Access, a.offer.Access)
	}
	return nil
}
