package server

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpufd/gpufd/gpumem"
	"github.com/gpufd/gpufd/internal/descriptor"
	"github.com/gpufd/gpufd/keeper/api"
	"github.com/gpufd/gpufd/keeper/internal/protocol"
	"github.com/gpufd/gpufd/keeper/internal/state"
	"github.com/gpufd/gpufd/sock"
)

// A delivery is a part that has not come completely.
type delivery struct {
	booking state.Booking
	files   []*os.File
	table   *os.File
	size    uint64 // of the table
}

// count returns how many descriptors have come.
func (d *delivery) count() int {
	if d.table != nil {
		return len(d.files) + 1
	}
	return len(d.files)
}

// memory checks the writer's description of the part's memory.
func (d *delivery) memory(m *protocol.Memory) (gpumem.Descriptor, error) {
	if m == nil {
		return gpumem.Descriptor{}, protocol.BadRequest("a part without its memory's description")
	}
	is := m.Descriptor(d.booking.Kind, d.booking.Device)
	if err := is.Plausible(); err != nil {
		return is, protocol.BadRequest("%v", err)
	}
	if len(d.files) != is.Chunks {
		return is, protocol.BadRequest("%d descriptors came of memory of %d chunks", len(d.files), is.Chunks)
	}
	return is, nil
}

// forget drops a ticket, if this connection has it.
func (c *session) forget(ticket string) {
	if d := c.tickets[ticket]; d != nil {
		c.drop(d)
		delete(c.tickets, ticket)
	}
}

// drop closes what has come of a part.
func (c *session) drop(d *delivery) {
	c.server.received.leave(c.who.UID, d.count())
	c.server.tables.Leave(c.who.UID, int(d.size))
	sock.DropFiles(append(d.files, d.table)) // nil is none
	d.files, d.table, d.size = nil, nil, 0
}

func (c *session) book(r protocol.Request) (protocol.Reply, error) {
	dev, err := gpumem.ParseUUID(r.Device)
	if err != nil {
		return protocol.Reply{}, protocol.BadRequest("device: %v", err)
	}
	kind, err := parseKind(r.Kind)
	if err != nil {
		return protocol.Reply{}, err
	}
	b := state.Booking{
		Name: r.Name, Transaction: r.Transaction, Parts: r.Parts, Index: r.Part, Device: dev, Kind: kind, Bytes: r.Bytes,
		Labels: r.Labels, Expect: r.Expect, By: state.Writer{Who: c.who, Since: time.Now()}, At: time.Now(), Deadline: time.Now().Add(c.server.limit(r.TimeoutMS)),
	}
	var ticket string
	err = c.server.mutate(func(st *state.State) (err error) {
		if b.By.Pidfd, err = c.server.writer(st, c.conn); err != nil {
			return err
		}
		if ticket, err = st.Book(b); state.CodeOf(err) == state.Taken && b.By.Pidfd != 0 {
			ticket, err = again(st, b, err)
		}
		return err
	})
	if err != nil {
		return protocol.Reply{}, err
	}
	c.tickets[ticket] = &delivery{booking: b}
	return protocol.Reply{Ticket: ticket}, nil
}

// again returns the ticket that the same process booked over an earlier connection, or err. The
// process may not have got the answer then.
func again(st *state.State, b state.Booking, err error) (string, error) {
	for ticket, x := range st.Bookings() {
		if x.Name == b.Name && x.Transaction == b.Transaction && x.Index == b.Index && x.By.Pidfd == b.By.Pidfd && x.Bytes == b.Bytes && x.Device == b.Device {
			_, err = st.Renew(ticket, b.By.Who, b.Deadline)
			return ticket, err
		}
	}
	return "", err
}

func parseKind(name string) (gpumem.Kind, error) {
	for _, k := range []gpumem.Kind{gpumem.CUDA, gpumem.Soft} {
		if name == k.String() {
			return k, nil
		}
	}
	return 0, protocol.BadRequest("driver %q: want %s or %s", name, gpumem.CUDA, gpumem.Soft)
}

func parseAccess(name string) (gpumem.Access, error) {
	for _, a := range []gpumem.Access{gpumem.ReadOnly, gpumem.ReadWrite} {
		if name == a.String() {
			return a, nil
		}
	}
	return 0, protocol.BadRequest("access %q: want %s or %s", name, gpumem.ReadOnly, gpumem.ReadWrite)
}

// limit returns how long a ticket is good for.
func (s *Server) limit(ms int64) time.Duration {
	if d := time.Duration(ms) * time.Millisecond; d > 0 && d < s.opts.Ticket {
		return d
	}
	return s.opts.Ticket
}

