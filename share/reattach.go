package share

import (
	"context"
	"errors"
	"fmt"

	"github.com/gpufd/gpufd/internal/plain"
	"github.com/gpufd/gpufd/internal/serve"
	"github.com/gpufd/gpufd/internal/wire"
)

// Which says which memory [Attachment.Reattach] maps.
type Which int

// The memory of Reattach.
const (
	Same   Which = iota // the same as before
	Newest              // what the name stands for now, which may be the same
)

// Reattach maps memory again at the address where it was detached ([Attachment.Detach]): the same, or the newest that is
// offered under the name. [Attachment.Offer] of what it returns says which. It asks for what Attach asked for, with the same
// options except [AttachOptions].NewerThan. ctx bounds it as it does Attach.
//
// The new Attachment takes this one's place: it has its own lease, Done, Context and notices, and the address space is
// its to free, unless that is of [AttachOptions].Reservation. This one is then closed. That of an attachment of [Follow] is
// Follow's, too. After an error this one is as it was, detached, and Reattach may be called again. Close
// waits for a Reattach under way.
//
// Same needs no lease that was kept. It finds the memory wherever the producer still has it: the name stands for it, or other
// leases of it go on.
//
// Errors: [ErrStale] if the producer does not have the same memory any more; [ErrNotFound] if it does not have the
// name, or not yet; [vmm.ErrCapacity] if newer memory does not fit; [ErrClosed]; an error if the memory is not
// detached; and those of [Attach].
func (a *Attachment) Reattach(ctx context.Context, want Which) (*Attachment, error) {
	if err := plain.ContextErr(ctx); err != nil {
		return nil, err
	}
	if a.isZero() {
		return nil, errClosed
	}
	if want != Same && want != Newest {
		return nil, fmt.Errorf("share: Which(%d): want Same or Newest", want)
	}
	a.owner.Lock()
	defer a.owner.Unlock()
	switch {
	case a.closed, a.given:
		return nil, errClosed
	case a.closing > 0:
		return nil, fmt.Errorf("%w: the attachment is being closed or detached", ErrInUse)
	case a.asleep.Load() == nil:
		return nil, errors.New("share: the memory is not detached")
	}
	next, err := a.reattaching(want).attach(ctx)
	if err != nil {
		return nil, err
	}
	a.give()
	_ = a.endLease(true)
	return next, nil
}

// give notes that the memory is another attachment's. It runs with owner held.
func (a *Attachment) give() {
	a.given = true
	a.leave()
}

// reattaching returns an attaching at the address of the detached memory.
func (a *Attachment) reattaching(want Which) *attaching {
	opts, t := *a.opts, a.now.Load()
	opts.NewerThan = 0
	from := &attaching{opts: &opts, path: a.path, name: t.offer.Name, dev: a.dev, room: a.room, line: a.line}
	from.before, from.same = &t.offer.Descriptor, want == Same
	from.again = t.takes&wire.TakesDetach != 0
	return from
}

// wantsAgain returns the fields reattach and after of the ATTACH. A producer that is older is asked for what the name
// stands for.
func (a *attaching) wantsAgain() (again, after uint64) {
	switch {
	case !a.again:
		return 0, a.opts.after()
	case a.same:
		return a.before.Generation, 0
	}
	return a.before.Generation, a.before.Generation
}

// checkSame compares what is offered with what was detached here, if it has to be that.
func (a *attaching) checkSame(m wire.Offer) error {
	switch {
	case !a.same || m.Memory == *a.before:
		return nil
	case m.Memory.Generation != a.before.Generation:
		return fmt.Errorf("%w: %q is of generation %d, and %d was detached", ErrStale, m.Name, m.Memory.Generation, a.before.Generation)
	}
	return fmt.Errorf("%w: %+v is offered where %+v was detached", serve.ErrUnexpected, m.Memory, *a.before)
}
