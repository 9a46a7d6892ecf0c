package server

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"

	"github.com/gpufd/gpufd/internal/serve"
	"github.com/gpufd/gpufd/keeper/internal/protocol"
	"github.com/gpufd/gpufd/keeper/internal/state"
	"github.com/gpufd/gpufd/sock"
)

// acceptControl serves clients until the server is closed.
func (s *Server) acceptControl() {
	for {
		var refused *sock.NotAdmittedError
		conn, err := s.control.Accept(s.ctx)
		switch {
		case err == nil:
			s.admitClient(conn)
		case errors.As(err, &refused):
			s.metrics.refused(atControl, err)
		default:
			s.stop(fmt.Errorf("accepting clients: %w", err))
			return
		}
	}
}

// admitClient serves a client, or sends it the reason for a refusal if that needs no waiting.
func (s *Server) admitClient(conn *sock.Conn) {
	uid := conn.Peer().UID
	err := conn.RefuseFiles()
	if err == nil {
		err = s.clients.take(uid, 1)
	}
	if err == nil {
		s.work.Go(func() {
			defer s.clients.leave(uid, 1)
			s.serve(conn)
		})
		return
	}
	no := asError(err)
	s.metrics.refused(atControl, no)
	_ = conn.TrySend(lastWords(no))
	conn.Drop()
}

// lastWords encodes an error as a record: the only one that a refused client gets.
func lastWords(no *state.Error) []byte {
	text, _ := json.Marshal(protocol.Reply{Error: no})
	return append([]byte{protocol.PieceLast}, text...)
}

// A session is one client's connection. The keeper gives up what it has booked and not
// delivered when its process has died.
type session struct {
	server  *Server
	conn    *sock.Conn
	who     state.Who
	tickets map[string]*delivery

	answering int // bytes of an answer, in Server.answers
}

func (s *Server) serve(conn *sock.Conn) {
	defer conn.Drop()
	p := conn.Peer()
	c := &session{server: s, conn: conn, who: state.Who{UID: p.UID, GID: p.GID, PID: p.PID}, tickets: map[string]*delivery{}}
	defer c.end()
	defer c.answered()
	for {
		var r protocol.Request
		files, err := c.receive(&r)
		var answer protocol.Reply
		var out []*os.File
		var mistyped *json.UnmarshalTypeError
		switch {
		case err == nil && r.Op == protocol.OpList && len(r.Needs) == 0:
			sock.DropFiles(files)
			if c.list() != nil {
				return
			}
			continue
		case err == nil:
			answer, out, err = c.handle(r, files)
		case errors.As(err, &mistyped): // the end of the request is known: the client is told what is wrong, and may go on
			r.Op = ""
			err = refuseType(mistyped)
		case errors.Is(err, sock.ErrUnfit):
			_ = conn.TrySend(lastWords(protocol.BadRequest("a descriptor is no memory of a driver: %v", sock.ErrUnfit).(*state.Error)))
			return
		default:
			return
		}
		if errors.Is(err, serve.ErrClosed) || c.allowFiles() != nil {
			sock.DropFiles(out)
			return // the client asks the next keeper
		}
		if err != nil {
			answer = protocol.Reply{Error: asError(err)}
			s.metrics.refused(atControl, answer.Error)
		}
		err = c.respond(answer, out)
		if c.answered(); err != nil {
			return
		}
		switch {
		case answer.Error != nil:
		case r.Op == protocol.OpYield:
			s.stop(ErrYielded)
		case r.Op == protocol.OpEnd:
			s.stop(ErrEnded)
		}
	}
}

// receive reads a request. Once begun, it has to arrive within a step.
func (c *session) receive(r *protocol.Request) ([]*os.File, error) {
	s := c.server
	m := protocol.Message{Conn: c.conn, Limit: protocol.MaxMessage, Step: s.opts.Timeout, Room: s.requests, Turn: &s.texts}
	files, err := m.Receive(s.ctx, r)
	if no := (*state.Error)(nil); errors.As(err, &no) {
		s.metrics.refused(atControl, no)
		_ = c.conn.TrySend(lastWords(no))
	}
	return files, err
}

// allowFiles accepts descriptors while the client has a ticket, and refuses them otherwise.
func (c *session) allowFiles() error {
	if len(c.tickets) == 0 {
		return c.conn.RefuseFiles()
	}
	return c.conn.TakeFiles()
}

