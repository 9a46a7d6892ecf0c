package vmm_test

import (
	"context"
	"errors"
	"io"
	"math"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/cutest"
	"github.com/gpufd/gpufd/cu/sys"
	"github.com/gpufd/gpufd/vmm"
)

// fileOf is an open file with what is in b.
func fileOf(t testing.TB, b []byte) *os.File {
	t.Helper()
	f := ok(os.CreateTemp(t.TempDir(), ""))(t)
	t.Cleanup(func() { _ = f.Close() })
	require.NoError(t, errOf(f.Write(b)))
	return f
}

// small makes many pieces of little data.
func small(workers int) vmm.TransferOptions {
	return vmm.TransferOptions{Workers: workers, Slot: 8192}
}

// warmUp has streams and pinned memory made once: a GPU's driver keeps something for
// those, which is nobody's leak.
func warmUp(t *testing.T, dev *cu.Device) {
	t.Helper()
	cutest.Context(t, dev)
	buf := newBuffer(t, dev, 1<<16)
	f := fileOf(t, noise(1<<16, 1))
	require.NoError(t, buf.Load(t.Context(), []vmm.FileRange{{File: f, Size: 1 << 16}}, small(4)))
	require.NoError(t, buf.Close())
}

func TestLoadAndStore(t *testing.T) {
	dev := cutest.Device(t)
	ctx := cutest.Context(t, dev)
	a, b := noise(100_003, 1), noise(40_000, 2)
	fa, fb := fileOf(t, a), fileOf(t, b)
	ranges := []vmm.FileRange{
		{File: fa, At: 0, Offset: 7, Size: 1},
		{File: fb, At: 4095, Offset: 1000, Size: 8194},
		{File: fa, At: 8193, Offset: 50_000, Size: 100_003 - 8193}, // to its end
		{File: fa, At: 100_003, Offset: 3, Size: 0},
		{File: fb, At: 17, Offset: 8, Size: 900},
	}
	for _, o := range []vmm.TransferOptions{small(1), small(3), {}, {Buffered: true}} {
		buf := newBuffer(t, dev, 1<<18)
		before := noise(buf.Size(), 3)
		write(t, ctx, buf.Ptr(), before)
		const total = 1 + 8194 + 100_003 - 8193 + 900
		var last uint64
		o.OnProgress = func(done, all uint64) {
			if done <= last || all != total {
				t.Errorf("%d of %d after %d", done, all, last)
			}
			last = done
		}
		require.NoError(t, buf.Load(t.Context(), ranges, o))
		require.EqualValues(t, total, last)
		want := before
		copy(want[7:], a[:1])
		copy(want[1000:], b[4095:4095+8194])
		copy(want[50_000:], a[8193:])
		copy(want[8:], b[17:917])
		require.True(t, string(want) == string(read(t, ctx, buf.Ptr(), buf.Size())), "%+v", o)

		out := fileOf(t, nil)
		last = 0
		back := []vmm.FileRange{
			{File: out, At: 11, Offset: 7, Size: 1}, {File: out, At: 8194, Offset: 1000, Size: 8194},
			{File: out, At: 20_000, Offset: 50_000, Size: 100_003 - 8193}, {File: out, At: 12, Offset: 8, Size: 900},
		}
		require.NoError(t, buf.Store(t.Context(), back, o))
		stored := make([]byte, 20_000+100_003-8193)
		copy(stored[11:], a[:1])
		copy(stored[8194:], b[4095:4095+8194])
		copy(stored[20_000:], a[8193:])
		copy(stored[12:], b[17:917])
		require.True(t, string(stored) == string(ok(os.ReadFile(out.Name()))(t)), "%+v", o)
	}
}

