package sock

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gpufd/gpufd/internal/testenv"
)

func init() {
	// accepts with no descriptor left
	children["out-of-fds-accepting"] = func(args []string) error {
		l := testenv.Got(Listen(args[0]))
		client := testenv.Got(Dial(context.Background(), args[0]))
		defer client.Close()
		defer setFDLimit(1000) // so that leaks can be looked for
		testenv.Must(limitFDs(0))
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		before := cpuTime()
		_, err := l.Accept(ctx)
		if !isWith(err, context.DeadlineExceeded, "ulimit -n") || !errors.Is(err, unix.EMFILE) {
			return fmt.Errorf("accept without descriptors: %w", err)
		}
		if used := cpuTime() - before; used > 400*time.Millisecond {
			return fmt.Errorf("it spun: %v of CPU in a second", used)
		}
		err = endInPause(l.s, func(ctx context.Context) error { _, err := l.accept(ctx); return err })
		if !isWith(err, context.Canceled, "ulimit -n") || !errors.Is(err, unix.EMFILE) {
			return fmt.Errorf("accept whose context ended as a pause did: %w", err)
		}
		// Close ends the pause, too, and a descriptor that comes free ends
		// the trouble.
		accepted := make(chan error)
		go func() {
			c, err := l.Accept(context.Background())
			if err == nil {
				err = errors.Join(c.Send(context.Background(), []byte("welcome")), c.Close())
			}
			accepted <- err
		}()
		testenv.Must(setFDLimit(1000))
		testenv.Must(<-accepted)
		if _, err := client.Receive(context.Background()); err != nil {
			return err
		}
		waiting := testenv.Got(Dial(context.Background(), args[0]))
		defer waiting.Close()
		testenv.Must(limitFDs(0))
		go func() {
			_, err := l.Accept(context.Background())
			accepted <- err
		}()
		testenv.Must(l.Close())
		if err := <-accepted; !errors.Is(err, ErrClosed) {
			return fmt.Errorf("accept while closing: %w", err)
		}
		return nil
	}
}

// A lateEnd is a context whose end the first select upon it does not see.
type lateEnd struct {
	context.Context
	end func()
}

func (c lateEnd) Done() <-chan struct{} {
	c.end()
	return nil
}

// endInPause calls f with a context that ends in f's first pause, as its timer
// wins: s lets f not try again.
func endInPause(s *socket, f func(ctx context.Context) error) error {
	ctx, cancel := context.WithCancel(context.Background())
	err := f(lateEnd{ctx, func() {
		cancel()
		_ = s.file.SetDeadline(past)
	}})
	return errors.Join(err, s.file.SetDeadline(time.Time{}))
}

func cpuTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func TestFault57_OutOfFDsAccepting(t *testing.T) {
	dir := safeDir(t)
	runChild(t, "out-of-fds-accepting", filepath.Join(dir, "s"))
	requireEmptyDir(t, dir)
}

func init() {
	children["too-many-in-flight"] = func([]string) error {
		a, b := childPair()
		defer a.Close()
		defer b.Close()
		testenv.Must(setFDLimit(40))
		ten := slices.Repeat([]*os.File{os.Stderr}, 10)
		sent := 0
		for err := error(nil); err == nil && sent < 20; sent++ {
			err = a.TrySend([]byte("ten"), ten...)
		}
		ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
		defer cancel()
		err := a.Send(ctx, []byte("ten"), ten...)
		if !isWith(err, ErrTooManyInFlight, "ulimit -n") || !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, unix.ETOOMANYREFS) {
			return fmt.Errorf("%d records of 10: %w", sent, err)
		}
		err = endInPause(a.s, func(ctx context.Context) error { return a.send(ctx, []byte("ten"), ten) })
		if !isWith(err, ErrTooManyInFlight, "ulimit -n") || !errors.Is(err, context.Canceled) || !errors.Is(err, unix.ETOOMANYREFS) {
			return fmt.Errorf("one more, whose context ended as a pause did: %w", err)
		}
		if err := a.TrySend([]byte("ten"), ten...); !errors.Is(err, ErrWouldWait) || !errors.Is(err, unix.ETOOMANYREFS) {
			return fmt.Errorf("one more at once: %w", err)
		}
		// A sender that waits goes on once somebody reads.
		waiting := make(chan error)
		go func() { waiting <- a.Send(context.Background(), []byte("ten"), ten...) }()
		for range sent { // the refused one was not sent, the waiting one is
			rec, err := b.Receive(context.Background())
			if err != nil || len(rec.Files) != 10 {
				return fmt.Errorf("%d files, %w", len(rec.Files), err)
			}
			testenv.Must(rec.Close())
		}
		return <-waiting
	}
}

