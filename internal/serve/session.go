package serve

import (
	"context"
	"errors"
	"time"

	"github.com/gpufd/gpufd/internal/broker"
	"github.com/gpufd/gpufd/internal/wire"
	"github.com/gpufd/gpufd/sock"
)

// A session is a consumer's connection to a server. The goroutine that accepted it reads. What is
// sent goes through the outbox, which is performed by whoever brought the event behind it, or by a
// goroutine of its own where that would have to wait.
type session struct {
	id        broker.SessionID
	server    *Server
	transport *Transport
	watch     *Watch // of its process, or nil
	unwatched error  // why watch is nil
	want      wire.Attach
	mayAsked  bool   // the application has just said that the peer may ask for the name
	lists     bool   // it wants only a list of the offers
	settled   func() // says that it has a lease or waits for one, or has left; may be called again

	ctx  context.Context // until the broker has ended the session
	stop context.CancelFunc

	// Under the server's mu:
	timer   *time.Timer // bounds the time until the next message, or nil
	due     time.Time   // when that is over, or 0
	keep    *time.Timer // ends a detached lease, or nil
	outbox  []broker.Action
	busy    bool          // somebody performs the outbox
	free    chan struct{} // closed when nobody does any more; nil if nobody waits for that
	lease   *Lease        // or nil
	served  bool          // the consumer was told that the data is there, or is about to be
	ended   broker.Reason // why the session has ended, or 0
	revoked string        // why the application takes the lease back
	denied  error         // what the application said last, or nil
	err     error         // of this connection, if that is why it has ended; or why there is no lease
	heard   bool          // err is of receiving, from a consumer that was told that its data is there
}

func newSession(s *Server, t *Transport) *session {
	x := &session{server: s, transport: t}
	x.ctx, x.stop = context.WithCancel(context.Background())
	return x
}

// talk reads what the peer wants, and serves it until it has gone.
func (x *session) talk() {
	defer x.settled()
	defer x.stop()
	err := x.readRequest()
	switch {
	case err == nil && x.lists:
		err = x.sayList()
	case err == nil:
		x.attend()
		return
	case x.server.ctx.Err() != nil && errors.Is(err, x.server.ctx.Err()) && !errors.Is(err, ErrTimeout):
		err = errors.Join(errSilent, err)
	}
	if err != nil {
		x.turnAway(err)
	}
}

// errSilent says that the server was closed before a peer had said what it wants.
var errSilent = errors.New("share: closed before the peer had said what it wants")

// readRequest reads what the peer wants.
func (x *session) readRequest() error {
	m, files, err := x.transport.Receive(x.server.ctx, false)
	if err != nil {
		return err
	}
	switch m := m.(type) {
	case wire.Attach:
		x.want, x.mayAsked = m, true
		err = x.mayAsk(m.Name, m.Access)
	case wire.List:
		x.lists = true
	default:
		err = Unexpected(m, "where a wish to attach belongs")
	}
	return errors.Join(err, sock.CloseFiles(files))
}

// attend asks the broker for a lease, and reads until the session has ended.
func (x *session) attend() {
	x.server.join(x)
	defer x.server.forget(x)
	ask := broker.Ask{Session: x.id, Peer: broker.Peer(x.transport.Conn.Peer()), Want: x.want}
	if err := unknownEnd(x.want.Process, x.watch, x.unwatched); err != nil {
		ask.Doubt = err.Error()
	} else {
		ask.Process = x.watch.number
	}
	x.server.bring(ask, x)
	if ask.Process != 0 { // what its watch said before the broker knew of it
		if err := x.watch.doubt(); err != nil {
			x.server.bring(broker.Lose{Process: ask.Process, Doubt: err.Error()}, x)
		}
		if IsClosed(x.watch.died) {
			x.server.bring(broker.Die{Process: ask.Process}, x)
		}
	}
	for x.ctx.Err() == nil {
		m, files, err := x.transport.Receive(x.ctx, true)
		_ = sock.CloseFiles(files)
		l, served := x.idle()
		switch {
		case err != nil && l != nil && served && l.why(err, true) == nil:
			x.leave(broker.Left, err, true)
		case err != nil:
			x.leave(connectionReason(err), err, served)
		case l == nil:
			x.hearWaiting(m)
		case !served:
			x.hearEarly(l, m)
		default:
			x.hear(l, m)
		}
	}
	x.close()
}

// connectionReason returns the reason of a session that ends because of an error of its connection.
func connectionReason(err error) broker.Reason {
	if errors.Is(err, sock.ErrPeerLost) {
		return broker.Lost
	}
	return broker.Failed
}

// idle waits until the outbox is empty, and returns the lease, or nil, and whether the consumer was
// told that its data is there. So a message is heard after what it answers was sent. The time of a
// step is over.
func (x *session) idle() (l *Lease, served bool) {
	s := x.server
	s.mu.Lock()
	defer s.mu.Unlock()
	x.due = time.Time{}
	for x.busy || len(x.outbox) > 0 {
		if x.busy && x.free == nil {
			x.free = make(chan struct{})
		}
		free := x.free
		s.mu.Unlock()
		if free != nil {
			<-free
		} else {
			x.perform(true, true)
		}
		s.mu.Lock()
		x.due = time.Time{}
	}
	return x.lease, x.served
}

