package cu_test

import (
	"errors"
	"fmt"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/cutest"
	"github.com/gpufd/gpufd/cu/sys"
)

// newContext creates a context, destroyed when t ends.
func newContext(t testing.TB, dev *cu.Device, flags cu.ContextFlags) *cu.Context {
	t.Helper()
	return untilEnd(t, ok(dev.NewContext(flags))(t))
}

// A created context is one of its own, in which everything works, and is
// destroyed once.
func TestContextOfItsOwn(t *testing.T) {
	cutest.Alone(t, "it counts the device's memory")
	s, _, dev := spied(t)
	primary := cutest.Context(t, dev)
	free := freeMemory(t, primary)
	ctx := ok(dev.NewContext(cu.SchedAuto))(t)
	require.Same(t, dev, ctx.Device())
	require.NotEqual(t, primary.Handle(), ctx.Handle())
	require.GreaterOrEqual(t, ok(ctx.APIVersion())(t), 3010)

	stream := ok(ctx.NewStream())(t)
	mem := ok(ctx.Alloc(4096))(t)
	require.NoError(t, cu.FillAsync(stream, mem.Ptr(), uint32(0xabcd), 1024))
	got := make([]uint32, 1024)
	require.NoError(t, errors.Join(cu.CopyToHostAsync(stream, got, mem.Ptr()), stream.Synchronize(t.Context())))
	require.EqualValues(t, 0xabcd, got[1023])
	require.NoError(t, ctx.Synchronize(soon(t)))

	require.NoError(t, ctx.Close())
	require.NoError(t, ctx.Close())
	require.Equal(t, 1, s.count("cuCtxDestroy_v2"))
	require.Zero(t, s.count("cuDevicePrimaryCtxRelease_v2"))
	require.Equal(t, []string{"cuMemFree_v2", "cuCtxDestroy_v2"}, s.sequence("cuMemFree_v2", "cuCtxDestroy_v2"))
	require.ErrorIs(t, errOf(stream.Query()), cu.ErrClosed)
	require.ErrorIs(t, errOf(ctx.Flags()), cu.ErrClosed)
	if cutest.Kind() == cu.Soft { // a GPU's driver keeps some
		now := freeMemory(t, primary)
		require.Equal(t, free, now)
	}
}

// Creating one leaves no context current, unlike the C function.
func TestCreatingLeavesTheThreadAlone(t *testing.T) {
	dev := cutest.Device(t)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	raw := dev.Driver().Caller()
	require.Equal(t, sys.CUDA_SUCCESS, raw.CuCtxSetCurrent(0))
	newContext(t, dev, cu.SchedAuto)
	now := new(sys.CUcontext)
	require.Equal(t, sys.CUDA_SUCCESS, raw.CuCtxGetCurrent(now))
	require.Zero(t, *now)
}

// NewContext takes the newest cuCtxCreate that the driver has. Without any, the error names the
// oldest.
func TestNewContextTakesTheABIThereIs(t *testing.T) {
	abis := []string{"cuCtxCreate_v4", "cuCtxCreate_v3", "cuCtxCreate_v2"}
	newest := 0
	if cutest.Driver(t).Version() < 12050 {
		newest = 1
	}
	for i := newest; i < len(abis); i++ {
		s, drv, _ := spied(t, without(t, abis[:i]...))
		newContext(t, firstDevice(t, drv), cu.SchedAuto)
		require.Equal(t, []string{abis[i]}, s.sequence(abis...))
	}
	drv := cutest.Driver(t, without(t, abis...))
	_, err := firstDevice(t, drv).NewContext(cu.SchedAuto)
	var missing *cu.SymbolError
	require.ErrorAs(t, err, &missing)
	require.Equal(t, "cuCtxCreate_v2", missing.Symbol)
}

// A context that was created and lost is destroyed, unless memory is in it.
func TestLostCreatedContextIsDestroyed(t *testing.T) {
	s, _, dev := spied(t)
	func() {
		require.NoError(t, errOf(dev.NewContext(cu.SchedAuto)))
	}()
	eventuallyCollected(t, func() bool { return s.count("cuCtxDestroy_v2") == 1 })
}

