package sock

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// A listener goes from one process to the next over a connection between the two:
//
//	predecessor   closes the door: clients that connect now wait
//	              sends listenerOffered, with the socket and the lock
//	successor     checks both, and sends listenerTaken; or why it refuses
//	predecessor   closes both
//	successor     listens, which opens the door
//
// A connection shows its peer the process that listened when it was made (SO_PEERCRED).
// The queue must be empty when the successor calls listen(2): else the successor would
// serve clients that see the predecessor as their peer, which may die first. So the
// predecessor sets the backlog to 0, which leaves room for one connection. It takes all
// connections from the queue, which it serves itself, and makes that one connection.
//
// The predecessor owns the listener until it has read listenerTaken. If it gives up waiting,
// it shuts down its end for reading and reads what has come: the word was sent before, or
// cannot be sent any more. A successor that cannot send it reads that the listener was
// withdrawn, or learns that the predecessor has died.
var (
	listenerOffered   = []byte("gpufd: listener and lock, version 1")
	listenerTaken     = []byte("gpufd: taken")
	listenerWithdrawn = []byte("gpufd: withdrawn")
)

// handover is the state with which a Listener is handed over.
type handover struct {
	alone  sync.Mutex      // held by HandOver, and by what ends the Listener
	ctx    context.Context // until Close
	end    context.CancelFunc
	filled bool // the first connection of the queue may only fill it; the reading turn guards it

	mu     sync.Mutex
	turn   *handing
	queued []int // connections that were taken out of the queue, to be accepted
	gone   bool  // another process has the listener
}

// A handing is the next HandOver, and the time until then.
type handing struct {
	begun context.Context // done when it begins
	begin context.CancelFunc
	over  chan struct{} // closed when it has succeeded or failed
}

func newHandover() *handover {
	h := &handover{turn: newHanding()}
	h.ctx, h.end = context.WithCancel(context.Background())
	return h
}

func newHanding() *handing {
	h := &handing{over: make(chan struct{})}
	h.begun, h.begin = context.WithCancel(context.Background())
	return h
}

func (h *handover) handing() *handing {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.turn
}

// finish wakes the goroutines that wait for the end of a HandOver.
func (h *handover) finish() {
	h.mu.Lock()
	defer h.mu.Unlock()
	close(h.turn.over)
	h.turn = newHanding()
}

// take returns a connection that was taken out of the queue, or -1.
func (h *handover) take() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.queued) == 0 {
		return -1
	}
	fd := h.queued[0]
	h.queued = h.queued[1:]
	return fd
}

func (h *handover) takeAll() (fds []int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	fds, h.queued = h.queued, nil
	return fds
}

func (h *handover) isGone() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.gone
}

// HandOver gives the socket and its lock to the process at the other end of to, which
// calls TakeOver. No peer is refused meanwhile: this process accepts those that have
// connected, and those that connect now wait, as for room in the backlog. Dial waits so;
// other sockets in non-blocking mode get EAGAIN. From the successor's listen(2) on, peers
// see its pid (Peer).
//
// After HandOver has succeeded, the Listener is over, and Close removes nothing. Accept
// returns the connections that were queued, then ErrHandedOver. Accepted connections stay.
//
// After an error the Listener is as before, and accepts the peers that waited; so also
// if ctx is done before the successor has answered. Closing to does not end the wait. Nobody
// else may receive on to meanwhile. The caller keeps to; after an error, close it.
//
// ErrNotAdmitted: the successor runs as another user. ErrPeerLost: it has gone. ErrListening: the
// socket file is not this Listener's any more. ErrWouldWait: another HandOver is under
// way. Any other error holds the successor's reason in words.
func (l *Listener) HandOver(ctx context.Context, to *Conn) error {
	return opError("hand over", l.Path(), l.handOver(ctx, to))
}

func (l *Listener) handOver(ctx context.Context, to *Conn) error {
	switch {
	case l.sock() == nil:
		return ErrClosed
	case l.hand.isGone():
		return ErrHandedOver
	}
	own, err := to.dup()
	if err != nil {
		return err
	}
	defer func() { _ = own.Close() }()
	switch {
	case l.hand.alone.TryLock():
	case l.hand.ctx.Err() != nil: // by Close
		return ErrClosed
	default:
		return fmt.Errorf("%w: another HandOver is under way", ErrWouldWait)
	}
	defer l.hand.alone.Unlock()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(l.hand.ctx, func() { cancel(ErrClosed) })()
	defer l.hand.finish()
	l.hand.handing().begin()
	err = l.s.do(ctx, reading, func() error {
		err := l.closeDoor(ctx)
		if err == nil {
			err = l.give(ctx, own)
		}
		if err != nil {
			err = errors.Join(err, l.openDoor())
		}
		return err
	})
	if err == nil {
		l.letGo()
	}
	return err
}

