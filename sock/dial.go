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

// Dial connects to the Listener at path; the caller owns the Conn (connect(2)).
// While the listener's backlog is full, Dial tries again, from 1 to 100 ms later,
// until ctx is done. It does not wait for a listener to appear. Conn.Peer tells
// whose listener it was.
//
// ErrPath is wrong usage. ErrNoListener: path is not there, or nobody listens at
// it. ErrNotSocket: path is something else. os.ErrPermission: this user may not
// connect to it.
func Dial(ctx context.Context, path string, opts ...DialOption) (*Conn, error) {
	l := mostLimits
	for _, opt := range opts {
		if opt != nil {
			opt.dial(&l)
		}
	}
	c, err := dial(ctx, path, l)
	if err != nil {
		return nil, opError("dial", path, err)
	}
	return c, nil
}

func dial(ctx context.Context, path string, l limits) (*Conn, error) {
	addr, err := address(path)
	if err != nil {
		return nil, err
	}
	if err := plain.ContextErr(ctx); err != nil {
		return nil, err
	}
	fd, err := newFD()
	if err != nil {
		return nil, err
	}
	sealed := l.fds == 0 && refuseRights(fd)
	if err := connect(ctx, fd, addr); err != nil {
		closeFDs([]int{fd})
		return nil, err
	}
	c, err := newConn(fd, l)
	if err == nil {
		c.s.sealed.Store(sealed)
	}
	return c, err
}

// connect tries until the backlog has room. Until then a non-blocking Unix socket
// answers EAGAIN, and nothing tells when to try again.
func connect(ctx context.Context, fd int, addr *unix.SockaddrUnix) error {
	pause := backoff{next: time.Millisecond, max: 100 * time.Millisecond}
	for {
		err := ignoringEINTR(func() error { return unix.Connect(fd, addr) })
		if !errors.Is(err, unix.EAGAIN) {
			return connectError(addr.Name, os.NewSyscallError("connect", err))
		}
		if werr := pause.wait(ctx, nil); werr != nil {
			return fmt.Errorf("%w: the listener accepts nobody, its backlog is full: %w", werr, err)
		}
	}
}

// connectError puts the kernel's answer into words.
func connectError(path string, err error) error {
	switch {
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENOTDIR):
		return fmt.Errorf("%w: %w", ErrNoListener, err)
	case errors.Is(err, unix.EPROTOTYPE):
		return fmt.Errorf("%w: a socket of another type is there: %w", ErrNotSocket, err)
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM):
		return fmt.Errorf("%w: get write permission on the socket and search permission on its directory", err)
	case !errors.Is(err, unix.ECONNREFUSED):
		return err
	}
	if info, serr := os.Stat(path); serr == nil && info.Mode()&os.ModeSocket == 0 {
		return fmt.Errorf("%w: it is %v: %w", ErrNotSocket, info.Mode(), err)
	}
	return fmt.Errorf("%w: the socket is there, its owner is gone: %w", ErrNoListener, err)
}