// respond sends a client the answer to its request, also when the server is ending, and closes
// the files that go with it.
func (c *session) respond(r protocol.Reply, files []*os.File) error {
	ctx, cancel := c.server.step()
	defer cancel()
	defer sock.DropFiles(files)
	return protocol.Send(ctx, c.conn, r, files...)
}

// ErrYielded says that a keeper has ended because a successor asked it to ([Server.Err]).
var ErrYielded = errors.New("keeper: another keeper has taken over")

// end gives up what the client has not delivered, once its process has died.
func (c *session) end() {
	for ticket, d := range c.tickets {
		c.drop(d)
		if d.booking.By.Pidfd == 0 { // nobody would notice its end
			c.server.note(c.server.mutate(func(st *state.State) error { return st.Cancel(ticket) }))
		}
	}
}

// writer returns the id of a connection's process, or 0 if it is not known. A process that has
// ended is refused: nobody would notice the end of another one that has its connection. It is
// part of a change.
func (s *Server) writer(next *state.State, conn *sock.Conn) (state.ID, error) {
	p, err := conn.Process()
	if errors.Is(err, sock.ErrNoProcess) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	id, err := s.processes.join(next, p)
	if errors.Is(err, sock.ErrNoProcess) {
		return 0, &state.Error{Code: state.Denied, Message: "the process that has connected has ended: connect from the one that writes"}
	}
	return id, err
}

func asError(err error) *state.Error {
	var e *state.Error
	if errors.As(err, &e) {
		return e
	}
	return &state.Error{Code: "failed", Message: err.Error()}
}

// refuseType names the member of a request that has the wrong type.
func refuseType(e *json.UnmarshalTypeError) error {
	if e.Field == "" {
		return protocol.BadRequest("a request is a JSON object, and this is: %s", e.Value)
	}
	return protocol.BadRequest("%s of the request cannot be: %s", e.Field, e.Value)
}

// handle answers one request. It closes the files that it does not keep. The files that it
// returns go with the answer.
func (c *session) handle(r protocol.Request, files []*os.File) (answer protocol.Reply, out []*os.File, err error) {
	if err := r.Bounded(); err != nil {
		sock.DropFiles(files)
		return protocol.Reply{}, nil, err
	}
	if len(r.Needs) > 0 {
		sock.DropFiles(files)
		return protocol.Reply{}, nil, &state.Error{Code: "unsupported", Message: fmt.Sprintf("this keeper does not know %q, which the request needs", r.Needs)}
	}
	if r.Op == protocol.OpFiles || r.Op == protocol.OpTable {
		return protocol.Reply{}, nil, c.take(r, files)
	}
	sock.DropFiles(files)
	if r.Op == protocol.OpManifest {
		return c.manifest()
	}
	answer, err = c.do(r)
	return answer, nil, err
}

// do answers a request without files.
func (c *session) do(r protocol.Request) (protocol.Reply, error) {
	s := c.server
	switch r.Op {
	case protocol.OpStatus:
		st := s.Status()
		return protocol.Reply{Status: &st}, nil
	case protocol.OpStat:
		return c.stat(r.Name)
	case protocol.OpBook:
		return c.book(r)
	case protocol.OpRenew:
		return c.renew(r)
	case protocol.OpDeliver:
		return c.deliver(r)
	case protocol.OpCancel:
		return protocol.Reply{}, c.cancel(r.Ticket)
	case protocol.OpRemove:
		return protocol.Reply{}, s.remove(r.Name, r.Version, c.who)
	case protocol.OpDrain:
		return protocol.Reply{}, s.drain(r, c.who)
	case protocol.OpPark:
		return c.move(r, s.park)
	case protocol.OpUnpark:
		return c.move(r, s.unpark)
	case protocol.OpReport:
		return s.report(r, c.who)
	case protocol.OpWatch:
		return protocol.Reply{}, c.watch(r.Name)
	case protocol.OpLease:
		return protocol.Reply{}, c.lease(r)
	case protocol.OpYield:
		return protocol.Reply{}, c.mayYield()
	case protocol.OpEnd:
		return protocol.Reply{}, c.mayEnd()
	}
	return protocol.Reply{}, protocol.BadRequest("there is no operation %q", r.Op)
}
