package keeper

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/keeper/internal/state"
	"github.com/gpufd/gpufd/share"
	"github.com/gpufd/gpufd/sock"
	"github.com/gpufd/gpufd/vmm"
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

// A delivery is a part of which not all has come.
type delivery struct {
	booking state.Booking
	files   []*os.File
	table   *os.File
	size    uint64 // of the table
}

func (d *delivery) drop() {
	sock.DropFiles(d.files)
	if d.table != nil {
		sock.DropFiles([]*os.File{d.table})
	}
	d.files, d.table = nil, nil
}

func (s *Server) serve(conn *sock.Conn) {
	defer conn.Drop()
	p := conn.Peer()
	c := &session{server: s, conn: conn, who: state.Who{UID: p.UID, GID: p.GID, PID: p.PID}, tickets: map[string]*delivery{}}
	defer c.end()
	for {
		var r request
		files, err := receive(s.ctx, conn, &r)
		if err != nil {
			return
		}
		answer, err := c.handle(r, files)
		if err != nil {
			answer = reply{Error: asError(err)}
		}
		ctx, cancel := context.WithTimeout(s.ctx, s.opts.Timeout)
		err = send(ctx, conn, answer)
		cancel()
		if err != nil {
			return
		}
		if r.Op == opYield && answer.Error == nil {
			s.stop(ErrYielded)
		}
	}
}

// ErrYielded is why a keeper has ended that a successor follows.
var ErrYielded = errors.New("keeper: another keeper has taken over")

