package serve

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/gpufd/gpufd/gpumem"
	"github.com/gpufd/gpufd/internal/broker"
	"github.com/gpufd/gpufd/internal/plain"
	"github.com/gpufd/gpufd/internal/wire"
)

// An Offering is an offer from its making to its end. It goes through these states:
//
//	claimed    its name is taken; consumers wait for it
//	prepared   if it is pending: consumers are sent the descriptors, and wait for its data
//	published  consumers are sent the descriptors, and its data is there
//	replaced   another has its name; its leases go on
//	over       it is withdrawn, or has nothing more to do; its leases end
//	done       its memory is given back
type Offering struct {
	server *Server
	opts   *Terms

	source    Source // or nil, before Provide
	ownsFiles bool   // the descriptors are the offer's, and not the caller's

	Record  wire.Offer // what consumers are told, but for the descriptors in a record
	loan    Loan
	data    *os.File // application data that does not fit the record, or nil
	records []parcel // that the descriptors travel with
	early   []parcel // the same, before the data is there

	id       broker.OfferID
	ctx      context.Context // until it is over
	cancel   context.CancelCauseFunc
	fence    context.Context // until fences are waited for no longer
	unfence  context.CancelCauseFunc
	memory   broker.MemoryID
	work     sync.WaitGroup // leases, calls of OnEvent, and Provide or Publish
	replaced chan struct{}  // closed when another has its name
	finished chan struct{}  // closed when leases and fences are over; then the next two stay
	open     error          // consumers may have legacy memory open
	unsure   error          // consumers may still write
	done     chan struct{}  // closed when the memory is given back

	// Under server.mu:
	making    bool // Provide or Publish is at work
	published bool
	unknown   error         // why the first lease's process of unknown end is unknown, or nil
	taken     bool          // it cannot have its name
	begun     chan struct{} // closed when the wait for earlier offers is over; then the next stays
	inUse     error         // consumers of an earlier offer may still write the memory
	over      chan struct{} // closed when it is over; then the next two stay
	cause     error         // why it is over
	failure   error         // what the application did not ask for, or nil
	timer     *time.Timer   // of the broker, or nil
}

// Offer takes a name. Consumers that ask for it wait, until the memory is provided and published, which
// Offer does as soon as it can unless the offer is pending. A pending offer may be without memory.
func (s *Server) Offer(name string, source Source, terms *Terms) (*Offering, error) {
	if s.isZero() {
		return nil, errServerClosed
	}
	if err := errors.Join(wire.CheckName(name), wire.CheckAccess(terms.Access)); err != nil {
		return nil, err
	}
	if source == nil && !terms.Pending {
		return nil, ErrNoSource
	}
	o := &Offering{server: s, opts: terms, over: make(chan struct{}), replaced: make(chan struct{}), finished: make(chan struct{}), done: make(chan struct{})}
	o.Record.Name, o.Record.Access = name, terms.Access
	o.ctx, o.cancel = context.WithCancelCause(s.ctx)
	o.fence, o.unfence = context.WithCancelCause(context.Background())
	if err := o.claim(); err != nil {
		o.cancel(err)
		o.unfence(err)
		return nil, err
	}
	if source == nil {
		terms.Data = bytes.Clone(terms.Data)
		o.ownsFiles = true
		o.release()
		return o, nil
	}
	o.source = source
	err := o.provide()
	if err == nil && !terms.Pending {
		return o.publishOrDefer()
	}
	return o.finishMaking(err)
}

// finishMaking ends the making of an offer: with an error the descriptors stay the caller's, and nobody has them.
func (o *Offering) finishMaking(err error) (*Offering, error) {
	o.ownsFiles = err == nil
	o.release()
	if err != nil {
		return nil, join(err, o.end(err))
	}
	return o, nil
}