// ticket returns a booking of this connection.
func (c *session) ticket(t string) (*delivery, error) {
	d := c.tickets[t]
	if d == nil {
		return nil, &state.Error{Code: "not-found", Message: fmt.Sprintf("this connection has no ticket %q: book a part, or renew the ticket of an earlier connection", t)}
	}
	return d, nil
}

// take keeps descriptors of a part, or its table.
func (c *session) take(r protocol.Request, files []*os.File) error {
	d, err := c.ticket(r.Ticket)
	if err == nil {
		err = c.server.received.take(c.who.UID, len(files))
	}
	if err == nil {
		if r.Op == protocol.OpTable {
			err = c.takeTable(d, files)
		} else {
			err = d.takeFiles(files)
		}
		if err != nil {
			c.server.received.leave(c.who.UID, len(files))
		}
	}
	if err != nil {
		sock.DropFiles(files)
	}
	return err
}

func (d *delivery) takeFiles(files []*os.File) error {
	if len(d.files)+len(files) > gpumem.MaxChunks {
		return protocol.BadRequest("a part has %d chunks at most", gpumem.MaxChunks)
	}
	for _, f := range files {
		if err := isMemory(f, d.booking.Kind); err != nil {
			return err
		}
	}
	d.files = append(d.files, files...)
	return nil
}

// takeTable keeps a part's table, if the user may bring that many bytes.
func (c *session) takeTable(d *delivery, files []*os.File) error {
	if len(files) != 1 || d.table != nil {
		return protocol.BadRequest("a table is one memfd, and a part has one table")
	}
	size, err := tableSize(files[0])
	if err == nil {
		err = c.server.mayBring(d.booking.Name, c.who, size)
	}
	if err != nil {
		return err
	}
	if err := c.server.checkTable(files[0], size); err != nil {
		c.server.tables.Leave(c.who.UID, int(size))
		return err
	}
	d.table, d.size = files[0], size
	return nil
}

// mayBring charges a table to the user that brings it, beside what is kept for it. Without an
// error the caller gives it back later (Server.tables).
func (s *Server) mayBring(name string, who state.Who, size uint64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.state.MayBring(name, who, size, s.tables.used(who.UID)); err != nil {
		return err
	}
	return s.tables.Take(who.UID, int(size))
}

// outcome returns the answer to a delivery whose answer was lost: the keeper has died, the
// connection has ended, or the store did not answer in time. With an answer it forgets the
// ticket on this connection, and closes what has come of the part.
func (c *session) outcome(ticket string) (a protocol.Reply, ok bool) {
	c.server.mu.Lock()
	a.Version, a.Missing, ok = c.server.state.Outcome(ticket, c.who)
	c.server.mu.Unlock()
	if a.Delivered = ok; ok {
		c.forget(ticket)
	}
	return a, ok
}

// deliver keeps a part; the last part of a version commits the version. A ticket that was
// delivered before gets the same answer.
func (c *session) deliver(r protocol.Request) (protocol.Reply, error) {
	if a, ok := c.outcome(r.Ticket); ok {
		return a, nil
	}
	d, err := c.ticket(r.Ticket)
	if err != nil {
		return protocol.Reply{}, err
	}
	v, missing, err := c.server.keep(r, *d)
	if err != nil {
		return protocol.Reply{}, err
	}
	c.forget(r.Ticket)
	return protocol.Reply{Version: v, Missing: missing, Delivered: true}, nil
}

// keep puts a part into the store and the state.
func (s *Server) keep(r protocol.Request, d delivery) (version uint64, missing int, err error) {
	type outcome struct {
		version uint64
		missing int
	}
	made := make(chan outcome, 1) // buffered: the caller may have timed out
	err = s.change(func() error {
		v, missing, err := s.keepNow(r, d)
		made <- outcome{v, missing}
		return err
	})
	if err != nil {
		return 0, 0, err
	}
	o := <-made
	return o.version, o.missing, nil
}

