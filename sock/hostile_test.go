package sock

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gpufd/gpufd/internal/testenv"
)

// olderKernel has this package find no SO_PASSRIGHTS until t ends.
func olderKernel(t *testing.T) {
	t.Helper()
	real := passRights
	passRights = func(int, int) error { return unix.ENOPROTOOPT }
	t.Cleanup(func() { passRights = real })
}

// onBothKernels runs f as on this kernel, if that has SO_PASSRIGHTS, and as on an
// older one.
func onBothKernels(t *testing.T, f func(t *testing.T, sealed bool)) {
	t.Helper()
	needsKernelsControl(t)
	t.Run("with SO_PASSRIGHTS", func(t *testing.T) {
		fd := ok(newFD())(t)
		sealed := refuseRights(fd)
		require.NoError(t, unix.Close(fd))
		if !sealed {
			t.Skip("this kernel has no SO_PASSRIGHTS, as Linux has since 6.16")
		}
		f(t, true)
	})
	t.Run("without", func(t *testing.T) {
		olderKernel(t)
		f(t, false)
	})
}

// closesWait sets how long Close waits.
func closesWait(t *testing.T, d time.Duration) {
	t.Helper()
	real := closeWait
	closeWait = d
	t.Cleanup(func() { closeWait = real })
}

// A trap is a TCP socket whose last close takes 100 seconds, or until spring, or until
// its thread gets a signal.
type trap struct {
	fd   int // of the one end
	peer int // the other, which never reads
}

func newTrap() (trap, error) {
	l, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return trap{}, err
	}
	defer unix.Close(l)
	if err := unix.Bind(l, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		return trap{}, err
	}
	if err := unix.Listen(l, 1); err != nil {
		return trap{}, err
	}
	addr, err := unix.Getsockname(l)
	if err != nil {
		return trap{}, err
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return trap{}, err
	}
	if err := unix.Connect(fd, addr); err != nil {
		return trap{}, err
	}
	peer, _, err := unix.Accept4(l, unix.SOCK_CLOEXEC)
	if err != nil {
		return trap{}, err
	}
	return trap{fd, peer}, setTrap(fd)
}