func TestContextFlags(t *testing.T) {
	drv := cutest.Driver(t)
	dev := firstDevice(t, drv)
	ctx := newContext(t, dev, cu.SchedYield)
	require.Equal(t, cu.SchedYield, ok(ctx.Flags())(t)&^cu.ContextMapHost)
	if !orTooOld(t, drv, "cuCtxSetFlags", ctx.SetFlags(cu.SchedBlockingSync)) {
		require.Equal(t, cu.SchedBlockingSync, ok(ctx.Flags())(t)&^cu.ContextMapHost)
		require.ErrorIs(t, ctx.SetFlags(cu.SchedSpin|cu.SchedYield), cu.ErrInvalidValue)
	}
	for _, bad := range []cu.ContextFlags{cu.SchedSpin | cu.SchedYield, 1 << 20} {
		require.ErrorIs(t, errOf(dev.NewContext(bad)), cu.ErrInvalidValue)
	}
	require.NotZero(t, ok(cutest.Context(t, dev).Flags())(t)&cu.ContextMapHost)

	require.Equal(t, "SCHED_AUTO", cu.SchedAuto.String())
	require.Equal(t, "SCHED_BLOCKING_SYNC|MAP_HOST|SYNC_MEMOPS", (cu.SchedBlockingSync | cu.ContextMapHost | cu.ContextSyncMemOps).String())
	require.Equal(t, "0x3|0x10000", cu.ContextFlags(0x10003).String())
}

// An id is never given out twice, which a handle may be.
func TestContextID(t *testing.T) {
	drv := cutest.Driver(t)
	dev := firstDevice(t, drv)
	primary, err := cutest.Context(t, dev).ID()
	if orTooOld(t, drv, "cuCtxGetId", err) {
		return
	}
	ids := map[uint64]bool{primary: true}
	for range 2 {
		ctx := ok(dev.NewContext(cu.SchedAuto))(t)
		id := ok(ctx.ID())(t)
		require.False(t, ids[id])
		ids[id] = true
		require.NoError(t, ctx.Close())
	}
}

// Flags of the primary context are everybody's, and are set while it is there.
func TestPrimaryFlags(t *testing.T) {
	dev, ctx := deviceContext(t)
	before, active, err := dev.PrimaryState()
	require.NoError(t, err)
	require.True(t, active)
	require.NoError(t, dev.SetPrimaryFlags(cu.SchedSpin))
	now, _, err := dev.PrimaryState()
	require.NoError(t, err)
	require.Equal(t, cu.SchedSpin, now)
	require.Equal(t, cu.SchedSpin|cu.ContextMapHost, ok(ctx.Flags())(t))
	require.NoError(t, dev.SetPrimaryFlags(before))
	require.ErrorIs(t, dev.SetPrimaryFlags(cu.SchedSpin|cu.SchedYield), cu.ErrInvalidValue)

	older := firstDevice(t, cutest.Driver(t, without(t, "cuDevicePrimaryCtxSetFlags_v2")))
	require.ErrorIs(t, older.SetPrimaryFlags(cu.SchedSpin), cu.ErrPrimaryContextActive)
}

// Resetting the primary context takes it from everybody in the process.
func TestResetPrimary(t *testing.T) { runChild(t, "reset primary") }

// Invariant 5: what others are closing is closed before the context goes. The
// reset itself is left out, for the sake of the other tests.
func TestResetWaitsForThoseWhoClose(t *testing.T) {
	s, _, dev := spied(t)
	ctx := ok(dev.PrimaryContext())(t)
	releasing, reset := make(chan struct{}), make(chan struct{})
	s.Hook("cuDevicePrimaryCtxRelease", func(_ sys.Call, next func() sys.CUresult) sys.CUresult {
		close(releasing)
		select {
		case <-reset:
			t.Error("reset before it was released")
		case <-time.After(50 * time.Millisecond): // long enough for a reset that does not wait
		}
		return next()
	})
	s.Hook("cuDevicePrimaryCtxReset", func(sys.Call, func() sys.CUresult) sys.CUresult {
		close(reset)
		return sys.CUDA_SUCCESS
	})
	var wg sync.WaitGroup
	wg.Go(func() { require.NoError(t, ctx.Close()) })
	<-releasing
	require.NoError(t, dev.ResetPrimary())
	wg.Wait()
	require.Equal(t, 1, s.count("cuDevicePrimaryCtxRelease_v2"))
}

