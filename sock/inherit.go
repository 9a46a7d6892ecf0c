package sock

import (
	"fmt"
	"os"
)

// Files returns copies of the descriptors of the socket and its lock, which the caller
// owns. A process that keeps them open keeps the socket alive while nobody listens:
// clients wait instead of being refused, until another Listener is made of the copies
// ([WithInherited]). From now on Close leaves the socket file in place.
func (l *Listener) Files() ([]*os.File, error) {
	if l.sock() == nil {
		return nil, opError("files", l.Path(), ErrClosed)
	}
	l.hand.alone.Lock()
	defer l.hand.alone.Unlock()
	files, err := l.copies()
	if err != nil {
		return nil, opError("files", l.path, err)
	}
	l.kept.Store(true)
	return files, nil
}

// Reclaim undoes [Listener.Files] when nobody has the copies any more: Close removes the
// socket file again.
func (l *Listener) Reclaim() {
	if l.sock() != nil {
		l.kept.Store(false)
	}
}

// IsShared reports whether another process may have copies of the socket: after
// [Listener.Files] or [WithInherited], and until [Listener.Reclaim].
func (l *Listener) IsShared() bool { return l.sock() != nil && l.kept.Load() }

func (l *Listener) copies() (files []*os.File, err error) {
	listener, err := l.s.copy("listener")
	if err != nil {
		return nil, err
	}
	files, err = copyFiles([]*os.File{l.lock.file}, "lock")
	if err != nil {
		_ = CloseFiles([]*os.File{listener})
		return nil, err
	}
	return append([]*os.File{listener}, files...), nil
}

func copyFiles(from []*os.File, name string) (files []*os.File, err error) {
	err = withFDs(from, nil, func(fds []int) error {
		for _, fd := range fds {
			f, err := copyFD(fd, name)
			if err != nil {
				return err
			}
			files = append(files, f)
		}
		return nil
	})
	return files, err
}

// WithInherited makes Listen go on with a socket and its lock that [Listener.Files]
// returned, here or in a process that has ended. The caller keeps the files. Clients that
// have connected since are accepted, and see the pid of the former listener; later ones
// see this process (listen(2)). The caller makes sure that nobody else accepts there.
// ErrNotListener: the files are not the listener of the path and its lock.
func WithInherited(files []*os.File) ListenOption {
	return listenOption(func(o *options) { o.inherited, o.inherits = files, true })
}

// inheritFiles makes the Listener one of files, which stay the caller's.
func (l *Listener) inheritFiles(files []*os.File, o options) error {
	if len(files) != 2 {
		return fmt.Errorf("%w: %d descriptors, where a listener and its lock are expected", ErrNotListener, len(files))
	}
	var rec Record
	var err error
	if rec.Files, err = copyFiles(files, "inherited"); err == nil {
		l.kept.Store(true)
		err = l.adopt(&rec, o)
	}
	if err == nil {
		if err = l.listen(l.backlog); err != nil { // the former listener may have died with the door closed
			l.letGo()
		}
	}
	if cerr := rec.Close(); err == nil {
		err = cerr
	}
	return err
}

// File returns a copy of the process's descriptor, which the caller owns. [ProcessOf]
// makes a Process of it, to wait for later. ErrClosed: the Process is closed.
// ErrNoProcess: the process had gone before its descriptor could be opened.
func (p *Process) File() (*os.File, error) {
	if p != nil && p.gone {
		return nil, opError("file", p.ID(), ErrNoProcess)
	}
	if p.sock() == nil {
		return nil, opError("file", p.ID(), ErrClosed)
	}
	f, err := p.s.copy("process")
	return f, opError("file", p.ID(), err)
}

// ProcessOf returns the process that f stands for, a descriptor from [Process.File] or
// pidfd_open(2). The caller keeps f. ErrNoProcess: f is another kind of file.
func ProcessOf(f *os.File) (*Process, error) {
	var p *Process
	err := withFDs([]*os.File{f}, nil, func(fds []int) error {
		link, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fds[0]))
		if err != nil {
			return err
		}
		if link != "anon_inode:[pidfd]" && !isPidfs(fds[0]) {
			return fmt.Errorf("%w: the descriptor is of %s", ErrNoProcess, link)
		}
		dup, err := dupFD(fds[0])
		if err != nil {
			return err
		}
		p, err = newProcess(dup, 0)
		return err
	})
	return p, opError("process", "", err)
}
