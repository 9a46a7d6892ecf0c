package share

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/sock"
	"github.com/gpufd/gpufd/vmm"
)

// What consumers may ask for.
const (
	ReadOnly  = cu.ReadOnly
	ReadWrite = cu.ReadWrite
)

// An OfferOption changes what [Server.Offer] does.
type OfferOption func(*offering)

// WithData has the offer carry up to [MaxData] bytes of the application's own.
func WithData(b []byte) OfferOption {
	return func(o *offering) { o.msg.data = append([]byte(nil), b...) }
}

// WithLeases admits n consumers in all and has Offer return when the last of
// them has gone. The default is no bound.
func WithLeases(n int) OfferOption { return func(o *offering) { o.leases = n } }

// WithIdleTimeout has Offer return [ErrNoConsumer] when there was no consumer
// for so long.
func WithIdleTimeout(d time.Duration) OfferOption { return func(o *offering) { o.idle = d } }

// WithVerdict demands of every consumer that it reports what it found, and
// shows by progress records that it is at work on it. Without this a consumer
// that has mapped the memory may be silent for as long as it likes.
func WithVerdict() OfferOption { return func(o *offering) { o.verdict = true } }

// WithSynchronized says that the caller has waited for the work on the memory,
// with [cu.Device.Synchronize] or otherwise, so that Offer need not: each of the
// driver calls for that takes some microseconds.
func WithSynchronized() OfferOption { return func(o *offering) { o.synchronized = true } }

// WithObserver has f told what happens. It is called from the goroutines of Offer
// and of the connections, from several at once, and should not take long: other
// consumers may be waiting for it. It may call the server, but neither close it nor
// wait for the offer's end, after which it is not called any more.
func WithObserver(f func(Event)) OfferOption { return func(o *offering) { o.observe = f } }

// OnLease has f given each lease when it begins, before the consumer is sent anything
// and before the observer hears of it, to watch it and to take it back. It is called
// like an observer ([WithObserver]), and should not wait for the lease's end.
func OnLease(f func(*Lease)) OfferOption { return func(o *offering) { o.onLease = f } }

// An offering is an offer that is being served.
type offering struct {
	server  *Server
	msg     offer
	files   []*os.File // one per chunk, the buffer's
	records [][]byte   // that they travel with, sock.MaxFDs in each but the last
	early   [][]byte   // the same, before the data is there
	leases  int
	idle    time.Duration
	verdict bool
	observe func(Event)
	onLease func(*Lease)

	memory       source
	synchronized bool // by the caller

	ctx    context.Context // until the offer has ended
	cancel context.CancelCauseFunc
	work   sync.WaitGroup
	wake   chan struct{} // begun or ended moved

	// Under server.mu:
	caller       context.Context // Offer's, once it is called
	begun, ended int             // leases
	numbered     int             // the last number that a lease got
	published    bool            // the data is there
	pending      []*waiter       // who is sent the descriptors before that
	live         []*Lease        // that have not ended
	keepers      keepers         // whose leases ended with legacy memory open
}

// Offer offers buf under name and serves consumers until ctx is done, which is
// no error, or an option ends it. access is the most a consumer may ask for. What is
// offered is buf as it is now: what it grows by later takes another Offer, which has a
// larger generation ([vmm.Descriptor]).
// Before the first consumer is answered, the work queued in the primary context
// of the memory's device is waited for, unless [WithSynchronized]. Offer keeps
// no descriptors when it returns; buf stays the caller's and must not be closed
// before.
//
// When it ends, consumers that are still attached are told ([ErrRevoked]) and
// disconnected; what they have mapped they keep.
//
// Errors: what ended ctx while that work was waited for; [ErrNoConsumer];
// [ErrNameTaken]; what [vmm.Buffer.Lend] says; a socket that fails.
func (s *Server) Offer(ctx context.Context, name string, buf *vmm.Buffer, access cu.Access, opts ...OfferOption) error {
	o, err := s.newOffering(name, virtual{buf}, access, opts)
	if err != nil {
		return err
	}
	return o.offer(ctx)
}

// A source is memory that can be offered.
type source interface {
	export(o *offering) error // says what consumers are sent
	synchronize(ctx context.Context) error
	vouch() error        // whether that is still the memory that was exported
	release(o *offering) // the offering is over
}

// virtual memory, which its descriptors keep.
type virtual struct{ *vmm.Buffer }

func (v virtual) export(o *offering) (err error) {
	o.msg.desc, o.files, err = v.Lend()
	return err
}

func (v virtual) synchronize(ctx context.Context) error { return v.Device().Synchronize(ctx) }
func (virtual) vouch() error                            { return nil }
func (virtual) release(*offering)                       {}