func TestRefusedReset(t *testing.T) {
	faults := cutest.NewFaults(t)
	dev := cutest.Device(t, without(t, "cuDevicePrimaryCtxReset_v2"), faults.Option())
	faults.FailNth("cuDevicePrimaryCtxReset", 2, cu.ErrOperatingSystem) // the first is of the version that is missing
	err := dev.ResetPrimary()
	require.ErrorIs(t, err, cu.ErrOperatingSystem)
	require.ErrorContains(t, err, "cuDevicePrimaryCtxReset: ")
}

func childResetPrimary() error {
	must(resetPrimary(get(childDevice())))
	r := get(kindsResolver())
	drv := get(cutest.Open(cu.WithResolver(func(symbol string) (uintptr, error) {
		if symbol == "cuDevicePrimaryCtxReset_v2" {
			return 0, errHidden
		}
		return r(symbol)
	})))
	dev := get(drv.Device(0))
	return errors.Join(resetPrimary(dev), resetWhileRetained(dev))
}

// resetPrimary resets a context with a stream and memory in it, and looks at
// what is left of them.
func resetPrimary(dev *cu.Device) error {
	a, b, apart := get(dev.PrimaryContext()), get(dev.PrimaryContext()), get(dev.NewContext(cu.SchedAuto))
	must(dev.SetPrimaryFlags(cu.SchedYield))
	stream, mem := get(a.NewStream()), get(b.Alloc(1<<20))
	must(dev.ResetPrimary())
	flags, active, err := dev.PrimaryState()
	if err != nil || active || flags != cu.SchedAuto {
		return fmt.Errorf("after a reset: flags %s, active %t, error %v", flags, active, err)
	}
	_, queried := stream.Query()
	_, _, asked := b.MemInfo()
	for _, err := range []error{queried, asked} {
		if !errors.Is(err, cu.ErrClosed) {
			return fmt.Errorf("used after a reset: %w", err)
		}
	}
	must(errors.Join(stream.Close(), mem.Close(), a.Close(), b.Close()))
	if _, _, err := apart.MemInfo(); err != nil {
		return fmt.Errorf("a context of its own, after a reset: %w", err)
	}
	c := get(dev.PrimaryContext())
	get(c.Alloc(4096))
	return errors.Join(c.Close(), apart.Close(), dev.ResetPrimary())
}

// resetWhileRetained resets while others retain, use and release.
func resetWhileRetained(dev *cu.Device) error {
	var wg sync.WaitGroup
	errs := make(chan error, 2)
	stop := make(chan struct{})
	for range cap(errs) {
		wg.Go(func() {
			var err error
			for err == nil {
				select {
				case <-stop:
					return
				default:
				}
				err = useOnce(dev)
			}
			errs <- err
		})
	}
	var failed error
	for i := 0; i < 3 && failed == nil; i++ {
		failed = errors.Join(useOnce(dev), dev.ResetPrimary())
	}
	close(stop)
	wg.Wait()
	close(errs)
	for err := range errs {
		failed = errors.Join(failed, err)
	}
	return failed
}

// useOnce makes a context, uses it and closes it. That somebody has closed it in
// between is no error.
func useOnce(dev *cu.Device) error {
	ctx, err := dev.PrimaryContext()
	if err != nil {
		return err
	}
	_, err = ctx.Alloc(4096)
	if errors.Is(err, cu.ErrClosed) {
		err = nil
	}
	return errors.Join(err, ctx.Close())
}