// acquire begins to provide or publish a pending offer, which others may not do meanwhile. Its end waits for
// release. The application's functions, which run in between, may call the offer: so it is no lock.
func (o *Offering) acquire() error {
	if o.isZero() {
		return errNoOffer
	}
	o.server.mu.Lock()
	defer o.server.mu.Unlock()
	switch {
	case IsClosed(o.over):
		return o.cause
	case !o.opts.Pending:
		return errors.New("share: the offer is not pending: it is published as soon as it can be")
	case o.published:
		return errors.New("share: the offer is published")
	case o.making:
		return errors.New("share: another call provides or publishes the offer just now")
	}
	o.making = true
	o.work.Add(1)
	return nil
}

// release undoes acquire.
func (o *Offering) release() {
	o.server.mu.Lock()
	o.making = false
	o.server.mu.Unlock()
	o.work.Done()
}

// Provide gives a pending offer its memory, which is borrowed from now on. Consumers are sent the
// descriptors. After an error the offer is over.
func (o *Offering) Provide(source Source) error {
	if err := o.acquire(); err != nil {
		return err
	}
	defer o.release()
	if o.source != nil {
		return errors.New("share: the offer has its memory")
	}
	o.source = source
	err := o.provide()
	if o.ownsFiles = err == nil; !o.ownsFiles {
		o.withdraw(err, err)
	}
	return err
}

func (o *Offering) provide() (err error) {
	if o.loan, err = o.source.Lend(o); err != nil {
		return err
	}
	if err := o.setData(o.opts.Data); err != nil {
		return err
	}
	o.opts.Data = nil // the caller's
	if c := o.opts.Cursors; c != nil {
		o.Record.CursorSize = c.Size
	}
	if o.Record.Memory, o.Record.Legacy = o.loan.Memory, o.loan.Handle; o.Record.Legacy != nil {
		if o.opts.ReadOnly {
			return errors.New("share: legacy memory cannot be offered read-only: nothing can keep consumers from writing it")
		}
		o.Record.Access = gpumem.ReadWrite
	}
	o.Record.Capabilities = takes
	o.Record.Process = wire.Process{Told: true, Flags: o.source.Process() | o.opts.Fence.flags()}
	o.records = o.parcels(o.Record)
	o.server.bring(broker.Describe{Offer: o.id, Record: o.Record, Memory: o.memoryID()}, nil)
	if !o.opts.Pending {
		return nil
	}
	if err := o.awaitEarlier(context.Background(), false); err != nil {
		return err
	}
	m := o.Record
	m.Pending = true
	o.early = o.parcels(m)
	return o.advance(broker.Prepare{Offer: o.id})
}

// Publish says that the data of a pending offer is there, after a wait for work on the memory.
// If ctx ends first, the offer stays pending.
func (o *Offering) Publish(ctx context.Context) error {
	if err := plain.ContextErr(ctx); err != nil {
		return err
	}
	if err := o.acquire(); err != nil {
		return err
	}
	defer o.release()
	if o.source == nil {
		return errors.New("share: the offer has no memory yet: provide it first")
	}
	err := o.publish(ctx)
	if err != nil && (ctx.Err() == nil || !errors.Is(err, ctx.Err())) {
		o.withdraw(err, err)
	}
	return err
}

// publish waits for what has to be over before the memory is offered, and offers it.
func (o *Offering) publish(ctx context.Context) error {
	if err := o.awaitEarlier(ctx, true); err != nil {
		return err
	}
	if err := o.synchronize(ctx); err != nil {
		return err
	}
	return o.publishNow()
}

// publishNow publishes the offering: from now on consumers get it.
func (o *Offering) publishNow() error {
	return o.advance(broker.Publish{Offer: o.id, InOrder: !o.opts.Pending})
}

// quickWait is how long Offer waits until the offer is published. A device that is idle takes microseconds.
const quickWait = 10 * time.Millisecond

