package sock

import (
	"context"
	"errors"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpufd/gpufd/internal/wait"
)

// A descriptor of a stranger's may keep close(2) waiting for as long as the stranger
// likes: a TCP socket with unsent data and SO_LINGER keeps the last one waiting, a file of
// the stranger's own file system (FUSE) each. So nothing that a
// peer sent, and no socket whose queue may hold it, is closed by a goroutine that has
// something else to do.

// maxHanging is how many closes may hang at once, in a Listener's connections and
// among received files: each holds a thread.
const maxHanging = 256

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

// nothing is the channel of a drop that has nothing to do.
var nothing = func() chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}()

// DropFiles closes all files on a goroutine of its own, and skips nil. The channel
// that it returns is closed when close(2) has returned for all, which may be never for
// descriptors that a peer sent. Of the batches that hang, 256 take a thread; the next
// wait for one of them to end.
func DropFiles(files []*os.File) <-chan struct{} { return dropFiles(files).gone }

// CloseFiles is [DropFiles] and waits for it, one second at most. It skips what is
// closed already, and returns what went wrong within that time, joined (close(2)).
func CloseFiles(files []*os.File) error {
	b := dropFiles(files)
	if !await(b.gone) {
		return nil
	}
	return b.err
}

func dropFiles(files []*os.File) *batch {
	open := make([]*os.File, 0, len(files))
	for _, f := range files {
		if f != nil {
			open = append(open, f)
		}
	}
	if len(open) == 0 {
		return &batch{gone: nothing}
	}
	return apart(func() error { return closeEach(open) })
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

// dropFDs is DropFiles for what no os.File owns yet.
func dropFDs(fds []int) <-chan struct{} {
	if len(fds) == 0 {
		return nothing
	}
	return apart(func() error { closeFDs(fds); return nil }).gone
}

// batch is descriptors that are being closed.
type batch struct {
	gone chan struct{}
	err  error // once gone
}

// threads are those that close batches.
var threads = make(chan struct{}, maxHanging)

// apart has a goroutine of its own close something.
func apart(closeThem func() error) *batch {
	b := &batch{gone: make(chan struct{})}
	go func() {
		defer close(b.gone)
		threads <- struct{}{}
		defer func() { <-threads }()
		b.err = closeThem()
	}()
	return b
}

// crowd counts the closes under way among a Listener's connections. A nil crowd
// counts nothing.
type crowd struct {
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
	if c.n < maxHanging && c.room != nil {
		close(c.room)
		c.room = nil
	}
}

// full returns a channel that is closed when there is room, or nil if there is.
func (c *crowd) full() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.n < maxHanging {
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
			return wait.Err(ctx)
		}
	}
	return nil
}

// passRights sets SO_PASSRIGHTS, which Linux has since 6.16. Tests replace it to play
// an older kernel.
var passRights = func(fd, on int) error {
	return os.NewSyscallError("setsockopt", unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PASSRIGHTS, on))
}

// refuseRights has the kernel refuse descriptors to whoever sends them to fd, and
// reports whether it does: an older kernel does not know how. What is in the queue
// stays there.
func refuseRights(fd int) bool { return passRights(fd, 0) == nil }
