package keeper

import (
	"errors"
	"fmt"
	"os"

	"github.com/gpufd/gpufd/keeper/internal/state"
	"github.com/gpufd/gpufd/share"
	"github.com/gpufd/gpufd/sock"
)

// acceptControl serves clients until the server is closed.
func (s *Server) acceptControl() {
	for {
		var refused *sock.RefusedError
		conn, err := s.control.Accept(s.ctx)
		switch {
		case err == nil:
			s.work.Go(func() { s.serve(conn) })
		case errors.As(err, &refused):
			s.metrics.refused(err)
		default:
			s.stop(fmt.Errorf("accepting clients: %w", err))
			return
		}
	}
}

// A session is one client's connection. What it has booked and not delivered is given up
// when its process has died.
type session struct {
	server  *Server
	conn    *sock.Conn
	who     state.Who
	tickets map[string]*delivery
}

func (s *Server) serve(conn *sock.Conn) {
	defer conn.Drop()
	p := conn.Peer()
	c := &session{server: s, conn: conn, who: state.Who{UID: p.UID, GID: p.GID, PID: p.PID}, tickets: map[string]*delivery{}}
	defer c.end()
	for {
		var r request
		files, err := receive(s.ctx, conn, maxMessage, &r)
		if err != nil {
			return
		}
		answer, err := c.handle(r, files)
		if errors.Is(err, share.ErrClosed) {
			return // the client asks the next keeper
		}
		if err != nil {
			answer = reply{Error: asError(err)}
		}
		if s.answer(conn, answer) != nil {
			return
		}
		if r.Op == opYield && answer.Error == nil {
			s.stop(ErrYielded)
		}
	}
}

// answer tells a client what became of its request, also when the server is ending.
func (s *Server) answer(conn *sock.Conn, r reply) error {
	ctx, cancel := s.step()
	defer cancel()
	at("answer")
	err := send(ctx, conn, r)
	if errors.Is(err, errTooLong) {
		err = send(ctx, conn, reply{Error: &Error{Code: "too-large", Message: err.Error()}})
	}
	return err
}

// ErrYielded is why a keeper has ended that a successor follows.
var ErrYielded = errors.New("keeper: another keeper has taken over")

// end gives up what the client has not delivered, once its process has died.
func (c *session) end() {
	for ticket, d := range c.tickets {
		d.drop()
		if d.booking.By.Pidfd == 0 { // whose end nobody would notice
			c.server.note(c.server.mutate(func(st *state.State) error { return st.Cancel(ticket) }))
		}
	}
}

// writer is the id of the process of a connection, or 0 where that is not known. It runs
// with mu held.
func (s *Server) writer(next *state.State, conn *sock.Conn) (state.ID, error) {
	p, err := conn.Process()
	if errors.Is(err, sock.ErrNoProcess) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	return s.processes.join(next, p)
}

func asError(err error) *Error {
	var e *Error
	if errors.As(err, &e) {
		return e
	}
	return &Error{Code: "failed", Message: err.Error()}
}

func badRequest(format string, a ...any) error {
	return &Error{Code: "bad-request", Message: fmt.Sprintf(format, a...)}
}

// handle answers one request. The files that it does not keep are closed.
func (c *session) handle(r request, files []*os.File) (reply, error) {
	if len(r.Needs) > 0 {
		sock.DropFiles(files)
		return reply{}, &Error{Code: "unsupported", Message: fmt.Sprintf("this keeper does not know %q, which the request needs", r.Needs)}
	}
	switch r.Op {
	case opFiles, opTable:
		return reply{}, c.take(r, files)
	}
	sock.DropFiles(files)
	s := c.server
	switch r.Op {
	case opStatus:
		st := s.Status()
		return reply{Status: &st}, nil
	case opList:
		return s.list(c.who), nil
	case opStat:
		return s.stat(r.Name, c.who)
	case opBook:
		return c.book(r)
	case opRenew:
		return reply{}, c.renew(r)
	case opDeliver:
		return c.deliver(r)
	case opCancel:
		return reply{}, c.cancel(r.Ticket)
	case opRemove:
		return reply{}, s.remove(r.Name, c.who)
	case opDrain:
		return reply{}, s.drain(r, c.who)
	case opReport:
		return s.report(r, c.who)
	case opWatch:
		return reply{}, c.watch(r.Name)
	case opYield:
		return reply{}, c.mayYield()
	}
	return reply{}, badRequest("there is no operation %q", r.Op)
}