// publishOrDefer publishes the offering, now or when there is no work on the memory any more and nobody may
// write it on account of an earlier offer. The driver may wait for work for as long as it likes.
func (o *Offering) publishOrDefer() (*Offering, error) {
	if o.opts.Synchronized && o.mayBegin() {
		return o.finishMaking(o.publishNow())
	}
	published, deferred := make(chan error), make(chan struct{})
	go func() {
		err := o.publish(o.ctx)
		select {
		case published <- err:
		case <-deferred:
			if err != nil {
				o.withdraw(err, err)
			}
			o.release()
		}
	}()
	timer := time.NewTimer(quickWait)
	defer timer.Stop()
	select {
	case err := <-published:
		return o.finishMaking(err)
	case <-timer.C:
		o.ownsFiles = true
		close(deferred)
		return o, nil
	}
}

// advance brings Prepare or Publish, and returns why the offering cannot be prepared or published.
func (o *Offering) advance(e broker.Event) error {
	s := o.server
	s.mu.Lock()
	err := o.whyRefused()
	var work []*session
	if err == nil {
		work = s.step(e)
		err = o.whyRefused() // before a consumer is through with it
	}
	if _, is := e.(broker.Publish); is && err == nil {
		o.published = true
	}
	s.mu.Unlock()
	for _, x := range work {
		x.perform(false, true)
	}
	return err
}