// setTrap fills the queues of fd, so that close(2) has something to wait for.
func setTrap(fd int) error {
	if err := unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1, Linger: 100}); err != nil {
		return err
	}
	data := make([]byte, 1<<20)
	for {
		_, err := unix.SendmsgN(fd, data, nil, nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
		if errors.Is(err, unix.EAGAIN) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// spring ends the wait: the other end closes without reading, which is a reset.
func (p trap) spring() error { return unix.Close(p.peer) }

// send has c send record with n times the descriptor, and closes it here: what is in
// flight is all there is.
func (p trap) send(c *Conn, record []byte, n int) error {
	oob := unix.UnixRights(slices.Repeat([]int{p.fd}, n)...)
	err := c.s.control(func(fd int) error {
		return unix.Sendmsg(fd, record, oob, nil, unix.MSG_NOSIGNAL)
	})
	if err != nil {
		return errors.Join(err, unix.SetsockoptLinger(p.fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{}), unix.Close(p.fd))
	}
	return unix.Close(p.fd)
}

// sendTrap has c send such a descriptor, n times in one record, and returns what ends
// the wait.
func sendTrap(t *testing.T, c *Conn, record []byte, n int) (spring func()) {
	t.Helper()
	p := ok(newTrap())(t)
	require.NoError(t, p.send(c, record, n))
	sprung := false
	spring = func() {
		if !sprung {
			sprung = true
			require.NoError(t, p.spring())
		}
	}
	t.Cleanup(spring)
	return spring
}

// requireRefused says that the kernel does not let c send descriptors.
func requireRefused(t *testing.T, c *Conn) {
	t.Helper()
	err := c.Send(soon(t), []byte("x"), tempFile(t, "x"))
	require.ErrorIs(t, err, unix.EPERM)
	require.ErrorContains(t, err, "the peer takes no descriptors")
	require.ErrorIs(t, c.TrySend([]byte("x"), tempFile(t, "x")), unix.EPERM)
}

// quickly runs f, which must not wait for the trap.
func quickly(t *testing.T, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	select {
	case <-done:
	case <-soon(t).Done():
		t.Fatal("it waits for the descriptor")
	}
}

// requireHangs says that done is not closed before spring is called, and is then.
func requireHangs(t *testing.T, done <-chan struct{}, spring func()) {
	t.Helper()
	select {
	case <-done:
		t.Fatal("the trap did not hold: this test proves nothing")
	case <-briefly(t).Done():
	}
	spring()
	select {
	case <-done:
	case <-soon(t).Done():
		t.Fatal("it still hangs")
	}
}

// A plain close of such a descriptor hangs, and so does one of the socket whose queue
// has it, or recvmsg(2) without room for it: what the tests below are about.
func TestTrapHolds(t *testing.T) {
	requireNoLeak(t)
	needsKernelsControl(t)
	recvmsg := func(fd int) (file int, err error) {
		control := make([]byte, controlSize)
		_, n, _, _, err := unix.RecvmsgBuffers(fd, [][]byte{make([]byte, 10)}, control, 0)
		if err != nil {
			return -1, err
		}
		fds, err := parseControl(control[:n])
		return fds[0], err
	}
	for name, drop := range map[string]func(fd int) error{
		"close of the socket": unix.Close,
		"recvmsg": func(fd int) error {
			_, _, _, _, err := unix.RecvmsgBuffers(fd, [][]byte{make([]byte, 10)}, nil, 0)
			return errors.Join(err, unix.Close(fd))
		},
		"close of the file": func(fd int) error {
			file, err := recvmsg(fd)
			return errors.Join(err, unix.Close(fd), unix.Close(file))
		},
	} {
		t.Run(name, func(t *testing.T) {
			a, b := pair(t)
			fd := -1
			require.NoError(t, b.s.control(func(own int) (err error) { fd, err = dupFD(own); return err }))
			require.NoError(t, b.Close())
			spring := sendTrap(t, a, []byte("x"), 1)
			done := make(chan struct{})
			go func() {
				defer close(done)
				if err := drop(fd); err != nil {
					t.Errorf("%v", err)
				}
			}()
			requireHangs(t, done, spring)
		})
	}
}

// TestCloseOfAQueueThatHangs: Close comes back, the peer learns of it at once, and
// only the goroutine of the close waits.
//
//fault:rows 72
func TestCloseOfAQueueThatHangs(t *testing.T) {
	onBothKernels(t, func(t *testing.T, sealed bool) {
		requireNoLeak(t)
		server, client := limited(t, WithMaxFDs(0))
		if sealed {
			requireRefused(t, client)
			requireRefused(t, server)
			requireWorks(t, client, server)
			require.NoError(t, server.Close())
			requireClosed(t, server.Drop())
			return
		}
		closesWait(t, 20*time.Millisecond)
		spring := sendTrap(t, client, []byte("x"), 1)
		quickly(t, func() { require.NoError(t, server.Close()) })
		_, err := client.Receive(soon(t))
		require.ErrorIs(t, err, ErrPeerLost)
		require.ErrorIs(t, err, unix.ECONNRESET)
		requireHangs(t, server.Drop(), spring)
		require.NoError(t, server.Close())
	})
}

func requireClosed(t *testing.T, done <-chan struct{}) {
	t.Helper()
	select {
	case <-done:
	default:
		t.Fatal("it is not closed yet")
	}
}

// TestCallsThatWaitDoNotClose: calls that wait end at once when a Close hangs. None of
// them becomes the one that closes.
func TestCallsThatWaitDoNotClose(t *testing.T) {
	needsKernelsControl(t)
	requireNoLeak(t)
	a, b := pair(t)
	b.limits.fds = 0
	fill(t, b)
	sent := make(chan error, 1)
	go func() { sent <- b.Send(context.Background(), make([]byte, 30000)) }()
	require.Eventually(t, func() bool { return len(b.s.write.turn) == 1 }, 10*time.Second, time.Millisecond)
	received := make(chan error, 2)
	for range 2 {
		go func() {
			_, err := b.Receive(context.Background())
			received <- err
		}()
	}
	require.Eventually(t, func() bool { return len(b.s.read.turn) == 1 }, 10*time.Second, time.Millisecond)
	spring := sendTrap(t, a, []byte("x"), 1)
	for range 2 {
		quickly(t, func() { require.ErrorIs(t, <-received, ErrTooManyFDs) })
	}
	gone := b.Drop()
	quickly(t, func() { require.ErrorIs(t, <-sent, ErrClosed) })
	quickly(t, func() {
		require.ErrorIs(t, errOf(b.Receive(context.Background())), ErrClosed)
		require.ErrorIs(t, b.TrySend([]byte("x")), ErrClosed)
		require.ErrorIs(t, errOf(b.File()), ErrClosed)
		require.ErrorIs(t, b.RefuseFiles(), ErrClosed)
	})
	requireHangs(t, gone, spring)
}

// TestLastToLeaveDoesNotClose: nor does a call become it that is in the midst of
// something. It ends when it likes, and nobody begins another.
func TestLastToLeaveDoesNotClose(t *testing.T) {
	needsKernelsControl(t)
	for name, dir := range map[string]func(*socket) *direction{"reading": reading, "writing": writing} {
		t.Run(name, func(t *testing.T) {
			requireNoLeak(t)
			a, b := pair(t)
			spring := sendTrap(t, a, []byte("x"), 1)
			in, out, left := make(chan struct{}), make(chan struct{}), make(chan error)
			go func() {
				left <- b.s.do(context.Background(), dir, func() error {
					return b.s.raw.Control(func(uintptr) { close(in); <-out })
				})
			}()
			<-in
			gone := b.Drop()
			require.ErrorIs(t, errOf(b.File()), ErrClosed)
			<-briefly(t).Done() // time for a close that does not wait
			close(out)
			quickly(t, func() { require.NoError(t, <-left) })
			requireHangs(t, gone, spring)
		})
	}
}

// A turn that comes when the connection has been closed is given back.
func TestTurnAfterClose(t *testing.T) {
	d, closed := newDirection(nil), make(chan struct{})
	d.turn <- struct{}{}
	require.NoError(t, d.unlessClosed(closed))
	require.Len(t, d.turn, 1)
	close(closed)
	require.ErrorIs(t, d.unlessClosed(closed), ErrClosed)
	require.Empty(t, d.turn)
}

// TestBadRecordsThatHang: a bad record that brings such a descriptor stays where it
// is, and each further call says the same.
//
//fault:rows 72
func TestBadRecordsThatHang(t *testing.T) {
	needsKernelsControl(t)
	cases := map[string]struct {
		record []byte
		n      int
		limits limits
		want   error
	}{
		"none are taken":  {[]byte("x"), 1, limits{MaxRecord, 0}, ErrTooManyFDs},
		"one is taken":    {[]byte("x"), 2, limits{MaxRecord, 1}, ErrTooManyFDs},
		"all are taken":   {[]byte("x"), 65, mostLimits, ErrTooManyFDs},
		"too long":        {[]byte("long"), 1, limits{3, MaxFDs}, ErrTruncated},
		"too long, too":   {[]byte("long"), 2, limits{3, 1}, ErrTooManyFDs},
		"as many as sent": {[]byte("x"), 253, limits{MaxRecord, 3}, ErrTooManyFDs},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			requireNoLeak(t)
			a, b := pair(t)
			b.limits = c.limits
			spring := sendTrap(t, a, c.record, c.n)
			quickly(t, func() {
				_, first := b.Receive(soon(t))
				require.ErrorIs(t, first, c.want)
				require.ErrorIs(t, first, ErrStuck)
				require.ErrorContains(t, first, "close the connection")
				require.True(t, IsBadRecord(first))
				_, second := b.Receive(soon(t))
				require.Equal(t, first, second)
				last := b.WaitClose(soon(t))
				require.ErrorIs(t, last, c.want)
				require.ErrorIs(t, last, ErrStuck)
			})
			requireHangs(t, b.Drop(), spring)
		})
	}
	t.Run("empty", func(t *testing.T) {
		requireNoLeak(t)
		a, b := pair(t)
		p := ok(newTrap())(t)
		require.NoError(t, rawSendEmpty(t, a, unix.UnixRights(p.fd)))
		require.NoError(t, unix.Close(p.fd))
		quickly(t, func() {
			require.ErrorIs(t, errOf(b.Receive(soon(t))), ErrEmptyRecord)
		})
		requireHangs(t, b.Drop(), func() { require.NoError(t, p.spring()) })
	})
}

