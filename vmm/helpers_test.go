package vmm_test

import (
	"fmt"
	"io"
	"maps"
	"os"
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

// A books keeps account of what the driver gave out and got back, and can fail
// any of its calls.
type books struct {
	*cutest.Faults
	mu     sync.Mutex
	counts map[string]int
	mapped map[uintptr]bool // addresses
	calls  int              // since failNth
	nth    int              // the call to fail
	failed string           // what was failed
}

func newBooks(t testing.TB) *books {
	return &books{Faults: cutest.NewFaults(t), counts: map[string]int{}, mapped: map[uintptr]bool{}}
}

// bookkept opens the driver with books of it, and returns its first device.
func bookkept(t testing.TB) (*books, *cu.Device) {
	t.Helper()
	b := newBooks(t)
	return b, cutest.Device(t, b.Option(), cu.WithHook(b.hook))
}

func (b *books) hook(call sys.Call, next func() sys.CUresult) sys.CUresult {
	if b.fails(call.Symbol()) {
		return sys.CUDA_ERROR_OUT_OF_MEMORY
	}
	r := next()
	if r == sys.CUDA_SUCCESS {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.counts[call.Symbol()]++
		keepMapped(b.mapped, call)
	}
	return r
}

// keepMapped notes what a call that succeeded maps or unmaps; one call may unmap several
// mappings.
func keepMapped(mapped map[uintptr]bool, call sys.Call) {
	switch call.Symbol() {
	case "cuMemMap":
		mapped[call.Arg(0)] = true
	case "cuMemUnmap":
		at, size := call.Arg(0), call.Arg(1)
		maps.DeleteFunc(mapped, func(p uintptr, _ bool) bool { return p >= at && p-at < size })
	}
}

func (b *books) fails(symbol string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.calls++
	if b.nth == 0 || b.calls != b.nth {
		return false
	}
	b.failed = symbol
	return true
}

// failNth fails the nth call from now on, of whatever function; n 0 fails none.
func (b *books) failNth(n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.calls, b.nth, b.failed = 0, n, ""
}

// hit is the symbol of the call that was failed, or "".
func (b *books) hit() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.failed
}

func (b *books) count(symbol string) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.counts[symbol]
}

// owed is what was taken from the driver and not given back.
func (b *books) owed() string {
	return fmt.Sprintf("%d handles, %d reservations, %d mappings",
		b.count("cuMemCreate")+b.count("cuMemImportFromShareableHandle")+b.count("cuMemRetainAllocationHandle")-b.count("cuMemRelease"),
		b.count("cuMemAddressReserve")-b.count("cuMemAddressFree"),
		b.mappings())
}

func (b *books) mappings() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.mapped)
}

const owesNothing = "0 handles, 0 reservations, 0 mappings"

// leavesNothing fails t when it ends with other free memory or descriptors than
// now, or owes the driver anything (invariants 3 and 4).
func leavesNothing(t testing.TB, b *books, dev *cu.Device) (ctx *cu.Context) {
	t.Helper()
	ctx = cutest.Context(t, dev)
	free, fds := freeMemory(t, ctx), cutest.Descriptors()
	t.Cleanup(func() {
		require.Equal(t, owesNothing, b.owed())
		require.Equal(t, free, freeMemory(t, ctx), "free memory")
		require.Equal(t, fds, cutest.Descriptors())
	})
	return ctx
}

// tidy opens the driver with books of it. It returns them, the first device, its context and its
// granularity, and fails t as leavesNothing does.
func tidy(t testing.TB) (b *books, dev *cu.Device, ctx *cu.Context, g uint64) {
	t.Helper()
	b, dev = bookkept(t)
	return b, dev, leavesNothing(t, b, dev), granularity(t, dev)
}

// export exports the whole of b.
func export(t testing.TB, b *vmm.Buffer) (vmm.Descriptor, []*os.File) {
	t.Helper()
	d, files, err := b.Export()
	require.NoError(t, err)
	return d, files
}

func freeMemory(t testing.TB, ctx *cu.Context) uint64 {
	t.Helper()
	free, _, err := ctx.MemInfo()
	require.NoError(t, err)
	return free
}

func granularity(t testing.TB, dev *cu.Device) uint64 {
	t.Helper()
	return ok(vmm.Granularity(dev))(t)
}

// newBuffer is a buffer that is closed when t ends.
func newBuffer(t testing.TB, dev *cu.Device, size uint64, opts ...vmm.NewOption) *vmm.Buffer {
	t.Helper()
	return untilEnd(t, ok(vmm.New(dev, size, opts...))(t))
}

// importFrom imports what of offers.
func importFrom(t testing.TB, dev *cu.Device, of *vmm.Buffer, opts ...vmm.ImportOption) *vmm.Buffer {
	t.Helper()
	d, files := export(t, of)
	got, err := vmm.Import(dev, d, files, opts...)
	closeFiles(t, files)
	require.NoError(t, err)
	return got
}

// ok returns what a call returned, and ends the test if that failed: ok(vmm.New(dev, size))(t).
func ok[T any](v T, err error) func(t testing.TB, about ...any) T {
	return func(t testing.TB, about ...any) T {
		t.Helper()
		require.NoError(t, err, about...)
		return v
	}
}

// untilEnd returns c, which is closed when t ends.
func untilEnd[C io.Closer](t testing.TB, c C) C {
	t.Helper()
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	return c
}

// errOf returns the error of a call that returns something else, too.
func errOf[T any](_ T, err error) error { return err }

// noise is n bytes that are no others'.
func noise(n uint64, seed int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i*7 + i>>8 + i>>16 + seed)
	}
	return b
}

func write(t testing.TB, ctx *cu.Context, p cu.DevicePtr, b []byte) {
	t.Helper()
	require.NoError(t, cu.CopyToDevice(ctx, p, b))
}

func read(t testing.TB, ctx *cu.Context, p cu.DevicePtr, n uint64) []byte {
	t.Helper()
	b := make([]byte, n)
	require.NoError(t, cu.CopyToHost(ctx, b, p))
	return b
}

// closeFiles closes files, all of which are open.
func closeFiles(t testing.TB, files []*os.File) {
	t.Helper()
	for _, f := range files {
		require.NoError(t, f.Close())
	}
}

// requireClosed says that somebody has closed each of files.
func requireClosed(t testing.TB, files []*os.File) {
	t.Helper()
	for _, f := range files {
		require.ErrorIs(t, f.Close(), os.ErrClosed)
	}
}

// eventuallyCollected collects garbage until what was lost has been cleaned up.
func eventuallyCollected(t testing.TB, done func() bool) {
	t.Helper()
	require.Eventually(t, func() bool { runtime.GC(); return done() }, 30*time.Second, time.Millisecond)
}

// must ends a child that cannot go on.
func must(err error) {
	if err != nil {
		panic(err)
	}
}

func get[T any](v T, err error) T {
	must(err)
	return v
}
