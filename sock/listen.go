package sock

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// Listener accepts connections at a path. It owns the socket file and the lock
// file beside it until Close. All methods may be called at the same time.
type Listener struct {
	path   string // as given
	file   string // the same, absolute
	id     inode
	lock   *lockFile
	policy Policy
	last   []byte // for who is refused
	limits limits // of the connections
	s      *socket
	once   sync.Once
	kept   atomic.Bool // somebody else has the socket, too (Files)

	backlog int
	hand    *handover

	closing  crowd  // the connections that are
	refusals closer // closes those of who is not admitted
}

// ListenOption changes what Listen does. Listen skips a nil one.
type ListenOption interface{ listen(*options) }

// DialOption changes what Dial does. Dial skips a nil one.
type DialOption interface{ dial(*limits) }

// LimitOption bounds what a connection takes. It is for Dial, and for Listen, where
// it concerns the connections that Accept returns.
type LimitOption func(*limits)

func (f LimitOption) listen(o *options) { f.dial(&o.limits) }

func (f LimitOption) dial(l *limits) {
	if f != nil {
		f(l)
	}
}

type listenOption func(*options)

func (f listenOption) listen(o *options) { f(o) }

type options struct {
	policy   Policy
	backlog  int
	mode     os.FileMode
	farewell []byte
	limits   limits

	inherits  bool
	inherited []*os.File
}

func newOptions(opts []ListenOption) options {
	o := options{backlog: 1024, mode: 0o600, limits: mostLimits}
	for _, opt := range opts {
		if opt != nil {
			opt.listen(&o)
		}
	}
	return o
}

// WithPolicy admits other peers than those of this process's effective uid. They
// also need the right to connect: see WithMode, and let them search the
// directory (0711 or 0750).
func WithPolicy(p Policy) ListenOption { return listenOption(func(o *options) { o.policy = p }) }

// WithBacklog sets how many connections wait to be accepted, 1024 by default
// (listen(2)); net.core.somaxconn caps it. Dial waits when they are too many.
func WithBacklog(n int) ListenOption { return listenOption(func(o *options) { o.backlog = n }) }

// WithMode sets the permissions of the socket file, 0600 by default. Who may
// write may connect: 0660 for a group, 0666 for everybody that the Policy then
// tells apart.
func WithMode(mode os.FileMode) ListenOption {
	return listenOption(func(o *options) { o.mode = mode.Perm() })
}

// WithFarewell has a peer that the Policy does not admit receive record before it
// is disconnected, so that it may learn why. It is sent without waiting, or not at
// all.
func WithFarewell(record []byte) ListenOption {
	record = slices.Clone(record)
	return listenOption(func(o *options) { o.farewell = record })
}

// WithMaxRecord bounds the records that are taken, in bytes; the default, and the
// most, is MaxRecord: a larger n counts as that, and one below 1 as 1. A longer record
// is ErrTruncated.
func WithMaxRecord(n int) LimitOption {
	return func(l *limits) { l.record = min(max(n, 1), MaxRecord) }
}

// WithMaxFDs bounds the descriptors that are taken with one record; the default,
// and the most, is MaxFDs: a larger n counts as that, and one below 0 as 0. A record
// with more is ErrTooManyFDs, and no more than n of its descriptors are ever open in
// this process. Where n is 0, Linux 6.16 and later does not let peers send any
// (SO_PASSRIGHTS; EPERM).
func WithMaxFDs(n int) LimitOption {
	return func(l *limits) { l.fds = min(max(n, 0), MaxFDs) }
}

// Listen makes a socket at path and listens (bind(2), listen(2)). The directory
// has to be there, belong to this user or root, and be writable by nobody else.
// The socket file gets mode 0600, from its first moment on. A file that a dead
// listener left behind is replaced; a live listener, or anything that is not a
// socket, is left alone. The file path+".lock" is locked for as long as the
// Listener lives. A failed Listen leaves nothing behind.
//
// ErrPath is wrong usage. The others are ErrNoDirectory, ErrInsecure,
// ErrNotSocket, ErrInUse, and what the kernel says.
func Listen(path string, opts ...ListenOption) (*Listener, error) {
	l, err := listen(path, newOptions(opts))
	if err != nil {
		return nil, opError("listen", path, err)
	}
	return l, nil
}

func listen(path string, o options) (*Listener, error) {
	l, addr, err := newListener(path, o)
	if err != nil {
		return nil, err
	}
	if o.inherits {
		if err := l.inheritFiles(o.inherited, o); err != nil {
			return nil, err
		}
		return l, nil
	}
	if l.lock, err = takeLock(l.file + ".lock"); err != nil {
		return nil, err
	}
	if err := l.open(addr, o); err != nil {
		return nil, errors.Join(err, l.lock.release())
	}
	return l, nil
}

// newListener is a Listener without a socket and a lock.
func newListener(path string, o options) (*Listener, *unix.SockaddrUnix, error) {
	addr, err := address(path)
	if err != nil {
		return nil, nil, err
	}
	file, err := filepath.Abs(addr.Name)
	if err != nil {
		return nil, nil, err
	}
	if err := checkDirectory(filepath.Dir(file)); err != nil {
		return nil, nil, err
	}
	return &Listener{path: path, file: file, policy: o.policy, last: o.farewell, limits: o.limits, backlog: o.backlog,
		hand: newHandover(), closing: crowd{most: maxClosing()}, refusals: newRefusals()}, addr, nil
}

