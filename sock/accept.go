package sock

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpufd/gpufd/internal/plain"
)

// Accept waits for the next connection, which the caller owns (accept(2)). If the
// Policy does not admit the peer, Accept sends it the farewell (WithFarewell),
// disconnects it, and returns a *NotAdmittedError; the caller should go on accepting.
// When descriptors or memory run out, Accept tries again, from 10 ms to 1 s later,
// until it succeeds or ctx is done.
//
// A peer that may send descriptors can hold up close(2), and a thread with it, for as
// long as it likes. Peers may send some before Linux 6.16, and where WithMaxFDs is
// above 0. Accept does not wait for such a close. At once it closes at most 16
// connections of one user that is not admitted, and 256 of all such users; the others
// stay open in a queue. Accept waits only while 4,096 connections of this Listener are
// closing or queued, counting those that it returned. The bound is lower where 4,096
// is more than half of the descriptors that this process may open (ulimit -n).
func (l *Listener) Accept(ctx context.Context) (*Conn, error) {
	fd, err := l.next(ctx)
	if err != nil {
		return nil, opError("accept", l.Path(), err)
	}
	c, err := newConn(fd, l.limits)
	if err != nil {
		return nil, opError("accept", l.path, err)
	}
	c.s.sealed.Store(l.s.sealed.Load() && refusesRights(fd))
	c.s.crowd = &l.closing
	c.noFiles.Store(l.noFiles)
	if err := l.policy.Check(c.peer); err != nil {
		if len(l.last) > 0 {
			_ = c.TrySend(l.last) // its queue is empty: if this fails now, it always will
		}
		c.s.from, c.s.closer = c.s.from.anyProcess(), &l.refusals
		c.Drop()
		return nil, err
	}
	return c, nil
}

// errHandingOver ends Accept's wait: HandOver takes what is in the queue.
var errHandingOver = errors.New("the listener is being handed over")

// next waits for a connection. While a HandOver is under way, it waits for its outcome.
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
			return -1, plain.ContextErr(ctx)
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

// acceptNow is accept4(2). It skips the connection that a predecessor may have left to
// fill the queue, which is closed at the other end.
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

// isExhausted reports whether err says that something ran out. The poller cannot wait
// for more of it.
func isExhausted(err error) bool {
	for _, e := range []unix.Errno{unix.EMFILE, unix.ENFILE, unix.ENOBUFS, unix.ENOMEM} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}