// keepNow is the change of keep. If the ticket was delivered while this change waited for
// changeLock, the answer is that of the earlier delivery.
func (s *Server) keepNow(r protocol.Request, d delivery) (version uint64, missing int, err error) {
	if version, missing, ok := s.state.Outcome(r.Ticket, d.booking.By.Who); ok {
		return version, missing, nil
	}
	is, err := d.memory(r.Memory)
	if err != nil {
		return 0, 0, err
	}
	next := s.state.Clone()
	p := state.Part{Index: d.booking.Index, Memory: is, Bytes: is.Size, Digest: r.Digest, Layout: r.Layout, Files: next.NewID(), State: state.OK, Writer: d.booking.By}
	if d.table != nil {
		p.Table, p.TableSize = next.NewID(), d.size
	}
	v, err := next.Deliver(r.Ticket, p, time.Now())
	var no *state.Error
	if errors.As(err, &no) && no.Changed { // the transaction is dropped
		return 0, 0, errors.Join(err, s.commit(next))
	}
	if err != nil {
		return 0, 0, err
	}
	var counted []string
	if v != nil {
		counted = []string{countCommits}
	}
	if err := s.take(&p, d, next, counted...); err != nil {
		return 0, 0, err
	}
	if v == nil {
		return 0, d.booking.Parts - next.Delivered(d.booking.Name, d.booking.Transaction), nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.announce(api.Event{Name: d.booking.Name, Kind: "committed", Version: v.N})
	return v.N, 0, nil
}

// take gives a part's descriptors to the store before the manifest names them. It is part
// of a change.
func (s *Server) take(p *state.Part, d delivery, next *state.State, counted ...string) error {
	err := s.vault.hold(s.store, uint64(p.Files), d.files)
	if err == nil && d.table != nil {
		err = s.vault.hold(s.store, uint64(p.Table), oneFile(d.table))
	}
	if err == nil {
		err = s.commit(next, counted...)
	}
	if err != nil && s.ctx.Err() == nil { // else the next keeper knows what is named
		s.drop(uint64(p.Files), uint64(p.Table))
	}
	return err
}

func (c *session) renew(r protocol.Request) (protocol.Reply, error) {
	if a, ok := c.outcome(r.Ticket); ok {
		return a, nil
	}
	b, err := c.server.renew(r.Ticket, c.who, c.server.limit(r.TimeoutMS))
	if errors.Is(err, errDelivered) {
		a, _ := c.outcome(r.Ticket)
		return a, nil
	}
	if err != nil {
		return protocol.Reply{}, err
	}
	c.forget(r.Ticket) // the client sends all of it again
	c.tickets[r.Ticket] = &delivery{booking: b}
	return protocol.Reply{}, nil
}

// errDelivered says that the part of a ticket was delivered before the change began.
var errDelivered = errors.New("keeper: the part has been delivered")

// renew resumes a booking.
func (s *Server) renew(ticket string, who state.Who, limit time.Duration) (b state.Booking, err error) {
	made := make(chan state.Booking, 1)
	err = s.mutate(func(st *state.State) error {
		if _, _, ok := st.Outcome(ticket, who); ok {
			return errDelivered
		}
		b, err := st.Renew(ticket, who, time.Now().Add(limit))
		made <- b
		return err
	})
	if err != nil {
		return b, err
	}
	return <-made, nil
}

func (c *session) cancel(ticket string) error {
	if _, err := c.ticket(ticket); err != nil {
		return err
	}
	c.forget(ticket)
	return c.server.mutate(func(st *state.State) error { return st.Cancel(ticket) })
}

func (c *session) mayYield() error {
	if c.who.UID != uint32(os.Geteuid()) {
		return &state.Error{Code: "denied", Message: "a keeper yields to a successor of its own user"}
	}
	if s := c.server; s.changeLock.heldLong() { // a successor could not read what the store has, and nobody would serve
		return s.silence(api.StoreSilent, "this keeper serves on: take over when the store answers again")
	}
	return nil
}

// tableSize returns the size of a table that nobody can change any more. It asks for the seals
// first: any file that is no memory answers that at once.
func tableSize(f *os.File) (uint64, error) {
	seals, err := unix.FcntlInt(f.Fd(), unix.F_GET_SEALS, 0)
	if err != nil || seals&descriptor.Content != descriptor.Content {
		return 0, protocol.BadRequest("a table is a memfd that is sealed against writing, shrinking and growing")
	}
	info, err := f.Stat()
	if err != nil {
		return 0, err
	}
	if info.Size() > protocol.MaxTable {
		return 0, protocol.BadRequest("a table of %d bytes; %d are allowed", info.Size(), protocol.MaxTable)
	}
	return uint64(info.Size()), nil
}

// checkTable returns an error unless a table is JSON. It reads one table at a time.
func (s *Server) checkTable(f *os.File, size uint64) error {
	s.reading.Lock()
	defer s.reading.Unlock()
	text := make([]byte, size)
	if _, err := f.ReadAt(text, 0); err != nil && !errors.Is(err, io.EOF) || !json.Valid(text) {
		return protocol.BadRequest("a table is JSON")
	}
	return nil
}
