package share

import (
	"context"
	"errors"
	"os"
	"slices"
	"time"

	"github.com/gpufd/gpufd/internal/wire"
	"github.com/gpufd/gpufd/sock"
)

// A waiter is a consumer that came before the data of its offer. Its own goroutine
// reads, so that its answer is heard at once. Other goroutines send, because waking the
// waiter's would take longer.
//
// It waits for the offer, is admitted, and is sent the descriptors. If the offer was
// prepared, it then waits for the data to be published. Then it answers.
type waiter struct {
	visitor *visitor
	ctx     context.Context // of the reading
	stop    context.CancelCauseFunc
	told    time.Time // when it last heard of progress

	knows   *offering // behind which it waits for newer memory, or nil
	lease   *Lease    // once it is admitted
	records []parcel

	state waiterState // under the server's mu
	gone  bool        // its reader has left; under the server's mu

	delivered  chan struct{} // closed when it was sent the descriptors, or could not be
	deliverErr error
	published  chan struct{} // closed when it was told that the data is there, or could not be
	publishErr error

	unhook func() bool // undoes the hook on the lease's end
	timer  *time.Timer // bounds the time for its answer
}

// A waiterState says how far a waiter is.
type waiterState int

const (
	waiterQueued  waiterState = iota // it waits for the offer
	waiterSent                       // it is being sent the descriptors, before the data is there
	waiterOffered                    // it has them, and waits for the data
	waiterServed                     // it is told that the data is there, by the descriptors or after them
)

func newWaiter(v *visitor) *waiter {
	w := &waiter{visitor: v, delivered: make(chan struct{}), published: make(chan struct{})}
	w.ctx, w.stop = context.WithCancelCause(v.server.ctx)
	return w
}

// tell sends progress, unless the peer has heard of some just now. It runs with the
// server's mu held, so it does not wait: a peer with a full queue has enough to read.
func (w *waiter) tell(step wire.Progress) {
	if step.Total == 0 || time.Since(w.told) < progressPause {
		return
	}
	w.told = time.Now()
	_ = w.visitor.transport.conn.TrySend(wire.Encode(step)) // the reader notices if the peer has gone
}

// admitAll makes leases for consumers that waited for the offer, and returns those that got
// one. If the application decides, they ask again instead, each on its own goroutine; so
// do those that wait for newer memory. It runs with mu held.
func (o *offering) admitAll(waiting []*waiter) (admitted []*waiter) {
	for _, w := range waiting {
		if o.server.opts.asks() || w.visitor.knows(o) {
			w.stop(errOffered)
			continue
		}
		if err := o.admitWaiter(w); err != nil {
			w.stop(err)
			continue
		}
		admitted = append(admitted, w)
	}
	return admitted
}

// admitWaiter makes a lease for a waiter. The caller then sends the descriptors. It runs
// with mu held.
func (o *offering) admitWaiter(w *waiter) (err error) {
	if w.visitor.want.Name == "" && !o.isOnly() {
		return o.server.noOffer("")
	}
	if w.lease, err = o.admit(w.visitor); err != nil {
		return err
	}
	w.records, w.state = o.recordsFor(w.lease.resume, !o.published), waiterServed
	if !o.published {
		w.state = waiterSent
		o.pending = append(o.pending, w)
	}
	return nil
}

// isOnly reports whether there is no other offer. It runs with mu held.
func (o *offering) isOnly() bool {
	for _, other := range o.server.offers {
		if other != o {
			return false
		}
	}
	return true
}

// leave takes a waiter off its queue, and returns its lease if it has been
// admitted.
func (w *waiter) leave() *Lease {
	s := w.visitor.server
	s.mu.Lock()
	defer s.mu.Unlock()
	w.gone = true
	is := func(x *waiter) bool { return x == w }
	if w.lease != nil {
		o := w.lease.offering
		o.pending = slices.DeleteFunc(o.pending, is)
		return w.lease
	}
	for _, e := range s.expected {
		e.waiting = slices.DeleteFunc(e.waiting, is)
	}
	if o := w.knows; o != nil {
		o.behind = slices.DeleteFunc(o.behind, is)
	}
	return nil
}

// deliver sends the descriptors, on this goroutine if that need not wait.
func (w *waiter) deliver() {
	w.send(w.sendOffer, w.isDelivered)
}

// publish tells the consumer that the data is there.
func (w *waiter) publish() {
	record := wire.Encode(wire.Publish{Generation: w.lease.offering.record.Memory.Generation})
	w.send(func(send sendFunc) error { return send(record) }, w.isPublished)
}

// sendFunc is TrySend or a function that waits.
type sendFunc = func(record []byte, files ...*os.File) error

// send calls f to send, without waiting if possible, and then calls done.
func (w *waiter) send(f func(sendFunc) error, done func(error)) {
	err := f(w.visitor.transport.conn.TrySend)
	if !errors.Is(err, sock.ErrWouldWait) {
		done(err)
		return
	}
	go func() { done(f(w.lease.sendRecord)) }()
}

func (w *waiter) sendOffer(send sendFunc) error { return w.lease.sendOffer(w.records, send) }

// isDelivered notes that the consumer has the descriptors. If the data is there by now, it
// tells the consumer so.
func (w *waiter) isDelivered(err error) {
	if w.deliverErr = err; err != nil {
		close(w.delivered)
		w.stop(err) // the reader tells
		return
	}
	w.lease.tell(Sent, nil)
	o, over := w.lease.offering, w.lease.ctx
	w.unhook = context.AfterFunc(over, func() { w.stop(context.Cause(over)) })
	o.server.mu.Lock()
	whole, now := w.state == waiterServed, false // whole: the descriptors say that the data is there
	if !whole {
		w.state = waiterOffered
		if now = o.published && !w.gone; now {
			w.state = waiterServed
		}
	}
	o.server.mu.Unlock()
	close(w.delivered)
	switch {
	case whole:
		w.isPublished(nil)
	case now:
		w.publish()
	}
}

// isPublished lets the reader go on. From now on the consumer has the time of a step to
// answer.
func (w *waiter) isPublished(err error) {
	if w.publishErr = err; err == nil {
		w.timer = time.AfterFunc(w.visitor.transport.timeout, func() { w.stop(ErrTimeout) })
	}
	close(w.published)
	if err != nil {
		w.stop(err) // the reader tells
	}
}

// goOn serves an admitted consumer, from which message m or error err came.
func (w *waiter) goOn(m wire.Message, err error) {
	l := w.lease
	served, serr := w.sending()
	if serr != nil {
		err = serr
	}
	if l.state = leaseSent; served {
		l.state = leaseServed
	}
	over := true
	switch {
	case err != nil:
		err = l.why(err, false)
	case served:
		over, err = l.hear(m)
	default:
		err = l.hearEarly(m)
	}
	w.disarm() // late is fine: it could only stop a read that is over
	if !over {
		err = l.follow()
	}
	l.end(err)
}

// sending waits until nothing more is being sent to the consumer. It returns whether the
// consumer was told that the data is there, and the error of sending.
func (w *waiter) sending() (published bool, err error) {
	<-w.delivered
	w.visitor.server.mu.Lock()
	published = w.state == waiterServed
	w.visitor.server.mu.Unlock()
	if w.deliverErr != nil || !published {
		return published, w.deliverErr
	}
	<-w.published
	return true, w.publishErr
}

func (w *waiter) disarm() {
	if w.unhook != nil {
		w.unhook()
	}
	if w.timer != nil {
		w.timer.Stop()
	}
}
