package sock

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/gpufd/gpufd/internal/descriptor/fdtrace"
)

// Conn is one end of a connection, and owns its descriptor until Close. Its
// methods may be called concurrently.
type Conn struct {
	s       *socket
	peer    Peer
	limits  limits
	noFiles atomic.Bool // RefuseFiles
	reset   atomic.Bool // the peer closed with records of ours unread
	stuck   error       // why the record at the head of the queue stays there; the reading turn guards it
}

// newConn takes ownership of fd, and closes it on failure.
func newConn(fd int, l limits) (*Conn, error) {
	peer, err := peerOf(fd)
	if err != nil {
		dropFDs([]int{fd}, ourselves)
		return nil, err
	}
	s, err := newSocket(fd, "sock", peer.sender())
	if err != nil {
		return nil, err
	}
	return &Conn{s: s, peer: peer, limits: l}, nil
}

// NewPair returns two connected ends, which the caller owns (socketpair(2)).
// Use it in tests and, with File, between a parent and a child.
func NewPair() (a, b *Conn, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, nil, opError("pair", "", os.NewSyscallError("socketpair", err))
	}
	a, err = newConn(fds[0], mostLimits)
	if err != nil {
		closeFDs(fds[1:])
		return nil, nil, opError("pair", "", err)
	}
	b, err = newConn(fds[1], mostLimits)
	if err != nil {
		return nil, nil, opError("pair", "", errors.Join(err, a.Close()))
	}
	return a, b, nil
}

// FromFile makes a Conn of f, an inherited socket. It takes ownership of f and
// always closes it; the Conn has a descriptor of its own. The error is
// ErrNotSocket if f is not a connected SOCK_SEQPACKET Unix socket. FromFile sets
// the socket to non-blocking mode, which its other holders share. Only one holder
// may receive: see Conn.File.
func FromFile(f *os.File) (*Conn, error) {
	c, err := fromFile(f)
	closeErr := CloseFiles([]*os.File{f})
	if err == nil && closeErr != nil { // if there was no descriptor, err says so
		err = errors.Join(closeErr, c.Close())
	}
	if err != nil {
		return nil, opError("inherit", "", err)
	}
	return c, nil
}

func fromFile(f *os.File) (*Conn, error) {
	fd, err := dupNonblocking(f, checkConnected)
	if err != nil {
		return nil, err
	}
	c, err := newConn(fd, mostLimits)
	if err == nil {
		c.s.shared.Store(true)
	}
	return c, err
}

// checkConnected checks that fd is a socket that this package can use, and turns off
// the control messages that its maker may have asked for.
func checkConnected(fd int) error {
	if err := checkSocket(fd, 0); err != nil {
		return err
	}
	if _, err := unix.Getpeername(fd); err != nil {
		return fmt.Errorf("%w: %w", ErrNotSocket, os.NewSyscallError("getpeername", err))
	}
	for _, option := range []int{unix.SO_PASSCRED, unix.SO_PASSSEC, unix.SO_PASSPIDFD} {
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, option, 0) // older kernels lack some: then they are off
	}
	_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PEEK_OFF, -1)
	return nil
}

// checkSocket checks that fd is a SOCK_SEQPACKET Unix socket, which listens (1) or not (0).
func checkSocket(fd, listens int) error {
	for _, want := range []struct{ option, value int }{
		{unix.SO_DOMAIN, unix.AF_UNIX},
		{unix.SO_TYPE, unix.SOCK_SEQPACKET},
		{unix.SO_ACCEPTCONN, listens},
	} {
		got, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, want.option)
		if err != nil {
			return fmt.Errorf("%w: %w", ErrNotSocket, os.NewSyscallError("getsockopt", err))
		}
		if got != want.value {
			return fmt.Errorf("%w: socket option %d is %d, need %d", ErrNotSocket, want.option, got, want.value)
		}
	}
	return nil
}

// RefuseFiles makes Receive refuse descriptors from now on: a record that brings some
// is an ErrTooManyFDs. Since Linux 6.16 the kernel does not even let the peer send any
// (SO_PASSRIGHTS; EPERM). Descriptors that the peer sent earlier are refused, too.
func (c *Conn) RefuseFiles() error {
	s := c.sock()
	if s == nil {
		return opError("refuse files", "", ErrClosed)
	}
	c.noFiles.Store(true)
	return c.explain("refuse files", s.control(func(fd int) error {
		refuseRights(fd)
		return nil
	}))
}

// TakeFiles undoes RefuseFiles: Receive takes descriptors again, as many with a record as
// [WithMaxFDs] allows. Where that is 0, TakeFiles does nothing.
func (c *Conn) TakeFiles() error {
	s := c.sock()
	if s == nil {
		return opError("take files", "", ErrClosed)
	}
	return c.explain("take files", s.control(func(fd int) error {
		if c.limits.fds > 0 {
			s.sealed.Store(false)
			_ = passRights(fd, 1) // an older kernel has refused nothing
			c.noFiles.Store(false)
		}
		return nil
	}))
}

