package sock

import (
	"context"
	"errors"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpufd/gpufd/internal/plain"
)

// A stranger's descriptor may keep close(2) waiting for as long as the stranger likes. A
// TCP socket with unsent data and SO_LINGER delays the last close; a file of the
// stranger's own file system (FUSE) delays every one. So what a peer sent, and a socket
// whose queue may hold it, is closed only by goroutines that do nothing else.

// closeWait is how long Close and CloseFiles wait for close(2).
var closeWait = time.Second

// await waits until all are closed, for closeWait at most.
func await(all ...<-chan struct{}) bool {
	var late <-chan time.Time
	for _, done := range all {
		if isClosed(done) { // no timer
			continue
		}
		if late == nil {
			late = time.After(closeWait)
		}
		select {
		case <-done:
		case <-late:
			return false
		}
	}
	return true
}

// nothing is a closed channel: the result of a drop without descriptors.
var nothing = func() chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}()

// DropFiles closes files in goroutines of their own, and skips nil. The returned channel
// is closed when close(2) has returned for all of them. For descriptors that a peer sent,
// that may be never.
//
// At most 16 calls for files of one process hang at once; the next ones for that process
// wait until one of them ends. Files of other processes do not wait. A file of Receive counts
// as the sender's, and all others, also copies of those, count as one process's.
func DropFiles(files []*os.File) <-chan struct{} { return dropFiles(files).gone }

// CloseFiles closes files as [DropFiles] does, and waits for one second at most. It skips
// files that are closed already, and returns the errors of close(2) within that time, joined.
func CloseFiles(files []*os.File) error {
	b := dropFiles(files)
	if !await(b.gone) {
		return nil
	}
	return b.err
}

func dropFiles(files []*os.File) *batch {
	of := map[sender][]*os.File{}
	for _, f := range files {
		if f != nil {
			s := senderOf(f)
			of[s] = append(of[s], f)
		}
	}
	b := newBatch(len(of))
	for s, files := range of {
		closes.close(s, func() { b.part(closeEach(files)) }, nobodyIsTold)
	}
	return b
}

func closeEach(files []*os.File) error {
	var errs []error
	for _, f := range files {
		if err := f.Close(); err != nil && !errors.Is(err, os.ErrClosed) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// dropFDs is DropFiles for descriptors that no os.File owns yet; s sent all of them.
func dropFDs(fds []int, s sender) <-chan struct{} {
	if len(fds) == 0 {
		return nothing
	}
	b := newBatch(1)
	closes.close(s, func() { closeFDs(fds); b.part(nil) }, nobodyIsTold)
	return b.gone
}

func nobodyIsTold() {}

// batch is a set of descriptors that are being closed, in parts.
type batch struct {
	gone chan struct{}
	err  error // once gone

	mu   sync.Mutex
	left int
}

func newBatch(parts int) *batch {
	if parts == 0 {
		return &batch{gone: nothing}
	}
	return &batch{gone: make(chan struct{}), left: parts}
}

// part records that one part is closed, with the error of close(2).
func (b *batch) part(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.err = errors.Join(b.err, err)
	if b.left--; b.left == 0 {
		close(b.gone)
	}
}

// crowd counts the connections of a Listener that are closing or wait for that. A nil
// crowd counts nothing.
type crowd struct {
	most int

	mu   sync.Mutex
	n    int
	room chan struct{} // closed when there is room again; nil while nobody waits
}

func (c *crowd) join() {
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.n++
}

func (c *crowd) leave() {
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.n--
	if c.n < c.most && c.room != nil {
		close(c.room)
		c.room = nil
	}
}

// full returns a channel that is closed once there is room, or nil if there is room now.
func (c *crowd) full() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.n < c.most {
		return nil
	}
	if c.room == nil {
		c.room = make(chan struct{})
	}
	return c.room
}

// wait waits for room.
func (c *crowd) wait(ctx context.Context, closed <-chan struct{}) error {
	for room := c.full(); room != nil; room = c.full() {
		select {
		case <-room:
		case <-closed:
			return ErrClosed
		case <-ctx.Done():
			return plain.ContextErr(ctx)
		}
	}
	return nil
}

// passRights sets SO_PASSRIGHTS (Linux 6.16). Tests replace it to play an older kernel.
var passRights = func(fd, on int) error {
	return os.NewSyscallError("setsockopt", unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PASSRIGHTS, on))
}

// refusesRights reports whether the kernel has refused descriptors since the connection was made.
// A connection that was queued before its listener refused them does not refuse them.
func refusesRights(fd int) bool {
	on, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PASSRIGHTS)
	return err == nil && on == 0
}

// refuseRights makes the kernel refuse descriptors that are sent to fd, and reports
// whether it does: older kernels cannot. Descriptors that are in the queue stay
// there.
func refuseRights(fd int) bool { return passRights(fd, 0) == nil }
