package cu_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/cutest"
	"github.com/gpufd/gpufd/cu/sys"
	"github.com/gpufd/gpufd/internal/testenv"
)

const mib = 1 << 20

// newPool makes a pool that can be shared, closed when t ends.
func newPool(t testing.TB, dev *cu.Device) *cu.Pool {
	t.Helper()
	return untilEnd(t, ok(dev.NewPool(cu.PoolOptions{Types: cu.HandleFD}))(t))
}

// stats asks for the pool's.
func stats(t testing.TB, p *cu.Pool) cu.PoolStats {
	t.Helper()
	return ok(p.Stats())(t)
}

// pattern is n bytes that are not those of another seed.
func pattern(n, seed int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i*7 + i>>8 + seed)
	}
	return b
}

func TestPoolAttributes(t *testing.T) {
	p := newPool(t, cutest.Device(t))
	require.Zero(t, ok(p.ReleaseThreshold())(t))
	r := ok(p.Reuse())(t)
	require.Equal(t, cu.PoolReuse{FollowEvents: true, Opportunistic: true, InternalDependencies: true}, r)
	require.Equal(t, cu.PoolStats{}, stats(t, p))

	for _, want := range []uint64{64 * mib, math.MaxUint64, 0} {
		require.NoError(t, p.SetReleaseThreshold(want))
		require.Equal(t, want, ok(p.ReleaseThreshold())(t))
	}
	for _, want := range []cu.PoolReuse{{FollowEvents: true}, {Opportunistic: true}, {InternalDependencies: true}, {}} {
		require.NoError(t, p.SetReuse(want))
		require.Equal(t, want, ok(p.Reuse())(t))
	}
}

// Memory of the current pool and of another, of a stream and of the null
// stream, is memory like any other.
func TestPoolMemoryHoldsBytes(t *testing.T) {
	dev, ctx := deviceContext(t)
	p, s := newPool(t, dev), newStream(t, ctx)
	for name, alloc := range map[string]func(*cu.Stream, uint64) (*cu.StreamMemory, error){
		"Stream.AllocAsync": (*cu.Stream).AllocAsync,
		"Pool.AllocAsync":   p.AllocAsync,
	} {
		for _, s := range []*cu.Stream{s, ctx.NullStream()} {
			m := ok(alloc(s, 3*mib+5))(t, name)
			require.EqualValues(t, 3*mib+5, m.Size())
			want, got := pattern(3*mib+5, 1), make([]byte, 3*mib+5)
			require.NoError(t, errors.Join(cu.CopyToDeviceAsync(s, m.Ptr(), want), s.Synchronize(t.Context())))
			require.NoError(t, errors.Join(cu.CopyToHostAsync(s, got, m.Ptr()), s.Synchronize(t.Context())))
			require.True(t, string(want) == string(got), name)
			require.NoError(t, m.FreeAsync(s))
		}
	}
	require.NoError(t, ctx.Synchronize(t.Context()))
	require.Zero(t, stats(t, p).Used)
	require.Zero(t, stats(t, p).Reserved)
}

// FAULTS 11; invariant 5.
func TestFault11_StreamMemoryIsFreedOnce(t *testing.T) {
	s, _, dev, ctx := spiedContext(t)
	other := ok(dev.PrimaryContext())(t)
	p, stream := newPool(t, dev), newStream(t, ctx)
	closed := ok(ctx.NewStream())(t)
	require.NoError(t, closed.Close())

	m := ok(p.AllocAsync(stream, 4096))(t)
	require.ErrorIs(t, m.FreeAsync(closed), cu.ErrClosed, "and it remains")
	require.NoError(t, m.FreeAsync(stream))
	require.ErrorIs(t, m.FreeAsync(stream), cu.ErrClosed)
	require.ErrorIs(t, errOf(m.ExportPointer()), cu.ErrClosed)
	require.NoError(t, m.Close())
	require.Equal(t, 1, s.count("cuMemFreeAsync"))

	m = ok(other.NullStream().AllocAsync(4096))(t)
	for range 3 {
		require.NoError(t, m.Close())
	}
	require.ErrorIs(t, m.FreeAsync(ctx.NullStream()), cu.ErrClosed)
	require.Equal(t, 2, s.count("cuMemFreeAsync"))

	m = ok(p.AllocAsync(other.NullStream(), 4096))(t)
	require.NoError(t, other.Close())
	require.NoError(t, m.Close())
	require.ErrorIs(t, m.FreeAsync(ctx.NullStream()), cu.ErrClosed)
	require.Equal(t, 3, s.count("cuMemFreeAsync"))

	require.NoError(t, (*cu.StreamMemory)(nil).Close())
	require.ErrorIs(t, (*cu.StreamMemory)(nil).FreeAsync(ctx.NullStream()), cu.ErrClosed)
	require.NoError(t, ctx.Synchronize(t.Context()))
	require.Zero(t, stats(t, p).Used)
}

