package vmm_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/cutest"
	"github.com/gpufd/gpufd/cu/sys"
	"github.com/gpufd/gpufd/vmm"
)

// A shortage is a device with room for so many handles of cuMemCreate.
type shortage struct {
	*books
	mu      sync.Mutex
	room    int
	refused int                          // calls of cuMemCreate
	tell    func(refused int) (room int) // of each
	made    func(n int)                  // told of the nth handle
}

// short opens the driver with room for so many handles.
func short(t *testing.T, room int) (*shortage, *cu.Device) {
	t.Helper()
	s := &shortage{books: newBooks(t), room: room, tell: func(int) int { return room }, made: func(int) {}}
	dev := cutest.Device(t, cu.WithHook(s.hook))
	leavesNothing(t, s.books, dev)
	return s, dev
}

func (s *shortage) hook(call sys.Call, next func() sys.CUresult) sys.CUresult {
	if call.Symbol() != "cuMemCreate" {
		return s.books.hook(call, next)
	}
	r, n := s.create(call, next)
	if r == sys.CUDA_SUCCESS {
		s.made(n)
	}
	return r
}

func (s *shortage) create(call sys.Call, next func() sys.CUresult) (r sys.CUresult, n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.count("cuMemCreate")-s.count("cuMemRelease") >= s.room {
		s.refused++
		s.room = s.tell(s.refused)
		return sys.CUDA_ERROR_OUT_OF_MEMORY, 0
	}
	r = s.books.hook(call, next)
	return r, s.count("cuMemCreate")
}

// soon is a deadline for what should happen at once.
func soon(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// FAULTS 61: memory that comes free is taken.
func TestWaitEndsWhenThereIsMemory(t *testing.T) {
	for room, times := range map[int]int{0: 1, 1: 1, 2: 5} {
		s, dev := short(t, room)
		g := granularity(t, dev)
		s.tell = func(refused int) int {
			require.Equal(t, room*(refused-1), s.count("cuMemRelease"), "each attempt begins with nothing")
			if refused == times {
				return 3
			}
			return room
		}
		buf := ok(vmm.NewWait(soon(t), dev, 3*g, vmm.WithChunkSize(g)))(t)
		require.Equal(t, times, s.refused)
		require.NoError(t, buf.Close())
	}
}

// Invariant 4: a wait that is given up says all there is to say, and leaves
// nothing; also a reservation that was given is gone.
func TestWaitIsGivenUp(t *testing.T) {
	why := errors.New("why")
	for name, c := range map[string]struct {
		ctx  func() (context.Context, context.CancelFunc)
		want []error
	}{
		"deadline": {
			func() (context.Context, context.CancelFunc) {
				return context.WithTimeout(t.Context(), 300*time.Millisecond)
			},
			[]error{context.DeadlineExceeded},
		},
		"deadline with a cause": {
			func() (context.Context, context.CancelFunc) {
				return context.WithTimeoutCause(t.Context(), 300*time.Millisecond, why)
			},
			[]error{context.DeadlineExceeded, why},
		},
		"cancelled": {
			func() (context.Context, context.CancelFunc) {
				ctx, cancel := context.WithCancelCause(t.Context())
				late := time.AfterFunc(300*time.Millisecond, func() { cancel(why) })
				return ctx, func() { late.Stop() }
			},
			[]error{context.Canceled, why},
		},
	} {
		t.Run(name, func(t *testing.T) {
			s, dev := short(t, 2)
			g := granularity(t, dev)
			r := ok(vmm.Reserve(dev.Driver(), 3*g))(t)
			ctx, cancel := c.ctx() // which must not have ended before the wait begins
			defer cancel()
			buf, err := vmm.NewWait(ctx, dev, 3*g, vmm.WithChunkSize(g), vmm.WithReservation(r))
			require.Nil(t, buf)
			for _, want := range append(c.want, cu.ErrOutOfMemory) {
				require.ErrorIs(t, err, want)
			}
			require.True(t, vmm.WouldWait(err))
			require.Regexp(t, fmt.Sprintf(`^vmm: %d bytes on device 0: .* did not become free in [\d.]+m?s, \d+ of \d+ bytes free: .*cuMemCreate`, 3*g), err.Error())
			require.NoError(t, r.Close())
			require.Equal(t, owesNothing, s.owed())
		})
	}
}

// A wait that is cancelled while it sleeps ends then.
func TestWaitIsCancelledWhileItSleeps(t *testing.T) {
	s, dev := short(t, 0)
	ctx, cancel := context.WithCancel(t.Context())
	s.tell = func(refused int) int {
		if refused == 2 {
			cancel()
		}
		return 0
	}
	require.ErrorIs(t, errOf(vmm.NewWait(ctx, dev, 1)), context.Canceled)
	require.Equal(t, 2, s.refused)
}

// An error that waiting cannot mend is not waited for.
func TestWaitIsForMemoryAlone(t *testing.T) {
	b, dev, ctx, g := tidy(t)
	for _, symbol := range []string{"cuMemAddressReserve", "cuMemMap", "cuMemSetAccess"} {
		b.FailNth(symbol, 1, cu.ErrOutOfMemory)
		_, err := vmm.NewWait(soon(t), dev, g)
		require.ErrorIs(t, err, cu.ErrOutOfMemory)
		require.NotContains(t, err.Error(), "waited")
		require.False(t, vmm.WouldWait(err))
	}
	_, total, err := ctx.MemInfo()
	require.NoError(t, err)
	began := time.Now()
	_, err = vmm.NewWait(soon(t), dev, total+g)
	require.ErrorIs(t, err, cu.ErrOutOfMemory)
	require.NotErrorIs(t, err, context.DeadlineExceeded, "after %s", time.Since(began))
	require.ErrorIs(t, errOf(vmm.NewWait(soon(t), dev, 0)), vmm.ErrSize)
}

// Two that wait for the same memory do not keep half of it each.
func TestTwoThatWaitGetTheirTurns(t *testing.T) {
	s, dev := short(t, 2)
	g := granularity(t, dev)
	other := make(chan struct{})
	s.made = func(n int) {
		switch n {
		case 1:
			<-other
		case 2:
			close(other) // each has its half now
		}
	}
	made := make(chan *vmm.Buffer)
	for range 2 {
		go func() {
			buf, err := vmm.NewWait(soon(t), dev, 2*g, vmm.WithChunkSize(g))
			if err != nil {
				t.Error(err)
			}
			made <- buf
		}()
	}
	for range 2 {
		require.NoError(t, (<-made).Close())
	}
	require.Positive(t, s.refused)
}

// TestFault61_WaitsForAKilledProcess: one process has the memory, another waits
// for it. When the first is killed, the other gets it.
func TestFault61_WaitsForAKilledProcess(t *testing.T) {
	tidy(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	const small = "GPUFD_SOFT_MEMORY=64MiB"
	holder := cutest.Child(ctx, "hoards", small)
	held := startChild(t, holder)
	require.Equal(t, "holding", line(t, held))
	waiter := cutest.Child(ctx, "waits for memory", small, doEnv+"="+line(t, held))
	waits := startChild(t, waiter)
	require.Equal(t, "waiting", line(t, waits))
	require.NoError(t, holder.Process.Kill())
	require.Error(t, holder.Wait())
	require.Equal(t, "got it", line(t, waits))
	require.NoError(t, waiter.Wait())
}

// startChild starts cmd and returns what it prints.
func startChild(t *testing.T, cmd *exec.Cmd) *bufio.Scanner {
	t.Helper()
	out := ok(cmd.StdoutPipe())(t)
	cmd.Stderr = os.Stderr
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // mostly it has ended
		_ = cmd.Wait()
	})
	return bufio.NewScanner(out)
}

