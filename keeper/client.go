package keeper

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/sock"
)

// A Client asks a keeper: for what it has, and to keep memory. Readers need none:
// share.Attach and share.Follow take what a keeper keeps. The caller owns it and ends it
// with Close. It is safe for concurrent use; requests take turns. Questions that a keeper
// did not live to answer are asked of the next one.
type Client struct {
	socket string
	turn   chan struct{} // holds a token while somebody asks

	mu     sync.Mutex
	conn   *sock.Conn // nil where the last one is lost
	closed bool
}

// Dial connects to the keeper whose readers' socket lies at socket. Errors:
// [sock.ErrNoListener] and the others of [sock.Dial].
func Dial(ctx context.Context, socket string) (*Client, error) {
	c := &Client{socket: socket, turn: make(chan struct{}, 1)}
	if _, err := c.connect(ctx); err != nil {
		return nil, err
	}
	return c, nil
}

// connect returns the connection, a new one if there is none. It takes a turn.
func (c *Client) connect(ctx context.Context) (*sock.Conn, error) {
	c.mu.Lock()
	conn, over := c.conn, c.closed
	c.mu.Unlock()
	if over {
		return nil, sock.ErrClosed
	}
	if conn != nil {
		return conn, nil
	}
	conn, err := sock.Dial(ctx, c.socket+controlSuffix)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, errors.Join(sock.ErrClosed, conn.Close())
	}
	c.conn = conn
	return conn, nil
}

// lose ends a connection that is good for nothing: an answer to an earlier request may
// still come there.
func (c *Client) lose() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.conn != nil {
		c.conn.Drop()
		c.conn = nil
	}
}

// Close ends the connection, and a request that waits. What was booked and not delivered
// is given up when its time is over, or this process has ended. It may be called again and
// on nil.
func (c *Client) Close() error {
	if c == nil {
		return nil
	}
	c.mu.Lock()
	conn := c.conn
	c.conn, c.closed = nil, true
	c.mu.Unlock()
	if conn == nil {
		return nil
	}
	return conn.Close()
}

