package channel

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/cutest"
	"github.com/gpufd/gpufd/internal/testenv"
	"github.com/gpufd/gpufd/share"
)

// soon is a deadline for what should happen at once.
func soon(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// listen is a server at a socket of the test's own.
func listen(t testing.TB) *share.Server {
	t.Helper()
	srv := ok(share.Listen(filepath.Join(t.TempDir(), "s"), nil))(t)
	t.Cleanup(func() { require.NoError(t, srv.Close()) })
	return srv
}

// listening is a context of the first device, and a server.
func listening(t testing.TB) (*cu.Context, *share.Server) {
	t.Helper()
	return cutest.Context(t, cutest.Device(t)), listen(t)
}

// newWriter is a writer, closed when t ends.
func newWriter(t testing.TB, ctx *cu.Context, srv *share.Server, slots int, size uint64, opts ...WriterOption) *Writer {
	t.Helper()
	w := ok(NewWriter(soon(t), ctx, srv, "frames", slots, size, opts...))(t)
	t.Cleanup(func() { require.NoError(t, w.Close()) })
	return w
}

// newReader is a reader, closed when t ends.
func newReader(t testing.TB, ctx *cu.Context, srv *share.Server, opts ...ReaderOption) *Reader {
	t.Helper()
	r := ok(Open(soon(t), srv.Path(), "frames", ctx, opts...))(t)
	t.Cleanup(func() { require.NoError(t, r.Close()) })
	return r
}

// newChannel is a writer at a server of its own, on the first device.
func newChannel(t testing.TB, slots int, size uint64, opts ...WriterOption) (*cu.Context, *share.Server, *Writer) {
	t.Helper()
	ctx, srv := cutest.Context(t, cutest.Device(t)), listen(t)
	return ctx, srv, newWriter(t, ctx, srv, slots, size, opts...)
}

// newPair is a writer and a reader of its frames that blocks.
func newPair(t testing.TB, slots int, size uint64, opts ...WriterOption) (*cu.Context, *Writer, *Reader) {
	t.Helper()
	ctx, srv, w := newChannel(t, slots, size, opts...)
	return ctx, w, newReader(t, ctx, srv)
}

// pattern is what a frame has: each of its words is of that frame alone.
func pattern(b []byte, sequence uint64) {
	for i := 0; i+8 <= len(b); i += 8 {
		binary.LittleEndian.PutUint64(b[i:], (sequence+1)*0x9e3779b97f4a7c15^uint64(i))
	}
}

// checkPattern says whether b is the frame of that sequence.
func checkPattern(b []byte, sequence uint64) error {
	for i := 0; i+8 <= len(b); i += 8 {
		if got, want := binary.LittleEndian.Uint64(b[i:]), (sequence+1)*0x9e3779b97f4a7c15^uint64(i); got != want {
			return fmt.Errorf("frame %d has %#x at %d, want %#x", sequence, got, i, want)
		}
	}
	return nil
}

// pinned is memory of the host that streams copy to. A copy to other memory returns when the stream has
// got there, so not before the frame that it waits for. It is freed when t ends, behind all that
// is made later.
func pinned(t testing.TB, ctx *cu.Context, size uint64) []byte {
	t.Helper()
	mem := ok(ctx.AllocHost(size, 0))(t)
	t.Cleanup(func() { require.NoError(t, mem.Close()) })
	return mem.Bytes()
}

// put writes and publishes a frame from the host.
func put(t testing.TB, ctx *cu.Context, w *Writer) Slot {
	t.Helper()
	s := ok(w.Acquire(soon(t)))(t)
	b := make([]byte, s.Size())
	pattern(b, s.Sequence)
	require.NoError(t, cu.CopyToDevice(ctx, s.Ptr(), b))
	require.NoError(t, w.Publish(s, Meta{}))
	return s
}

// requireFrame takes a frame, which is to be that one, and checks its bytes.
func requireFrame(t testing.TB, ctx *cu.Context, r *Reader, sequence uint64) Frame {
	t.Helper()
	f := ok(r.Next(soon(t)))(t)
	require.Equal(t, sequence, f.Sequence)
	b := make([]byte, f.Size())
	require.NoError(t, cu.CopyToHost(ctx, b, f.Ptr()))
	require.NoError(t, checkPattern(b, sequence))
	return f
}

// doEnv is what a child is to do, as JSON.
const doEnv = testenv.Prefix + "DO"

// childLimit is how long a child waits, which is longer than the longest run: a test kills its
// children when it ends.
const childLimit = 2 * time.Hour

// A task is what a child is told.
type task struct {
	Path     string
	Policy   Policy
	Join     Join
	Slots    int
	Size     uint64
	Frames   uint64
	Streams  bool
	AnyOrder bool          // the writer's frames are published by a stream, and readers release in any order
	Stall    time.Duration // a random pause of up to that, now and then
	Holds    int           // frames that are held at once
	Seed     uint64
	StopAt   uint64 // say so and wait, after so many frames
	Note     uint64 // what a reader notes
	NoDevice bool
	Device   int // that of a reader or a writer
}

func childTask() (do task, ctx *cu.Context) {
	testenv.Must(json.Unmarshal([]byte(os.Getenv(doEnv)), &do))
	dev := testenv.Got(testenv.Got(cutest.Open()).Device(do.Device))
	return do, testenv.Got(dev.PrimaryContext())
}

// A child is a process of the test's own.
type child struct {
	cmd *exec.Cmd
	in  io.Closer
	out *bufio.Scanner
}

func start(t testing.TB, name string, do task) *child {
	t.Helper()
	text := ok(json.Marshal(do))(t)
	cmd := cutest.Child(context.Background(), name, doEnv+"="+string(text))
	cmd.Stderr = os.Stderr
	in := ok(cmd.StdinPipe())(t)
	out := ok(cmd.StdoutPipe())(t)
	require.NoError(t, cmd.Start())
	c := &child{cmd, in, bufio.NewScanner(out)}
	t.Cleanup(c.kill)
	return c
}

// stop is SIGSTOP, and waits until no thread runs any more: one that does can take many frames.
func (c *child) stop(t testing.TB) {
	t.Helper()
	require.NoError(t, c.cmd.Process.Signal(unix.SIGSTOP))
	var status unix.WaitStatus
	require.NoError(t, errOf(unix.Wait4(c.cmd.Process.Pid, &status, unix.WUNTRACED, nil)))
	require.True(t, status.Stopped())
}

// kill is SIGKILL, and waits until the process is gone.
func (c *child) kill() {
	_ = c.cmd.Process.Kill()
	_ = c.cmd.Wait()
}

// says waits for a line of the child's.
func (c *child) says(t testing.TB) string {
	t.Helper()
	require.True(t, c.out.Scan(), "the child has ended")
	return c.out.Text()
}

// end waits for the child's end, in order.
func (c *child) end(t testing.TB) {
	t.Helper()
	require.NoError(t, c.cmd.Wait())
}

// childReader takes frames until the writer ends, checks each, and prints what it saw.
func childReader() error {
	do, ctx := childTask()
	wait, cancel := context.WithTimeout(context.Background(), childLimit)
	defer cancel()
	r := testenv.Got(Open(wait, do.Path, "frames", ctx, WithPolicy(do.Policy), WithJoin(do.Join)))
	testenv.Must(r.Note(do.Note))
	fmt.Println("joined", r.First())
	if do.Policy == Latest {
		do.Holds = 0
	}
	ages, err := readAll(wait, ctx, r, do)
	if !errors.Is(err, ErrEnded) {
		return err
	}
	s := r.Stats()
	fmt.Println("received", s.Received, "lost", s.Lost, "passed", s.Passed)
	if n := len(ages); do.Policy == Latest && n > 0 {
		slices.Sort(ages)
		fmt.Println("age of", n, "frames at Next: median", ages[n/2], "99th", ages[n*99/100], "most", ages[n-1])
	}
	return errors.Join(r.Close(), ctx.Close())
}

// readAll takes and checks frames until there are no more. It returns how old they were when Next gave them.
func readAll(wait context.Context, ctx *cu.Context, r *Reader, do task) (ages []time.Duration, err error) {
	rng := newRandom(do.Seed)
	b := make([]byte, r.SlotSize())
	check := func(f Frame) error {
		if err := cu.CopyToHost(ctx, b, f.Ptr()); err != nil {
			return err
		}
		if err := checkPattern(b, f.Sequence); err != nil && r.Whole(f) == nil {
			return err
		}
		return nil
	}
	var held []Frame
	for {
		f, err := r.Next(wait)
		if err != nil {
			return ages, err
		}
		ages = append(ages, time.Duration(Now()-f.Time))
		if err := check(f); err != nil {
			return ages, err
		}
		if do.StopAt == f.Sequence {
			fmt.Println("has", f.Sequence)
			_, _ = io.Copy(io.Discard, os.Stdin)
		}
		if do.Stall > 0 && rng.IntN(100) == 0 {
			time.Sleep(time.Duration(rng.Int64N(int64(do.Stall))))
		}
		if do.Policy == Latest { // the writer has gone on meanwhile
			if err := check(f); err != nil {
				return ages, err
			}
		}
		if held = append(held, f); len(held) > do.Holds {
			i := 0
			if do.AnyOrder { // the writer has gone on meanwhile
				i = rng.IntN(len(held))
				if err := check(held[i]); err != nil {
					return ages, err
				}
			}
			if err := r.Release(held[i]); err != nil && !errors.Is(err, ErrPassed) {
				return ages, err
			}
			held = slices.Delete(held, i, i+1)
		}
	}
}

// childWriter publishes frames, and stops where it is told.
func childWriter() error {
	do, ctx := childTask()
	srv := testenv.Got(share.Listen(do.Path, nil))
	var opts []WriterOption
	if do.Streams {
		opts = append(opts, WithStreams())
	}
	if do.AnyOrder {
		opts = append(opts, WithAnyOrder())
	}
	w := testenv.Got(NewWriter(context.Background(), ctx, srv, "frames", do.Slots, do.Size, opts...))
	fmt.Println("listening")
	wait, cancel := context.WithTimeout(context.Background(), childLimit)
	defer cancel()
	testenv.Must(w.AwaitReaders(wait, 1))
	if do.AnyOrder {
		testenv.Must(writeAhead(wait, ctx, w, do.StopAt))
	}
	b := make([]byte, do.Size)
	for n := uint64(1); n <= do.Frames; n++ {
		s := testenv.Got(w.Acquire(wait))
		pattern(b, n)
		if n == do.StopAt { // half a frame
			testenv.Must(cu.CopyToDevice(ctx, s.Ptr(), b[:len(b)/2]))
			fmt.Println("within", n)
			_, _ = io.Copy(io.Discard, os.Stdin)
		}
		testenv.Must(cu.CopyToDevice(ctx, s.Ptr(), b))
		testenv.Must(w.Publish(s, Meta{}))
	}
	return errors.Join(w.Close(), srv.Close(), ctx.Close())
}

// writeAhead publishes frames before that one by a stream, which is then to write that one, half of it, and waits for ever.
func writeAhead(wait context.Context, ctx *cu.Context, w *Writer, last uint64) error {
	s, err := ctx.NewStream()
	mem, nerr := ctx.AllocHost(w.SlotSize(), 0)
	if err := errors.Join(err, nerr); err != nil {
		return err
	}
	for n := uint64(1); n <= last; n++ {
		slot, err := w.Acquire(wait)
		if err != nil {
			return err
		}
		b := mem.Bytes()
		if n == last {
			b = b[:len(b)/2]
		}
		pattern(b, n)
		err = cu.CopyToDeviceAsync(s, slot.Ptr(), b)
		if n == last {
			err = errors.Join(err, s.BatchMemOps(cu.WaitOp64(mem.Ptr(), 1<<62, cu.WaitEQ)))
		}
		if err := errors.Join(err, w.PublishOn(s, slot, Meta{})); err != nil {
			return err
		}
		if n < last {
			if err := s.Synchronize(wait); err != nil {
				return err
			}
		}
	}
	fmt.Println("within", last)
	_, _ = io.Copy(io.Discard, os.Stdin)
	return nil
}

// soonFor is soon for what takes so long.
func soonFor(t testing.TB, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), d)
	t.Cleanup(cancel)
	return ctx
}