// dup returns a second Conn of the same connection, with a Close of its own.
func (c *Conn) dup() (*Conn, error) {
	f, err := c.File()
	if err != nil {
		return nil, err
	}
	d, err := FromFile(f)
	if err != nil {
		return nil, err
	}
	if err := (Policy{}).Check(d.peer); err != nil {
		return nil, errors.Join(err, d.Close())
	}
	return d, nil
}

// closeDoor makes peers that connect from now on wait, and takes the queued connections.
func (l *Listener) closeDoor(ctx context.Context) error {
	if now, _, err := inodeAt(l.file); err != nil || now != l.id {
		return errors.Join(fmt.Errorf("%w: the socket file was removed or replaced", ErrListening), err)
	}
	err := l.listen(0)
	for filled := false; err == nil && !filled; {
		if err = l.empty(ctx); err == nil {
			filled, err = l.fill()
		}
	}
	return err
}

// openDoor undoes closeDoor.
func (l *Listener) openDoor() error {
	l.hand.filled = true
	return l.listen(l.backlog)
}

// listen makes the socket show this process to peers that connect (listen(2)).
func (l *Listener) listen(backlog int) error {
	return l.s.control(func(fd int) error {
		if !l.s.sealed.Load() {
			_ = passRights(fd, 1) // which another holder may have changed; older kernels lack it
		}
		return os.NewSyscallError("listen", unix.Listen(fd, backlog))
	})
}

// empty takes all connections from the queue. Peers may connect just as fast, until ctx is done.
func (l *Listener) empty(ctx context.Context) error {
	for {
		if err := over(ctx, l.s.closed); err != nil {
			return err
		}
		fd := -1
		err := l.s.control(func(listener int) (err error) {
			fd, err = l.acceptNow(listener)
			return err
		})
		switch {
		case errors.Is(err, unix.EAGAIN):
			return nil
		case errors.Is(err, unix.ECONNABORTED):
			continue
		case err != nil:
			return err
		}
		l.hand.mu.Lock()
		l.hand.queued = append(l.hand.queued, fd)
		l.hand.mu.Unlock()
	}
}

// fill makes the one connection that there is room for, unless a peer was faster. The
// connection stays in the queue after fill has closed it.
func (l *Listener) fill() (bool, error) {
	addr, err := address(l.file)
	if err != nil { // it is too long
		addr, err = address(l.path)
	}
	if err != nil {
		return false, err
	}
	fd, err := newFD()
	if err != nil {
		return false, err
	}
	defer closeFDs([]int{fd})
	err = ignoringEINTR(func() error { return unix.Connect(fd, addr) })
	if errors.Is(err, unix.EAGAIN) {
		return false, nil
	}
	return err == nil, os.NewSyscallError("connect", err)
}

// give sends the listener and waits for the answer.
func (l *Listener) give(ctx context.Context, to *Conn) error {
	if err := to.Send(ctx, listenerOffered, l.s.file, l.lock.file); err != nil {
		return err
	}
	answer, err := to.Receive(ctx)
	if err != nil {
		answer, err = to.withdraw(err)
	}
	if err != nil {
		return err
	}
	if err := answer.Close(); err != nil {
		return err
	}
	if !bytes.Equal(answer.Data, listenerTaken) {
		return fmt.Errorf("the successor does not take it: %s", answer.Data)
	}
	return nil
}

// withdraw returns the answer if it has come. Else it makes sure that none can come any
// more, tells the successor, and returns why.
func (c *Conn) withdraw(why error) (Record, error) {
	// It fails only if the peer is gone. In either case Receive does not wait.
	_ = c.s.control(func(fd int) error { return unix.Shutdown(fd, unix.SHUT_RD) })
	answer, err := c.receive(context.Background())
	if err == nil {
		return answer, nil
	}
	_ = c.TrySend(listenerWithdrawn)
	return Record{}, why
}

// letGo closes this process's copies of what another process has by now.
func (l *Listener) letGo() {
	l.once.Do(func() {
		l.hand.mu.Lock()
		l.hand.gone = true
		l.hand.mu.Unlock()
		if l.s != nil {
			l.s.shared.Store(true)
		}
		_ = errors.Join(l.s.close(), l.lock.file.Close()) // the other has them as they are
	})
}