// take waits for a turn, which the caller gives back.
func (c *Client) take(ctx context.Context) (back func(), err error) {
	if c == nil || c.turn == nil {
		return nil, sock.ErrClosed
	}
	select {
	case c.turn <- struct{}{}:
		return func() { <-c.turn }, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// ask sends a request and returns the answer. The error is the keeper's [*Error], or what
// became of the connection.
func (c *Client) ask(ctx context.Context, r request, files ...*os.File) (reply, error) {
	back, err := c.take(ctx)
	if err != nil {
		return reply{}, err
	}
	defer back()
	return c.askNow(ctx, r, files...)
}

// askNow is ask for who has a turn.
func (c *Client) askNow(ctx context.Context, r request, files ...*os.File) (answer reply, err error) {
	conn, err := c.connect(ctx)
	if err != nil {
		return reply{}, err
	}
	err = send(ctx, conn, r, files...)
	if err == nil {
		var extra []*os.File
		extra, err = receive(ctx, conn, maxReply, &answer)
		sock.DropFiles(extra)
	}
	switch {
	case errors.Is(err, errTooLong):
		return reply{}, err
	case err != nil:
		c.lose()
		return reply{}, err
	case answer.Error != nil:
		return answer, answer.Error
	}
	return answer, nil
}

// query is ask for what may be asked twice.
func (c *Client) query(ctx context.Context, r request) (reply, error) {
	for pause := time.Millisecond; ; pause = min(2*pause, 100*time.Millisecond) {
		a, err := c.ask(ctx, r)
		if !errors.Is(err, sock.ErrPeerLost) {
			return a, err
		}
		select {
		case <-ctx.Done():
			return a, err
		case <-time.After(pause):
		}
	}
}

// Status is what the keeper says of itself.
func (c *Client) Status(ctx context.Context) (Status, error) {
	a, err := c.query(ctx, request{Op: opStatus})
	if err != nil {
		return Status{}, err
	}
	if a.Status == nil {
		return Status{}, errMalformed
	}
	return *a.Status, nil
}

// List says of all names that this process may read what is kept.
func (c *Client) List(ctx context.Context) ([]Info, error) {
	a, err := c.query(ctx, request{Op: opList})
	return a.Names, err
}

// Stat says what is kept under a name. Without it the error is an [*Error] of the code
// not-found.
func (c *Client) Stat(ctx context.Context, name string) (Info, error) {
	a, err := c.query(ctx, request{Op: opStat, Name: name})
	if err != nil {
		return Info{}, err
	}
	if len(a.Names) != 1 {
		return Info{}, errMalformed
	}
	return a.Names[0], nil
}

// Remove has the keeper give a name up. Readers are told (share.ErrRevoked), and keep what
// they have mapped; the memory is free when the last of them has let go.
func (c *Client) Remove(ctx context.Context, name string) error {
	_, err := c.ask(ctx, request{Op: opRemove, Name: name})
	return err
}

// Drain has a name be given to no new readers, or be again if on is false. Who reads it
// is told ([DrainNotice]).
func (c *Client) Drain(ctx context.Context, name string, on bool) error {
	_, err := c.ask(ctx, request{Op: opDrain, Name: name, On: on})
	return err
}

// DrainDevice is Drain for all that is kept on a device.
func (c *Client) DrainDevice(ctx context.Context, dev cu.UUID, on bool) error {
	_, err := c.ask(ctx, request{Op: opDrain, Device: dev.String(), On: on})
	return err
}

// Report says that a part of a version is damaged or quarantined. counted says whether
// the keeper goes by that, which it does if this user may write or remove the name.
func (c *Client) Report(ctx context.Context, name string, version uint64, part int, verdict, reason string) (counted bool, err error) {
	a, err := c.ask(ctx, request{Op: opReport, Name: name, Version: version, Part: part, Verdict: verdict, Reason: reason})
	return a.Counted, err
}

// Yield asks the keeper to end for a successor, which finds all in the fd store.
func (c *Client) Yield(ctx context.Context) error {
	_, err := c.ask(ctx, request{Op: opYield})
	return err
}

// Watch calls f with what happens to a name, or to all if that is "", until ctx is done,
// f returns false or the keeper has ended. It takes the connection for itself.
func (c *Client) Watch(ctx context.Context, name string, f func(Event) bool) error {
	back, err := c.take(ctx)
	if err != nil {
		return err
	}
	defer back()
	conn, err := c.connect(ctx)
	if err != nil {
		return err
	}
	defer c.lose() // where events go on coming
	if err := send(ctx, conn, request{Op: opWatch, Name: name}); err != nil {
		return err
	}
	for {
		var a reply
		extra, err := receive(ctx, conn, maxReply, &a)
		sock.DropFiles(extra)
		switch {
		case err != nil:
			return err
		case a.Error != nil:
			return a.Error
		case a.Event != nil && !f(*a.Event):
			return nil
		}
	}
}

// A booking is a part that this client is to deliver.
type booking struct {
	client *Client
	ticket string
	until  time.Duration
}

// book asks for room for a part.
func (c *Client) book(ctx context.Context, p Put, part Part, transaction string) (*booking, error) {
	limit := p.Timeout
	if end, ok := ctx.Deadline(); ok && limit == 0 {
		limit = time.Until(end)
	}
	a, err := c.ask(ctx, request{
		Op: opBook, Name: p.Name, Transaction: transaction, Parts: p.Parts, Part: part.Index, Labels: p.Labels, Expect: p.Expect,
		Device: part.Device.UUID().String(), Kind: part.Device.Driver().Kind().String(), Bytes: part.Size, TimeoutMS: limit.Milliseconds(),
	})
	if err != nil {
		return nil, err
	}
	return &booking{client: c, ticket: a.Ticket, until: limit}, nil
}

// tableFile is b as a memfd that nobody can change.
func tableFile(b []byte) (_ *os.File, err error) {
	fd, err := unix.MemfdCreate("gpufd-table", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, os.NewSyscallError("memfd_create", err)
	}
	f := os.NewFile(uintptr(fd), "gpufd-table")
	defer func() {
		if err != nil {
			f.Close()
		}
	}()
	if _, err := f.Write(b); err != nil {
		return nil, err
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_WRITE|unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_SEAL); err != nil {
		return nil, os.NewSyscallError("fcntl", err)
	}
	return f, nil
}

// deliver hands a part over. The files stay the caller's.
func (b *booking) deliver(ctx context.Context, d *memory, files []*os.File, digest string, table json.RawMessage) (reply, error) {
	c := b.client
	if len(table) > 0 {
		f, err := tableFile(table)
		if err != nil {
			return reply{}, err
		}
		_, err = c.ask(ctx, request{Op: opTable, Ticket: b.ticket}, f)
		if err = errors.Join(err, f.Close()); err != nil {
			return reply{}, fmt.Errorf("sending the table: %w", err)
		}
	}
	for len(files) > 0 {
		n := min(len(files), sock.MaxFDs)
		if _, err := c.ask(ctx, request{Op: opFiles, Ticket: b.ticket}, files[:n]...); err != nil {
			return reply{}, fmt.Errorf("sending the descriptors: %w", err)
		}
		files = files[n:]
	}
	at("sent")
	return c.ask(ctx, request{Op: opDeliver, Ticket: b.ticket, Memory: d, Digest: digest})
}

func (b *booking) cancel(ctx context.Context) error {
	_, err := b.client.ask(ctx, request{Op: opCancel, Ticket: b.ticket})
	return err
}

// renew takes the ticket up again over a new connection.
func (b *booking) renew(ctx context.Context) error {
	_, err := b.client.ask(ctx, request{Op: opRenew, Ticket: b.ticket, TimeoutMS: b.until.Milliseconds()})
	return err
}
