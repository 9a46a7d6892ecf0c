package sock

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/gpufd/gpufd/internal/made"
)

// Conn is one end of a connection, and owns its descriptor until Close. All
// methods may be called at the same time.
type Conn struct {
	s       *socket
	peer    Peer
	limits  limits
	noFiles atomic.Bool // RefuseFiles
	reset   atomic.Bool // the peer closed with records of ours unread
	stuck   error       // the record at the head of the queue stays there; of who reads
}

// newConn owns fd from the call on: on failure it is closed.
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

// NewPair returns two connected ends, both owned by the caller (socketpair(2)).
// It is for tests and, with File, for parents and children.
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

// FromFile takes ownership of f, an inherited socket, and closes it in any
// case; the Conn has a descriptor of its own. ErrNotSocket says that f is not a
// connected SOCK_SEQPACKET Unix socket. The socket is set to non-blocking mode,
// for whoever else holds it too, and only one holder may receive: see Conn.File.
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
	fd := -1
	err := withFDs([]*os.File{f}, nil, func(fds []int) error {
		err := checkConnected(fds[0])
		if err != nil {
			return err
		}
		fd, err = dupFD(fds[0])
		return err
	})
	if err != nil {
		return nil, err
	}
	if err := unix.SetNonblock(fd, true); err != nil {
		closeFDs([]int{fd}) // f has one, too
		return nil, os.NewSyscallError("fcntl", err)
	}
	c, err := newConn(fd, mostLimits)
	if err == nil {
		c.s.shared.Store(true)
	}
	return c, err
}

// checkConnected says whether fd is what this package works on, and turns off
// the control messages that whoever made the socket may have asked for.
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

// checkSocket says whether fd is a socket of this package's kind, which listens or not.
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

// RefuseFiles has Receive take no descriptors from now on: a record that brings some
// is ErrTooManyFDs. Since Linux 6.16 the kernel does not even let the peer send any
// (SO_PASSRIGHTS; EPERM). What the peer had sent before is still bad.
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

// File returns a copy of the descriptor, owned by the caller, for a child
// process to inherit (exec.Cmd.ExtraFiles) and open with FromFile. The Conn
// stays open; the peer sees an end only when all copies are closed. Only one of the
// Conn and what is made of its copies may receive: they share one queue, a Receive looks
// at a record before it takes it, and another may take that one in between. Then a
// record is received twice, and another one never.
func (c *Conn) File() (*os.File, error) {
	s := c.sock()
	if s == nil {
		return nil, opError("file", "", ErrClosed)
	}
	fd := -1
	err := s.control(func(own int) (err error) {
		s.shared.Store(true)
		fd, err = dupFD(own)
		return err
	})
	if err != nil {
		return nil, c.explain("file", err)
	}
	return sentBy(made.File(fd, "sock"), s.from), nil
}

func dupFD(fd int) (int, error) {
	dup, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	return dup, os.NewSyscallError("fcntl", err)
}

// Peer is who was on the other end when the connection was made.
func (c *Conn) Peer() Peer {
	if c == nil {
		return Peer{}
	}
	return c.peer
}

// maxDiscarded bounds what WaitClose throws away before it gives up.
const maxDiscarded = 16

// WaitClose waits until the peer has closed its end. Who sends last calls it
// before Close, so that a nil means: the peer has read everything, and went by
// itself. A peer that closed without reading everything gives ErrPeerLost.
// Records that arrive meanwhile are discarded; after 16 of them it returns
// ErrUnexpectedRecord. A bad record with descriptors cannot be discarded, see
// Receive, and is an error that matches ErrStuck. The Conn remains to be closed.
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

// WaitHangup waits until the peer has closed its end, or died, and returns nil then. It
// reads nothing: records stay in the queue, and it works also behind one that stays
// there for good (ErrStuck). It takes a turn as Receive does: a Receive that begins
// meanwhile waits for it to end. The Conn remains to be closed.
func (c *Conn) WaitHangup(ctx context.Context) error {
	err := c.sock().do(ctx, reading, func() error { return c.s.whenReadable(hungUp) })
	return c.explain("wait for hangup", err)
}

// IsBadRecord reports whether err is about a record that came, not about the
// connection: ErrEmptyRecord, ErrTruncated, ErrControlTruncated, ErrTooManyFDs or
// ErrControl.
func IsBadRecord(err error) bool {
	for _, bad := range []error{ErrEmptyRecord, ErrTruncated, ErrControlTruncated, ErrTooManyFDs, ErrControl} {
		if errors.Is(err, bad) {
			return true
		}
	}
	return false
}

// Close closes this end and ends all calls that wait on it, with ErrClosed. It
// may be called again and on nil. The peer learns of it at once. A peer that sent a
// descriptor which takes long to close can make close(2) take as long: Close waits
// for it one second at most, and it goes on on a goroutine of its own. While 16
// connections or batches of files of one process hang so (256 of a user), further
// connections to it are shut down (shutdown(2)) and closed later.
func (c *Conn) Close() error {
	return c.explain("close", c.sock().close())
}

// Drop is Close for whoever must not wait for a peer: it returns at once. The channel
// is closed when close(2) has returned.
func (c *Conn) Drop() <-chan struct{} { return c.sock().drop() }

func (c *Conn) sock() *socket {
	if c == nil {
		return nil
	}
	return c.s
}

// explain makes of what went wrong in an operation an error of this package.
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
