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

// Receive waits for the next record (recvmsg(2)). The caller owns what it
// returns and calls Close on it. On every error the descriptors that came along
// are closed.
//
// ErrPeerLost ends a connection. ErrEmptyRecord, ErrTruncated,
// ErrControlTruncated, ErrTooManyFDs and ErrControl are one bad record each.
func (c *Conn) Receive(ctx context.Context) (Record, error) {
	rec, err := c.receive(ctx, c.bounds())
	return rec, c.explain("receive", err)
}

// bounds is what one record may bring.
func (c *Conn) bounds() limits {
	if c == nil {
		return limits{}
	}
	return c.limits
}

func (c *Conn) receive(ctx context.Context, l limits) (rec Record, err error) {
	err = c.sock().do(ctx, reading, func() error {
		err := c.s.whenReadable(func(fd int) error { return recvmsg(fd, l, &rec) })
		if !mayBeEnd(err) {
			return err
		}
		return c.receiveAgain(err, l, &rec)
	})
	return rec, err
}

// errZero is 0 bytes and no control message: the end, or an empty record.
var errZero = errors.New("0 bytes")

func mayBeEnd(err error) bool {
	return errors.Is(err, errZero) || errors.Is(err, unix.ECONNRESET)
}

// receiveAgain reads once more after what looked like the end: now and then the
// kernel reports it while the last record is still queued, and always does when
// it is a reset. A reset, which is reported once, may follow the other.
func (c *Conn) receiveAgain(first error, l limits, rec *Record) error {
	read := func() error { return c.s.control(func(fd int) error { return recvmsg(fd, l, rec) }) }
	if errors.Is(first, unix.ECONNRESET) {
		c.reset.Store(true)
	}
	err := read()
	if errors.Is(err, unix.ECONNRESET) && !c.reset.Swap(true) {
		err = read()
	}
	switch {
	case errors.Is(err, unix.EAGAIN) && !c.reset.Load():
		return ErrEmptyRecord // the end would have been there to stay
	case errors.Is(err, unix.EAGAIN), mayBeEnd(err):
		return c.lost(err)
	}
	return err
}

// lost tells a peer that had read everything from one that had not.
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

// recvmsg is one attempt: a whole record with its files, or an error and no
// descriptor kept.
func recvmsg(fd int, l limits, rec *Record) error {
	b := buffers.Get().(*buffer)
	defer buffers.Put(b)
	n, oobn, flags, err := recvNow(fd, b.data[:l.record], b.control[:l.controlSize()])
	if err != nil {
		return os.NewSyscallError("recvmsg", err)
	}
	fds, err := parseControl(b.control[:oobn])
	if err == nil {
		err = l.judge(n, len(fds), flags)
	}
	if err != nil {
		closeFDs(fds)
		return err
	}
	*rec = Record{Data: bytes.Clone(b.data[:n]), Files: newFiles(fds)}
	return nil
}

// judge decides whether a record of n bytes is one to hand out. flags holds
// MSG_CMSG_CLOEXEC beside the two that matter.
func (l limits) judge(n, fds, flags int) error {
	switch {
	case flags&unix.MSG_CTRUNC != 0 && l.fds < MaxFDs && fds >= l.fds: // there was no room for more
		return fmt.Errorf("%w: at most %d are taken; the kernel dropped the others", ErrTooManyFDs, l.fds)
	case flags&unix.MSG_CTRUNC != 0:
		return fmt.Errorf("%w: %d arrived; raise the limit on open files (ulimit -n) or close some, "+
			"and see whether a security module refused them", ErrControlTruncated, fds)
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
