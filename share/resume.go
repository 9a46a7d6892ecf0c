package share

import (
	"context"
	"errors"
	"fmt"

	"github.com/gpufd/gpufd/share/internal/wire"
)

// Resume takes a lease of the memory again when the lease has ended, without mapping the
// memory anew: a producer that has started again, or another one in its place, offers the
// memory of the same generation under the same name, at the same path. It asks for what
// Attach asked for, with the same options but [WithNewerThan], [WithRoom] and
// [WithReservation], which have nothing to do, and no descriptors are sent. ctx bounds it
// as it does Attach.
//
// The Attachment that it returns owns the memory from then on, has a lease, a Done and
// notices of its own, and says what the offer is now, whose application data may be other.
// This one is closed then, but for the memory: its Ptr and its Buffer stay those of the
// other. After an error this one has the memory as before, and Resume may be called again.
// Close waits for a Resume that is under way.
//
// Resume says nothing about the bytes: whoever had the memory may have written there since.
//
// Errors: [ErrStale] if the name stands for other memory now: close this attachment and
// attach anew; [ErrUnsupported] from a producer that is older than this; [ErrHandle] for
// legacy memory; [ErrClosed]; one if the lease has not ended; and those of [Attach] but for
// those of mapping.
func (a *Attachment) Resume(ctx context.Context) (*Attachment, error) {
	if a.isZero() {
		return nil, ErrClosed
	}
	a.owner.Lock()
	defer a.owner.Unlock()
	switch {
	case a.closed, a.given:
		return nil, ErrClosed
	case a.offer.Legacy != nil:
		return nil, fmt.Errorf("%w: legacy memory cannot be resumed, because nothing keeps it without a lease", ErrHandle)
	case a.Err() == nil:
		return nil, errors.New("share: the lease has not ended, so there is nothing to resume")
	}
	opts := *a.opts
	opts.newerThan, opts.room, opts.place = 0, 0, nil
	next, err := (&attaching{opts: &opts, path: a.path, name: a.offer.Name, dev: a.Device(), resumes: a}).attach(ctx)
	if err != nil {
		return nil, err
	}
	a.given = true
	_ = a.endLease(false) // whose connection has had its end
	return next, nil
}

// generation is what is asked for of memory that is mapped here already, or 0.
func (a *attaching) generation() uint64 {
	if a.resumes == nil {
		return 0
	}
	return a.resumes.offer.Descriptor.Generation
}

// checkResumed compares what is offered with what is mapped here.
func (a *attaching) checkResumed() error {
	switch have := a.resumes.offer.Descriptor; {
	case a.offer.Memory != have:
		return fmt.Errorf("%w: %+v is offered where %+v was to be resumed", ErrProtocol, a.offer.Memory, have)
	case a.opts.access > a.offer.Access:
		return fmt.Errorf("%w: %s asked for, %s offered", ErrProtocol, a.opts.access, a.offer.Access)
	}
	return nil
}

// recordsFor are the records of the offer for a consumer that has mapped the memory of
// that generation already, or for others if that is 0.
func (o *offering) recordsFor(resume uint64, pending bool) []parcel {
	switch {
	case resume != 0:
		m := o.record
		m.Resume, m.Pending = resume, pending
		return o.parcels(m)
	case pending:
		return o.early
	}
	return o.records
}

// resumable is false for a consumer that has mapped other memory than is offered.
func (o *offering) resumable(want wire.Attach) bool {
	return want.Resume == 0 || o.record.Legacy == nil && o.record.Memory.Generation == want.Resume
}
