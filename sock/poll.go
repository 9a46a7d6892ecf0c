package sock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpufd/gpufd/internal/descriptor/fdtrace"
	"github.com/gpufd/gpufd/internal/plain"
)

// socket is a descriptor registered with the runtime's poller, so that waiting
// costs no thread. It owns the descriptor.
type socket struct {
	file   *os.File
	raw    syscall.RawConn
	read   direction
	write  direction
	sealed atomic.Bool // no descriptor can be in its queue
	from   sender      // the peer, whose descriptors may be in the queue
	closer *closer     // closes it
	crowd  *crowd      // counts it while it closes; may be nil
	shared atomic.Bool // another process may have a descriptor of it, too

	closed chan struct{} // closed when Close has begun: no call may wait any more
	gone   chan struct{} // closed when close(2) has returned
	err    error         // of close(2), once gone
	once   sync.Once

	asides sync.RWMutex // held by calls without a turn, then by closeAlone
}

// newSocket takes ownership of fd, and closes it on failure. fd must be in
// non-blocking mode, else os.NewFile does not hand it to the poller.
func newSocket(fd int, name string, from sender) (*socket, error) {
	f := fdtrace.File(fd, name)
	// If the poller refused the descriptor, deadlines fail, and nothing
	// could interrupt a wait.
	err := f.SetDeadline(time.Time{})
	if err != nil {
		err = fmt.Errorf("register with the poller: %w", err)
	}
	raw, rerr := f.SyscallConn()
	if err = cmp.Or(err, rerr); err != nil {
		from.sent(f)
		DropFiles([]*os.File{f})
		return nil, err
	}
	return &socket{
		file:   f,
		raw:    raw,
		from:   from,
		closer: &closes,
		read:   newDirection(f.SetReadDeadline),
		write:  newDirection(f.SetWriteDeadline),
		closed: make(chan struct{}),
		gone:   make(chan struct{}),
	}, nil
}

// drop ends all waits on the socket and begins to close it. The channel is closed
// when close(2) has returned. Only the first call has an effect.
func (s *socket) drop() <-chan struct{} {
	if s == nil {
		return nothing
	}
	s.once.Do(func() {
		close(s.closed)
		s.crowd.join()
		if s.sealed.Load() { // nothing of a stranger's ends with it
			s.finish()
			return
		}
		_ = s.file.SetDeadline(past) // fails only on a closed file
		go s.closeAlone()
	})
	return s.gone
}

// close is drop, and waits for closeWait at most.
func (s *socket) close() error {
	if s == nil || !await(s.drop()) {
		return nil
	}
	return s.err
}

// closeAlone waits until no other call uses the file, and then closes it: otherwise the
// last of those calls would run close(2). It keeps the turns and the lock.
func (s *socket) closeAlone() {
	s.read.turn <- struct{}{}
	s.write.turn <- struct{}{}
	s.asides.Lock()
	s.closer.close(s.from, s.finish, s.shutDown)
}

// shutDown tells the peer of a close that is queued (shutdown(2)): from then on the peer
// can send nothing.
func (s *socket) shutDown() {
	if s.shared.Load() {
		return
	}
	_ = s.raw.Control(func(fd uintptr) { _ = unix.Shutdown(int(fd), unix.SHUT_RDWR) }) // fails only if the peer is gone
}

func (s *socket) finish() {
	if s.from.isForeign() && !s.sealed.Load() && !s.shared.Load() {
		_ = s.raw.Control(func(fd uintptr) { leaveQueue(int(fd)) }) // fails only on a closed file
	}
	s.err = s.file.Close()
	s.crowd.leave()
	close(s.gone)
}

// do is the choke point: it runs op alone in its direction, and makes op return
// soon after ctx is done. A nil socket is a closed one.
func (s *socket) do(ctx context.Context, dir func(*socket) *direction, op func() error) error {
	if s == nil {
		return ErrClosed
	}
	d := dir(s)
	if err := d.enter(ctx, s.closed); err != nil {
		return err
	}
	defer d.leave()
	stop := d.interruptWhenDone(ctx)
	err := op()
	stop()
	if errors.Is(err, os.ErrDeadlineExceeded) && ctx.Err() != nil {
		return plain.ContextErr(ctx)
	}
	return err
}

// doNow is do for an op that does not wait. It does not wait for its turn either.
func (s *socket) doNow(dir func(*socket) *direction, op func() error) error {
	if s == nil {
		return ErrClosed
	}
	d := dir(s)
	if err := d.tryEnter(s.closed); err != nil {
		return err
	}
	defer d.leave()
	return op()
}

// reading and writing name the direction for do.
func reading(s *socket) *direction { return &s.read }
func writing(s *socket) *direction { return &s.write }

// whenReadable calls f until it returns something else than EAGAIN, and waits
// for the socket to become readable in between. Call it inside do.
func (s *socket) whenReadable(f func(fd int) error) error { return s.try(s.raw.Read, f) }

// whenWritable is whenReadable for the other direction.
func (s *socket) whenWritable(f func(fd int) error) error { return s.try(s.raw.Write, f) }

func (s *socket) try(ready func(func(uintptr) bool) error, f func(fd int) error) error {
	var err error
	werr := ready(func(fd uintptr) bool {
		err = ignoringEINTR(func() error { return f(int(fd)) })
		return !errors.Is(err, unix.EAGAIN)
	})
	if werr != nil {
		return s.closedOr(werr)
	}
	return err
}

// control calls f once, without waiting.
func (s *socket) control(f func(fd int) error) error {
	if !s.asides.TryRLock() {
		return ErrClosed
	}
	defer s.asides.RUnlock()
	if isClosed(s.closed) {
		return ErrClosed
	}
	var err error
	cerr := s.raw.Control(func(fd uintptr) {
		err = ignoringEINTR(func() error { return f(int(fd)) })
	})
	if cerr != nil {
		return s.closedOr(cerr)
	}
	return err
}

// closedOr returns ErrClosed in place of the poller's error for a closed file, or for the
// deadline that drop sets.
func (s *socket) closedOr(err error) error {
	if isClosed(s.closed) {
		return ErrClosed
	}
	return err
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// ignoringEINTR repeats f while signals interrupt it.
func ignoringEINTR(f func() error) error {
	for {
		if err := f(); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}
