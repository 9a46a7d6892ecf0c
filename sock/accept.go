package sock

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpufd/gpufd/internal/wait"
)

// Accept waits for the next connection, owned by the caller (accept(2)). A peer
// that the Policy does not admit is disconnected, after the farewell if there is
// one (WithFarewell), and gives a *RefusedError; the Listener goes on, and so
// should the caller. Out of descriptors or memory, it backs off, from 10 ms to 1 s,
// until there are some or ctx is done.
//
// Where the kernel cannot keep peers from sending descriptors (before Linux 6.16, or
// with a limit above 0, WithMaxFDs), a peer that is disconnected may hold up close(2)
// for as long as it likes, and a thread with it. Accept does not wait for it: of one
// user that is not admitted, 16 connections are closed at once, of all such users 256,
// and the others stay open in a line. Only while 4,096 connections of this Listener
// hang or wait in line, those that Accept handed out and that are closed again among
// them, Accept waits. It does so earlier where that is more than half of the
// descriptors that this process may open (ulimit -n).
func (l *Listener) Accept(ctx context.Context) (*Conn, error) {
	fd, err := l.next(ctx)
	if err != nil {
		return nil, opError("accept", l.Path(), err)
	}
	c, err := newConn(fd, l.limits)
	if err != nil {
		return nil, opError("accept", l.path, err)
	}
	c.s.sealed, c.s.crowd = l.s.sealed, &l.closing
	if err := l.policy.Check(c.peer); err != nil {
		if len(l.last) > 0 {
			_ = c.TrySend(l.last) // its queue is empty: what cannot be sent now never can
		}
		c.s.from, c.s.closer = c.s.from.anyProcess(), &l.refusals
		c.Drop()
		return nil, err
	}
	return c, nil
}

// errHandingOver ends a wait for a connection: HandOver takes what there is.
var errHandingOver = errors.New("the listener is being handed over")

// next waits for a connection. While the Listener is handed over it waits for what comes
// of that.
func (l *Listener) next(ctx context.Context) (fd int, err error) {
	if l.sock() == nil {
		return -1, ErrClosed
	}
	for {
		h := l.hand.handing()
		fd, err := l.nextUntil(ctx, h.begun)
		if !errors.Is(err, errHandingOver) {
			return fd, err
		}
		select {
		case <-h.over:
		case <-ctx.Done():
			return -1, wait.Err(ctx)
		}
	}
}

// nextUntil waits for a connection until a HandOver has begun.
func (l *Listener) nextUntil(ctx, begun context.Context) (fd int, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(begun, func() { cancel(errHandingOver) })()
	err = l.s.do(ctx, reading, func() (err error) {
		if fd = l.hand.take(); fd >= 0 {
			return nil
		}
		if err := l.closing.wait(ctx, l.s.closed); err != nil {
			return fmt.Errorf("%d connections take long to close: %w", l.closing.most, err)
		}
		fd, err = l.accept(ctx)
		return err
	})
	if !errors.Is(err, ErrClosed) || !l.hand.isGone() {
		return fd, err
	}
	if fd = l.hand.take(); fd >= 0 {
		return fd, nil
	}
	return -1, ErrHandedOver
}

// acceptNow is accept4(2), and skips the connection that a predecessor may have left to
// fill the queue: its maker has closed it.
func (l *Listener) acceptNow(listener int) (fd int, err error) {
	for {
		fd, _, err = unix.Accept4(listener, unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK)
		if err != nil {
			return -1, os.NewSyscallError("accept4", err)
		}
		first := l.hand.filled
		l.hand.filled = false
		if !first || errors.Is(hungUp(fd), unix.EAGAIN) {
			return fd, nil
		}
		closeFDs([]int{fd})
	}
}

// accept repeats accept4 while something is exhausted. The kernel's last answer
// counts, as in Conn.send.
func (l *Listener) accept(ctx context.Context) (int, error) {
	pause := backoff{next: 10 * time.Millisecond, max: time.Second}
	var last error
	for {
		fd := -1
		err := l.s.whenReadable(func(listener int) (err error) {
			fd, last = l.acceptNow(listener)
			return last
		})
		switch {
		case errors.Is(err, unix.ECONNABORTED):
			continue
		case !isExhausted(last):
			return fd, err
		}
		if werr := pause.wait(ctx, l.s.closed); werr != nil {
			return -1, fmt.Errorf("%w: %w; raise the limit on open files (ulimit -n) or close some", werr, last)
		}
	}
}

// isExhausted tells what passes when somebody lets go of something, and what
// the poller cannot wait for.
func isExhausted(err error) bool {
	for _, e := range []unix.Errno{unix.EMFILE, unix.ENFILE, unix.ENOBUFS, unix.ENOMEM} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}
