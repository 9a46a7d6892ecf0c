package serve

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/gpufd/gpufd/gpumem"
	"github.com/gpufd/gpufd/internal/broker"
	"github.com/gpufd/gpufd/internal/wire"
)

// An Offering is an offer from its making to its end. It goes through these states;
// only a prepared offer has the second:
//
//	claimed    its name is taken; consumers wait for it
//	prepared   consumers are sent the descriptors, and wait for its data
//	published  consumers are sent the descriptors, and its data is there
//	replaced   another has its name; its leases go on
//	over       its context is done; its leases end
type Offering struct {
	server *Server
	opts   *Terms
	source Source

	Record  wire.Offer // what consumers are told, but for the descriptors in a record
	loan    Loan
	data    *os.File // application data that does not fit the record, or nil
	records []parcel // that the descriptors travel with
	early   []parcel // the same, before the data is there

	id       broker.OfferID
	ctx      context.Context // until it is over
	cancel   context.CancelCauseFunc
	memory   broker.MemoryID
	work     sync.WaitGroup // leases, and calls of onEvent
	replaced chan struct{}  // closed when another has its name
	finished chan struct{}  // closed when leases and fences are over; then the next two stay
	open     error          // consumers may have legacy memory open
	unsure   error          // consumers may still write; see WithFence

	// Under server.mu:
	caller  context.Context // Offer's, once it is published
	unknown error           // why the first lease's process of unknown end is unknown, or nil
	taken   bool            // it cannot have its name
	begun   chan struct{}   // closed when the wait for earlier offers is over; then the next stays
	inUse   error           // consumers of an earlier offer may still write the memory
	over    chan struct{}   // closed when it is over; then the next two stay
	cause   error           // why it is over
	failure error           // what Offer returns for that, or nil
	timer   *time.Timer     // of the broker, or nil
	onOver  func()          // called then; or nil
}

// newOffering makes an offering, which borrows the memory from now on. Consumers that ask
// for it wait.
func (s *Server) newOffering(name string, memory Source, access gpumem.Access, terms *Terms) (*Offering, error) {
	if s.isZero() {
		return nil, ErrClosed
	}
	err := errors.Join(wire.CheckName(name), wire.CheckAccess(access))
	if err != nil {
		return nil, err
	}
	o := &Offering{server: s, opts: terms, source: memory, over: make(chan struct{}), replaced: make(chan struct{}), finished: make(chan struct{})}
	o.Record.Name, o.Record.Access = name, access
	o.ctx, o.cancel = context.WithCancelCause(s.ctx)
	if err := o.claim(); err != nil {
		o.cancel(err)
		return nil, err
	}
	if o.loan, err = memory.Lend(o); err != nil {
		o.withdraw(err)
		return nil, err
	}
	if err := o.setData(terms.Data); err != nil {
		return nil, join(err, o.end(err))
	}
	terms.Data = nil // the caller's
	if c := terms.Cursors; c != nil {
		o.Record.CursorSize = c.Size
	}
	o.Record.Memory, o.Record.Legacy = o.loan.Memory, o.loan.Handle
	o.Record.Process = wire.Process{Told: true, Flags: memory.Process() | o.opts.Fence.flags()}
	o.records = o.parcels(o.Record)
	s.bring(broker.Describe{Offer: o.id, Record: o.Record, Memory: o.memoryID()}, nil)
	return o, nil
}

// Offer offers memory until ctx is done or the terms end it.
func (s *Server) Offer(ctx context.Context, name string, memory Source, access gpumem.Access, terms *Terms) error {
	o, err := s.newOffering(name, memory, access, terms)
	if err != nil {
		return err
	}
	return o.serve(ctx)
}

