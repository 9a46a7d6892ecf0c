// Package moving is a keeper's side of its mover: a process that has a driver, and copies what is kept between devices
// and memory of the host. A keeper starts one for each version that is moved, and one for the pool. Package mover is
// the other side. Their messages are those of package protocol, over a socket that the mover inherits.
package moving

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpufd/gpufd/internal/descriptor/fdtrace"
	"github.com/gpufd/gpufd/internal/plain"
	"github.com/gpufd/gpufd/keeper/internal/protocol"
	"github.com/gpufd/gpufd/sock"
)

// The operations of a mover.
const (
	OpChunk  = "chunk"  // make memory of the host, and answer with its descriptor
	OpPark   = "park"   // copy a part to memory of the host; descriptors: the part's, then the host's
	OpUnpark = "unpark" // copy a part to new memory of its device, and answer with that; descriptors: the host's
)

// A Job is what a mover is asked to do.
type Job struct {
	Op     string           `json:"op"`
	Driver string           `json:"driver"`           // cuda or soft; for a chunk auto, too
	Size   uint64           `json:"size,omitempty"`   // of a chunk
	Device string           `json:"device,omitempty"` // of the part
	Memory *protocol.Memory `json:"memory,omitempty"` // the part's
	Digest string           `json:"digest,omitempty"`
	Chunks []uint64         `json:"chunks,omitempty"` // the sizes of the host's memory, in order
	Files  int              `json:"files,omitempty"`  // descriptors that follow
}

// A Done is a mover's answer. Without an error, all of the job is done.
type Done struct {
	Error   *protocol.Error `json:"error,omitempty"`
	Damage  string          `json:"damage,omitempty"` // the bytes do not have the digest, and nothing was moved
	Driver  string          `json:"driver,omitempty"` // of a chunk
	Node    int             `json:"node,omitempty"`   // of a chunk
	Bytes   uint64          `json:"bytes,omitempty"`
	Seconds float64         `json:"seconds,omitempty"` // that the copy took
	Files   int             `json:"files,omitempty"`   // descriptors that follow
}

// A rest carries descriptors for which the message before had no room.
type rest struct{}

// send sends a message with any number of descriptors, which it says in its member files.
func send(ctx context.Context, c *sock.Conn, v any, files []*os.File) error {
	for {
		n := min(len(files), sock.MaxFDs)
		if err := protocol.Send(ctx, c, v, files[:n]...); err != nil {
			return err
		}
		if files = files[n:]; len(files) == 0 {
			return nil
		}
		v = rest{}
	}
}

// receive receives what send sends. The caller owns the descriptors.
func receive(ctx context.Context, c *sock.Conn, v any, count func() int) (files []*os.File, err error) {
	if files, err = protocol.Receive(ctx, c, protocol.MaxMessage, v); err != nil {
		return nil, err
	}
	for len(files) < count() {
		next, err := protocol.Receive(ctx, c, protocol.MaxMessage, &rest{})
		files = append(files, next...)
		if err == nil && len(next) == 0 {
			err = protocol.ErrMalformed
		}
		if err != nil {
			sock.DropFiles(files)
			return nil, err
		}
	}
	return files, nil
}

// ReceiveJob receives a job on the mover's side. The caller owns the descriptors.
func ReceiveJob(ctx context.Context, c *sock.Conn) (j Job, files []*os.File, err error) {
	files, err = receive(ctx, c, &j, func() int { return j.Files })
	return j, files, err
}

// Answer sends the answer to a job, on the mover's side. The files stay the caller's.
func Answer(ctx context.Context, c *sock.Conn, d Done, files []*os.File) error {
	d.Files = len(files)
	return send(ctx, c, d, files)
}

// A Mover is a process that this one has started. The caller owns it and ends it with Close.
type Mover struct {
	conn  *sock.Conn
	cmd   *exec.Cmd
	pidfd *os.File
	words words
	over  chan struct{}
}

// FD is the descriptor of the socket that a mover inherits.
const FD = 3

