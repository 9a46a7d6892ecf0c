package share

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/cutest"
	"github.com/gpufd/gpufd/cu/sys"
	"github.com/gpufd/gpufd/internal/serve"
	"github.com/gpufd/gpufd/vmm"
)

// soon is a deadline for what should happen at once; it is long because
// machines are slow, and costs nothing when all is well.
func soon(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// briefly is a deadline for what must not happen.
func briefly(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Millisecond)
	t.Cleanup(cancel)
	return ctx
}

// brief is how long somebody waits in tests in which a peer is to be too slow. Others, on a
// machine that is, would be too: they are given other servers, or leases and attachments
// that wait so briefly only in the end (timeoutFrom, letGoIn, goodbyeIn, timeoutAt).
// outlast waits for longer.
const brief = 300 * time.Millisecond

// goodbyes makes a server wait no longer than d for a peer that does not read its last record.
func goodbyes(d time.Duration) func(*serve.PeerOptions) {
	return func(o *serve.PeerOptions) { o.Goodbye = d }
}

// timeoutFrom makes the nth lease wait for no step longer than d from that event of it on, which
// is Connected or Mapped, because nobody else looks at the timeout when those are told. It does
// not bound the answer of a consumer that had to wait for the offer.
func timeoutFrom(k EventKind, n int, d time.Duration) func(*serve.Terms) {
	return func(o *serve.Terms) {
		onEvent, onLease := o.OnEvent, o.OnLease
		leases := make(chan *serve.Lease, 1)
		o.OnLease = func(l *serve.Lease) {
			if l.Number() == n {
				leases <- l
			}
			onLease(l)
		}
		o.OnEvent = func(e serve.Event) {
			if e.Kind == serve.EventKind(k) && e.Lease == n {
				step, _, _ := (<-leases).Times()
				*step = d
			}
			onEvent(e)
		}
	}
}

// both changes terms twice.
func both(a, b func(*serve.Terms)) func(*serve.Terms) {
	return func(o *serve.Terms) { a(o); b(o) }
}

// letGoIn makes the nth lease wait no longer than d for a consumer that has to close legacy memory.
func letGoIn(n int, d time.Duration) func(*serve.Terms) {
	return withLease(n, func(l *serve.Lease) { _, _, letGo := l.Times(); *letGo = d })
}

// goodbyeIn makes the nth lease wait no longer than d for a consumer that does not read its last
// record.
func goodbyeIn(n int, d time.Duration) func(*serve.Terms) {
	return withLease(n, func(l *serve.Lease) { _, goodbye, _ := l.Times(); *goodbye = d })
}

// withLease changes the nth lease before anything is sent.
func withLease(n int, change func(*serve.Lease)) func(*serve.Terms) {
	return func(o *serve.Terms) {
		onLease := o.OnLease
		o.OnLease = func(l *serve.Lease) {
			if l.Number() == n {
				change(l)
			}
			onLease(l)
		}
	}
}

// withRate bounds the records a second that are taken of the peer; 0 is no bound.
func withRate(perSecond int) func(*serve.PeerOptions) {
	return func(o *serve.PeerOptions) { o.Rate = perSecond }
}

// timeoutAt shortens the timeout of an Attach to d once the driver has done that step.
func (s *spy) timeoutAt(step string, d time.Duration) func(*serve.PeerOptions) {
	return func(o *serve.PeerOptions) { s.at(step, func() { o.Timeout = d }) }
}

// sideBySide runs the cases of a test at once, which wait more than they work. The test sees
// to it that they leave nothing; it does not say which of them did.
func sideBySide[C any](t *testing.T, cases map[string]C, f func(*testing.T, string, C)) {
	var all sync.WaitGroup
	for name, c := range cases {
		all.Go(func() { t.Run(name, func(t *testing.T) { f(t, name, c) }) })
	}
	all.Wait()
}

func outlast(t testing.TB) {
	t.Helper()
	<-time.NewTimer(brief + brief/5).C
}

// leavesNothing returns the device and a context of it, and fails t when it
// ends with other free memory or descriptors than now (invariants 3 and 4).
func leavesNothing(t testing.TB) (*cu.Device, *cu.Context) {
	t.Helper()
	dev := cutest.Device(t)
	return dev, leavesNothingOn(t, dev)
}