// serve publishes the offering and serves consumers until ctx is done or an option ends
// it. It always ends the offering. Work that can wait comes after the first consumers
// were sent their descriptors.
func (o *Offering) serve(ctx context.Context) error {
	if err := o.server.enter(); err != nil {
		return join(err, o.end(err))
	}
	defer o.server.work.Done()
	if ctx.Err() != nil { // over before it began, which is no error
		return o.end(context.Cause(ctx))
	}
	if err := o.awaitEarlier(ctx, true); err != nil {
		return join(err, o.end(err))
	}
	if err := o.synchronize(ctx); err != nil {
		return join(err, o.end(err))
	}
	if ctx.Err() != nil { // over meanwhile
		return o.end(context.Cause(ctx))
	}
	if err := o.publish(ctx); err != nil {
		return join(err, o.end(err))
	}
	defer context.AfterFunc(ctx, func() { o.withdraw(ErrWithdrawn) })()
	<-o.over
	return join(o.failure, o.end(ErrWithdrawn))
}

// publish publishes the offering: from now on consumers get it.
func (o *Offering) publish(ctx context.Context) error {
	o.opts.OnEvent(Event{Kind: Offered})
	s := o.server
	s.bring(broker.Publish{Offer: o.id}, nil)
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := o.refused(); err != nil {
		return err
	}
	o.caller = ctx
	if ctx.Done() != nil && !IsClosed(o.over) {
		s.callers = append(s.callers, o)
	}
	return nil
}

// enter counts an offer among what Close waits for.
func (s *Server) enter() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ctx.Err() != nil {
		return context.Cause(s.ctx)
	}
	s.work.Add(1)
	return nil
}

// synchronize waits for work on the memory, unless the caller has.
func (o *Offering) synchronize(ctx context.Context) error {
	if o.opts.Synchronized {
		return nil
	}
	defer context.AfterFunc(ctx, func() { o.cancel(context.Cause(ctx)) })()
	if err := o.source.Synchronize(o.ctx); err != nil {
		return fmt.Errorf("waiting for work on %s before offering it: %w", o.Record.Name, err)
	}
	return nil
}

// withdraw ends the offering with the broker, unless it is over: its name is free, and its leases end.
func (o *Offering) withdraw(cause error) {
	s := o.server
	s.mu.Lock()
	if !IsClosed(o.over) {
		o.cause = cause
	}
	restarting := s.successor
	s.mu.Unlock()
	s.bring(broker.Withdraw{Offer: o.id, Restarting: restarting}, nil)
}

// noteOver notes that the offering is over, and why. It runs with the server's mu held.
func (o *Offering) noteOver(idle bool) {
	s := o.server
	switch {
	case s.ctx.Err() != nil:
		o.cause = context.Cause(s.ctx)
		o.failure = o.cause
	case o.caller != nil && o.caller.Err() != nil:
		o.cause = context.Cause(o.caller)
	case o.cause == nil:
		o.cause = ErrWithdrawn
	}
	if idle {
		o.failure = fmt.Errorf("%w: none within %s", ErrNoConsumer, o.opts.Idle)
	}
	o.cancel(o.cause)
	close(o.over)
	if o.onOver != nil {
		o.onOver()
	}
	if o.timer != nil {
		o.timer.Stop()
	}
	s.callers = slices.DeleteFunc(s.callers, func(x *Offering) bool { return x == o })
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
	o.withdraw(cause)
	o.work.Wait()
	o.awaitFinished()
	o.loan.End()
	_ = o.data.Close()
	return join(o.open, o.unsure)
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

// inform calls onEvent, unless the offer has ended. The end of an offer waits for such calls.
func (o *Offering) inform(e Event) {
	o.server.mu.Lock()
	over := IsClosed(o.over)
	if !over {
		o.work.Add(1)
	}
	o.server.mu.Unlock()
	if !over {
		defer o.work.Done()
		o.opts.OnEvent(e)
	}
}

// join is errors.Join, but returns err itself if there is nothing to add.
func join(err, more error) error {
	if more == nil {
		return err
	}
	return errors.Join(err, more)
}
