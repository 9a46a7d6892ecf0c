package sock

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// Listener accepts connections at a path. It owns the socket file and the lock
// file beside it until Close. Its methods may be called concurrently.
type Listener struct {
	path    string // as given
	file    string // the same, absolute
	id      inode
	lock    *lockFile
	policy  Policy
	last    []byte // the farewell for refused peers
	limits  limits // of the connections
	noFiles bool   // connections refuse descriptors until TakeFiles
	s       *socket
	once    sync.Once
	kept    atomic.Bool // another process may have the socket, too (Files)

	backlog int
	hand    *handover

	closing  crowd  // counts the connections that are closing
	refusals closer // closes those of refused peers
}

// ListenOption changes what Listen does. Listen skips a nil one.
type ListenOption interface{ listen(*options) }

// DialOption changes what Dial does. Dial skips a nil one.
type DialOption interface{ dial(*limits) }

// LimitOption bounds what a connection takes. Pass it to Dial, or to Listen for the
// connections that Accept returns.
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
	backlog  int // of listen(2), which net.core.somaxconn caps
	mode     os.FileMode
	farewell []byte
	limits   limits
	noFiles  bool

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

// WithPolicy admits peers by p instead of only those with this process's effective
// uid. They also need permission to connect: see WithMode, and let them search the
// directory (0711 or 0750).
func WithPolicy(p Policy) ListenOption { return listenOption(func(o *options) { o.policy = p }) }

// WithMode sets the permissions of the socket file, 0600 by default. Users who may
// write to it may connect: 0660 admits a group, and 0666 leaves it to the Policy.
func WithMode(mode os.FileMode) ListenOption {
	return listenOption(func(o *options) { o.mode = mode.Perm() })
}

// WithFarewell sends record to a peer that the Policy does not admit, before it is
// disconnected, so that it can learn why. Where sending would wait, record is not sent.
func WithFarewell(record []byte) ListenOption {
	record = slices.Clone(record)
	return listenOption(func(o *options) { o.farewell = record })
}

// WithoutFiles makes each connection that Accept returns begin as after
// [Conn.RefuseFiles]. Since Linux 6.16 the kernel lets nobody send descriptors then, not even
// peers that the Policy does not admit. [Conn.TakeFiles] ends it for one connection.
func WithoutFiles() ListenOption { return listenOption(func(o *options) { o.noFiles = true }) }

// refusesFiles reports whether no connection takes descriptors when it begins.
func (o options) refusesFiles() bool { return o.noFiles || o.limits.fds == 0 }

// WithMaxRecord bounds the length of received records, in bytes. The default, and the
// maximum, is MaxRecord; an n below 1 counts as 1. A longer record is an ErrTruncated.
func WithMaxRecord(n int) LimitOption {
	return func(l *limits) { l.record = min(max(n, 1), MaxRecord) }
}

// WithMaxFDs bounds the descriptors that are taken with one record. The default, and the
// maximum, is MaxFDs; an n below 0 counts as 0. A record with more is an ErrTooManyFDs,
// and no more than n of its descriptors are ever open in this process. Where n is 0,
// Linux 6.16 and later do not let peers send any (SO_PASSRIGHTS; EPERM).
func WithMaxFDs(n int) LimitOption {
	return func(l *limits) { l.fds = min(max(n, 0), MaxFDs) }
}

// Listen makes a socket at path and listens (bind(2), listen(2)). The directory
// must exist, belong to this user or root, and be writable by nobody else. The
// socket file has mode 0600 from its first moment on. Listen replaces a socket
// that a dead listener left behind, and leaves a live one, or anything that is not
// a socket, alone. It holds a lock on the file path+".lock" until Close. A failed
// Listen leaves nothing behind.
//
// ErrPath is wrong usage. The others are ErrNoDirectory, ErrInsecure,
// ErrNotSocket, ErrListening, and errors of the kernel.
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

// newListener returns a Listener that has no socket and no lock yet.
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
	return &Listener{path: path, file: file, policy: o.policy, last: o.farewell, limits: o.limits, noFiles: o.noFiles, backlog: o.backlog,
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
	sealed := o.refusesFiles() && refuseRights(fd) // connections inherit it
	if err := l.bind(fd, addr, o); err != nil {
		closeFDs([]int{fd})
		return err
	}
	l.s, err = newSocket(fd, l.path, ourselves)
	if err != nil {
		return errors.Join(err, removeIfSame(l.file, l.id))
	}
	l.s.sealed.Store(sealed)
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
	case errors.Is(err, unix.EADDRINUSE): // another process ignores the lock
		return fmt.Errorf("%w: %w", ErrListening, os.NewSyscallError("bind", err))
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
		return fmt.Errorf("%w: it answers; stop it or take another path", ErrListening)
	case errors.Is(err, unix.ECONNREFUSED):
		return ignoreNotExist(os.Remove(file))
	}
	return fmt.Errorf("cannot tell whether somebody is listening there: %w", os.NewSyscallError("connect", err))
}

// Path returns the path as given to Listen.
func (l *Listener) Path() string {
	if l == nil {
		return ""
	}
	return l.path
}

// Close stops listening; a waiting Accept returns ErrClosed. It removes the socket file
// and the lock file, unless they were handed over, or are not the ones any more that Listen
// made or TakeOver found. Accepted connections stay. After [Listener.Files] it leaves the
// socket to the holder of the files. It ends a HandOver that is under way. It may be called
// again and on nil. Like Conn.Close, it waits one second at most.
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
// Listen made. It does not wait. It is for a process that is about to end without Close;
// Close may still be called. After Close, or once a HandOver has begun, it does nothing.
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
