package sock

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// Receive waits for the next record (recvmsg(2)). The caller owns the record and
// closes it. With an error, Receive has closed all descriptors that came along.
//
// After ErrPeerLost the connection is over. ErrEmptyRecord, ErrTruncated,
// ErrControlTruncated, ErrTooManyFDs, ErrControl and ErrUnfit are about one bad record
// ([IsBadRecord]). If it had no descriptors, Receive has discarded it, and the
// connection still works. If it had some, it stays in the queue, because discarding
// it could take as long as the peer likes. Its error matches ErrStuck as well: the
// connection can only be closed, and each further Receive returns the same error.
func (c *Conn) Receive(ctx context.Context) (Record, error) {
	rec, err := c.receive(ctx)
	return rec, c.explain("receive", err)
}

// bounds returns the limits that apply to the next record.
func (c *Conn) bounds() limits {
	l := c.limits
	if c.noFiles.Load() {
		l.fds = 0
	}
	return l
}

func (c *Conn) receive(ctx context.Context) (rec Record, err error) {
	err = c.sock().do(ctx, reading, func() error {
		if c.stuck != nil {
			return c.stuck
		}
		err := c.s.whenReadable(func(fd int) error { return c.read(fd, &rec) })
		if mayBeEnd(err) {
			err = c.receiveAgain(err, &rec)
		}
		if errors.Is(err, ErrStuck) {
			c.stuck = err
		}
		return err
	})
	return rec, err
}

// errZero is 0 bytes and no control message: the end, or an empty record.
var errZero = errors.New("0 bytes")

func mayBeEnd(err error) bool {
	return errors.Is(err, errZero) || errors.Is(err, unix.ECONNRESET)
}

// receiveAgain tells the end from an empty record, and looks for records before the end.
// The kernel sometimes reports the end while the last record is still queued, and always
// does so for a reset. It reports a reset once, possibly after the end.
func (c *Conn) receiveAgain(err error, rec *Record) error {
	if errors.Is(err, errZero) && !c.ended() {
		return c.discardEmpty()
	}
	for { // what is queued now is all that will ever be
		if errors.Is(err, unix.ECONNRESET) {
			c.reset.Store(true)
		}
		queued := c.queued()
		err = c.s.control(func(fd int) error { return c.read(fd, rec) })
		switch {
		case errors.Is(err, unix.ECONNRESET) && !c.reset.Load():
		case errors.Is(err, errZero) && queued > 0: // an empty record before another
			return c.discardEmpty()
		case mayBeEnd(err), errors.Is(err, unix.EAGAIN):
			return c.lost(err)
		default:
			return err
		}
	}
}

// ended reports whether the peer can send no more. Until then, 0 bytes are an empty
// record.
func (c *Conn) ended() bool { return !errors.Is(c.s.control(hungUp), unix.EAGAIN) }

// hungUp returns nil once the peer has closed its end (poll(2)), and EAGAIN before.
func hungUp(fd int) error {
	n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}}, 0) // and POLLHUP
	if err == nil && n == 0 {
		return unix.EAGAIN
	}
	return os.NewSyscallError("poll", err)
}

// queued returns how many bytes are in the queue.
func (c *Conn) queued() (n int) {
	_ = c.s.control(func(fd int) (err error) {
		n, err = unix.IoctlGetInt(fd, unix.TIOCINQ)
		return err
	})
	return n
}

// discardEmpty takes the empty record that read has seen out of the queue.
func (c *Conn) discardEmpty() error {
	if !c.s.sealed.Load() {
		if err := c.s.control(consume); err != nil {
			return err
		}
	}
	return ErrEmptyRecord
}

// lost returns ErrPeerLost, with ECONNRESET if the peer left records unread, else io.EOF.
func (c *Conn) lost(err error) error {
	if c.reset.Load() || errors.Is(err, unix.ECONNRESET) {
		return fmt.Errorf("%w: it closed with records unread: %w", ErrPeerLost, unix.ECONNRESET)
	}
	return fmt.Errorf("%w: %w", ErrPeerLost, io.EOF)
}