// A context frees what was made in it before it ends the streams that the
// memory is freed in; what was made in a stream that is closed goes too.
func TestContextFreesItsStreamMemory(t *testing.T) {
	s, _, dev := spied(t)
	keep := cutest.Context(t, dev)
	p := newPool(t, dev)
	ctx := ok(dev.PrimaryContext())(t)
	open := ok(ctx.NewStream())(t)
	gone := ok(ctx.NewStream())(t)
	for _, stream := range []*cu.Stream{open, gone, ctx.NullStream()} {
		require.NoError(t, errOf(p.AllocAsync(stream, mib)))
	}
	require.NoError(t, gone.Close())
	require.NoError(t, ctx.Close())
	require.Equal(t, []string{"cuStreamDestroy_v2", "cuMemFreeAsync", "cuMemFreeAsync", "cuMemFreeAsync", "cuStreamDestroy_v2"},
		s.sequence("cuMemFreeAsync", "cuStreamDestroy_v2"))
	require.NoError(t, keep.Synchronize(t.Context()))
	require.Zero(t, stats(t, p).Used)
}

// The pool that SetPool makes the current one is what AllocAsync takes from,
// until it is closed.
func TestCurrentPool(t *testing.T) {
	s, _, dev, ctx := spiedContext(t)
	first := ok(dev.DefaultPool())(t)
	require.NoError(t, first.Close())
	require.NoError(t, errOf(first.ReleaseThreshold()), "it is not ours to close")
	require.Zero(t, s.count("cuMemPoolDestroy"))

	p := ok(dev.NewPool(cu.PoolOptions{}))(t)
	require.NoError(t, dev.SetPool(p))
	lent := ok(dev.Pool())(t)
	m := ok(ctx.NullStream().AllocAsync(mib))(t)
	require.EqualValues(t, mib, stats(t, lent).Used)
	require.NoError(t, lent.Close())
	require.Equal(t, stats(t, p), stats(t, lent))

	require.NoError(t, p.Close())
	require.NoError(t, p.Close())
	require.ErrorIs(t, errOf(lent.Stats()), cu.ErrClosed)
	require.ErrorIs(t, dev.SetPool(p), cu.ErrClosed)
	require.ErrorIs(t, dev.SetPool(nil), cu.ErrClosed)
	require.NoError(t, (*cu.Pool)(nil).Close())

	// The memory outlives its pool.
	want, got := pattern(mib, 3), make([]byte, mib)
	require.NoError(t, cu.CopyToDevice(ctx, m.Ptr(), want))
	require.NoError(t, cu.CopyToHost(ctx, got, m.Ptr()))
	require.True(t, string(want) == string(got))
	require.NoError(t, m.Close())
	require.Equal(t, 1, s.count("cuMemPoolDestroy"))

	lent = ok(dev.Pool())(t)
	used := stats(t, first).Used
	m = ok(ctx.NullStream().AllocAsync(mib))(t)
	require.Equal(t, used+mib, stats(t, first).Used, "the default pool is current again")
	require.Equal(t, stats(t, first), stats(t, lent))
	require.NoError(t, m.Close())
	require.NoError(t, ctx.Synchronize(t.Context()))
}