// open makes the socket; the lock is held.
func (l *Listener) open(addr *unix.SockaddrUnix, o options) error {
	if err := removeStale(l.file, addr); err != nil {
		return err
	}
	fd, err := newFD()
	if err != nil {
		return err
	}
	sealed := o.limits.fds == 0 && refuseRights(fd) // connections inherit it
	if err := l.bind(fd, addr, o); err != nil {
		closeFDs([]int{fd})
		return err
	}
	l.s, err = newSocket(fd, l.path, ourselves)
	if err != nil {
		return errors.Join(err, removeIfSame(l.file, l.id))
	}
	l.s.sealed = sealed
	return nil
}

func newFD() (int, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	return fd, os.NewSyscallError("socket", err)
}

// bind gives the socket its name. On failure there is none.
func (l *Listener) bind(fd int, addr *unix.SockaddrUnix, o options) error {
	// The file takes its mode from the socket, less the umask: it is never
	// wider than wanted, not even for a moment.
	if err := unix.Fchmod(fd, uint32(o.mode)); err != nil {
		return os.NewSyscallError("fchmod", err)
	}
	err := unix.Bind(fd, addr)
	switch {
	case errors.Is(err, unix.EADDRINUSE): // by somebody who ignores the lock
		return fmt.Errorf("%w: %w", ErrInUse, os.NewSyscallError("bind", err))
	case err != nil:
		return os.NewSyscallError("bind", err)
	}
	id, mode, err := inodeAt(l.file)
	if err != nil {
		return errors.Join(err, os.Remove(l.file))
	}
	l.id = id
	if mode&0o777 != uint32(o.mode) { // the umask took something away
		err = os.Chmod(l.file, o.mode)
	}
	if err == nil {
		err = os.NewSyscallError("listen", unix.Listen(fd, o.backlog))
	}
	if err != nil {
		return errors.Join(err, removeIfSame(l.file, l.id))
	}
	return nil
}

// removeStale makes room for a socket at file: it removes one that nobody
// listens on, and nothing else.
func removeStale(file string, addr *unix.SockaddrUnix) error {
	_, mode, err := inodeAt(file)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return nil
	case err != nil:
		return err
	case mode&unix.S_IFMT != unix.S_IFSOCK:
		return fmt.Errorf("%w: something else is there (mode %o); remove it or take another path", ErrNotSocket, mode)
	}
	fd, err := newFD()
	if err != nil {
		return err
	}
	defer closeFDs([]int{fd})
	err = ignoringEINTR(func() error { return unix.Connect(fd, addr) })
	switch {
	case err == nil, errors.Is(err, unix.EAGAIN), errors.Is(err, unix.EPROTOTYPE): // it lives
		return fmt.Errorf("%w: it answers; stop it or take another path", ErrInUse)
	case errors.Is(err, unix.ECONNREFUSED):
		return ignoreNotExist(os.Remove(file))
	}
	return fmt.Errorf("cannot tell whether somebody is listening there: %w", os.NewSyscallError("connect", err))
}

// Path is the path as given to Listen.
func (l *Listener) Path() string {
	if l == nil {
		return ""
	}
	return l.path
}

// Addr is the path as a net.Addr of network "unixpacket".
func (l *Listener) Addr() net.Addr { return &net.UnixAddr{Name: l.Path(), Net: "unixpacket"} }

// Close stops listening and ends a waiting Accept with ErrClosed. It removes the
// socket file and the lock file, if they are still the ones that Listen made or TakeOver
// found, and were not handed over. Connections that were accepted stay. It may be called
// again and on nil. After [Listener.Files] it leaves the socket to who has the files. It
// ends a HandOver that is under way. As Conn.Close, it waits one second at most.
func (l *Listener) Close() (err error) {
	if l.sock() == nil {
		return nil
	}
	l.hand.end()
	l.hand.alone.Lock()
	defer l.hand.alone.Unlock()
	if l.kept.Load() {
		l.letGo()
	}
	l.once.Do(func() {
		// The name goes first: while the socket is open its inode number
		// cannot belong to a file of somebody else's.
		err = removeIfSame(l.file, l.id)
		err = errors.Join(err, l.s.close(), l.lock.release())
	})
	await(dropFDs(l.hand.takeAll(), ourselves))
	return opError("close", l.path, err)
}

// Remove removes the socket file and the lock file, if they are still the ones that
// Listen made, and waits for nothing. It is for a process that is about to end without
// Close, which may be called as ever. After Close, and from a HandOver on, there is nothing
// to remove.
func (l *Listener) Remove() error {
	if l.sock() == nil || l.kept.Load() || !l.hand.alone.TryLock() {
		return nil
	}
	defer l.hand.alone.Unlock()
	err := withFDs([]*os.File{l.lock.file}, nil, func([]int) error { // so that the lock is held
		return errors.Join(removeIfSame(l.file, l.id), removeIfSame(l.lock.path, l.lock.id))
	})
	if errors.Is(err, os.ErrClosed) {
		return nil
	}
	return opError("remove", l.path, err)
}

func (l *Listener) sock() *socket {
	if l == nil {
		return nil
	}
	return l.s
}