// Several loads into one buffer go side by side.
func TestLoadsSideBySide(t *testing.T) {
	dev := cutest.Device(t)
	ctx := cutest.Context(t, dev)
	const part = 100_000
	buf := newBuffer(t, dev, 4*part)
	data := noise(4*part, 9)
	f := fileOf(t, data)
	var wg sync.WaitGroup
	for i := range uint64(4) {
		wg.Go(func() {
			s := vmm.FileRange{File: f, At: i * part, Offset: i * part, Size: part}
			if err := buf.Load(t.Context(), []vmm.FileRange{s}, small(2)); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	require.True(t, string(data) == string(read(t, ctx, buf.Ptr(), 4*part)))
}

// A transfer that cannot work is refused before the driver or a file is touched.
func TestTransferRefuses(t *testing.T) {
	b, dev := bookkept(t)
	warmUp(t, dev)
	leavesNothing(t, b, dev)
	buf := ok(vmm.New(dev, 1<<16))(t)
	dir := ok(os.Open(t.TempDir()))(t)
	defer dir.Close()
	pipe, w, err := os.Pipe()
	require.NoError(t, err)
	defer pipe.Close()
	defer w.Close()
	zero := ok(os.Open("/dev/zero"))(t)
	defer zero.Close()
	f, gone := fileOf(t, noise(1000, 1)), fileOf(t, nil)
	require.NoError(t, gone.Close())
	for name, c := range map[string]struct {
		ranges []vmm.FileRange
		load   error
		store  error
		words  string
	}{
		"no file":         {[]vmm.FileRange{{Size: 1}}, os.ErrInvalid, os.ErrInvalid, "of no file"},
		"a closed file":   {[]vmm.FileRange{{File: gone, Size: 1}}, os.ErrClosed, os.ErrClosed, gone.Name()},
		"a directory":     {[]vmm.FileRange{{File: dir, Size: 1}}, vmm.ErrFile, vmm.ErrFile, dir.Name() + " is a directory"},
		"a pipe":          {[]vmm.FileRange{{File: pipe, Size: 1}}, vmm.ErrFile, vmm.ErrFile, "is a pipe"},
		"a device":        {[]vmm.FileRange{{File: zero, Size: 1}}, vmm.ErrFile, vmm.ErrFile, "/dev/zero is a device"},
		"too short":       {[]vmm.FileRange{{File: f, At: 1, Size: 1000}}, io.ErrUnexpectedEOF, nil, f.Name() + " has 1000 bytes; 1000 are needed from offset 1 on"},
		"behind its end":  {[]vmm.FileRange{{File: f, At: 1001, Size: 0}}, io.ErrUnexpectedEOF, nil, f.Name()},
		"beyond":          {[]vmm.FileRange{{File: f, Offset: 1 << 16, Size: 1}}, vmm.ErrSize, vmm.ErrSize, "do not fit at 65536 into a buffer of 65536"},
		"far beyond":      {[]vmm.FileRange{{File: f, Offset: math.MaxUint64, Size: 2}}, vmm.ErrSize, vmm.ErrSize, f.Name()},
		"no file's place": {[]vmm.FileRange{{File: f, At: math.MaxInt64, Size: 1}}, vmm.ErrSize, vmm.ErrSize, "no file is so large"},
		"overlap": {[]vmm.FileRange{{File: f, At: 4, Offset: 9, Size: 5}, {File: f, At: 0, Offset: 5, Size: 5}}, vmm.ErrSize, vmm.ErrSize,
			"two ranges overlap in "},
	} {
		calls := b.calls
		err := buf.Load(t.Context(), c.ranges, vmm.TransferOptions{})
		require.ErrorIs(t, err, c.load, name)
		require.ErrorContains(t, err, c.words, name)
		require.Equal(t, calls, b.calls, name)
		if c.store != nil {
			err = buf.Store(t.Context(), c.ranges, vmm.TransferOptions{})
			require.ErrorIs(t, err, c.store, name)
			require.ErrorContains(t, err, c.words, name)
		}
	}
	whole := []vmm.FileRange{{File: f, Size: 1000}}
	for _, o := range []vmm.TransferOptions{{Workers: -1}, {Workers: 129}, {Slot: 1}, {Slot: 1 << 30}, {Workers: math.MaxInt, Slot: 1 << 29}} {
		require.ErrorIs(t, buf.Load(t.Context(), whole, o), vmm.ErrSize, "%+v", o)
	}
	var none context.Context
	require.ErrorIs(t, buf.Load(none, whole, vmm.TransferOptions{}), vmm.ErrNil)
	require.NoError(t, buf.Load(t.Context(), nil, vmm.TransferOptions{}))

	readOnly := importFrom(t, dev, buf)
	require.ErrorIs(t, readOnly.Load(t.Context(), whole, vmm.TransferOptions{}), vmm.ErrAccess)
	require.NoError(t, readOnly.Store(t.Context(), whole, vmm.TransferOptions{}))
	require.NoError(t, readOnly.Close())
	require.NoError(t, buf.Close())
	require.ErrorIs(t, buf.Load(t.Context(), whole, vmm.TransferOptions{}), cu.ErrClosed)
}

// A file that cannot be written says so with its name and the offset.
func TestStoreToAFileThatCannotBeWritten(t *testing.T) {
	dev := cutest.Device(t)
	buf := newBuffer(t, dev, 1<<16)
	f := ok(os.Open(fileOf(t, nil).Name()))(t)
	defer f.Close()
	err := buf.Store(t.Context(), []vmm.FileRange{{File: f, At: 5, Size: 9000}}, small(1))
	require.ErrorIs(t, err, syscall.EBADF)
	require.EqualError(t, err, "vmm: storing to "+f.Name()+" at offset 5: bad file descriptor")
}

func TestLoadOfAFileThatShrinks(t *testing.T) {
	b, dev := bookkept(t)
	warmUp(t, dev)
	leavesNothing(t, b, dev)
	buf := ok(vmm.New(dev, 1<<16))(t)
	f := fileOf(t, noise(50_000, 1))
	o := small(1)
	var truncated error
	o.OnProgress = func(uint64, uint64) { truncated = f.Truncate(20_001) }
	err := buf.Load(t.Context(), []vmm.FileRange{{File: f, Size: 50_000}}, o)
	require.NoError(t, truncated)
	require.ErrorIs(t, err, io.ErrUnexpectedEOF)
	require.ErrorContains(t, err, f.Name()+" has 20001 bytes; 8192 are needed from offset 16384 on")
	require.NoError(t, buf.Close())
}

// The buffer cannot be closed while files are loaded, and a load can be given up
// after any piece; nothing is left of it.
func TestTransferEndsWithItsContext(t *testing.T) {
	b, dev := bookkept(t)
	warmUp(t, dev)
	leavesNothing(t, b, dev)
	buf := ok(vmm.New(dev, 1<<16))(t)
	f := fileOf(t, noise(1<<16, 1))
	ranges := []vmm.FileRange{{File: f, Size: 1 << 16}} // 8 pieces
	why := errors.New("no longer wanted")
	for after := range 8 {
		for _, transfer := range []func(context.Context, []vmm.FileRange, vmm.TransferOptions) error{buf.Load, buf.Store} {
			ctx, cancel := context.WithCancelCause(t.Context())
			o, seen, closed := small(1+after%3), 0, vmm.ErrInUse
			o.OnProgress = func(uint64, uint64) {
				closed = buf.Close()
				if seen++; seen == after {
					cancel(why)
				}
			}
			if after == 0 {
				cancel(why)
			}
			err := transfer(ctx, ranges, o)
			cancel(nil)
			require.ErrorIs(t, closed, vmm.ErrInUse)
			if err == nil { // other workers were done by then
				require.NotZero(t, after%3, "there is one worker")
				require.Equal(t, 8, seen)
				continue
			}
			require.ErrorIs(t, err, context.Canceled)
			require.ErrorIs(t, err, why)
			if after > 0 { // else it did not begin
				require.ErrorContains(t, err, "of 65536 bytes")
			}
		}
	}
	require.NoError(t, buf.Close())
}

// A copy that does not end keeps nobody waiting: ctx ends the load.
func TestLoadGivesUpACopyThatHangs(t *testing.T) {
	b, dev := bookkept(t)
	warmUp(t, dev)
	leavesNothing(t, b, dev)
	buf := ok(vmm.New(dev, 1<<16))(t)
	ctx, cancel := context.WithCancel(t.Context())
	hangs := b.Hook("cuStreamQuery", func(sys.Call, func() sys.CUresult) sys.CUresult {
		cancel()
		return sys.CUDA_ERROR_NOT_READY
	})
	err := buf.Load(ctx, []vmm.FileRange{{File: fileOf(t, noise(1<<16, 1)), Size: 1 << 16}}, small(2))
	require.ErrorIs(t, err, context.Canceled)
	hangs.Stop()
	require.NoError(t, buf.Close())
}

// The error names the call that the driver refused, and nothing is left (invariant 4).
func TestFailedTransferLeavesNothing(t *testing.T) {
	b, dev := bookkept(t)
	warmUp(t, dev)
	leavesNothing(t, b, dev)
	buf := ok(vmm.New(dev, 1<<16))(t)
	f := fileOf(t, noise(1<<16, 1))
	ranges := []vmm.FileRange{{File: f, Size: 1 << 16}}
	for _, workers := range []int{1, 4} {
		for function, most := range map[string]int{"cuDevicePrimaryCtxRetain": 1, "cuMemHostAlloc": workers, "cuStreamCreate": 2 * workers, "cuMemcpyHtoDAsync": 8, "cuStreamQuery": 8} {
			for n := 1; n <= most; n++ {
				b.FailNth(function, n, cu.ErrOutOfMemory)
				err := buf.Load(t.Context(), ranges, small(workers))
				require.ErrorIs(t, err, cu.ErrOutOfMemory, "%s, call %d", function, n)
				require.ErrorContains(t, err, function)
			}
		}
		for n := range 8 {
			b.FailNth("cuMemcpyDtoHAsync", n+1, cu.ErrOutOfMemory)
			require.ErrorIs(t, buf.Store(t.Context(), ranges, small(workers)), cu.ErrOutOfMemory)
		}
	}
	require.NoError(t, buf.Load(t.Context(), ranges, small(2)))
	require.NoError(t, buf.Close())
}

// A file that the page cache does not have is opened once more, and that is closed.
func TestLoadOfAColdFile(t *testing.T) {
	b, dev := bookkept(t)
	warmUp(t, dev)
	ctx := leavesNothing(t, b, dev)
	const size = 1 << 20
	buf := newBuffer(t, dev, size)
	data := noise(size, 5)
	f, fds := fileOf(t, data), cutest.Descriptors()
	require.NoError(t, f.Sync())
	require.NoError(t, unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED))
	require.NoError(t, buf.Load(t.Context(), []vmm.FileRange{{File: f, At: 5, Size: size - 5}}, vmm.TransferOptions{}))
	require.Equal(t, fds, cutest.Descriptors())
	require.True(t, string(data[5:]) == string(read(t, ctx, buf.Ptr(), size-5)))
	require.NoError(t, f.Close())
}

// Memory files and tmpfs have no direct reads that are worth anything.
func TestLoadFromMemory(t *testing.T) {
	dev := cutest.Device(t)
	ctx := cutest.Context(t, dev)
	const size = 1 << 20
	buf := newBuffer(t, dev, size)
	f := ok(os.Create(filepath.Join("/dev/shm", "gpufd-"+filepath.Base(t.TempDir())+t.Name())))(t)
	defer f.Close()
	require.NoError(t, os.Remove(f.Name()))
	data := noise(size, 4)
	require.NoError(t, errOf(f.Write(data)))
	require.NoError(t, buf.Load(t.Context(), []vmm.FileRange{{File: f, Size: size}}, vmm.TransferOptions{}))
	require.True(t, string(data) == string(read(t, ctx, buf.Ptr(), size)))
}
