package cu_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/cutest"
)

// The second ABI of the stream's memory operations, of CUDA 11.7.
var memOps2 = []string{
	"cuStreamWaitValue32_v2", "cuStreamWaitValue64_v2", "cuStreamWriteValue32_v2", "cuStreamWriteValue64_v2", "cuStreamBatchMemOp_v2",
}

const (
	top32 = 1 << 31
	top64 = 1 << 63
)

// Conditions at their borders: a wait for value is over with the one word and
// not with the other.
var conditions = []struct {
	flags             cu.WaitFlags
	value, over, busy uint64
	wide              bool
}{
	{cu.WaitGEQ, 5, 5, 4, false},
	{cu.WaitGEQ, 5, 6, 0, false},
	{cu.WaitGEQ, 5, 5 + top32 - 1, 5 + top32, false}, // a counter that wraps
	{cu.WaitGEQ, 1<<32 - 1, 0, 1<<32 - 2, false},
	{cu.WaitGEQ, 0, 0, 1<<32 - 1, false},
	{cu.WaitEQ, 5, 5, 6, false},
	{cu.WaitEQ, 1<<32 - 1, 1<<32 - 1, 1<<31 - 1, false},
	{cu.WaitAND, 6, 4, 9, false},
	{cu.WaitAND, top32, top32 | 1, top32 - 1, false},
	{cu.WaitGEQ, 1 << 32, 1<<32 + 1, 1<<32 - 1, true},
	{cu.WaitGEQ, 5, 5 + top64 - 1, 5 + top64, true},
	{cu.WaitGEQ, 1<<64 - 1, 0, 1<<64 - 2, true},
	{cu.WaitEQ, 1<<32 + 5, 1<<32 + 5, 5, true},
	{cu.WaitAND, 1 << 32, 3 << 32, 1<<32 - 1, true},
	{cu.WaitNOR, 1, 1<<32 - 3, 1<<32 - 2, false},
	{cu.WaitNOR, 0, 1<<32 - 2, 1<<32 - 1, false},
	{cu.WaitNOR, 1<<32 - 1, 1<<64 - 1<<33, 1<<64 - 1<<32, true},
}

func TestWaitConditions(t *testing.T) {
	dev := cutest.Device(t)
	nor := ok(dev.SupportsWaitNOR())(t)
	ctx := cutest.Context(t, dev)
	p, s, writer := newWords(t, ctx, 1), newStream(t, ctx), newStream(t, ctx)
	write := func(v uint64) {
		t.Helper()
		require.NoError(t, writer.WriteValue64(p, v, cu.WriteDefault))
		require.NoError(t, writer.Synchronize(soon(t)))
	}
	for _, c := range conditions {
		if c.flags == cu.WaitNOR && !nor {
			require.ErrorIs(t, s.WaitValue32(p, 1, c.flags), cu.ErrNotSupported)
			continue
		}
		beside := uint64(0x5a5a5a5a) << 32 // the four bytes after the word do not matter
		waits := []func() error{
			func() error { return s.WaitValue32(p, uint32(c.value), c.flags) },
			func() error { return s.BatchMemOps(cu.WaitOp32(p, uint32(c.value), c.flags)) },
		}
		if c.wide {
			beside = 0
			waits = []func() error{
				func() error { return s.WaitValue64(p, c.value, c.flags) },
				func() error { return s.BatchMemOps(cu.WaitOp64(p, c.value, c.flags)) },
			}
		}
		for _, wait := range waits {
			write(c.over | beside)
			require.NoError(t, wait())
			require.NoError(t, s.Synchronize(soon(t)), "%+v", c)
			write(c.busy | beside)
			require.NoError(t, wait())
			staysBusy(t, s)
			write(c.over | beside)
			require.NoError(t, s.Synchronize(soon(t)), "%+v", c)
		}
	}
}

