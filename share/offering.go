package share

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/internal/wire"
)

// An offering is an offer from its making to its end. It goes through these states,
// of which the second only where the offer is prepared:
//
//	claimed    its name is taken; consumers wait for it
//	prepared   consumers are sent the descriptors, and wait for its data
//	published  consumers are sent the descriptors, and its data is there
//	replaced   another has its name; its leases go on
//	over       its context is done; its leases end
type offering struct {
	server *Server
	opts   *offerOptions
	source source

	record  wire.Offer // what consumers are told, but for the descriptors in a record
	loan    loan
	data    *os.File // application data that does not fit the record, or nil
	records []parcel // that the descriptors travel with
	early   []parcel // the same, before the data is there

	ctx      context.Context // until it is over
	cancel   context.CancelCauseFunc
	work     sync.WaitGroup // leases, and calls of onEvent
	wake     chan struct{}  // begun or ended moved
	replaced chan struct{}  // closed, under server.mu, when another has its name
	fenced   chan struct{}  // closed when unsure has been set
	unsure   error          // that its consumers may still write; see WithFence

	// Under server.mu:
	caller       context.Context // Offer's, once it is published
	begun, ended int             // leases
	numbered     int             // the last number that a lease got
	published    bool
	pending      []*waiter // are sent the descriptors before the data is there
	behind       []*waiter // know the memory, and wait for newer
	live         []*Lease  // have not ended
	newer        uint64    // the generation of what has its place under another name, or 0
	keepers      keepers   // consumers whose leases ended with legacy memory open
	unfenced     unfenced  // consumers whose leases ended and that may still write
}

// newOffering makes an offering, which borrows the memory from now on. Consumers that ask
// for it wait.
func (s *Server) newOffering(name string, memory source, access cu.Access, opts []OfferOption) (*offering, error) {
	if s.isZero() {
		return nil, ErrClosed
	}
	terms, err := newOfferOptions(opts)
	if err = errors.Join(err, wire.CheckName(name), wire.CheckAccess(access)); err != nil {
		return nil, err
	}
	o := &offering{server: s, opts: terms, source: memory, wake: make(chan struct{}, 1), replaced: make(chan struct{}), fenced: make(chan struct{})}
	o.record.Name, o.record.Access = name, access
	o.ctx, o.cancel = context.WithCancelCause(s.ctx)
	if err := o.claim(); err != nil {
		return nil, err
	}
	if o.loan, err = memory.lend(o); err != nil {
		o.forget()
		o.cancel(err)
		return nil, err
	}
	if err := o.setData(terms.data); err != nil {
		return nil, join(err, o.giveUp(err))
	}
	terms.data = nil // the caller's
	if c := terms.cursors; c != nil {
		o.record.CursorSize = c.size
	}
	o.record.Memory, o.record.Legacy = o.loan.memory, o.loan.handle
	o.record.Process = wire.Process{Told: true, Flags: s.knownFlags(memory.device()) | o.opts.fence.flags()}
	o.records = o.parcels(o.record)
	o.noteFence()
	return o, nil
}

// serve publishes the offering and serves consumers until ctx is done or an option ends
// it. It always ends the offering. Work that can wait comes after the first consumers
// were sent their descriptors.
func (o *offering) serve(ctx context.Context) error {
	if err := o.server.enter(); err != nil {
		return join(err, o.giveUp(err))
	}
	defer o.server.work.Done()
	if ctx.Err() != nil { // over before it began, which is no error
		return o.giveUp(context.Cause(ctx))
	}
	if err := o.awaitEarlier(ctx); err != nil {
		return join(err, o.giveUp(err))
	}
	if err := o.synchronize(ctx); err != nil {
		return join(err, o.giveUp(err))
	}
	if ctx.Err() != nil { // over meanwhile
		return o.giveUp(context.Cause(ctx))
	}
	if err := o.putUp(ctx); err != nil {
		return join(err, o.giveUp(err))
	}
	defer context.AfterFunc(ctx, func() { o.cancel(context.Cause(ctx)) })()
	err := o.wait()
	o.remove()
	return join(err, o.end(ErrRevoked))
}