// synchronize waits for work on the memory, unless the caller has.
func (o *Offering) synchronize(ctx context.Context) error {
	if o.opts.Synchronized {
		return nil
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(o.ctx, func() { cancel(context.Cause(o.ctx)) })()
	if err := o.source.Synchronize(ctx); err != nil {
		return fmt.Errorf("waiting for work on %s before offering it: %w", o.Record.Name, err)
	}
	return nil
}

// withdraw ends the offering with the broker, unless it is over: its name is free, and its leases end. failure
// is what the application did not ask for, or nil.
func (o *Offering) withdraw(cause, failure error) {
	s := o.server
	s.mu.Lock()
	if o.cause == nil {
		o.cause, o.failure = cause, failure
	}
	work := s.step(broker.Withdraw{Offer: o.id, Restarting: s.successor})
	s.mu.Unlock()
	performAll(work)
}

// noteOver notes that the offering is over, and why, and gives the memory back when nobody has it any
// more. It runs with the server's mu held.
func (o *Offering) noteOver(a broker.Over) {
	s := o.server
	switch {
	case s.ctx.Err() != nil:
		o.cause = context.Cause(s.ctx)
		if !errors.Is(o.cause, ErrClosed) { // else the application closed the server
			o.failure = o.cause
		}
	case o.cause != nil:
	case a.Reason == broker.Superseded:
		o.cause = ErrSuperseded
	default:
		o.cause = ErrWithdrawn
	}
	if a.Idle {
		o.failure = fmt.Errorf("%w: none within %s", ErrNoConsumer, o.opts.Idle)
	}
	o.cancel(o.cause)
	close(o.over)
	if o.timer != nil {
		o.timer.Stop()
	}
	s.work.Go(o.giveBack)
}

// giveBack gives the memory back when nobody has it any more.
func (o *Offering) giveBack() {
	defer close(o.done)
	defer o.boundFence()()
	o.work.Wait()
	o.awaitFinished()
	o.unfence(ErrClosed)
	o.server.mu.Lock()
	l := o.loan
	o.server.mu.Unlock()
	switch {
	case !o.ownsFiles && l.Abort != nil:
		l.Abort()
	case l.End != nil:
		l.End()
	}
	_ = o.data.Close()
}

// noteBegun notes whether consumers of an earlier offer of the memory may still write it.
func (o *Offering) noteBegun(a broker.WritersDone, by *Offering) {
	switch {
	case a.InUse && by.unsure != nil:
		o.inUse = fmt.Errorf("%q was offered before: %w", by.Record.Name, by.unsure)
	case a.InUse:
		o.inUse = fmt.Errorf("%w: consumers of an earlier offer may still write it", ErrInUse)
	}
	close(o.begun)
}

// noteFinished notes that leases and fences are over. It runs with the server's mu held.
func (o *Offering) noteFinished(a broker.Finished) {
	if len(a.Open.List) > 0 {
		o.open = &StillOpenError{peersOf(a.Open), a.Open.More, o.server.opts.Timeout}
	}
	o.unsure = o.fenceError(a)
	close(o.finished)
}

// forgetFinished runs with mu held.
func (s *Server) forgetFinished() {
	for _, id := range s.finished {
		o := s.offerings[id]
		s.fencing = slices.DeleteFunc(s.fencing, func(x *Offering) bool { return x == o })
		delete(s.offerings, id)
	}
	if len(s.finished) > 0 {
		s.stopWatching()
	}
	s.finished = s.finished[:0]
}

// tickAt wakes the broker at a time, for this offering. It runs with the server's mu held.
func (o *Offering) tickAt(at time.Time) {
	tick := func() { o.server.bring(broker.Tick{Offer: o.id}, nil) }
	if o.timer == nil {
		o.timer = time.AfterFunc(time.Until(at), tick)
	} else {
		o.timer.Reset(time.Until(at))
	}
}

// end ends the offering, and tells the consumers that are still attached. The error names
// those that may have legacy memory open, or may still write.
func (o *Offering) end(cause error) error {
	o.withdraw(cause, nil)
	<-o.done
	return join(o.open, o.unsure)
}

// isZero reports whether o is nil or zero: it is over.
func (o *Offering) isZero() bool { return o == nil || o.server == nil }

// Close ends the offer.
func (o *Offering) Close() error {
	if o.isZero() {
		return nil
	}
	return o.end(ErrWithdrawn)
}

// Done returns a channel that is closed when the offer is over, nobody has the memory any more and it
// is given back.
func (o *Offering) Done() <-chan struct{} {
	if o.isZero() {
		return Closed
	}
	return o.done
}

// Err returns why the offer is over, after Done: nil if its application has ended it.
func (o *Offering) Err() error {
	switch {
	case o.isZero():
		return errNoOffer
	case !IsClosed(o.done):
		return nil
	}
	return join(o.failure, join(o.open, o.unsure))
}

// Replaced returns a channel that is closed when other memory has the offer's place.
func (o *Offering) Replaced() <-chan struct{} {
	if o.isZero() {
		return Closed
	}
	return o.replaced
}

// Supersede tells the consumers that memory of that generation is offered in the place of this, under another
// name (Attachment.Superseded).
func (o *Offering) Supersede(generation uint64) {
	if !o.isZero() {
		o.server.bring(broker.Supersede{Offer: o.id, By: generation}, nil)
	}
}

// Retire ends an offer for those that resume after its last lease.
func (o *Offering) Retire() { o.server.bring(broker.Retire{Offer: o.id}, nil) }

// ReportProgress tells the consumers that wait for the offer's name that done of total bytes are ready.
func (o *Offering) ReportProgress(done, total uint64) {
	if !o.isZero() {
		o.server.bring(broker.Work{Name: o.Record.Name, Done: done, Total: total}, nil)
	}
}

// ended returns why the offering is over, or nil.
func (o *Offering) ended() error {
	if IsClosed(o.over) {
		return o.cause
	}
	return nil
}

// Leases returns those that have not ended, in the order of their numbers.
func (o *Offering) Leases() (all []*Lease) {
	if o.isZero() {
		return nil
	}
	o.server.mu.Lock()
	defer o.server.mu.Unlock()
	for _, id := range o.server.broker.Leases(o.id) {
		all = append(all, o.server.sessions[id].lease)
	}
	return all
}

// gives returns the access that a consumer gets that asks for want.
func (o *Offering) gives(want wire.Attach) gpumem.Access {
	if o.Record.Legacy != nil {
		return gpumem.ReadWrite // nothing can keep it from writing
	}
	return want.Access
}

// join is errors.Join, but returns err itself if there is nothing to add.
func join(err, more error) error {
	if more == nil {
		return err
	}
	return errors.Join(err, more)
}