// A wait ends whoever writes the word: a copy, a set, the host.
func TestWaitSeesEveryWrite(t *testing.T) {
	ctx := cutest.Context(t, cutest.Device(t))
	p, s, other := newWords(t, ctx, 1), newStream(t, ctx), newStream(t, ctx)
	for i, write := range []func(v uint32) error{
		func(v uint32) error { return other.WriteValue32(p, v, cu.WriteDefault) },
		func(v uint32) error { return other.WriteValue64(p, uint64(v), cu.WriteDefault) },
		func(v uint32) error { return cu.FillAsync(other, p, v, 1) },
		func(v uint32) error {
			return errors.Join(cu.CopyToDeviceAsync(other, p, []uint32{v}), other.Synchronize(t.Context()))
		},
	} {
		v := uint32(i + 1)
		require.NoError(t, s.WaitValue32(p, v, cu.WaitEQ))
		require.False(t, isDone(t, s))
		require.NoError(t, write(v))
		require.NoError(t, s.Synchronize(soon(t)))
	}
}

// A write of four bytes leaves the four after it alone.
func TestWriteValues(t *testing.T) {
	ctx := cutest.Context(t, cutest.Device(t))
	p, s := newWords(t, ctx, 2), newStream(t, ctx)
	for name, write := range map[string]func() error{
		"one by one": func() error {
			return errors.Join(s.WriteValue64(p.Add(8), 0x05060708090a0b0c, cu.WriteDefault), s.WriteValue32(p, 0x01020304, cu.WriteDefault))
		},
		"in a batch": func() error {
			return s.BatchMemOps(cu.WriteOp64(p.Add(8), 0x05060708090a0b0c, cu.WriteDefault), cu.WriteOp32(p, 0x01020304, cu.WriteDefault))
		},
	} {
		require.NoError(t, cu.FillAsync(s, p, uint32(0xffffffff), 4))
		require.NoError(t, write())
		got := make([]uint32, 4)
		require.NoError(t, errors.Join(cu.CopyToHostAsync(s, got, p), s.Synchronize(t.Context())))
		require.Equal(t, []uint32{0x01020304, 0xffffffff, 0x090a0b0c, 0x05060708}, got, name)
	}
}

func TestBatchOfMemOps(t *testing.T) {
	ctx := cutest.Context(t, cutest.Device(t))
	p, a, b := newWords(t, ctx, 8), newStream(t, ctx), newStream(t, ctx)
	at := func(i int) cu.DevicePtr { return p.Add(uint64(8 * i)) }
	batch := []cu.MemOp{
		cu.WriteOp32(at(0), 1, cu.WriteDefault),
		cu.WaitOp32(at(1), 1, cu.WaitEQ),
		cu.WriteOp64(at(2), 1<<40, cu.WriteDefault),
		cu.WaitOp64(at(3), 1<<40, cu.WaitGEQ),
		cu.WriteOp32(at(4), 1, cu.WriteDefault),
	}
	for range 3 {
		require.NoError(t, errors.Join(cu.CopyToDeviceAsync(a, p, make([]uint64, 8)), a.Synchronize(t.Context())))
		require.NoError(t, a.BatchMemOps(batch...))
		require.NoError(t, b.WaitValue32(at(0), 1, cu.WaitEQ))
		require.NoError(t, b.Synchronize(soon(t)))
		got := make([]uint64, 8)
		require.NoError(t, errors.Join(cu.CopyToHostAsync(b, got, p), b.Synchronize(t.Context())))
		require.Equal(t, []uint64{1, 0, 0, 0, 0, 0, 0, 0}, got)
		require.NoError(t, b.BatchMemOps(
			cu.WriteOp32(at(1), 1, cu.WriteDefault),
			cu.WaitOp64(at(2), 1<<40, cu.WaitEQ),
			cu.WriteOp64(at(3), 1<<40+1, cu.WriteDefault),
			cu.WaitOp32(at(4), 1, cu.WaitAND),
		))
		require.NoError(t, b.Synchronize(soon(t)))
		require.NoError(t, a.Synchronize(soon(t)))
	}
}

func TestBarrierInABatch(t *testing.T) {
	if !cutest.Driver(t).Caller().Library().Has("cuStreamBatchMemOp_v2") {
		t.Skip("barriers came with cuStreamBatchMemOp_v2")
	}
	ctx := cutest.Context(t, cutest.Device(t))
	p, s := newWords(t, ctx, 1), newStream(t, ctx)
	for _, scope := range []cu.BarrierScope{cu.BarrierSystem, cu.BarrierDevice} {
		require.NoError(t, s.BatchMemOps(cu.WriteOp32(p, 1, cu.WriteDefault), cu.BarrierOp(scope), cu.WriteOp32(p, 2, cu.WriteDefault)))
	}
	require.NoError(t, s.Synchronize(soon(t)))
}