// newOffering exports memory to be offered. Consumers that ask for it wait from now
// on.
func (s *Server) newOffering(name string, memory source, access cu.Access, opts []OfferOption) (*offering, error) {
	o := &offering{server: s, memory: memory, observe: func(Event) {}, onLease: func(*Lease) {}, wake: make(chan struct{}, 1)}
	o.msg.name, o.msg.access = name, access
	for _, f := range opts {
		f(o)
	}
	if err := errors.Join(checkName(name), checkAccess(access)); err != nil {
		return nil, err
	}
	if len(o.msg.data) > maxData {
		return nil, fmt.Errorf("%d bytes of application data; %d are allowed", len(o.msg.data), maxData)
	}
	if err := s.claim(name); err != nil {
		return nil, err
	}
	if err := memory.export(o); err != nil {
		s.forget(o)
		return nil, err
	}
	o.records = o.encode(o.msg)
	o.ctx, o.cancel = context.WithCancelCause(s.ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.watching[o] = struct{}{}
	return o, nil
}

// offer serves consumers until ctx is done or an option ends it. It ends the
// offering in any case.
func (o *offering) offer(ctx context.Context) error {
	if err := o.server.enter(); err != nil {
		return join(err, o.giveUp(err))
	}
	defer o.server.work.Done()
	o.server.mu.Lock()
	o.caller = ctx
	o.server.mu.Unlock()
	defer context.AfterFunc(ctx, func() { o.cancel(context.Cause(ctx)) })()
	if err := o.synchronize(); err != nil {
		return join(err, o.giveUp(err))
	}
	if ctx.Err() != nil { // over before it began, which is no error
		return o.giveUp(context.Cause(ctx))
	}
	o.observe(Event{Kind: Offered})
	return o.run()
}

// giveUp ends an offering that was not put up: who waits for it is told.
func (o *offering) giveUp(cause error) error {
	o.server.forget(o)
	return o.end(cause)
}

// end is the last of an offering: who is still attached is told. The error says who has
// kept legacy memory open.
func (o *offering) end(cause error) error {
	o.cancel(cause)
	o.work.Wait()
	o.memory.release(o)
	return o.stillOpen()
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

// gives is the access that a consumer gets that wants that much.
func (o *offering) gives(want attach) cu.Access {
	if o.msg.legacy != nil {
		return ReadWrite // nothing can keep it from writing
	}
	return want.access
}

// encode makes the records of an offer that is like m.
func (o *offering) encode(m offer) (records [][]byte) {
	if m.legacy != nil {
		return [][]byte{encode(m)}
	}
	for m.first = 0; m.first < len(o.files); m.first += m.fds {
		m.fds = min(sock.MaxFDs, len(o.files)-m.first)
		records = append(records, encode(m))
	}
	return records
}

// synchronize waits for work on the memory, unless the caller has.
func (o *offering) synchronize() error {
	if o.synchronized {
		return nil
	}
	if err := o.memory.synchronize(o.ctx); err != nil {
		return fmt.Errorf("waiting for work on %s before offering it: %w", o.msg.name, err)
	}
	return nil
}

func (o *offering) run() error {
	waiting, pending, err := o.begin()
	if err != nil {
		return join(err, o.giveUp(err))
	}
	for _, w := range pending {
		w.publish()
	}
	for _, w := range waiting {
		w.deliver()
	}
	err = o.wait()
	o.remove()
	return join(err, o.end(ErrRevoked))
}

// begin puts the offer up. It returns who has waited for it and is admitted now,
// and who has its descriptors and waits for its data.
func (o *offering) begin() (waiting, pending []*waiter, err error) {
	s := o.server
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ctx.Err() != nil {
		return nil, nil, context.Cause(s.ctx)
	}
	if s.taken(o.msg.name, o) {
		return nil, nil, fmt.Errorf("%w: %q", ErrNameTaken, o.msg.name)
	}
	s.offers[o.msg.name], o.published = o, true
	for _, w := range o.pending {
		if w.offered {
			w.publishing = true
			pending = append(pending, w)
		}
	}
	o.pending = nil
	return o.admitAll(s.fulfil(o.msg.name)), pending, nil
}

func (o *offering) remove() {
	o.server.mu.Lock()
	defer o.server.mu.Unlock()
	delete(o.server.offers, o.msg.name)
	delete(o.server.watching, o)
}

// wait returns when the offer is over, and why if that is an error.
func (o *offering) wait() error {
	for {
		done, active := o.state()
		if done {
			return nil
		}
		var idle <-chan time.Time
		if o.idle > 0 && active == 0 {
			idle = time.After(o.idle)
		}
		select {
		case <-o.ctx.Done():
			return o.cause()
		case <-idle:
			if _, active := o.state(); active == 0 {
				return fmt.Errorf("%w: %s", ErrNoConsumer, o.idle)
			}
		case <-o.wake:
		}
	}
}

// over is why the offer has ended, or nil.
func (o *offering) over() error {
	if err := o.ending(); err != nil {
		return err
	}
	return context.Cause(o.ctx)
}

// ending is why the offer's context is done, or will be in a moment: others hear of the end
// of the server, and of Offer's context, before it does.
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

// cause is why the offer's context is done, if that is the server's doing.
func (o *offering) cause() error {
	if o.server.ctx.Err() != nil {
		return context.Cause(o.server.ctx)
	}
	return nil
}

func (o *offering) state() (done bool, active int) {
	o.server.mu.Lock()
	defer o.server.mu.Unlock()
	return o.leases > 0 && o.ended >= o.leases, o.begun - o.ended
}

// moved wakes wait after begun or ended has changed.
func (o *offering) moved() {
	select {
	case o.wake <- struct{}{}:
	default:
	}
}