// end gives up what the client has not delivered, once its process has died.
func (c *session) end() {
	for ticket, d := range c.tickets {
		d.drop()
		if d.booking.By.Pidfd == 0 { // whose end nobody would notice
			_ = c.server.mutate(c.server.ctx, func(st *state.State) error { return st.Cancel(ticket) })
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
	return s.processes.join(s.ctx, next, p)
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

func (c *session) book(r request) (reply, error) {
	dev, err := cu.ParseUUID(r.Device)
	if err != nil {
		return reply{}, badRequest("device: %v", err)
	}
	kind, err := parseKind(r.Kind)
	if err != nil {
		return reply{}, err
	}
	b := state.Booking{
		Name: r.Name, Transaction: r.Transaction, Parts: r.Parts, Index: r.Part, Device: dev, Kind: kind, Bytes: r.Bytes,
		Labels: r.Labels, Expect: r.Expect, By: state.Writer{Who: c.who, Since: time.Now()}, At: time.Now(), Deadline: time.Now().Add(c.server.limit(r.TimeoutMS)),
	}
	var ticket string
	err = c.server.mutate(c.server.ctx, func(st *state.State) (err error) {
		if b.By.Pidfd, err = c.server.writer(st, c.conn); err != nil {
			return err
		}
		ticket, err = st.Book(b)
		return err
	})
	if err != nil {
		return reply{}, err
	}
	c.tickets[ticket] = &delivery{booking: b}
	return reply{Ticket: ticket}, nil
}

func parseKind(name string) (cu.Kind, error) {
	for _, k := range []cu.Kind{cu.CUDA, cu.Soft} {
		if name == k.String() {
			return k, nil
		}
	}
	return 0, badRequest("driver %q: want %s or %s", name, cu.CUDA, cu.Soft)
}

// limit is how long a ticket is good for.
func (s *Server) limit(ms int64) time.Duration {
	if d := time.Duration(ms) * time.Millisecond; d > 0 && d < s.opts.Ticket {
		return d
	}
	return s.opts.Ticket
}

// ticket is a booking of this connection.
func (c *session) ticket(t string) (*delivery, error) {
	d := c.tickets[t]
	if d == nil {
		return nil, &Error{Code: "not-found", Message: fmt.Sprintf("this connection has no ticket %q: book a part, or renew the ticket of an earlier connection", t)}
	}
	return d, nil
}

// take keeps descriptors of a part, or its table.
func (c *session) take(r request, files []*os.File) error {
	d, err := c.ticket(r.Ticket)
	if err == nil && r.Op == opTable {
		err = d.takeTable(files)
	} else if err == nil {
		err = d.takeFiles(files)
	}
	if err != nil {
		sock.DropFiles(files)
	}
	return err
}

func (d *delivery) takeFiles(files []*os.File) error {
	if len(d.files)+len(files) > vmm.MaxChunks {
		return badRequest("a part has %d chunks at most", vmm.MaxChunks)
	}
	for _, f := range files {
		if err := isMemory(f, d.booking.Kind); err != nil {
			return err
		}
	}
	d.files = append(d.files, files...)
	return nil
}

func (d *delivery) takeTable(files []*os.File) error {
	if len(files) != 1 || d.table != nil {
		return badRequest("a table is one memfd, and a part has one table")
	}
	size, err := checkTable(files[0])
	if err != nil {
		return err
	}
	d.table, d.size = files[0], size
	return nil
}

// deliver has a part be kept; the last of a version commits it.
func (c *session) deliver(r request) (reply, error) {
	d, err := c.ticket(r.Ticket)
	if err != nil {
		return reply{}, err
	}
	if r.Memory == nil {
		return reply{}, badRequest("a part without its memory's description")
	}
	m := r.Memory.descriptor(d.booking.Kind, d.booking.Device)
	if err := m.Plausible(); err != nil {
		return reply{}, badRequest("%v", err)
	}
	if len(d.files) != m.Chunks {
		return reply{}, badRequest("%d descriptors came of memory of %d chunks", len(d.files), m.Chunks)
	}
	v, missing, err := c.server.keep(r.Ticket, d, m, r.Digest)
	if err != nil {
		return reply{}, err
	}
	d.drop()
	delete(c.tickets, r.Ticket)
	return reply{Version: v, Missing: missing}, nil
}

// keep puts a part into the store and the state.
func (s *Server) keep(ticket string, d *delivery, m vmm.Descriptor, digest string) (version uint64, missing int, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	next := s.state.Clone()
	p := state.Part{Index: d.booking.Index, Memory: m, Bytes: m.Size, Digest: digest, Files: next.NewID(), State: state.OK, Writer: d.booking.By}
	if d.table != nil {
		p.Table, p.TableSize = next.NewID(), d.size
	}
	v, err := next.Deliver(ticket, p, time.Now())
	var no *Error
	if errors.As(err, &no) && no.Changed { // the transaction is dropped
		return 0, 0, errors.Join(err, s.commit(s.ctx, next))
	}
	if err != nil {
		return 0, 0, err
	}
	// The store has the descriptors before the manifest names them.
	if err := s.vault.hold(s.ctx, uint64(p.Files), d.files); err != nil {
		return 0, 0, err
	}
	if d.table != nil {
		err = s.vault.hold(s.ctx, uint64(p.Table), oneFile(d.table))
	}
	if err == nil {
		err = s.commit(s.ctx, next)
	}
	if err != nil {
		return 0, 0, errors.Join(err, s.vault.drop(s.ctx, uint64(p.Files), uint64(p.Table)))
	}
	if v == nil {
		return 0, d.booking.Parts - next.Delivered(d.booking.Name, d.booking.Transaction), nil
	}
	s.metrics.committed()
	s.announce(Event{Name: d.booking.Name, Kind: "committed", Version: v.N})
	return v.N, 0, nil
}

func (c *session) renew(r request) error {
	var b state.Booking
	err := c.server.mutate(c.server.ctx, func(st *state.State) (err error) {
		b, err = st.Renew(r.Ticket, c.who, time.Now().Add(c.server.limit(r.TimeoutMS)))
		return err
	})
	if err == nil && c.tickets[r.Ticket] == nil {
		c.tickets[r.Ticket] = &delivery{booking: b}
	}
	return err
}

func (c *session) cancel(ticket string) error {
	d, err := c.ticket(ticket)
	if err != nil {
		return err
	}
	d.drop()
	delete(c.tickets, ticket)
	return c.server.mutate(c.server.ctx, func(st *state.State) error { return st.Cancel(ticket) })
}

func (c *session) mayYield() error {
	if c.who.UID != uint32(os.Geteuid()) {
		return &Error{Code: "denied", Message: "a keeper yields to a successor of its own user"}
	}
	return nil
}

// Status is what the keeper says of itself.
func (s *Server) Status() Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	return Status{PID: os.Getpid(), Store: s.vault.pid, Since: s.since, Names: s.state.Len(), Version: s.opts.Version}
}

func (s *Server) list(who state.Who) reply {
	s.mu.Lock()
	defer s.mu.Unlock()
	return reply{Names: s.state.List(who)}
}

func (s *Server) stat(name string, who state.Who) (reply, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	info, err := s.state.Stat(name, who)
	if err != nil {
		return reply{}, err
	}
	return reply{Names: []state.Info{info}}, nil
}

// remove gives a name up, and at once what nobody has of it.
func (s *Server) remove(name string, who state.Who) error {
	err := s.mutate(s.ctx, func(st *state.State) error {
		if err := st.Remove(name, who); err != nil {
			return err
		}
		st.Retire(time.Now())
		return nil
	})
	if err == nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.announce(Event{Name: name, Kind: "removed"})
	}
	return err
}

func (s *Server) report(r request, who state.Who) (reply, error) {
	verdict := state.PartState(r.Verdict)
	if !slices.Contains([]state.PartState{state.Damaged, state.Quarantined}, verdict) {
		return reply{}, badRequest("verdict %q: want %q or %q", r.Verdict, state.Damaged, state.Quarantined)
	}
	var counted bool
	err := s.mutate(s.ctx, func(st *state.State) (err error) {
		counted, err = st.Report(r.Name, r.Version, r.Part, who, verdict, r.Reason)
		return err
	})
	if err == nil && counted {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.announce(Event{Name: r.Name, Kind: r.Verdict, Version: r.Version, Text: r.Reason})
	}
	return reply{Counted: counted}, err
}

// checkTable says how many bytes of JSON a table has that nobody can change any more.
func checkTable(f *os.File) (uint64, error) {
	const sealed = unix.F_SEAL_WRITE | unix.F_SEAL_SHRINK | unix.F_SEAL_GROW
	seals, err := unix.FcntlInt(f.Fd(), unix.F_GET_SEALS, 0)
	if err != nil || seals&sealed != sealed {
		return 0, badRequest("a table is a memfd that is sealed against writing, shrinking and growing")
	}
	info, err := f.Stat()
	if err != nil {
		return 0, err
	}
	if info.Size() > maxTable {
		return 0, badRequest("a table of %d bytes; %d are allowed", info.Size(), maxTable)
	}
	text, err := readTable(f)
	if err != nil || !json.Valid(text) {
		return 0, badRequest("a table is JSON")
	}
	return uint64(info.Size()), nil
}

// maxTable leaves room for what else a reader is told.
const maxTable = share.MaxData - 64<<10