// wasServed reports whether the consumer was told that its data is there.
func (x *session) wasServed() bool {
	x.server.mu.Lock()
	defer x.server.mu.Unlock()
	return x.served
}

// leave ends the session for a reason of this connection, unless it has ended, and returns the reason why
// it has.
func (x *session) leave(why broker.Reason, err error, heard bool) (ended broker.Reason) {
	s := x.server
	s.mu.Lock()
	if x.ended == 0 {
		x.err, x.heard = err, heard
	}
	work := s.step(broker.Leave{Session: x.id, Reason: why})
	ended = x.ended
	s.mu.Unlock()
	performAll(work)
	return ended
}

// hearWaiting hears a consumer that has no lease: it may only say that it cannot attach.
func (x *session) hearWaiting(m wire.Message) {
	if v, ok := m.(wire.Verdict); ok && !v.OK {
		x.leave(broker.Judged, faultOf(v), false)
		return
	}
	x.leave(broker.Failed, Unexpected(m, "from a consumer that waits for an offer"), false)
}

// hearEarly hears a consumer whose data is not there yet: it may only say that it cannot attach.
func (x *session) hearEarly(l *Lease, m wire.Message) {
	v, judged := m.(wire.Verdict)
	if _, refuses := m.(wire.Refuse); refuses || judged && !v.OK {
		x.hear(l, m)
		return
	}
	x.leave(broker.Failed, Unexpected(m, "from a consumer whose data is not there yet"), false)
}

// hear hears a consumer that was told that its data is there.
func (x *session) hear(l *Lease, m wire.Message) {
	switch m := m.(type) {
	case wire.Progress:
		l.event.Done, l.event.Total = m.Done, m.Total
		l.tell(Progress, nil)
		x.rearm()
		return
	case wire.Mapped:
		if !l.mapped && m.Generation == l.offering.Record.Memory.Generation {
			l.mapped = true
			x.server.bring(broker.Map{Session: x.id, Generation: m.Generation}, x)
			x.rearm()
			return
		}
	case wire.Detached:
		if l.mayDetach() {
			x.detach(l, m.Keep)
			return
		}
	case wire.Refuse:
		l.failed = !l.mapped
	case wire.Verdict:
		if l.mapped || !m.OK { // without a mapping no verdict can be good
			l.failed = !l.mapped
			err := faultOf(m)
			if x.leave(broker.Judged, err, false) == broker.Judged {
				l.tell(Verdict, err)
			}
			return
		}
	}
	x.leave(broker.Failed, Unexpected(m, "from a consumer that was sent an offer"), false)
}

// rearm gives the consumer the time of a step to say something, unless it may be silent: it has
// mapped the memory, and owes no verdict.
func (x *session) rearm() {
	x.server.mu.Lock()
	defer x.server.mu.Unlock()
	if x.timer != nil {
		x.timer.Stop()
	}
	if x.due = (time.Time{}); x.lease.mapped && !x.lease.offering.opts.Verdict {
		return
	}
	x.due = time.Now().Add(x.transport.Timeout)
	x.timer = time.AfterFunc(x.transport.Timeout, x.timeOut)
}

// timeOut ends the session if the time of a step is over. It may be called late, or for nothing.
func (x *session) timeOut() {
	x.server.mu.Lock()
	over := !x.due.IsZero() && !time.Now().Before(x.due)
	x.server.mu.Unlock()
	if over {
		x.leave(broker.Failed, ErrTimeout, false)
	}
}

// close ends the conversation of a session that the broker has ended.
func (x *session) close() {
	l, _ := x.idle()
	for _, t := range []*time.Timer{x.timer, x.keep} {
		if t != nil {
			t.Stop()
		}
	}
	if l == nil {
		x.turnAway(x.namesParts(x.err))
	} else {
		l.end(l.reasonOf(x.ended, x.err, x.heard))
	}
}

// turnAway ends a conversation that led to no lease, and says why.
func (x *session) turnAway(err error) {
	var no wire.Refuse
	var denied deniedError
	var told Told
	last := Refusal(err)
	switch {
	case errors.As(err, &denied) && errors.As(denied.error, &told):
		last = told.Refuse
	case errors.As(err, &denied): // whatever else the application said
		last = notAllowed
	case errors.As(err, &no):
		err = no
	case errors.Is(err, errSilent):
		last = wire.Refuse{Code: wire.RefusedName, Text: "the producer has ended, and you had not said what you want"}
	}
	x.server.tell(x.transport.Conn.Peer(), err)
	if denied.error != nil || !IsGone(err) && !errors.Is(err, ErrVerdict) {
		_ = x.transport.Close(last, x.transport.Farewell())
	}
}