// File returns a copy of the descriptor, which the caller owns. A child process can
// inherit it (exec.Cmd.ExtraFiles) and open it with FromFile. The Conn stays open; the
// peer sees an end only when all copies are closed.
//
// The copies share one queue, so only one holder may receive. Receive looks at a record
// before it takes it. If another holder takes that record in between, one record
// is received twice and another is lost.
func (c *Conn) File() (*os.File, error) {
	s := c.sock()
	if s == nil {
		return nil, opError("file", "", ErrClosed)
	}
	var f *os.File
	err := s.control(func(fd int) (err error) {
		s.shared.Store(true)
		f, err = copyFD(fd, "sock")
		return err
	})
	if err != nil {
		return nil, c.explain("file", err)
	}
	s.from.sent(f)
	return f, nil
}

// copy returns a file of a duplicate of the descriptor.
func (s *socket) copy(name string) (f *os.File, err error) {
	err = s.control(func(fd int) (err error) {
		f, err = copyFD(fd, name)
		return err
	})
	return f, err
}

func copyFD(fd int, name string) (*os.File, error) {
	dup, err := dupFD(fd)
	if err != nil {
		return nil, err
	}
	return fdtrace.File(dup, name), nil
}

// dupNonblocking duplicates the descriptor of f, unless check returns an error. It sets non-blocking mode, which f shares.
func dupNonblocking(f *os.File, check func(fd int) error) (fd int, err error) {
	err = withFDs([]*os.File{f}, nil, func(fds []int) error {
		if err := check(fds[0]); err != nil {
			return err
		}
		if err := unix.SetNonblock(fds[0], true); err != nil {
			return os.NewSyscallError("fcntl", err)
		}
		fd, err = dupFD(fds[0])
		return err
	})
	return fd, err
}

func dupFD(fd int) (int, error) {
	dup, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	return dup, os.NewSyscallError("fcntl", err)
}

// Peer returns the process that was on the other end when the connection was made.
func (c *Conn) Peer() Peer {
	if c == nil {
		return Peer{}
	}
	return c.peer
}

// maxDiscarded is how many records WaitClose discards before it gives up.
const maxDiscarded = 16

// WaitClose waits until the peer has closed its end. The side that sends last
// calls it before Close: nil means that the peer read everything and then closed.
// If the peer closed without reading everything, the error is ErrPeerLost.
//
// WaitClose discards records that arrive meanwhile, and returns
// ErrUnexpectedRecord after 16 of them. It cannot discard a bad record with
// descriptors (see Receive): the error then matches ErrStuck. The caller still has
// to close the Conn.
func (c *Conn) WaitClose(ctx context.Context) error {
	var dropped []<-chan struct{}
	defer func() { await(dropped...) }()
	for range maxDiscarded {
		rec, err := c.receive(ctx)
		switch {
		case err == nil:
			dropped = append(dropped, DropFiles(rec.Files))
		case IsBadRecord(err) && !errors.Is(err, ErrStuck):
		case errors.Is(err, io.EOF):
			return nil
		default:
			return c.explain("wait for close", err)
		}
	}
	return c.explain("wait for close", ErrUnexpectedRecord)
}

// WaitHangup waits until the peer has closed its end or died, and then returns nil. It
// leaves records in the queue, and so works on a stuck connection (ErrStuck), too. It
// takes a turn with Receive: a Receive that begins meanwhile waits for it to end. The
// caller still has to close the Conn.
func (c *Conn) WaitHangup(ctx context.Context) error {
	err := c.sock().do(ctx, reading, func() error { return c.s.whenReadable(hungUp) })
	return c.explain("wait for hangup", err)
}

// IsBadRecord reports whether err is about one record and not about the
// connection: ErrEmptyRecord, ErrTruncated, ErrControlTruncated, ErrTooManyFDs,
// ErrControl or ErrUnfit.
func IsBadRecord(err error) bool {
	for _, bad := range []error{ErrEmptyRecord, ErrTruncated, ErrControlTruncated, ErrTooManyFDs, ErrControl, ErrUnfit} {
		if errors.Is(err, bad) {
			return true
		}
	}
	return false
}

// Close closes this end; calls that wait on it return ErrClosed. It may be called
// again and on nil. The peer learns of it at once.
//
// A peer can slow down close(2) with a descriptor that takes long to close. Close
// waits one second at most; close(2) then goes on in a goroutine of its own. While 16
// connections or batches of files of one process hang so (256 of one user), further
// connections to it are shut down (shutdown(2)) and closed later.
func (c *Conn) Close() error {
	return c.explain("close", c.sock().close())
}

// Drop is Close without the wait. The channel is closed when close(2) has returned.
func (c *Conn) Drop() <-chan struct{} { return c.sock().drop() }

func (c *Conn) sock() *socket {
	if c == nil {
		return nil
	}
	return c.s
}

// explain turns what went wrong in an operation into an *Error.
func (c *Conn) explain(op string, err error) error {
	if err == nil {
		return nil // to name the peer takes longer than to send it something
	}
	return opError(op, c.where(), err)
}

// where names the peer for errors.
func (c *Conn) where() string {
	if c.sock() == nil {
		return ""
	}
	return "(peer " + c.peer.String() + ")"
}
