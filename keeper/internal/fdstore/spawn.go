package fdstore

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpufd/gpufd/internal/plain"
	"github.com/gpufd/gpufd/sock"
)

// Spawn starts argv, which calls [Run] with path, waits until it listens and connects
// to it. The store outlives this process: it has a session of its own (setsid(2)), /
// as directory, /dev/null as standard input and output, a memfd as standard error, and
// no other descriptor; environment, user and control group are this process's. path is
// absolute. The caller owns the Client.
//
// If the store does not come to listen, it is killed, and the error has the first line
// that it wrote to standard error. sock.ErrListening: another store has the path. ErrBusy:
// another keeper was faster and has the new store, which goes on.
func Spawn(ctx context.Context, path string, argv ...string) (*Client, error) {
	c, err := spawn(ctx, path, argv)
	if err != nil {
		return nil, opError("spawn", path, err)
	}
	return c, nil
}

func spawn(ctx context.Context, path string, argv []string) (*Client, error) {
	if len(argv) == 0 {
		return nil, errors.New("no program is named")
	}
	if !filepath.IsAbs(path) {
		return nil, fmt.Errorf("%w: %q has to be absolute", sock.ErrPath, path)
	}
	s, err := start(argv)
	if err != nil {
		return nil, err
	}
	c, err := s.dial(ctx, path)
	if err != nil {
		return nil, err
	}
	c.child = s
	return c, nil
}

// A child is a store that this process has started. Nil is none.
type child struct {
	pid   int
	pidfd *os.File
	words *os.File      // its standard error
	over  chan struct{} // closed when it was waited for, or nobody is to any more
}

func start(argv []string) (*child, error) {
	fd, err := unix.MemfdCreate("gpufd-store-stderr", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("memfd_create", err)
	}
	words := os.NewFile(uintptr(fd), "standard error")
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Dir, cmd.Stderr = "/", words
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return nil, errors.Join(err, words.Close())
	}
	pidfd, err := unix.PidfdOpen(cmd.Process.Pid, 0) // nobody has waited for it, so the pid is its own
	if err == nil {
		err = unix.SetNonblock(pidfd, true)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("the kernel has no pidfds (Linux 5.4): %w", err), cmd.Process.Kill(), cmd.Wait(), words.Close())
	}
	// Registered with the poller, so that Close ends wait.
	s := &child{cmd.Process.Pid, os.NewFile(uintptr(pidfd), "pidfd"), words, make(chan struct{})}
	_ = cmd.Process.Release() // wait does what it would
	go s.wait()
	return s, nil
}

// wait waits for the child to end, so that it is no zombie, or for release.
func (s *child) wait() {
	defer close(s.over)
	if raw, err := s.pidfd.SyscallConn(); err == nil {
		_ = raw.Read(func(fd uintptr) bool { return reap(int(fd)) })
	}
}

// reap reports whether the child has ended (waitid(2)).
func reap(pidfd int) bool {
	var info unix.Siginfo
	for {
		err := unix.Waitid(unix.P_PIDFD, pidfd, &info, unix.WEXITED|unix.WNOHANG, nil)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.EAGAIN):
			return false
		}
		return err != nil || info.Signo != 0 // an error: somebody else has waited for it
	}
}

// dial connects to the child once it listens. On failure the child is gone, unless
// another keeper has it.
func (s *child) dial(ctx context.Context, path string) (*Client, error) {
	for pause := time.Millisecond; ; pause = min(2*pause, 20*time.Millisecond) {
		c, err := dial(ctx, path, s.pid)
		switch {
		case err == nil:
			return c, nil
		case errors.Is(err, ErrBusy): // it lives, and holds something by now
			s.release()
			return nil, err
		case !errors.Is(err, sock.ErrNoListener):
			return nil, s.fail(err)
		}
		select {
		case <-time.After(pause):
		case <-s.over:
			return nil, s.fail(errors.New("the store has ended"))
		case <-ctx.Done():
			return nil, s.fail(plain.ContextErr(ctx))
		}
	}
}

// killWait is how long a store that was killed may take to end.
const killWait = 5 * time.Second

// fail ends the child, and adds what it said to err.
func (s *child) fail(err error) error {
	if raw, rawErr := s.pidfd.SyscallConn(); rawErr == nil {
		_ = raw.Control(func(fd uintptr) { _ = unix.PidfdSendSignal(int(fd), unix.SIGKILL, nil, 0) })
	}
	select {
	case <-s.over:
	case <-time.After(killWait):
	}
	if words := s.lastWords(); words != "" {
		err = fmt.Errorf("%w; it said: %s", err, words)
	}
	s.release()
	return err
}

// lastWords returns the first line of standard error: for a panic, what it was.
func (s *child) lastWords() string {
	if s == nil {
		return ""
	}
	text, _ := io.ReadAll(io.NewSectionReader(s.words, 0, 300))
	line, _, _ := strings.Cut(strings.TrimSpace(string(text)), "\n")
	return line
}

// release ends the wait for the child, and leaves the child alone.
func (s *child) release() {
	if s == nil {
		return
	}
	_ = s.pidfd.Close()
	<-s.over
	_ = s.words.Close()
}
