package sock

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/gpufd/gpufd/internal/descriptor/fdtrace"
)

// lockFile keeps two servers from racing for one path. The kernel drops the
// lock (flock(2)) however its holder dies, so a file that is left behind means
// nothing.
type lockFile struct {
	path string
	file *os.File // so that a lost Listener loses its lock, too
	id   inode
}

// lockAttempts bounds the race with servers that are just closing.
const lockAttempts = 100

// takeLock makes the file if need be and locks it. ErrListening: somebody holds it.
func takeLock(path string) (*lockFile, error) {
	for range lockAttempts {
		l, err := openLock(path)
		if err != nil {
			return nil, err
		}
		if err := l.acquire(); err != nil {
			_ = l.file.Close()
			return nil, err
		}
		// Its last owner may have removed it between our open and our lock.
		// Then we hold a file without a name, and the next one makes another.
		if now, _, err := inodeAt(path); err == nil && now == l.id {
			return l, nil
		}
		_ = l.file.Close()
	}
	return nil, fmt.Errorf("%w: the lock file %s comes and goes", ErrListening, path)
}

// openLock opens or makes the file, and nothing but a file of that very name.
// O_RDWR keeps a FIFO from holding us up.
func openLock(path string) (*lockFile, error) {
	fd := -1
	err := ignoringEINTR(func() (err error) {
		fd, err = unix.Open(path, unix.O_RDWR|unix.O_CREAT|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
		return err
	})
	switch {
	case errors.Is(err, unix.ELOOP), errors.Is(err, unix.EISDIR), errors.Is(err, unix.ENXIO):
		return nil, fmt.Errorf("%w: the lock file %s is no regular file: %w; remove it", ErrNotSocket, path, err)
	case err != nil:
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	id, mode, err := inodeOf(fd)
	if err == nil && mode&unix.S_IFMT != unix.S_IFREG {
		err = fmt.Errorf("%w: the lock file %s is no regular file; remove it", ErrNotSocket, path)
	}
	if err != nil {
		closeFDs([]int{fd})
		return nil, err
	}
	return &lockFile{path: path, file: fdtrace.File(fd, path), id: id}, nil
}

// acquire takes the lock without waiting.
func (l *lockFile) acquire() error {
	err := withFDs([]*os.File{l.file}, nil, func(fds []int) error {
		return ignoringEINTR(func() error { return unix.Flock(fds[0], unix.LOCK_EX|unix.LOCK_NB) })
	})
	switch {
	case errors.Is(err, unix.EWOULDBLOCK):
		return fmt.Errorf("%w: it holds the lock %s; stop it or take another path", ErrListening, l.path)
	case err != nil:
		return &os.PathError{Op: "flock", Path: l.path, Err: err}
	}
	return nil
}

// inheritLock makes a lock of f, a copy of a file that another process has locked. It
// takes ownership of f. A failure does not release the lock.
func inheritLock(path string, f *os.File) (*lockFile, error) {
	l := &lockFile{path: path, file: f}
	err := withFDs([]*os.File{f}, nil, func(fds []int) (err error) {
		l.id, _, err = inodeOf(fds[0])
		return err
	})
	if err == nil {
		if now, _, aerr := inodeAt(path); aerr != nil || now != l.id {
			err = errors.Join(fmt.Errorf("%w: what came with it is not the lock %s", ErrNotListener, path), aerr)
		}
	}
	if err == nil {
		err = l.acquire() // which succeeds where it is held by the same description
	}
	if err != nil {
		return nil, errors.Join(err, CloseFiles([]*os.File{f}))
	}
	return l, nil
}

// release removes the file, and only then gives up the lock.
func (l *lockFile) release() error {
	return errors.Join(removeIfSame(l.path, l.id), l.file.Close())
}