// buffer is what one recvmsg needs. It comes from a pool and is held for the
// call only, so that a thousand waiting connections hold none.
type buffer struct {
	data    [MaxRecord]byte
	control [controlSize]byte
}

var buffers = sync.Pool{New: func() any { return new(buffer) }}

// read makes one attempt. It returns a whole record with its files, or an error and
// keeps no descriptor.
//
// recvmsg(2) drops the descriptors that it cannot hand out, and dropping the last
// reference to one may take as long as its sender likes. So read peeks first, which
// installs duplicates, and takes from the queue only what it has.
func (c *Conn) read(fd int, rec *Record) error {
	b := buffers.Get().(*buffer)
	defer buffers.Put(b)
	l, peek := c.bounds(), unix.MSG_PEEK
	if c.s.sealed.Load() {
		peek = 0
	} else if l.fds > 0 && c.s.from.isForeign() {
		if err := judge(fd); err != nil {
			return err
		}
	}
	n, oobn, flags, err := recvNow(fd, b.data[:l.record], b.control[:l.controlSize()], peek)
	switch {
	case errors.Is(err, unix.EAGAIN):
		return err // as it is: a call that looks gets many
	case err != nil:
		return os.NewSyscallError("recvmsg", err)
	}
	fds, err := parseControl(b.control[:oobn])
	if err == nil {
		err = l.judge(n, len(fds), flags)
	}
	if err == nil && len(fds) > 0 && c.s.from.isForeign() && !areQuiet(fds) {
		err = ErrUnfit
	}
	if peek != 0 {
		err = take(fd, err, oobn > 0 || flags&unix.MSG_CTRUNC != 0)
	}
	if err != nil {
		await(dropFDs(fds, c.s.from))
		return err
	}
	*rec = Record{Data: bytes.Clone(b.data[:n]), Files: receivedFiles(fds, c.s.from)}
	return nil
}

// take removes the record that was peeked at and judged from the queue, unless it is bad
// and has descriptors, or might be the end.
func take(fd int, verdict error, descriptors bool) error {
	switch {
	case errors.Is(verdict, errZero):
		return verdict
	case verdict != nil && descriptors:
		return fmt.Errorf("%w; %w", verdict, ErrStuck)
	}
	if err := consume(fd); err != nil {
		return err
	}
	return verdict
}

// consume removes a record that is known already from the queue.
func consume(fd int) error {
	_, _, _, err := recvNow(fd, nil, nil, 0)
	return os.NewSyscallError("recvmsg", err)
}

// judge returns what is wrong with a record of n bytes and fds descriptors. flags holds
// MSG_CMSG_CLOEXEC beside the two that matter.
func (l limits) judge(n, fds, flags int) error {
	switch {
	case flags&unix.MSG_CTRUNC != 0 && l.fds < MaxFDs && fds >= l.fds: // there was no room for more
		return fmt.Errorf("%w: at most %d are taken", ErrTooManyFDs, l.fds)
	case flags&unix.MSG_CTRUNC != 0:
		return fmt.Errorf("%w: %d arrived; raise the limit on open files (ulimit -n) or close some, "+
			"and check whether a security module refused them", ErrControlTruncated, fds)
	case n == 0 && fds == 0:
		return errZero
	case n == 0:
		return fmt.Errorf("%w, with %d file descriptors", ErrEmptyRecord, fds)
	case n > l.record || flags&unix.MSG_TRUNC != 0:
		return fmt.Errorf("%w: it has %d bytes, at most %d are taken", ErrTruncated, n, l.record)
	case fds > l.fds:
		return fmt.Errorf("%w: %d, at most %d are taken", ErrTooManyFDs, fds, l.fds)
	}
	return nil
}