// TestWaitHangup: it ends with the peer, the context or Close, whatever is in the queue,
// and leaves that there.
func TestWaitHangup(t *testing.T) {
	stuck := func(t *testing.T, a, b *Conn) {
		b.limits.fds = 0
		require.NoError(t, a.Send(soon(t), []byte("x"), tempFile(t, "x")))
		require.ErrorIs(t, errOf(b.Receive(soon(t))), ErrStuck)
	}
	waiting := func(t *testing.T, b *Conn) <-chan error {
		ended := make(chan error, 1)
		go func() { ended <- b.WaitHangup(context.Background()) }()
		require.Eventually(t, func() bool { return len(b.s.read.turn) == 1 }, 10*time.Second, time.Millisecond)
		return ended
	}
	queues := map[string]func(t *testing.T, a, b *Conn){
		"empty": func(*testing.T, *Conn, *Conn) {},
		"good":  func(t *testing.T, a, _ *Conn) { require.NoError(t, a.Send(soon(t), []byte("x"))) },
		"stuck": stuck,
	}
	for name, fill := range queues {
		t.Run(name, func(t *testing.T) {
			requireNoLeak(t)
			a, b := pair(t)
			fill(t, a, b)
			require.ErrorIs(t, b.WaitHangup(briefly(t)), context.DeadlineExceeded)
			ended := waiting(t, b)
			require.NoError(t, a.Send(soon(t), []byte("it reads nothing")))
			require.NoError(t, a.Close())
			require.NoError(t, <-ended)
			require.NoError(t, b.WaitHangup(soon(t)))
			rec, err := b.Receive(soon(t))
			if name == "stuck" {
				require.ErrorIs(t, err, ErrStuck)
				return
			}
			require.NoError(t, err)
			require.NotEmpty(t, rec.Data)
		})
	}
	t.Run("closed here", func(t *testing.T) {
		_, b := pair(t)
		ended := waiting(t, b)
		require.NoError(t, b.Close())
		require.ErrorIs(t, <-ended, ErrClosed)
		require.ErrorIs(t, b.WaitHangup(soon(t)), ErrClosed)
		require.ErrorIs(t, (*Conn)(nil).WaitHangup(soon(t)), ErrClosed)
	})
}