func line(t *testing.T, s *bufio.Scanner) string {
	t.Helper()
	require.True(t, s.Scan(), "the child has ended")
	return s.Text()
}

// childHoards takes three quarters of what is free and says how much was.
func childHoards() error {
	dev, free, err := childFree()
	if err != nil {
		return err
	}
	g := get(vmm.Granularity(dev))
	buf := get(vmm.New(dev, free/4*3/g*g))
	fmt.Println("holding")
	fmt.Println(free)
	for { // until it is killed
		time.Sleep(time.Hour)
		runtime.KeepAlive(buf)
	}
}

// childWaits wants half of what was free, in chunks, of which some are there.
func childWaits() error {
	var free uint64
	if _, err := fmt.Sscan(os.Getenv(doEnv), &free); err != nil {
		return err
	}
	var refused int
	drv, err := cutest.Open(cu.WithHook(func(call sys.Call, next func() sys.CUresult) sys.CUresult {
		r := next()
		if call.Symbol() == "cuMemCreate" && r == sys.CUDA_ERROR_OUT_OF_MEMORY {
			if refused++; refused == 3 {
				fmt.Println("waiting")
			}
		}
		return r
	}))
	if err != nil {
		return err
	}
	dev := get(drv.Device(0))
	chunk := vmm.WithChunkSize(free / 8)
	if _, err := vmm.New(dev, free/2, chunk); !errors.Is(err, cu.ErrOutOfMemory) {
		return fmt.Errorf("there was memory: %v", err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	buf := get(vmm.NewWait(ctx, dev, free/2, chunk))
	fmt.Println("got it")
	return buf.Close()
}

func childFree() (*cu.Device, uint64, error) {
	dev := get(get(cutest.Open()).Device(0))
	ctx := get(dev.PrimaryContext())
	free, _, err := ctx.MemInfo()
	return dev, free, err
}