// Start starts argv as a mover. It has / as directory and a session of its own; environment, user and control group
// are this process's.
func Start(argv []string) (*Mover, error) {
	if len(argv) == 0 {
		return nil, errors.New("no program is named that moves memory")
	}
	own, other, err := sock.NewPair()
	if err != nil {
		return nil, err
	}
	inherited, err := other.File()
	if err = errors.Join(err, other.Close()); err != nil {
		return nil, errors.Join(err, own.Close())
	}
	m := &Mover{conn: own, over: make(chan struct{})}
	m.cmd = exec.Command(argv[0], argv[1:]...)
	m.cmd.Dir, m.cmd.Stderr, m.cmd.ExtraFiles = "/", &m.words, []*os.File{inherited}
	m.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	m.cmd.WaitDelay = time.Second
	err = m.cmd.Start()
	if err = errors.Join(err, inherited.Close()); err != nil {
		return nil, errors.Join(err, own.Close())
	}
	pidfd, err := unix.PidfdOpen(m.PID(), 0) // nobody has waited for it, so the pid is its own
	go func() {
		_ = m.cmd.Wait()
		close(m.over)
	}()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("the kernel has no pidfds (Linux 5.4): %w", err), m.cmd.Process.Kill(), own.Close())
	}
	m.pidfd = fdtrace.File(pidfd, "pidfd")
	return m, nil
}

// Process returns the mover's pidfd, which stays the mover's.
func (m *Mover) Process() *os.File { return m.pidfd }

// PID returns the mover's pid.
func (m *Mover) PID() int { return m.cmd.Process.Pid }

// Do has a job done, and returns the answer and its descriptors, which are the caller's; those that go along stay the
// caller's, too. If the answer does not come before ctx ends, or the mover ends, it is unknown what was done: the memory
// that the job may write is to be left alone until Close has returned.
func (m *Mover) Do(ctx context.Context, j Job, files ...*os.File) (d Done, answer []*os.File, err error) {
	j.Files = len(files)
	err = send(ctx, m.conn, j, files)
	if err == nil {
		answer, err = receive(ctx, m.conn, &d, func() int { return d.Files })
	}
	switch {
	case errors.Is(err, sock.ErrPeerLost):
		return d, nil, m.ended(err)
	case err != nil && ctx.Err() != nil:
		return d, nil, fmt.Errorf("the process that moves the memory has not answered: %w", context.Cause(ctx))
	case err != nil:
		return d, nil, err
	case d.Error != nil:
		sock.DropFiles(answer)
		return d, nil, d.Error
	}
	return d, answer, nil
}

// endWait is how long a mover that has hung up, or was killed, may take to end before somebody looks.
const endWait = 5 * time.Second

// ended returns why the mover has ended.
func (m *Mover) ended(err error) error {
	select {
	case <-m.over:
	case <-time.After(endWait):
		return err
	}
	text := fmt.Sprintf("the process that moves the memory has ended (%s), and nothing was changed", m.cmd.ProcessState)
	if said := m.words.first(); said != "" {
		text += ": " + said
	}
	return errors.New(text)
}

// HangUp closes this end of the socket: the mover ends by itself.
func (m *Mover) HangUp() error { return m.conn.Close() }

// Close ends the mover, and waits until it has ended: nothing writes any memory on its account then. The only error is
// that it has not within 5 seconds. Close may be called again.
func (m *Mover) Close() error {
	m.conn.Drop()
	defer m.pidfd.Close()
	select {
	case <-m.over: // it was about to
		return nil
	default:
		_ = m.cmd.Process.Kill()
	}
	select {
	case <-m.over:
		return nil
	case <-time.After(endWait):
		return fmt.Errorf("process %d, which moves memory, was killed and does not end: until it has, and the keeper is started again, nothing is parked or unparked", m.PID())
	}
}

// words are the first bytes that a mover has written to standard error.
type words struct{ bytes.Buffer }

const maxWords = 4096

func (w *words) Write(b []byte) (int, error) {
	if room := maxWords - w.Len(); room > 0 {
		w.Buffer.Write(b[:min(room, len(b))])
	}
	return len(b), nil
}

// first returns the first line. The mover has ended.
func (w *words) first() string {
	line, _ := w.ReadString('\n')
	return plain.Text(string(bytes.TrimSpace([]byte(line))))
}
