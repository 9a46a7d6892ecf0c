package serve

import (
	"errors"
	"os"
	"time"

	"github.com/gpufd/gpufd/internal/broker"
	"github.com/gpufd/gpufd/internal/wire"
	"github.com/gpufd/gpufd/sock"
)

// bring applies an event and performs the actions that follow. by is the session
// that brings it, on its own goroutine, or nil: for that one it may wait.
func (s *Server) bring(e broker.Event, by *session) {
	s.mu.Lock()
	work := s.step(e)
	s.mu.Unlock()
	for _, x := range work {
		x.perform(x == by, x == by)
	}
}

// performAll performs outboxes on a goroutine that must not wait.
func performAll(work []*session) {
	for _, x := range work {
		x.perform(false, false)
	}
}

// step applies an event. It runs with mu held, and returns the sessions whose outboxes the caller has to
// perform.
func (s *Server) step(e broker.Event) (work []*session) {
	defer s.forgetFinished()
	for _, a := range s.broker.Step(time.Now(), e) {
		x := s.sessions[a.To()]
		switch {
		case a.To() == 0:
			s.apply(a)
		case x == nil, x.note(a): // nothing to send
		default:
			x.outbox = append(x.outbox, a)
			work = append(work, x)
		}
	}
	return work
}

// note notes what an action says of the session. An end does not wait for its turn in the outbox, and
// note returns true. It runs with the server's mu held.
func (x *session) note(a broker.Action) bool {
	switch a := a.(type) {
	case broker.End:
		x.ended = a.Reason
	case broker.Refuse:
		x.ended, x.err = broker.Failed, a.Because
		if a.Denied {
			x.err = x.denied
		}
	case broker.Grant:
		x.lease, x.served = newLease(x.server.offerings[a.Offer], x, a.Number), !a.Pending
		if x.served {
			x.lease.noteAttaching()
		}
		return false
	case broker.Complete:
		x.served = true
		x.lease.noteAttaching()
		return false
	default:
		return false
	}
	x.stop()
	return true
}

// apply notes what an action says of an offer. It runs with mu held.
func (s *Server) apply(a broker.Action) {
	switch a := a.(type) {
	case broker.Taken:
		if o := s.offerings[a.Offer]; o != nil { // else it is over
			o.taken = true
		}
	case broker.Replaced:
		close(s.offerings[a.Offer].replaced)
	case broker.Timer:
		s.offerings[a.Offer].tickAt(a.At)
	case broker.Over:
		s.offerings[a.Offer].noteOver(a)
	case broker.WritersDone:
		s.offerings[a.Offer].noteBegun(a, s.offerings[a.By])
	case broker.Finished:
		s.offerings[a.Offer].noteFinished(a)
		s.finished = append(s.finished, a.Offer)
	}
}

// sendFunc is TrySend, or a function that waits.
type sendFunc = func(record []byte, files ...*os.File) error

// perform empties the outbox, unless somebody does. If it must not wait, or not call the
// application, another goroutine goes on where it would have to.
func (x *session) perform(mayWait, mayCall bool) {
	x.server.mu.Lock()
	if x.busy || len(x.outbox) == 0 {
		x.server.mu.Unlock()
		return
	}
	x.busy = true
	a := x.take()
	x.server.mu.Unlock()
	x.performFrom(a, mayWait, mayCall)
}

func (x *session) performFrom(a broker.Action, mayWait, mayCall bool) {
	for ; a != nil; a = x.next() {
		if !x.performOne(a, mayWait, mayCall) {
			go x.performFrom(a, true, true)
			return
		}
	}
}

// next returns the next action. Without one nobody performs the outbox any more.
func (x *session) next() broker.Action {
	x.server.mu.Lock()
	defer x.server.mu.Unlock()
	return x.take()
}

// take runs with the server's mu held.
func (x *session) take() broker.Action {
	if len(x.outbox) == 0 {
		if x.busy = false; x.free != nil {
			close(x.free)
			x.free = nil
		}
		return nil
	}
	a := x.outbox[0]
	x.outbox = x.outbox[1:]
	return a
}

// performOne returns false if it would have to do what it may not. Then it is called again.
func (x *session) performOne(a broker.Action, mayWait, mayCall bool) bool {
	switch a := a.(type) {
	case broker.Consult:
		if mayWait {
			x.server.bring(x.consult(a.Offer), x)
		}
		return mayWait
	case broker.Grant, broker.Confirm: // which call the application
		if !mayCall {
			return false
		}
	}
	send := x.transport.Conn.TrySend
	if mayWait {
		send = x.send
	}
	err := x.do(a, send)
	if errors.Is(err, sock.ErrWouldWait) {
		return false
	}
	switch {
	case errors.Is(err, sock.ErrPeerLost): // its last word, such as that it has nothing mapped, may still be unread
		time.AfterFunc(x.transport.Goodbye, func() { x.leave(broker.Lost, err, false) })
	case err != nil:
		x.leave(broker.Failed, err, false)
	}
	return true
}

// send waits until a record is sent.
func (x *session) send(record []byte, files ...*os.File) error {
	return x.transport.SendRecord(x.ctx, record, files...)
}

// do performs an action for the consumer.
func (x *session) do(a broker.Action, send sendFunc) error {
	switch a := a.(type) {
	case broker.Wait:
		x.mayAsked = false
		x.settled()
	case broker.Progress:
		_ = x.transport.Conn.TrySend(wire.Encode(wire.Progress{Done: a.Done, Total: a.Total, Capabilities: takes})) // else it has enough to read
	case broker.Newer:
		if err := send(wire.Encode(wire.Superseded{Generation: a.Generation})); errors.Is(err, sock.ErrWouldWait) {
			return err
		} // a consumer that has gone need not know
	case broker.Grant:
		return x.grant(a.Pending, send)
	case broker.Complete:
		if err := send(wire.Encode(wire.Publish{Generation: x.lease.offering.Record.Memory.Generation})); err != nil {
			return err
		}
		x.rearm()
	case broker.Confirm:
		return x.lease.confirm(send)
	}
	return nil
}

// grant tells the application of the lease, once, and sends the offer.
func (x *session) grant(pending bool, send sendFunc) error {
	l := x.lease
	if !l.begun {
		l.begun = true
		l.begin()
		x.settled() // not before: whoever hands over has heard of each lease
	}
	if err := l.sendOffer(pending, send); err != nil {
		return err
	}
	l.tell(Sent, nil)
	if !pending {
		x.rearm()
	}
	return nil
}