// Invariant 5: a pool that its owner closes while it is lent is not used.
func TestPoolClosedWhileItIsLent(t *testing.T) {
	faults := cutest.NewFaults(t)
	dev := cutest.Device(t, faults.Option())
	p := newPool(t, dev)
	require.NoError(t, dev.SetPool(p))
	closed := make(chan error, 1)
	faults.Hook("cuDeviceGetMemPool", func(_ sys.Call, next func() sys.CUresult) sys.CUresult {
		r := next()
		go func() { closed <- p.Close() }()
		return r
	})
	lent := ok(dev.Pool())(t)
	require.NoError(t, <-closed)
	require.ErrorIs(t, errOf(lent.Stats()), cu.ErrClosed)
}

// The H200 breaks its own memory if a pool is destroyed before what was
// allocated from it is freed, and dies of that later: driver-facts.md. So the
// pool goes with the last of it, by whichever call that is freed.
func TestPoolIsDestroyedAfterItsMemory(t *testing.T) {
	for name, free := range map[string]func(*cu.StreamMemory, *cu.Context) error{
		"Free":          func(m *cu.StreamMemory, c *cu.Context) error { return m.FreeAsync(c.NullStream()) },
		"Close":         func(m *cu.StreamMemory, _ *cu.Context) error { return m.Close() },
		"Context.Close": func(_ *cu.StreamMemory, c *cu.Context) error { return c.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			s, _, dev := spied(t)
			keep := cutest.Context(t, dev)
			ctx := ok(dev.PrimaryContext())(t)
			p := ok(dev.NewPool(cu.PoolOptions{}))(t)
			require.NoError(t, dev.SetPool(p))
			first := ok(p.AllocAsync(ctx.NullStream(), mib))(t)
			second := ok(ctx.NullStream().AllocAsync(mib))(t)
			require.NoError(t, first.Close())
			require.NoError(t, p.Close())
			require.ErrorIs(t, errOf(p.AllocAsync(ctx.NullStream(), mib)), cu.ErrClosed)

			other := ok(ctx.NullStream().AllocAsync(mib))(t, "from the default pool, which is current again")
			require.Zero(t, s.count("cuMemPoolDestroy"))
			require.NoError(t, free(second, ctx))
			require.Equal(t, 1, s.count("cuMemPoolDestroy"))
			require.NoError(t, other.Close())
			require.NoError(t, keep.Synchronize(t.Context()))
			require.NoError(t, ctx.Close())
		})
	}
}

// A pool that becomes the current one just as memory is taken of the default one
// does not get that memory, uncounted: it would be destroyed before it.
func TestPoolSetWhileMemoryIsAllocated(t *testing.T) {
	faults := cutest.NewFaults(t)
	dev := cutest.Device(t, faults.Option())
	ctx := cutest.Context(t, dev)
	p := ok(dev.NewPool(cu.PoolOptions{}))(t)
	done := make(chan error, 1)
	faults.Hook("cuMemAllocAsync", func(_ sys.Call, next func() sys.CUresult) sys.CUresult {
		go func() { done <- dev.SetPool(p) }()
		select {
		case err := <-done: // too early
			done <- err
		case <-time.After(50 * time.Millisecond):
		}
		return next()
	})
	m := ok(ctx.NullStream().AllocAsync(mib))(t)
	require.NoError(t, <-done)
	require.Zero(t, ok(p.Stats())(t).Used)
	require.NoError(t, p.Close())
	require.NoError(t, m.Close())
}

// Invariant 3: a lost pool is destroyed, but for the device's current one.
func TestLostPoolIsDestroyed(t *testing.T) {
	s, _, dev := spied(t)
	first := ok(dev.DefaultPool())(t)
	make := func() *cu.Pool {
		return ok(dev.NewPool(cu.PoolOptions{}))(t)
	}
	require.NoError(t, dev.SetPool(make()))
	make()
	eventuallyCollected(t, func() bool { return s.count("cuMemPoolDestroy") == 1 })
	lent := ok(dev.Pool())(t)
	require.NoError(t, dev.SetPool(lent))
	for range 3 {
		runtime.GC()
	}
	require.NoError(t, lent.SetReleaseThreshold(12345))
	require.NotEqualValues(t, 12345, ok(first.ReleaseThreshold())(t))
	require.NoError(t, dev.SetPool(first))
	eventuallyCollected(t, func() bool { return s.count("cuMemPoolDestroy") == 2 })
}

