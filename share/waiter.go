package share

import (
	"context"
	"errors"
	"os"
	"slices"
	"time"

	"github.com/gpufd/gpufd/sock"
)

// A waiter is a consumer that came before the data of the offer it wants. Its
// goroutine reads, so that its answer is heard at once; others send: to wake that
// goroutine would take longer.
//
// It waits for the offer, is admitted to it and sent the descriptors. If those
// came early, which is an offer that was prepared, it waits again, for the data to
// be published. Then it answers.
type waiter struct {
	link link
	want attach
	ctx  context.Context // of the reading
	stop context.CancelCauseFunc
	told time.Time // of progress

	lease   *Lease // once it is admitted
	records [][]byte

	// Under the server's mu:
	offered    bool // it has the descriptors, and waits for the data
	publishing bool // somebody tells it that the data is there
	gone       bool // it waits no longer

	delivered  chan struct{} // closed when it was sent the descriptors, or could not be
	deliverErr error
	published  chan struct{} // closed when it was told that the data is there, or could not be
	publishErr error

	unhook func() bool // from the lease's end
	timer  *time.Timer // that bounds its answer
}

func newWaiter(ctx context.Context, l link, want attach) *waiter {
	w := &waiter{link: l, want: want, delivered: make(chan struct{}), published: make(chan struct{})}
	w.ctx, w.stop = context.WithCancelCause(ctx)
	return w
}

// tell sends progress, unless the peer has heard of some just now. It runs with
// the server's mu held, so it does not wait: who has not read what came before
// has something to read.
func (w *waiter) tell(step progress) {
	if step.total == 0 || time.Since(w.told) < progressPause {
		return
	}
	w.told = time.Now()
	_ = w.link.conn.TrySend(encode(step)) // who has gone is noticed by its reader
}

// admitAll makes leases for those who waited for an offer that is there now,
// and returns those who got one. Where the application decides who gets it, they ask
// again, each on its own goroutine. It runs with mu held.
func (o *offering) admitAll(waiting []*waiter) (admitted []*waiter) {
	for _, w := range waiting {
		if o.server.allow != nil {
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

// admitWaiter makes a lease of a waiter, which is to be sent the descriptors. It
// runs with mu held.
func (o *offering) admitWaiter(w *waiter) (err error) {
	if w.want.name == "" && !o.isOnly() {
		return noOffer("")
	}
	if w.lease, err = o.admit(w.link, w.want); err != nil {
		return err
	}
	w.records, w.publishing = o.records, true
	if !o.published {
		w.records, w.publishing = o.early, false
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

// wait reads until the consumer says something, which is the answer to an offer
// that it was sent meanwhile, or out of turn. The error is why it is to be turned
// away, or errOffered.
func (s *Server) wait(w *waiter) error {
	defer w.stop(nil)
	m, rec, err := w.link.receive(w.ctx, true)
	_ = rec.Close() // receive has seen to it that it holds nothing
	if errors.Is(err, context.Canceled) {
		err = context.Cause(w.ctx) // nobody cancelled, but told to stop
	}
	if s.leave(w) != nil {
		w.goOn(m, err)
		return nil
	}
	if err != nil {
		return err
	}
	if v, ok := m.(verdict); ok && !v.ok { // it cannot attach
		return v.err()
	}
	return unexpected(m, "from a consumer that waits for an offer")
}

// leave takes a waiter off its queue, and returns its lease if it has been
// admitted.
func (s *Server) leave(w *waiter) *Lease {
	s.mu.Lock()
	defer s.mu.Unlock()
	w.gone = true
	is := func(x *waiter) bool { return x == w }
	if w.lease != nil {
		w.lease.pending = slices.DeleteFunc(w.lease.pending, is)
		return w.lease
	}
	for _, e := range s.expected {
		e.waiting = slices.DeleteFunc(e.waiting, is)
	}
	return nil
}

// deliver sends the descriptors, at once if that does not have to wait.
func (w *waiter) deliver() {
	w.lease.begin()
	w.send(w.sendOffer, w.isDelivered)
}

// publish says that the data is there.
func (w *waiter) publish() {
	record := encode(publish{w.lease.msg.desc.Generation})
	w.send(func(send sendFunc) error { return send(record) }, w.isPublished)
}

// sendFunc is TrySend or what waits.
type sendFunc = func(record []byte, files ...*os.File) error

// send has f send, without waiting if that can be, and then calls done.
func (w *waiter) send(f func(sendFunc) error, done func(error)) {
	err := f(w.link.conn.TrySend)
	if !errors.Is(err, sock.ErrWouldWait) {
		done(err)
		return
	}
	go func() { done(f(w.lease.sendRecord)) }()
}

func (w *waiter) sendOffer(send sendFunc) error { return w.lease.sendOffer(w.records, send) }

// isDelivered notes that the consumer has the descriptors, and tells it that the
// data is there if nobody else will.
func (w *waiter) isDelivered(err error) {
	if w.deliverErr = err; err != nil {
		close(w.delivered)
		w.stop(err) // the reader tells
		return
	}
	w.lease.tell(Sent, nil)
	s, o, over := w.lease.server, w.lease.offering, w.lease.ctx
	w.unhook = context.AfterFunc(over, func() { w.stop(context.Cause(over)) })
	s.mu.Lock()
	whole, now := w.publishing, false // whole: the descriptors say that the data is there
	if !whole {
		w.offered = true
		now = o.published && !w.gone
		w.publishing = now
	}
	s.mu.Unlock()
	close(w.delivered)
	switch {
	case whole:
		w.isPublished(nil)
	case now:
		w.publish()
	}
}

// isPublished lets the reader go on. From now on the consumer is not waited for
// longer than for any other answer.
func (w *waiter) isPublished(err error) {
	if w.publishErr = err; err == nil {
		w.timer = time.AfterFunc(w.link.timeout, func() { w.stop(ErrTimeout) })
	}
	close(w.published)
	if err != nil {
		w.stop(err) // the reader tells
	}
}

// goOn serves a consumer that was admitted, and has said something or failed to.
func (w *waiter) goOn(m message, err error) {
	l := w.lease
	served, serr := w.sending()
	if serr != nil {
		err = serr
	}
	l.served = served
	over := true
	switch {
	case err != nil:
		err = l.lost(err, false)
	case served:
		over, err = l.hear(m)
	default:
		err = l.hearEarly(m)
	}
	w.disarm() // late: it stops nothing but a reading that is over
	if !over {
		err = l.follow()
	}
	l.end(err)
}

// sending waits until nobody sends the consumer anything any more. It says
// whether it was told that the data is there, and what could not be sent.
func (w *waiter) sending() (published bool, err error) {
	<-w.delivered
	w.lease.server.mu.Lock()
	published = w.publishing
	w.lease.server.mu.Unlock()
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