// listening is leavesNothing with a server.
func listening(t testing.TB, opts ...ListenOptions) (*cu.Device, *cu.Context, *Server) {
	t.Helper()
	dev, ctx := leavesNothing(t)
	return dev, ctx, listen(t, opts...)
}

func leavesNothingOn(t testing.TB, dev *cu.Device) *cu.Context {
	t.Helper()
	ctx := cutest.Context(t, dev)
	warm(t, ctx)
	free, fds := freeMemory(t, ctx), cutest.Descriptors()
	t.Cleanup(func() {
		if t.Failed() {
			return // before it closed all: what failed says more
		}
		requireFree(t, ctx, free)
		requireDescriptors(t, fds) // on older kernels connections are closed where nobody waits
	})
	return ctx
}

var warmed sync.Map // device's UUID → true

// warm does once on each device what a GPU's driver keeps memory of from the first
// time on, which is nobody's leak.
func warm(t testing.TB, ctx *cu.Context) {
	t.Helper()
	if _, done := warmed.LoadOrStore(ctx.Device().UUID(), true); done {
		return
	}
	mem, err := ctx.Alloc(32 << 20)
	require.NoError(t, err)
	var streams [32]*cu.Stream // as many as a test has at once
	for i := range streams {
		streams[i], err = ctx.NewStream()
		require.NoError(t, err)
	}
	require.NoError(t, cu.FillAsync(streams[0], mem.Ptr(), uint8(0), 32<<20))
	require.NoError(t, streams[0].Synchronize(soon(t)))
	for i, s := range streams[1:] {
		word := mem.Ptr().Add(uint64(i) * 8)
		require.NoError(t, s.WaitValue64(word, 1, cu.WaitGEQ))
		require.NoError(t, streams[0].WriteValue64(word, 1, cu.WriteDefault))
	}
	for _, s := range streams {
		require.NoError(t, s.Synchronize(soon(t)))
	}
	require.NoError(t, cu.CopyToHost(ctx, make([]byte, 1), mem.Ptr()))
	for _, s := range streams {
		require.NoError(t, s.Close())
	}
	require.NoError(t, mem.Close())
}

// A spy counts the calls that reach the driver. Its faults answer in the driver's
// place.
type spy struct {
	*cutest.Faults
	mu     sync.Mutex
	counts map[string]int // of those that succeeded
	mapped map[uintptr]bool
	all    int
	steps  []func(step string)
}

// stepOf names what the driver does for an Attach.
var stepOf = map[string]string{
	"cuMemImportFromShareableHandle": "import", "cuMemAddressReserve": "reserve", "cuMemMap": "map", "cuMemSetAccess": "access",
	"cuIpcOpenMemHandle": "open", "cuIpcOpenMemHandle_v2": "open",
}

// spied is leavesNothing with a spy.
func spied(t testing.TB) (*spy, *cu.Device, *cu.Context) {
	t.Helper()
	s := &spy{Faults: cutest.NewFaults(t), counts: map[string]int{}, mapped: map[uintptr]bool{}}
	dev := cutest.Device(t, s.Option(), cu.WithHook(s.hook))
	return s, dev, leavesNothingOn(t, dev)
}

func (s *spy) hook(call sys.Call, next func() sys.CUresult) sys.CUresult {
	r, steps := s.call(call, next)
	if step := stepOf[call.Symbol()]; r == sys.CUDA_SUCCESS && step != "" {
		for _, f := range steps {
			f(step)
		}
	}
	return r
}

// onStep calls f after each step of later Attaches, on their goroutine.
func (s *spy) onStep(f func(step string)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.steps = append(s.steps, f)
}

// at calls f once, after that step.
func (s *spy) at(step string, f func()) {
	var once sync.Once
	s.onStep(func(now string) {
		if now == step {
			once.Do(f)
		}
	})
}

func (s *spy) call(call sys.Call, next func() sys.CUresult) (sys.CUresult, []func(string)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all++
	r := next()
	if r == sys.CUDA_SUCCESS {
		s.counts[call.Symbol()]++
		s.keepMapped(call)
	}
	return r, s.steps
}

