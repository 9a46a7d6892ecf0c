package sock

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// A Process is the process at the other end of a connection. It holds a descriptor of
// that process (pidfd_open(2)), so a later process with the same pid is never taken for
// it, and owns the descriptor until Close. Its methods may be called concurrently. The zero
// Process is a closed one.
type Process struct {
	s    *socket // the descriptor; nil if the process had gone before it could be opened
	id   string
	gone bool
}

// kernel returns descriptors of processes; tests play older kernels.
var kernel = struct {
	ofPeer func(conn int) (int, error)
	ofPID  func(pid int) (int, error)
}{
	ofPeer: func(conn int) (int, error) { return unix.GetsockoptInt(conn, unix.SOL_SOCKET, unix.SO_PEERPIDFD) },
	ofPID:  func(pid int) (int, error) { return unix.PidfdOpen(pid, 0) },
}

// Process returns the process that connected, or on the connecting side the one that
// listened (SO_PEERPIDFD). The caller owns it. Before Linux 6.5 it comes from
// pidfd_open(2) of [Peer].PID, so call Process soon. Other processes may hold the
// connection, too, because they were forked or were sent the socket; Process does not
// tell.
//
// The error is ErrNoProcess, ErrClosed, or the kernel's.
func (c *Conn) Process() (*Process, error) {
	s := c.sock()
	if s == nil {
		return nil, opError("process", "", ErrClosed)
	}
	var p *Process
	err := s.control(func(fd int) (err error) {
		p, err = processOf(fd, int(c.peer.PID))
		return err
	})
	return p, c.explain("process", err)
}

func processOf(conn, pid int) (*Process, error) {
	fd, err := kernel.ofPeer(conn)
	switch {
	case err == nil:
		return newProcess(fd, pid)
	case isExhausted(err):
		return nil, os.NewSyscallError("getsockopt", err)
	case pid == 0:
		return nil, fmt.Errorf("%w: it has no pid here: %w", ErrNoProcess, os.NewSyscallError("getsockopt", err))
	}
	// The kernel is older, or the process has gone. If another process has its pid by now,
	// Wait waits for that one, too: it returns late, but never early.
	fd, err = kernel.ofPID(pid)
	switch {
	case err == nil:
		return newProcess(fd, pid)
	case errors.Is(err, unix.ESRCH):
		return &Process{id: processID(-1, pid), gone: true}, nil
	case isExhausted(err):
		return nil, os.NewSyscallError("pidfd_open", err)
	}
	return nil, fmt.Errorf("%w: %w", ErrNoProcess, os.NewSyscallError("pidfd_open", err))
}

// newProcess takes ownership of fd, and closes it on failure.
func newProcess(fd, pid int) (*Process, error) {
	if err := unix.SetNonblock(fd, true); err != nil { // for the poller
		closeFDs([]int{fd})
		return nil, os.NewSyscallError("fcntl", err)
	}
	id := processID(fd, pid)
	s, err := newSocket(fd, "process", ourselves)
	if err != nil {
		return nil, err
	}
	s.sealed.Store(true) // close(2) of it does not wait
	return &Process{s: s, id: id}, nil
}

// processID is the inode of fd where that is the process's own (Linux 6.9).
func processID(fd, pid int) string {
	var st unix.Stat_t
	if isPidfs(fd) && unix.Fstat(fd, &st) == nil {
		return "pidfd " + strconv.FormatUint(st.Ino, 10)
	}
	if pid == 0 {
		return ""
	}
	return "pid " + strconv.Itoa(pid)
}

// isPidfs reports whether fd is a process's descriptor of a kernel that has a file system
// of them (Linux 6.9).
func isPidfs(fd int) bool {
	var fs unix.Statfs_t
	return unix.Fstatfs(fd, &fs) == nil && fs.Type == unix.PID_FS_MAGIC
}

// ID identifies the process: two Processes have the same ID if they are of one process,
// and different IDs if they are of different living ones. It is "" where the kernel does
// not tell: before Linux 6.9, for a process in another PID namespace.
func (p *Process) ID() string {
	if p == nil {
		return ""
	}
	return p.id
}

// Wait waits until the process has died, that is, until all of its threads have ended,
// and then returns nil. Else it returns what ended the wait: ctx or ErrClosed. It does
// not hold a thread while it waits.
func (p *Process) Wait(ctx context.Context) error {
	if p != nil && p.gone {
		return nil
	}
	err := p.sock().do(ctx, reading, func() error { return p.s.whenReadable(hasEnded) })
	return opError("wait for process", p.ID(), err)
}

// Died reports whether the process is known to have died. It is false for a closed Process.
func (p *Process) Died() bool {
	if p.sock() == nil {
		return p != nil && p.gone
	}
	return p.s.control(hasEnded) == nil
}

// hasEnded returns EAGAIN as long as the process of a descriptor lives.
func hasEnded(fd int) error {
	n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
	if err == nil && n == 0 {
		return unix.EAGAIN
	}
	return os.NewSyscallError("poll", err)
}

// Close closes the descriptor; calls that wait return ErrClosed. It may be called again
// and on nil.
func (p *Process) Close() error { return opError("close", p.ID(), p.sock().close()) }

func (p *Process) sock() *socket {
	if p == nil {
		return nil
	}
	return p.s
}