// Drivers before CUDA 11.7 have the first ABI alone, which the software driver
// lets be used then; an H200's of CUDA 13.0 has it and refuses it.
func TestMemOpsInTheFirstABI(t *testing.T) {
	drv, dev, ctx := driverContext(t, without(t, memOps2...))
	p, a, b := newWords(t, ctx, 1), newStream(t, ctx), newStream(t, ctx)
	supported := ok(dev.SupportsMemOps())(t)
	require.Equal(t, drv.Kind() == cu.Soft && drv.Version() < 11070, supported)
	if !supported {
		err := a.WriteValue32(p, 1, cu.WriteDefault)
		require.ErrorIs(t, err, cu.ErrNotSupported)
		require.ErrorContains(t, err, "cuStreamWriteValue32: ")
		return
	}
	for _, supports := range []func() (bool, error){dev.SupportsMemOps64, dev.SupportsWaitNOR} {
		require.NoError(t, errOf(supports()))
	}
	require.NoError(t, a.WaitValue32(p, 1, cu.WaitGEQ))
	require.NoError(t, a.WaitValue64(p, 2, cu.WaitGEQ))
	require.NoError(t, a.BatchMemOps(cu.WriteOp32(p, 3, cu.WriteDefault)))
	t.Cleanup(func() { require.NoError(t, b.WriteValue64(p, 2, cu.WriteDefault)) })
	require.NoError(t, b.WriteValue32(p, 1, cu.WriteNoMemoryBarrier))
	require.NoError(t, b.WriteValue64(p, 2, cu.WriteDefault))
	require.NoError(t, b.WaitValue32(p, 3, cu.WaitEQ))
	require.NoError(t, b.Synchronize(soon(t)))
	require.NoError(t, a.Synchronize(soon(t)))
	require.ErrorContains(t, a.WaitValue32(0, 0, cu.WaitGEQ), "cuStreamWaitValue32: ")
}

func TestSupportsMemOps(t *testing.T) {
	dev := cutest.Device(t)
	require.True(t, ok(dev.SupportsMemOps())(t))
	require.True(t, ok(dev.SupportsMemOps64())(t))
	flush, err := dev.SupportsWaitFlush()
	require.NoError(t, err)
	ctx := cutest.Context(t, dev)
	p, s := newWords(t, ctx, 1), newStream(t, ctx)
	for _, err := range []error{s.WaitValue32(p, 0, cu.WaitEQ|cu.WaitFlush), s.BatchMemOps(cu.FlushOp())} {
		if flush {
			require.NoError(t, err)
		} else {
			require.ErrorIs(t, err, cu.ErrNotSupported)
		}
	}
	require.NoError(t, s.Synchronize(soon(t)))
}

// sharedWords is memory of the device that can be handed to other processes,
// mapped and read-write there, all 0.
type sharedWords struct {
	drv  *cu.Driver
	mem  *cu.MemHandle
	size uint64
	ptr  cu.DevicePtr
}

func mapWords(dev *cu.Device, mem *cu.MemHandle, a cu.Access) *sharedWords {
	w := &sharedWords{drv: dev.Driver(), mem: mem, size: mem.Size()}
	w.ptr = get(w.drv.ReserveAddress(w.size, 0, 0))
	must(w.drv.Map(w.ptr, w.size, 0, mem))
	must(w.drv.SetAccess(w.ptr, w.size, a, dev))
	return w
}

// close is for when nothing uses the words.
func (w *sharedWords) close() error {
	return errors.Join(w.drv.Unmap(w.ptr, w.size), w.drv.FreeAddress(w.ptr, w.size), w.mem.Close())
}

// childStream is what a child that shares words with its parent begins with.
func childStream() (*cu.Context, *cu.Stream, *sharedWords) {
	dev := get(childDevice())
	g, _, err := dev.Granularity(cu.HandleFD)
	must(err)
	fd := os.NewFile(3, "inherited")
	w := mapWords(dev, get(dev.Driver().ImportMemory(fd, g)), cu.ReadWrite)
	must(fd.Close())
	ctx := get(dev.PrimaryContext())
	return ctx, get(ctx.NewStream()), w
}