func init() {
	// receives descriptors that hang, with room for few
	children["out-of-fds-hanging"] = func([]string) error {
		for _, spare := range []int{0, 1, 2} {
			if err := receiveTrap(spare); err != nil {
				return fmt.Errorf("spare %d: %w", spare, err)
			}
		}
		return nil
	}
}

// receiveTrap sends 3 descriptors that hang where spare fit.
func receiveTrap(spare int) error {
	a, b, err := NewPair()
	if err != nil {
		return err
	}
	defer a.Close()
	p, err := newTrap()
	if err != nil {
		return err
	}
	if err := p.send(a, []byte("three"), 3); err != nil {
		return err
	}
	defer setFDLimit(1000)
	if err := limitFDs(spare); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	received := make(chan error, 1)
	go func() { _, err := b.Receive(ctx); received <- err }()
	select {
	case err = <-received:
	case <-ctx.Done():
		err = errors.New("Receive hangs")
	}
	if want := fmt.Sprintf("lost: %d arrived; raise the limit", spare); !isWith(err, ErrControlTruncated, want) {
		return fmt.Errorf("got %w, want %q", err, want)
	}
	gone := b.Drop()
	if err := p.spring(); err != nil {
		return err
	}
	<-gone
	return nil
}

// TestOutOfFDsWhileItHangs: the kernel drops nothing of a record for which there are
// no descriptors.
//
//fault:rows 72
func TestOutOfFDsWhileItHangs(t *testing.T) {
	needsKernelsControl(t)
	runChild(t, "out-of-fds-hanging")
}