// keepMapped notes what a call maps or unmaps; one call may unmap several mappings.
func (s *spy) keepMapped(call sys.Call) {
	switch call.Symbol() {
	case "cuMemMap":
		s.mapped[call.Arg(0)] = true
	case "cuMemUnmap":
		at, size := call.Arg(0), call.Arg(1)
		maps.DeleteFunc(s.mapped, func(p uintptr, _ bool) bool { return p >= at && p-at < size })
	}
}

func (s *spy) mappings() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.mapped)
}

// during runs f while function fails, or no function if that is "".
func (s *spy) during(function string, f func() error) error {
	if function != "" {
		defer s.Fail(function, cu.ErrOutOfMemory).Stop()
	}
	return f()
}

// count is how many calls of symbol succeeded, or of any reached the driver if
// that is "".
func (s *spy) count(symbol string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if symbol == "" {
		return s.all
	}
	return s.counts[symbol]
}

// owed is what was taken from the driver and not given back.
func (s *spy) owed() string {
	return fmt.Sprintf("%d handles, %d reservations, %d mappings, %d opened",
		s.count("cuMemCreate")+s.count("cuMemImportFromShareableHandle")-s.count("cuMemRelease"),
		s.count("cuMemAddressReserve")-s.count("cuMemAddressFree"),
		s.mappings(),
		s.count("cuIpcOpenMemHandle_v2")-s.count("cuIpcCloseMemHandle"))
}

func freeMemory(t testing.TB, ctx *cu.Context) uint64 {
	t.Helper()
	free, _, err := ctx.MemInfo()
	require.NoError(t, err)
	return free
}

// requireFree waits until so much memory is free: a driver takes a moment to give
// back what a killed process had. On a GPU it may be more: a process that was killed before
// had not given back its own when that was counted.
func requireFree(t testing.TB, ctx *cu.Context, want uint64) {
	t.Helper()
	is := func(free uint64) bool { return free == want || free > want && cutest.Kind() == cu.CUDA }
	for end := time.Now().Add(5 * time.Second); !is(freeMemory(t, ctx)) && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
	}
	if free := freeMemory(t, ctx); !is(free) {
		require.Equal(t, want, free, "free memory")
	}
}

// newBuffer is a buffer full of noise, closed when t ends.
func newBuffer(t testing.TB, ctx *cu.Context, size uint64, opts ...vmm.NewOption) *vmm.Buffer {
	t.Helper()
	buf := ok(vmm.New(ctx.Device(), size, opts...))(t)
	t.Cleanup(func() { require.NoError(t, buf.Close()) })
	require.NoError(t, cu.CopyToDevice(ctx, buf.Ptr(), noise(size, 1)))
	return buf
}

func granularity(t testing.TB, dev *cu.Device) uint64 {
	t.Helper()
	g := ok(vmm.Granularity(dev))(t)
	return g
}

// noise is n bytes that are no others'.
func noise(n uint64, seed int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i*7 + i>>8 + i>>16 + seed)
	}
	return b
}

// requireNoise checks that buf holds noise of that seed.
func requireNoise(t testing.TB, ctx *cu.Context, buf *vmm.Buffer, seed int) {
	t.Helper()
	got := make([]byte, buf.Size())
	require.NoError(t, cu.CopyToHost(ctx, got, buf.Ptr()))
	require.True(t, string(noise(buf.Size(), seed)) == string(got))
}

// socketPath is short, in a directory that only this user can enter.
func socketPath(t testing.TB) string {
	t.Helper()
	dir := ok(os.MkdirTemp("", "share"))(t)
	t.Cleanup(func() {
		left := ok(os.ReadDir(dir))(t)
		require.Empty(t, left, "left beside the socket")
		require.NoError(t, os.Remove(dir))
	})
	return filepath.Join(dir, "s")
}

// ok returns v, and fails the test if there is an error: ok(f())(t).
func ok[T any](v T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		require.NoError(t, err)
		return v
	}
}

// errOf returns the error of a call with two results.
func errOf[T any](_ T, err error) error { return err }