// parentWords makes words and a descriptor of them for a child.
func parentWords(t testing.TB) (*cu.Stream, *sharedWords, *os.File) {
	t.Helper()
	dev := cutest.Device(t)
	mem := ok(dev.CreateMemory(granularity(t, dev), cu.HandleFD))(t)
	fd := ok(mem.Export())(t)
	w := mapWords(dev, mem, cu.ReadWrite)
	t.Cleanup(func() { require.NoError(t, errors.Join(fd.Close(), w.close())) })
	ctx := cutest.Context(t, dev)
	require.NoError(t, cu.Fill(ctx, w.ptr, uint8(0), w.size))
	require.NoError(t, ctx.Synchronize(soon(t)))
	return newStream(t, ctx), w, fd
}

const rounds = 50

// D18 of docs/driver-facts.md: two processes take turns by words in the memory that they share.
func TestTwoProcessesTakeTurns(t *testing.T) {
	s, w, fd := parentWords(t)
	child := cutest.Child(soon(t), "takes turns")
	child.ExtraFiles = []*os.File{fd}
	child.Stderr = os.Stderr
	require.NoError(t, child.Start())
	for i := uint64(1); i <= rounds; i++ {
		require.NoError(t, cu.FillAsync(s, w.ptr.Add(64), uint32(i), 4))
		require.NoError(t, s.WriteValue64(w.ptr, i, cu.WriteDefault))
		require.NoError(t, s.WaitValue64(w.ptr.Add(8), i, cu.WaitGEQ))
	}
	err := s.Synchronize(soon(t))
	if err != nil {
		_ = child.Process.Kill()
		require.NoError(t, s.WriteValue64(w.ptr.Add(8), rounds, cu.WriteDefault))
	}
	require.NoError(t, errors.Join(err, child.Wait()))
}

func childTakesTurns() error {
	ctx, s, w := childStream()
	got := make([]uint32, 4)
	for i := uint64(1); i <= rounds; i++ {
		must(s.WaitValue64(w.ptr, i, cu.WaitEQ))
		must(cu.CopyToHostAsync(s, got, w.ptr.Add(64)))
		must(s.Synchronize(context.Background()))
		if got[0] != uint32(i) || got[3] != uint32(i) {
			return fmt.Errorf("round %d: read %v", i, got)
		}
		must(s.WriteValue64(w.ptr.Add(8), i, cu.WriteDefault))
	}
	must(s.Synchronize(context.Background()))
	return errors.Join(s.Close(), ctx.Close(), w.close())
}

// D20b: a stream that waits may be closed at once; its context then waits, until
// another process writes the word.
func TestCloseWithAWaitingStream(t *testing.T) {
	s, w, fd := parentWords(t)
	child := cutest.Child(soon(t), "closes while it waits")
	child.ExtraFiles = []*os.File{fd}
	child.Stderr = os.Stderr
	out := ok(child.StdoutPipe())(t)
	require.NoError(t, child.Start())
	lines := make(chan string)
	go func() {
		for in := bufio.NewScanner(out); in.Scan(); {
			lines <- in.Text()
		}
		close(lines)
	}()
	require.Equal(t, "stream closed", <-lines)
	select {
	case l := <-lines:
		t.Errorf("the context did not wait: %q", l)
	case <-time.After(100 * time.Millisecond): // there is no telling but to wait
	}
	require.NoError(t, s.WriteValue32(w.ptr, 1, cu.WriteDefault))
	require.NoError(t, s.Synchronize(soon(t)))
	require.Equal(t, "context closed", <-lines)
	require.NoError(t, child.Wait())
}

func childClosesWhileItWaits() error {
	ctx, s, w := childStream()
	must(s.WaitValue32(w.ptr, 1, cu.WaitEQ))
	limited, cancel := context.WithTimeout(context.Background(), 5*time.Millisecond)
	defer cancel()
	if err := ctx.Synchronize(limited); !errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("the stream does not wait: %w", err)
	}
	must(s.Close())
	fmt.Println("stream closed")
	must(ctx.Close())
	fmt.Println("context closed")
	return w.close()
}
