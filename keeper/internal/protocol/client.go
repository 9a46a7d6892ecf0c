package protocol

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/gpufd/gpufd/internal/plain"
	"github.com/gpufd/gpufd/keeper/api"
	"github.com/gpufd/gpufd/sock"
	"golang.org/x/sys/unix"
)

// A Client is a connection to a keeper, or after the end of a keeper, one to the next. It is safe for
// concurrent use; requests take turns.
type Client struct {
	socket string
	turn   chan struct{} // holds a token while a request is in progress

	mu     sync.Mutex
	conn   *sock.Conn // nil if the last one is lost
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

// connect returns the connection, a new one if there is none. A request calls it in its turn.
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
	conn, err := sock.Dial(ctx, c.socket+ControlSuffix)
	if err != nil {
		return nil, err
	}
	if err := KeeperOf(c.socket).Check(conn.Peer()); err != nil { // it is given descriptors
		return nil, errors.Join(err, conn.Close())
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, errors.Join(sock.ErrClosed, conn.Close())
	}
	c.conn = conn
	return conn, nil
}

// lose ends a connection that is unusable: an answer to an earlier request may still
// arrive there.
func (c *Client) lose() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.conn != nil {
		c.conn.Drop()
		c.conn = nil
	}
}

// Close ends the connection, and a request that waits.
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
	if err := plain.ContextErr(ctx); err != nil {
		return nil, err
	}
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

// Ask sends a request and returns the answer. The error is the keeper's [*api.Error], or that of
// the connection.
func (c *Client) Ask(ctx context.Context, r Request, files ...*os.File) (Reply, error) {
	back, err := c.take(ctx)
	if err != nil {
		return Reply{}, err
	}
	defer back()
	answer, extra, err := c.exchange(ctx, r, files...)
	sock.DropFiles(extra)
	return answer, err
}

// exchange sends a request and returns the answer with its descriptors, which are the caller's. The
// caller has a turn.
func (c *Client) exchange(ctx context.Context, r Request, files ...*os.File) (answer Reply, extra []*os.File, err error) {
	if err := r.Check(); err != nil {
		return Reply{}, nil, err
	}
	conn, err := c.connect(ctx)
	if err != nil {
		return Reply{}, nil, err
	}
	err = Send(ctx, conn, r, files...)
	if err == nil || errors.Is(err, sock.ErrPeerLost) { // the keeper may have sent the reason for a refusal
		var lost error
		extra, lost = Receive(ctx, conn, MaxReply, &answer)
		err = firstOf(lost, err)
	}
	switch {
	case errors.Is(err, ErrTooLong):
		return Reply{}, extra, err
	case err != nil:
		c.lose()
		return Reply{}, extra, err
	case answer.Error != nil:
		return answer, extra, answer.Error
	}
	return answer, extra, nil
}

// firstOf returns the error of a conversation whose sending ended with sent, and whose answer
// ended with received.
func firstOf(received, sent error) error {
	if received == nil || sent == nil {
		return received
	}
	return sent
}

// Query is Ask for a request that may be repeated.
func (c *Client) Query(ctx context.Context, r Request) (Reply, error) {
	for pause := time.Millisecond; ; pause = min(2*pause, 100*time.Millisecond) {
		a, err := c.Ask(ctx, r)
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

// AskFiles is Ask with the descriptors that came with the answer, which are the caller's.
func (c *Client) AskFiles(ctx context.Context, r Request) (Reply, []*os.File, error) {
	back, err := c.take(ctx)
	if err != nil {
		return Reply{}, nil, err
	}
	defer back()
	return c.exchange(ctx, r)
}

// Watch calls f with each event of a name, or of all names if that is "", until it returns false.
// Other requests wait that long.
func (c *Client) Watch(ctx context.Context, name string, f func(api.Event) bool) error {
	back, err := c.take(ctx)
	if err != nil {
		return err
	}
	defer back()
	if f == nil {
		return errors.New("keeper: no function to call with what happens (nil)")
	}
	watch := Request{Op: OpWatch, Name: name}
	if err := watch.Check(); err != nil {
		return err
	}
	conn, err := c.connect(ctx)
	if err != nil {
		return err
	}
	defer c.lose() // events still arrive there
	if err := Send(ctx, conn, watch); err != nil {
		return err
	}
	for {
		var a Reply
		extra, err := Receive(ctx, conn, MaxReply, &a)
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

// KeeperOf returns which users may be the keeper at a socket: this process's user, and the owner
// of the socket's directory if nobody else may write there. Another user cannot have made it.
func KeeperOf(socket string) sock.Policy {
	var st unix.Stat_t
	if err := unix.Stat(filepath.Dir(socket), &st); err != nil || st.Mode&0o022 != 0 {
		return sock.Policy{}
	}
	if st.Uid == uint32(os.Geteuid()) {
		return sock.Policy{}
	}
	return sock.Policy{UIDs: []uint32{st.Uid}}
}