// TestFilesThatHang: Receive hands them out without waiting, and their receiver gets
// rid of them without waiting for long.
//
//fault:rows 72
func TestFilesThatHang(t *testing.T) {
	needsKernelsControl(t)
	closers := map[string]func(rec *Record) error{
		"Record.Close": (*Record).Close,
		"CloseFiles":   func(rec *Record) error { return CloseFiles(rec.Files) },
		"DropFiles":    func(rec *Record) error { DropFiles(rec.Files); return nil },
	}
	closing := func(n int) func() bool { return func() bool { return closes.underWay() == n } }
	for name, closeThem := range closers {
		t.Run(name, func(t *testing.T) {
			requireNoLeak(t)
			closesWait(t, 20*time.Millisecond)
			a, b := pair(t)
			spring := sendTrap(t, a, []byte("x"), 2)
			var rec Record
			quickly(t, func() {
				rec = received(t, b)
			})
			require.Len(t, rec.Files, 2)
			quickly(t, func() { require.NoError(t, closeThem(&rec)) })
			requireWorks(t, a, b)
			require.Eventually(t, closing(1), 10*time.Second, time.Millisecond, "one goroutine closes both")
			require.Never(t, closing(0), 30*time.Millisecond, time.Millisecond, "and hangs")
			spring()
			require.Eventually(t, closing(0), 10*time.Second, time.Millisecond)
		})
	}
	t.Run("WaitClose", func(t *testing.T) {
		requireNoLeak(t)
		closesWait(t, 20*time.Millisecond)
		a, b := pair(t)
		sendTrap(t, a, []byte("x"), 1)
		require.NoError(t, a.Close())
		quickly(t, func() { require.NoError(t, b.WaitClose(soon(t))) })
	})
}

// TestListenerClosesWhatHangs: a connection that nobody has accepted may hang, too.
//
//fault:rows 72
func TestListenerClosesWhatHangs(t *testing.T) {
	onBothKernels(t, func(t *testing.T, sealed bool) {
		requireNoLeak(t)
		dir := safeDir(t)
		l := listenAt(t, filepath.Join(dir, "s"), WithMaxFDs(0))
		c := dialled(t, l.Path())
		if sealed {
			requireRefused(t, c)
			return
		}
		closesWait(t, 20*time.Millisecond)
		spring := sendTrap(t, c, []byte("x"), 1)
		quickly(t, func() { require.NoError(t, l.Close()) })
		requireEmptyDir(t, dir)
		listenAt(t, l.Path())
		requireHangs(t, l.s.drop(), spring)
	})
}

func init() {
	// dials, sends descriptors that hang or is not let, is told of the end of its
	// connections, and ends with its stdin
	children["dial-hanging"] = func(args []string) error {
		sealed := args[1] == "true"
		var conns []*Conn
		var traps []trap
		for range refusedPeers {
			c := testenv.Got(Dial(context.Background(), args[0]))
			defer c.Close()
			p := testenv.Got(newTrap())
			err := p.send(c, []byte("x"), 1)
			if sealed != errors.Is(err, unix.EPERM) || !sealed && err != nil {
				return fmt.Errorf("got %w", err)
			}
			conns, traps = append(conns, c), append(traps, p)
		}
		fmt.Println("sent")
		for _, c := range conns {
			testenv.Must(c.WaitHangup(context.Background()))
		}
		fmt.Println("told")
		_, _ = io.ReadAll(os.Stdin)
		var err error
		for _, p := range traps {
			err = errors.Join(err, p.spring())
		}
		return err
	}
}