// Memory in a context that was lost is reported, and stays.
func TestLostStreamMemoryIsTold(t *testing.T) {
	told := make(chan cu.Leak, 1)
	drv := cutest.Driver(t, cu.WithLeakHandler(func(l cu.Leak) { told <- l }))
	dev := firstDevice(t, drv)
	p := ok(dev.NewPool(cu.PoolOptions{}))(t)
	var ptr cu.DevicePtr
	func() {
		ctx := ok(dev.PrimaryContext())(t)
		m := ok(p.AllocAsync(ctx.NullStream(), 12345))(t)
		ptr = m.Ptr()
	}()
	eventuallyCollected(t, func() bool { return len(told) > 0 })
	leak := (<-told).String()
	require.Contains(t, leak, "a context with 12345 bytes of memory")
	require.Contains(t, strings.Split(leak, "\n")[1], "TestLostStreamMemoryIsTold", "who made it comes first")
	ctx := cutest.Context(t, dev)
	require.NoError(t, cu.Fill(ctx, ptr, uint8(1), 12345))
	require.NoError(t, ctx.Synchronize(t.Context()))
	require.NoError(t, p.Close(), "while it is kept for memory that nobody frees")
	require.Equal(t, sys.CUDA_SUCCESS, ctx.Caller().CuMemFree_v2(sys.CUdeviceptr(ptr)))
	require.Equal(t, sys.CUDA_SUCCESS, drv.Caller().CuMemPoolDestroy(p.Handle()))
	require.Equal(t, sys.CUDA_SUCCESS, drv.Caller().CuDevicePrimaryCtxRelease_v2(0)) // that of the lost one
}

// The pool's own device has all rights and keeps them.
func TestPoolAccess(t *testing.T) {
	drv := cutest.Driver(t)
	dev := firstDevice(t, drv)
	p := newPool(t, dev)
	require.NoError(t, p.SetAccess(cu.ReadWrite, dev))
	require.Error(t, p.SetAccess(cu.NoAccess, dev))
	require.Equal(t, cu.ReadWrite, ok(p.AccessOf(dev))(t))
	_, peer := cutest.TwoDevices(t, drv) // for the rest
	for _, want := range []cu.Access{cu.NoAccess, cu.ReadWrite, cu.NoAccess} {
		require.NoError(t, p.SetAccess(want, peer))
		require.Equal(t, want, ok(p.AccessOf(peer))(t))
	}
}

func TestPoolWithAMaximum(t *testing.T) {
	drv, dev, ctx := driverContext(t)
	p, err := dev.NewPool(cu.PoolOptions{MaxSize: 64 * mib})
	if drv.Version() < 12020 {
		require.ErrorIs(t, err, cu.ErrInvalidValue)
		return
	}
	require.NoError(t, err)
	m := ok(p.AllocAsync(ctx.NullStream(), 32*mib))(t)
	for _, n := range []uint64{48 * mib, 128 * mib} {
		require.ErrorIs(t, errOf(p.AllocAsync(ctx.NullStream(), n)), cu.ErrOutOfMemory)
	}
	require.NoError(t, m.Close())
	require.NoError(t, ctx.Synchronize(t.Context()))
	require.NoError(t, p.Close())
}

// Importing a descriptor of anything but a pool, memory of cuMemCreate included, is an error and
// harms nothing.
func TestImportOfWhatIsNoPool(t *testing.T) {
	drv := cutest.Driver(t)
	all := foreignDescriptors(t)
	dev := firstDevice(t, drv)
	h := ok(dev.CreateMemory(granularity(t, dev), cu.HandleFD))(t)
	all["memory"] = ok(h.Export())(t)
	for name, f := range all {
		_, err := drv.ImportPool(f)
		var refused *cu.Error
		require.ErrorAs(t, err, &refused, name)
		require.NoError(t, errOf(f.Stat()), "the descriptor stays the caller's")
		require.NoError(t, f.Close())
	}
	require.ErrorIs(t, errOf(drv.ImportPool(nil)), os.ErrInvalid)
	require.NoError(t, h.Close())
}

