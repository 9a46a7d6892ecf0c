package sock

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// TakeOver makes a Listener of the one that the process at the other end of from hands
// over (HandOver). There is no instant in which nobody listens, and path+".lock" stays
// locked. path and the options are as for Listen. They may differ from the predecessor's,
// but path must lead to the same socket. From then on connections show this process as
// their Peer. The caller keeps from; nobody else may receive on it meanwhile.
//
// With an error, the predecessor is told why and keeps its Listener. If the predecessor
// dies once the socket is here, TakeOver goes on.
//
// ErrNotListener: the predecessor did not send the listener of path and its lock, or
// withdrew it. ErrNotAdmitted: the predecessor runs as another user. ErrPeerLost: it died
// before; Listen replaces what it left. The others are those of Listen.
func TakeOver(ctx context.Context, from *Conn, path string, opts ...ListenOption) (*Listener, error) {
	l, err := takeOver(ctx, from, path, newOptions(opts))
	if err != nil {
		return nil, opError("take over", path, err)
	}
	return l, nil
}

func takeOver(ctx context.Context, from *Conn, path string, o options) (*Listener, error) {
	if from.sock() == nil {
		return nil, ErrClosed
	}
	l, err := receiveListener(ctx, from, path, o)
	if err != nil {
		why := err.Error()
		_ = from.TrySend([]byte(why[:min(len(why), maxReason)]))
		return nil, err
	}
	if err := l.confirm(ctx, from); err != nil {
		l.letGo()
		return nil, err
	}
	if err := l.openDoor(); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

// maxReason bounds the reason that a predecessor is told, in bytes.
const maxReason = 1024

// receiveListener makes a Listener of what comes. It does not listen yet: until the
// predecessor has closed its own, clients are the predecessor's and have to see its pid.
func receiveListener(ctx context.Context, from *Conn, path string, o options) (*Listener, error) {
	if err := (Policy{}).Check(from.peer); err != nil {
		return nil, err
	}
	l, _, err := newListener(path, o)
	if err != nil {
		return nil, err
	}
	rec, err := from.Receive(ctx)
	if err != nil {
		return nil, err
	}
	if !bytes.Equal(rec.Data, listenerOffered) || len(rec.Files) != 2 {
		err = fmt.Errorf("%w: a record of %d bytes with %d descriptors came, where a listener and its lock were expected",
			ErrNotListener, len(rec.Data), len(rec.Files))
	} else {
		err = l.adopt(&rec, o)
	}
	if cerr := rec.Close(); err == nil && cerr != nil {
		l.letGo()
		return nil, cerr
	}
	return l, err
}

// confirm tells the predecessor that the listener is taken, and fails if the predecessor
// has withdrawn it. One that has died has not withdrawn it.
func (l *Listener) confirm(ctx context.Context, from *Conn) error {
	err := from.TrySend(listenerTaken)
	if err == nil || !errors.Is(err, ErrPeerLost) {
		return err
	}
	rec, err := from.Receive(ctx)
	switch {
	case errors.Is(err, ErrPeerLost):
		return nil
	case err != nil:
		return err
	}
	return errors.Join(fmt.Errorf("%w: the predecessor has withdrawn it", ErrNotListener), rec.Close())
}

// adopt checks the received files before it changes anything, and then takes them.
func (l *Listener) adopt(rec *Record, o options) error {
	var mode uint32
	err := withFDs(rec.Files, nil, func(fds []int) (err error) {
		if err := checkListening(fds[0], l.file); err != nil {
			return err
		}
		l.id, mode, err = inodeAt(l.file)
		if err == nil && mode&unix.S_IFMT != unix.S_IFSOCK {
			err = fmt.Errorf("%w: there is no socket at %s", ErrNotListener, l.file)
		}
		return err
	})
	if err != nil {
		return err
	}
	l.lock, err = inheritLock(l.file+".lock", rec.Take(1))
	if err != nil {
		return err
	}
	err = l.inherit(rec.Files[0], o)
	if err == nil && mode&0o777 != uint32(o.mode) {
		err = os.Chmod(l.file, o.mode)
	}
	if err != nil {
		l.letGo()
	}
	return err
}

// inherit makes the socket from a duplicate of f.
func (l *Listener) inherit(f *os.File, o options) error {
	fd, err := dupNonblocking(f, func(int) error { return nil })
	if err != nil {
		return err
	}
	l.s, err = newSocket(fd, l.path, ourselves)
	if err != nil {
		return err
	}
	l.s.sealed.Store(o.refusesFiles() && refuseRights(fd))
	return nil
}

// checkListening checks that fd listens at file.
func checkListening(fd int, file string) error {
	if err := checkSocket(fd, 1); err != nil {
		return fmt.Errorf("%w: %w", ErrNotListener, err)
	}
	sa, err := unix.Getsockname(fd)
	if err != nil {
		return os.NewSyscallError("getsockname", err)
	}
	if bound, ok := sa.(*unix.SockaddrUnix); !ok || !isSamePlace(bound.Name, file) {
		return fmt.Errorf("%w: it listens at %q and not at %s; a relative path is one of the same directory", ErrNotListener, bound.Name, file)
	}
	return nil
}

// isSamePlace reports whether a and b name the same entry of a directory.
func isSamePlace(a, b string) bool {
	if a == "" || a[0] == '@' || filepath.Base(a) != filepath.Base(b) {
		return false
	}
	dirA, err := os.Stat(filepath.Dir(a))
	if err != nil {
		return false
	}
	dirB, err := os.Stat(filepath.Dir(b))
	return err == nil && os.SameFile(dirA, dirB)
}
