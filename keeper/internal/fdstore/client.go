package fdstore

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"

	"github.com/gpufd/gpufd/internal/plain"
	"github.com/gpufd/gpufd/sock"
)

// A Client is a keeper's connection to its store, which no other keeper has meanwhile. It
// owns the connection until Close. All methods may be called at the same time: they take
// turns. A nil Client is a closed one.
type Client struct {
	path  string
	conn  *sock.Conn
	child *child // nil unless Spawn started it

	turn chan struct{} // holds a token while a call goes on
	seq  uint32        // number of the last request

	mu      sync.Mutex
	waiting uint32 // number of the request that waits for its answer
	answers chan reply

	done chan struct{}
	err  error // why the connection ended, once done
}

// reply is an answer as it came. The owner of rec closes the files that are not
// taken from it.
type reply struct {
	header
	body []byte
	rec  sock.Record
}

// Dial connects to the store that lives at path. The caller owns the Client.
// sock.ErrNoListener says that there is none, ErrBusy that another keeper has it; its
// text has the keeper's pid.
func Dial(ctx context.Context, path string) (*Client, error) {
	c, err := dial(ctx, path, anyStore)
	if err != nil {
		return nil, opError("dial", path, err)
	}
	return c, nil
}

// anyStore is no pid.
const anyStore = 0

// dial connects to the store whose pid is that, and no other.
func dial(ctx context.Context, path string, pid int) (*Client, error) {
	conn, err := sock.Dial(ctx, path)
	if err != nil {
		return nil, err
	}
	if pid != anyStore && int(conn.Peer().PID) != pid {
		return nil, errors.Join(fmt.Errorf("%w: %v", sock.ErrListening, conn.Peer()), conn.Close())
	}
	c := newClient(path, conn)
	if _, err := c.status(ctx); err != nil { // a store that another keeper has says so here
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

func newClient(path string, conn *sock.Conn) *Client {
	c := &Client{path: path, conn: conn, turn: make(chan struct{}, 1), done: make(chan struct{})}
	go c.read()
	return c
}

// opError adds what was tried, and where. nil in, nil out.
func opError(op, path string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("fdstore: %s %s: %w", op, path, err)
}

// read hands out answers until the connection ends. An answer that nobody waits for any
// more is closed.
func (c *Client) read() {
	defer close(c.done)
	for {
		rec, err := c.conn.Receive(context.Background())
		if err == nil {
			err = c.deliver(rec)
		}
		if err != nil {
			c.err = err
			c.conn.Drop()
			return
		}
	}
}

// deliver returns an error if the connection cannot go on.
func (c *Client) deliver(rec sock.Record) error {
	h, body, err := parse(rec.Data)
	if err == nil && h.seq == 0 {
		err = refusal(h, body)
	}
	if err == nil && c.hand(reply{h, body, rec}) {
		return nil
	}
	sock.DropFiles(rec.Files)
	return err
}

// hand gives an answer to the call that waits for it, and reports whether one does.
func (c *Client) hand(r reply) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.answers == nil || r.seq != c.waiting {
		return false
	}
	c.answers <- r // it has room for one
	c.answers = nil
	return true
}

// await makes the next answer the caller's. forget ends that, and closes an answer that
// came and was not taken.
func (c *Client) await() (answers chan reply, forget func()) {
	answers = make(chan reply, 1)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.seq++; c.seq == 0 {
		c.seq = 1
	}
	c.waiting, c.answers = c.seq, answers
	return answers, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.answers = nil
		select {
		case r := <-answers:
			sock.DropFiles(r.rec.Files)
		default:
		}
	}
}

// do is the choke point: it runs f, alone, and adds op to its error.
func (c *Client) do(ctx context.Context, op string, f func() error) error {
	if c == nil || c.conn == nil {
		return opError(op, "", sock.ErrClosed)
	}
	select {
	case c.turn <- struct{}{}:
		defer func() { <-c.turn }()
		return opError(op, c.path, f())
	case <-ctx.Done():
		return opError(op, c.path, plain.ContextErr(ctx))
	}
}

// request sends one request and waits for its answer, whose files the caller owns. The
// caller holds turn.
func (c *Client) request(ctx context.Context, h header, body []byte, files ...*os.File) (reply, error) {
	answers, forget := c.await()
	defer forget()
	h.seq = c.seq
	if err := c.conn.Send(ctx, append(h.append(nil), body...), files...); err != nil {
		return reply{}, c.sendError(ctx, err)
	}
	var err error
	select {
	case r := <-answers:
		return r, c.check(r, h)
	case <-c.done:
		err = c.gone()
	case <-ctx.Done():
		err = fmt.Errorf("no answer: %w", plain.ContextErr(ctx))
	}
	select {
	case r := <-answers: // it came before
		return r, c.check(r, h)
	default:
		return reply{}, err
	}
}

// check closes the files of a refusal.
func (c *Client) check(r reply, h header) error {
	err := refusal(r.header, r.body)
	if err == nil && r.op != h.op|answerBit {
		err = fmt.Errorf("%w: operation %#x answers %#x", ErrMalformed, r.op, h.op)
	}
	if err != nil {
		sock.DropFiles(r.rec.Files)
	}
	return err
}

// sendError prefers what the store said before it hung up.
func (c *Client) sendError(ctx context.Context, err error) error {
	if ctx.Err() != nil || !errors.Is(err, sock.ErrPeerLost) && !errors.Is(err, sock.ErrClosed) {
		return err
	}
	<-c.done // soon: the reader has the same news
	return c.gone()
}

// gone returns why the connection ended, with what the store had to say about it.
func (c *Client) gone() error {
	if words := c.child.lastWords(); words != "" {
		return fmt.Errorf("%w; it said: %s", c.err, words)
	}
	return c.err
}

// Done is closed when the connection has ended: the store has died, as a rule, or this
// client was closed. For a nil Client it is closed already.
func (c *Client) Done() <-chan struct{} {
	if c == nil || c.done == nil {
		return closed
	}
	return c.done
}

var closed = func() chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}()

// Err returns why Done is closed, with the first line that a store of Spawn's wrote to its
// standard error, and nil before. sock.ErrPeerLost: the store has died or hung up.
// sock.ErrClosed: this side has.
func (c *Client) Err() error {
	if c == nil || c.conn == nil {
		return sock.ErrClosed
	}
	select {
	case <-c.done:
		return opError("connection to", c.path, c.gone())
	default:
		return nil
	}
}

// Close ends the connection; the store goes on, and the next keeper may have it. It may
// be called again and on nil. A store that Spawn started and that ends later remains a
// zombie until this process ends.
func (c *Client) Close() error {
	if c == nil || c.conn == nil {
		return nil
	}
	err := c.conn.Close()
	<-c.done
	c.child.release()
	return opError("close", c.path, err)
}