// poolEnv tells a child what it is to import.
const poolEnv = testenv.Prefix + "POOL"

// A pooled is one piece of memory for a child.
type pooled struct {
	Ptr  cu.PoolPointer
	Size uint64
}

// Two processes share memory of a pool, and what each writes the other reads.
func TestPoolIsShared(t *testing.T) {
	dev, ctx := deviceContext(t)
	p, s := newPool(t, dev), newStream(t, ctx)
	fd := ok(p.Export())(t)
	var all []*cu.StreamMemory
	var say []pooled
	for i, n := range []uint64{4096, 3*mib + 8} {
		m := ok(p.AllocAsync(s, n))(t)
		require.NoError(t, errors.Join(cu.CopyToDeviceAsync(s, m.Ptr(), pattern(int(n), i)), s.Synchronize(t.Context())))
		ptr := ok(m.ExportPointer())(t)
		all, say = append(all, m), append(say, pooled{ptr, n})
	}
	text := ok(json.Marshal(say))(t)
	cmd := cutest.Child(soon(t), "pool importer", poolEnv+"="+string(text))
	cmd.ExtraFiles = []*os.File{fd}
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.NoError(t, fd.Close())
	for i, m := range all {
		got := make([]byte, m.Size())
		require.NoError(t, errors.Join(cu.CopyToHostAsync(s, got, m.Ptr()), s.Synchronize(t.Context())))
		require.True(t, string(pattern(len(got), 100+i)) == string(got))
		require.NoError(t, m.Close())
	}
	require.NoError(t, s.Synchronize(context.Background()))
	require.Zero(t, stats(t, p).Reserved)
}

// childPoolImporter reads and writes what its parent has, and finds that no
// more can be done with an imported pool.
func childPoolImporter() error {
	var told []pooled
	must(json.Unmarshal([]byte(os.Getenv(poolEnv)), &told))
	drv := get(cutest.Open())
	p := get(drv.ImportPool(os.NewFile(3, "inherited"))) // before any context
	ctx := get(get(drv.Device(0)).PrimaryContext())
	for i, one := range told {
		if err := reply(ctx, p, one, i); err != nil {
			return fmt.Errorf("piece %d: %w", i, err)
		}
	}
	return errors.Join(limits(ctx, p), p.Close(), ctx.Synchronize(context.Background()), ctx.Close())
}

// reply checks the parent's bytes and writes others.
func reply(ctx *cu.Context, p *cu.Pool, told pooled, i int) error {
	m, err := p.ImportPointer(ctx, told.Ptr, told.Size)
	if err != nil {
		return err
	}
	got := make([]byte, m.Size())
	if err := cu.CopyToHost(ctx, got, m.Ptr()); err != nil {
		return err
	}
	if string(got) != string(pattern(len(got), i)) {
		return errors.New("the parent's bytes are not there")
	}
	err = cu.CopyToDevice(ctx, m.Ptr(), pattern(len(got), 100+i))
	return errors.Join(err, m.Close())
}

// limits tries what an imported pool cannot.
func limits(ctx *cu.Context, p *cu.Pool) error {
	for name, call := range map[string]func() error{
		"Alloc":         func() error { _, err := p.AllocAsync(ctx.NullStream(), 4096); return err },
		"SetPool":       func() error { return ctx.Device().SetPool(p) },
		"Export":        func() error { _, err := p.Export(); return err },
		"ImportPointer": func() error { _, err := p.ImportPointer(ctx, cu.PoolPointer{}, 4096); return err },
	} {
		if err := call(); !errors.Is(err, cu.ErrInvalidValue) {
			return fmt.Errorf("%s of an imported pool: %v", name, err)
		}
	}
	return nil
}