func TestFault58_TooManyInFlight(t *testing.T) {
	cmd := childCommand(t, "too-many-in-flight")
	if os.Geteuid() == 0 { // who has CAP_SYS_RESOURCE has no such limit
		own := uint32(10000 + os.Getpid()%50000) // the count is the user's, and other tests run beside these
		asUser(t, cmd, own, own)
	}
	requireRuns(t, cmd)
}

// TestFault59_ThousandClients: with room for four in the queue, all get through.
func TestFault59_ThousandClients(t *testing.T) {
	requireNoLeak(t)
	const clients = 1000
	l := listenAt(t, filepath.Join(safeDir(t), "s"), withBacklog(4))
	var all sync.WaitGroup
	for i := range clients {
		all.Go(func() {
			c, err := Dial(soon(t), l.Path())
			if err != nil {
				t.Errorf("client %d: %v", i, err)
				return
			}
			defer c.Close()
			if _, err := c.Receive(soon(t)); err != nil {
				t.Errorf("client %d: %v", i, err)
			}
		})
	}
	for range clients {
		c := accepted(t, l)
		require.NoError(t, c.Send(soon(t), []byte("welcome")))
		require.NoError(t, c.Close())
	}
	all.Wait()
}

// TestFault60_PeerNeverReads: the sender gets its deadline, what was sent stays
// whole, and once the peer reads all is well.
func TestFault60_PeerNeverReads(t *testing.T) {
	requireNoLeak(t)
	a, b := pair(t)
	n := fill(t, a)
	require.ErrorIs(t, a.Send(briefly(t), []byte("one more")), context.DeadlineExceeded)
	requireWorks(t, b, a) // the other direction has room
	for i := range n {
		rec := received(t, b)
		require.True(t, strings.HasPrefix(string(rec.Data), fmt.Sprintf("record %d ", i)))
	}
	requireWorks(t, a, b)
}

// TestFault63_SameFileManyGoroutines: 64 goroutines send one file and close what
// they receive.
func TestFault63_SameFileManyGoroutines(t *testing.T) {
	requireNoLeak(t)
	f := tempFile(t, "shared")
	shared, peer := pair(t)
	var all sync.WaitGroup
	for range 64 {
		all.Go(func() {
			for range 10 {
				if err := shared.Send(soon(t), []byte("x"), f, f); err != nil {
					t.Errorf("send: %v", err)
				}
				rec, err := peer.Receive(soon(t))
				if err != nil || len(rec.Files) != 2 {
					t.Errorf("receive: %d files, %v", len(rec.Files), err)
				}
				var closers sync.WaitGroup
				for range 2 {
					closers.Go(func() { _ = CloseFiles(slices.Clone(rec.Files)) })
				}
				closers.Wait()
			}
		})
	}
	all.Wait()
	require.Equal(t, "shared", contentOf(t, f))
}

// TestManySendersOneReceiver: records of eight goroutines do not mix, each
// goroutine's stay in order, and the other direction goes on meanwhile.
func TestManySendersOneReceiver(t *testing.T) {
	requireNoLeak(t)
	const senders, records = 8, 200
	a, b := pair(t)
	var all sync.WaitGroup
	for s := range senders {
		f := tempFile(t, fmt.Sprint("file of ", s))
		all.Go(func() {
			for i := range records {
				record := bytes.Repeat([]byte{byte(s), byte(i)}, 1+(s*records+i)*37%8000)
				if err := a.Send(soon(t), record, f); err != nil {
					t.Errorf("send: %v", err)
				}
			}
		})
	}
	all.Go(func() { // the other direction
		for range records {
			if err := b.Send(soon(t), []byte("back")); err != nil {
				t.Errorf("send back: %v", err)
			}
			if _, err := a.Receive(soon(t)); err != nil {
				t.Errorf("receive back: %v", err)
			}
		}
	})
	next := make([]int, senders)
	for range senders * records {
		rec := received(t, b)
		s := int(rec.Data[0])
		want := bytes.Repeat([]byte{byte(s), byte(next[s])}, 1+(s*records+next[s])*37%8000)
		require.True(t, bytes.Equal(want, rec.Data), "record %d of %d", next[s], s)
		require.Equal(t, fmt.Sprint("file of ", s), contentOf(t, rec.Files[0]))
		require.NoError(t, rec.Close())
		next[s]++
	}
	all.Wait()
}