// refusedPeers are more than are closed at once of one user's.
const refusedPeers = 20

// TestRefusedPeerThatHangs: who is not admitted holds up nobody, whatever it has sent
// before it was accepted.
//
//fault:rows 72
func TestRefusedPeerThatHangs(t *testing.T) {
	onBothKernels(t, func(t *testing.T, sealed bool) {
		requireNoLeak(t)
		l := listenAt(t, filepath.Join(safeDir(t), "s"), WithMode(0o666), WithMaxFDs(0))
		cmd := childCommand(t, "dial-hanging", l.Path(), fmt.Sprint(sealed))
		asUser(t, cmd, 12345, 12345)
		stdin, stdout := started(t, cmd)
		requireSays(t, stdout, "sent")

		closesWait(t, time.Hour)
		quickly(t, func() {
			for range refusedPeers {
				require.ErrorIs(t, errOf(l.Accept(soon(t))), ErrNotAdmitted)
			}
		})
		requireServes(t, l)
		requireSays(t, stdout, "told")
		require.Eventually(t, func() bool { return l.closing.count() == 0 }, 10*time.Second, time.Millisecond, "another process has the traps")
		require.NoError(t, stdin.Close())
		require.NoError(t, cmd.Wait())
		require.Eventually(t, func() bool { return l.closing.count() == 0 }, 10*time.Second, time.Millisecond)
	})
}

// requireSays reads one line.
func requireSays(t *testing.T, r io.Reader, want string) {
	t.Helper()
	said := make([]byte, len(want)+1)
	require.NoError(t, errOf(io.ReadFull(r, said)))
	require.Equal(t, want+"\n", string(said))
}

// underWay is how many closes are.
func (c *closer) underWay() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.busy[sender{allOf, allOf}]
}

func (c *crowd) count() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.n
}

// TestAcceptWaitsForTheCrowd: connections that hang are bounded, and the wait for room
// ends.
//
//fault:rows 72
func TestAcceptWaitsForTheCrowd(t *testing.T) {
	requireNoLeak(t)
	l := listenAt(t, filepath.Join(safeDir(t), "s"))
	dialled(t, l.Path())
	l.closing.most = 5
	for range l.closing.most {
		l.closing.join()
	}
	_, err := l.Accept(briefly(t))
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.ErrorContains(t, err, "5 connections take long to close")

	accepted := make(chan error)
	accept := func() {
		c, err := l.Accept(context.Background())
		accepted <- errors.Join(err, c.Close())
	}
	go accept()
	l.closing.leave()
	require.NoError(t, <-accepted)
	require.Eventually(t, func() bool { return l.closing.count() == l.closing.most-1 }, 10*time.Second, time.Millisecond)

	l.closing.join()
	go accept()
	require.NoError(t, l.Close())
	require.ErrorIs(t, <-accepted, ErrClosed)
}

// TestRefuseFiles: from then on no descriptors come, and those that had been sent
// before are no danger.
func TestRefuseFiles(t *testing.T) {
	onBothKernels(t, func(t *testing.T, sealed bool) {
		requireNoLeak(t)
		a, b := pair(t)
		require.NoError(t, b.RefuseFiles())
		requireWorks(t, a, b)
		if sealed {
			requireRefused(t, a)
		} else {
			require.NoError(t, a.Send(soon(t), []byte("x"), tempFile(t, "x")))
			require.ErrorIs(t, errOf(b.Receive(soon(t))), ErrTooManyFDs)
		}
		requireWorks(t, b, a)

		a, b = pair(t)
		spring := sendTrap(t, a, []byte("x"), 1)
		require.NoError(t, b.RefuseFiles())
		quickly(t, func() {
			require.ErrorIs(t, errOf(b.Receive(soon(t))), ErrTooManyFDs)
		})
		requireHangs(t, b.Drop(), spring)
	})
}