// putUp publishes the offering and tells everybody who waits for it or has what it replaces.
func (o *offering) putUp(ctx context.Context) error {
	o.opts.onEvent(Event{Kind: Offered})
	now, err := o.publish(ctx)
	if err != nil {
		return err
	}
	for _, w := range now.pending {
		w.publish()
	}
	for _, w := range now.waiting {
		w.lease.begin()
		w.deliver()
	}
	generation := o.record.Memory.Generation
	now.replaced.tellSuperseded(generation)
	for _, other := range now.beside {
		other.tellSuperseded(generation)
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
func (o *offering) synchronize(ctx context.Context) error {
	if o.opts.synchronized {
		return nil
	}
	defer context.AfterFunc(ctx, func() { o.cancel(context.Cause(ctx)) })()
	if err := o.source.synchronize(o.ctx); err != nil {
		return fmt.Errorf("waiting for work on %s before offering it: %w", o.record.Name, err)
	}
	return nil
}

// A publishing is everybody to tell that an offering is published.
type publishing struct {
	waiting  []*waiter   // have waited for it, and are admitted now
	pending  []*waiter   // have its descriptors, and wait for its data
	replaced *offering   // had its name before; or nil
	beside   []*offering // offers under its name that only resume leases
}

// publish gives the offering its name: from now on consumers get it.
func (o *offering) publish(ctx context.Context) (p publishing, err error) {
	s, name := o.server, o.record.Name
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ctx.Err() != nil {
		return p, context.Cause(s.ctx)
	}
	if o.opts.resumed {
		o.putBeside(ctx)
		return p, nil
	}
	if o.isTaken() {
		return p, fmt.Errorf("%w: %q", ErrNameTaken, name)
	}
	if p.replaced = s.offers[name]; p.replaced != nil {
		close(p.replaced.replaced)
		p.replaced.release()
	}
	s.offers[name], o.published, o.caller = o, true, ctx
	for _, w := range o.pending {
		if w.state == waiterOffered {
			w.state = waiterServed
			p.pending = append(p.pending, w)
		}
	}
	o.pending = nil
	p.waiting, p.beside = o.admitAll(o.fulfil()), slices.Clone(s.resumed[name])
	return p, nil
}

// giveUp ends an offering that was not published, and tells its waiters.
func (o *offering) giveUp(cause error) error {
	o.forget()
	return o.end(cause)
}

// end ends the offering, and tells the consumers that are still attached. The error names
// those that may have legacy memory open, or may still write.
func (o *offering) end(cause error) error {
	o.cancel(cause)
	o.work.Wait()
	err := o.awaitFences()
	o.forgetFence(err)
	o.loan.end()
	_ = o.data.Close()
	return join(o.stillOpen(), err)
}

// remove takes the offering off the server.
func (o *offering) remove() {
	o.server.mu.Lock()
	defer o.server.mu.Unlock()
	if o.server.offers[o.record.Name] == o {
		delete(o.server.offers, o.record.Name)
	}
	o.removeBeside()
	delete(o.server.watching, o)
	o.release()
}

// wait returns when the offer is over. The error says why, unless it ended as it should.
func (o *offering) wait() error {
	replaced := o.replaced // nil once it is
	var grace <-chan time.Time
	for {
		done, active := o.count()
		switch {
		case done:
			return nil
		case replaced == nil && active == 0:
			return o.cause() // the leases may have ended with the server
		}
		var idle <-chan time.Time
		if o.opts.idle > 0 && active == 0 {
			idle = time.After(o.opts.idle)
		}
		select {
		case <-replaced:
			replaced = nil
			if o.opts.grace > 0 {
				grace = time.After(o.opts.grace)
			}
		case <-grace:
			return nil
		case <-o.ctx.Done():
			return o.cause()
		case <-idle:
			select {
			case <-o.wake: // a lease has begun, and may have ended
			default:
				return fmt.Errorf("%w: none within %s", ErrNoConsumer, o.opts.idle)
			}
		case <-o.wake:
		}
	}
}

// count returns whether all leases that WithLeases allows have ended, and how many go on.
func (o *offering) count() (done bool, active int) {
	o.server.mu.Lock()
	defer o.server.mu.Unlock()
	return o.opts.leases > 0 && o.ended >= o.opts.leases, o.begun - o.ended
}

// moved wakes wait after begun or ended has changed.
func (o *offering) moved() {
	select {
	case o.wake <- struct{}{}:
	default:
	}
}

// over returns why the offer has ended, or nil.
func (o *offering) over() error {
	if err := o.ending(); err != nil {
		return err
	}
	return context.Cause(o.ctx)
}

// ending returns why the offer's context is done, or will be in a moment: its own context
// ends a little later than the server's and Offer's.
func (o *offering) ending() error {
	if err := o.cause(); err != nil {
		return err
	}
	o.server.mu.Lock()
	caller := o.caller
	o.server.mu.Unlock()
	if caller == nil {
		return nil
	}
	return context.Cause(caller)
}

// isOver reports whether the offer has ended, so that a consumer may wait for the next.
// It runs with the server's mu held.
func (o *offering) isOver() bool { return o.ctx.Err() != nil || o.caller.Err() != nil }

// cause returns why the server has ended the offer's context, or nil.
func (o *offering) cause() error {
	if o.server.ctx.Err() != nil {
		return context.Cause(o.server.ctx)
	}
	return nil
}

// gives returns the access that a consumer gets that asks for want.
func (o *offering) gives(want wire.Attach) cu.Access {
	if o.record.Legacy != nil {
		return ReadWrite // nothing can keep it from writing
	}
	return want.Access
}

// inform calls onEvent, unless the offer has ended. The end of an offer waits for such calls.
func (o *offering) inform(e Event) {
	o.server.mu.Lock()
	_, watching := o.server.watching[o]
	if watching {
		o.work.Add(1)
	}
	o.server.mu.Unlock()
	if watching {
		defer o.work.Done()
		o.opts.onEvent(e)
	}
}

// join is errors.Join, but returns err itself if there is nothing to add.
func join(err, more error) error {
	if more == nil {
		return err
	}
	return errors.Join(err, more)
}