// An importer keeps what it has of a pool, and can import more, when the
// exporter is killed (as D10 of docs/driver-facts.md).
func TestPoolOutlivesItsExporter(t *testing.T) {
	dev, ctx := deviceContext(t)
	pair := ok(unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0))(t)
	theirs := os.NewFile(uintptr(pair[1]), "theirs")
	cmd := cutest.Child(soon(t), "pool exporter")
	cmd.ExtraFiles = []*os.File{theirs}
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &said
	require.NoError(t, cmd.Start())
	require.NoError(t, theirs.Close())

	text, rights := make([]byte, 128), make([]byte, unix.CmsgSpace(4))
	n, rn, _, _, err := unix.Recvmsg(pair[0], text, rights, unix.MSG_CMSG_CLOEXEC)
	require.NoError(t, err)
	require.NoError(t, unix.Close(pair[0]))
	if n == 0 {
		require.Fail(t, "the exporter failed", "%v\n%s", cmd.Wait(), &said)
	}
	messages := ok(unix.ParseSocketControlMessage(rights[:rn]))(t)
	require.Len(t, messages, 1)
	fds := ok(unix.ParseUnixRights(&messages[0]))(t)
	fd := os.NewFile(uintptr(fds[0]), "pool")
	p := ok(dev.Driver().ImportPool(fd))(t)
	require.NoError(t, fd.Close())
	var ptr cu.PoolPointer
	require.NoError(t, ptr.UnmarshalText(text[:n]))
	first := ok(p.ImportPointer(ctx, ptr, mib))(t)

	require.NoError(t, cmd.Process.Kill())
	require.Error(t, cmd.Wait())
	for _, m := range []*cu.StreamMemory{first, nil} {
		if m == nil {
			m = ok(p.ImportPointer(ctx, ptr, mib))(t)
		}
		require.True(t, string(pattern(mib, 7)) == string(readBack[byte](t, ctx, m.Ptr(), mib)))
		require.NoError(t, m.Close())
		require.NoError(t, ctx.Synchronize(t.Context()))
	}
	require.NoError(t, p.Close())
}

// childPoolExporter sends a pool and what names its memory over descriptor 3,
// and waits to be killed.
func childPoolExporter() error {
	dev := get(childDevice())
	ctx := get(dev.PrimaryContext())
	p := get(dev.NewPool(cu.PoolOptions{Types: cu.HandleFD}))
	m := get(p.AllocAsync(ctx.NullStream(), mib))
	fd, ptr := get(p.Export()), get(m.ExportPointer())
	must(cu.CopyToDevice(ctx, m.Ptr(), pattern(mib, 7)))
	text, _ := ptr.MarshalText()
	must(unix.Sendmsg(3, text, unix.UnixRights(int(fd.Fd())), nil, 0))
	for {
		if _, err := unix.Read(3, text); err != unix.EINTR {
			break // the parent has closed its end, and kills us
		}
	}
	select {}
}

// Unused memory beyond the threshold goes back to the device once the host has synchronised; a
// wait that can end only asks.
func TestPoolGivesBackWhatIsUnused(t *testing.T) {
	dev, ctx := deviceContext(t)
	p, s := newPool(t, dev), newStream(t, ctx)
	require.NoError(t, ok(p.AllocAsync(s, 32*mib))(t).FreeAsync(s))
	require.NoError(t, s.Synchronize(soon(t)))
	require.NotZero(t, stats(t, p).Reserved)
	require.NoError(t, s.Synchronize(context.Background()))
	require.Zero(t, stats(t, p).Reserved)
	require.NotZero(t, stats(t, p).ReservedHigh)
	require.EqualValues(t, 32*mib, stats(t, p).UsedHigh)
	require.NoError(t, p.ResetHighs())
	require.Equal(t, cu.PoolStats{}, stats(t, p))

	m := ok(p.AllocAsync(s, 32*mib))(t)
	require.NoError(t, p.Trim(0))
	require.NotZero(t, stats(t, p).Reserved, "in use")
	require.NoError(t, errors.Join(m.FreeAsync(s), s.Synchronize(context.Background())))
	require.Zero(t, stats(t, p).Reserved)
}
