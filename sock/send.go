package sock

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Send sends one record of 1 to MaxRecord bytes with up to MaxFDs descriptors
// (sendmsg(2)). If it fails, nothing is sent. The caller keeps its files and may
// close them as soon as Send returns. Send waits while the peer's queue is full,
// and while the user has too many descriptors in flight (ErrTooManyInFlight once
// ctx is done).
//
// ErrEmptyRecord, ErrTooLong, ErrTooManyFDs and os.ErrClosed (one of the files)
// are the caller's mistakes. ErrPeerLost: the other side has gone.
func (c *Conn) Send(ctx context.Context, record []byte, fds ...*os.File) error {
	err := checkRecord(len(record), len(fds))
	if err == nil {
		err = c.sock().do(ctx, writing, func() error { return c.send(ctx, record, fds) })
	}
	return c.explain("send", err)
}

// TrySend is [Conn.Send] without waiting: where Send would wait, it sends nothing
// and returns [ErrWouldWait]. The caller keeps its files; the other errors are those
// of Send.
func (c *Conn) TrySend(record []byte, fds ...*os.File) error {
	err := checkRecord(len(record), len(fds))
	if err == nil {
		err = c.sock().doNow(writing, func() error { return c.trySend(record, fds) })
	}
	return c.explain("send", err)
}

func (c *Conn) trySend(record []byte, files []*os.File) error {
	err := c.s.control(func(fd int) error { return sendmsg(fd, record, files) })
	if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.ETOOMANYREFS) {
		return fmt.Errorf("%w: %w", ErrWouldWait, err)
	}
	return c.sendError(err)
}

func checkRecord(size, fds int) error {
	switch {
	case size == 0:
		return fmt.Errorf("%w: send at least one byte", ErrEmptyRecord)
	case size > MaxRecord:
		return fmt.Errorf("%w: %d bytes, at most %d", ErrTooLong, size, MaxRecord)
	case fds > MaxFDs:
		return fmt.Errorf("%w: %d, at most %d; use several records", ErrTooManyFDs, fds, MaxFDs)
	}
	return nil
}

// send repeats sendmsg while too many descriptors are in flight: nothing tells when
// that is over. If ctx ends before the next attempt, the error holds the kernel's last
// answer.
func (c *Conn) send(ctx context.Context, record []byte, files []*os.File) error {
	pause := backoff{next: time.Millisecond, max: 100 * time.Millisecond}
	var last error
	for {
		err := c.s.whenWritable(func(fd int) error {
			last = sendmsg(fd, record, files)
			return last
		})
		if !errors.Is(last, unix.ETOOMANYREFS) {
			return c.sendError(err)
		}
		if werr := pause.wait(ctx, c.s.closed); werr != nil {
			return fmt.Errorf("%w: %w: %w; have the receivers read, or raise the limit on open files (ulimit -n)",
				ErrTooManyInFlight, werr, last)
		}
	}
}

// sendmsg makes one attempt. It holds the files only meanwhile, so that a Send that
// waits does not keep a Close of them waiting.
func sendmsg(fd int, record []byte, files []*os.File) error {
	return withFDs(files, make([]int, 0, len(files)), func(fds []int) error {
		var oob []byte
		if len(fds) > 0 {
			oob = unix.UnixRights(fds...)
		}
		return os.NewSyscallError("sendmsg", sendNow(fd, record, oob))
	})
}

// withFDs calls f with the descriptors of files, and keeps all of them open until f
// returns. os.File.Fd does not keep them open, and sets the description to blocking
// mode.
func withFDs(files []*os.File, fds []int, f func(fds []int) error) error {
	if len(files) == 0 {
		return f(fds)
	}
	raw, err := files[0].SyscallConn()
	if err != nil {
		return fmt.Errorf("file %d: %w", len(fds), err)
	}
	var ferr error
	err = raw.Control(func(fd uintptr) { ferr = withFDs(files[1:], append(fds, int(fd)), f) })
	if err != nil {
		return fmt.Errorf("file %d, %s: %w", len(fds), files[0].Name(), os.ErrClosed)
	}
	return ferr
}

// sendError puts the kernel's answer into words.
func (c *Conn) sendError(err error) error {
	switch {
	case errors.Is(err, unix.ECONNRESET):
		c.reset.Store(true) // the kernel reports it once
		return fmt.Errorf("%w: %w", ErrPeerLost, err)
	case errors.Is(err, unix.EPIPE), errors.Is(err, unix.ECONNREFUSED), errors.Is(err, unix.ENOTCONN):
		return fmt.Errorf("%w: %w", ErrPeerLost, err)
	case errors.Is(err, unix.EPERM):
		return fmt.Errorf("%w; the peer takes no descriptors, or a security module forbids it: send none", err)
	case errors.Is(err, unix.EMSGSIZE):
		return fmt.Errorf("%w; raise net.core.wmem_default, a record needs %d bytes and some", err, MaxRecord)
	}
	return err
}
