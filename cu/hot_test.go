package cu

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu/sys"
)

// hollow is a context, a stream and an event of a driver whose every function is libc's
// pthread_getconcurrency: C that takes what it is given, does nothing and
// returns 0, so that benchmarks measure what is ours. (A callback, which the
// software driver is made of, allocates.)
func hollow(tb testing.TB, hooks ...sys.Hook) (*Context, *Stream, *Event) {
	libc, err := sys.OpenFile("libc.so.6")
	require.NoError(tb, err)
	addr, err := libc("pthread_getconcurrency")
	require.NoError(tb, err)
	lib := sys.NewLibrary(func(string) (uintptr, error) { return addr, nil })
	if len(hooks) > 0 {
		lib.SetHook(sys.Nest(hooks...))
	}
	drv := &Driver{call: lib.Caller()}
	ctx := &Context{inner: &contextHandle{
		dev: &Device{drv: drv}, ctx: 1, call: drv.call.With(1), loss: new(lostState), children: map[closer]struct{}{},
	}}
	ctx.null = &Stream{&streamHandle{}, ctx}
	return ctx, &Stream{&streamHandle{stream: 2}, ctx}, &Event{&eventHandle{event: 3}, ctx}
}

// hotCalls are what a program does in its inner loop.
func hotCalls(ctx *Context, s *Stream, e *Event) map[string]func() error {
	host, words := make([]byte, 64), make([]float32, 16)
	exec := &GraphExec{&graphExecHandle{exec: 3}, ctx}
	side, far := DeviceSide(DevicePtr(4096), 32), DeviceSide(DevicePtr(8192), 32)
	far.Context = ctx
	batch := []MemOp{WaitOp32(4096, 1, WaitEQ), WriteOp64(4096, 2, WriteDefault)}
	f := &Function{ctx: ctx, owner: new(gate), fn: 4, name: "f"}
	f.params.Store(&[]Param{{0, 8}, {8, 8}, {16, 4}})
	plainLaunch, err1 := f.Prepare(LaunchConfig{Grid: Dim3{X: 1}, Block: Dim3{X: 1}}, DevicePtr(4096), uint64(1), float32(1))
	urgent, err2 := f.Prepare(LaunchConfig{Grid: Dim3{X: 1}, Block: Dim3{X: 1}, Priority: -1}, DevicePtr(4096), uint64(1), float32(1))
	onMemory, err3 := f.Prepare(LaunchConfig{Grid: Dim3{X: 1}, Block: Dim3{X: 1}}, &Memory{&memoryHandle{ptr: 4096}, ctx}, uint64(1), float32(1))
	if err := errors.Join(err1, err2, err3); err != nil {
		panic(err)
	}
	number := uint64(1 << 40)
	at, to := DevicePtr(number), DevicePtr(number/2) // no constants, whose conversions never allocate
	mem := &Memory{&memoryHandle{ptr: 4096, size: 64}, ctx}
	elements := Slice[float32]{&span{of: mem, n: 16, unit: 4}}
	bg := context.Background()
	limited, cancel := context.WithCancel(bg)
	_ = cancel // it lives as long as the tests
	return map[string]func() error{
		"Stream.Query":      func() error { _, err := s.Query(); return err },
		"NotCaptured":       s.NotCaptured,
		"CopyToDeviceAsync": func() error { return CopyToDeviceAsync(s, at, host) },
		"CopyToHostAsync":   func() error { return CopyToHostAsync(s, words, at) },
		"Fill 8":            func() error { return FillAsync(s, at, uint8(200), 64) },
		"Fill 16":           func() error { return FillAsync(s, at, uint16(60000), 64) },
		"Fill 32":           func() error { return FillAsync(s, at, uint32(0xdeadbeef), 64) },
		"Fill2D 8":          func() error { return Fill2DAsync(s, at, 64, uint8(200), 8, 8) },
		"Fill2D 16":         func() error { return Fill2DAsync(s, at, 64, uint16(60000), 8, 8) },
		"Fill2D 32":         func() error { return Fill2DAsync(s, at, 64, uint32(0xdeadbeef), 8, 8) },
		"Copy":              func() error { return CopyAsync(s, to, at, 64) },
		"Copy of memory":    func() error { return CopyAsync(s, mem, elements, 64) },
		"Fill of elements":  func() error { return FillAsync(s, elements, uint32(7), 16) },
		"Slice.CopyTo":      func() error { return elements.CopyTo(s, words) },
		"Slice.CopyFrom":    func() error { return elements.CopyFrom(s, words) },
		"Side of elements":  func() error { return Copy2DAsync(s, DeviceSide(elements, 16), HostSide(words, 16), 16, 4) },
		"CopyPeer":          func() error { return CopyPeerAsync(s, to, ctx, at, ctx, 64) },
		"Copy2DAsync":       func() error { return Copy2DAsync(s, side, HostSide(words, 16), 16, 4) },
		"Copy3DAsync":       func() error { return Copy3DAsync(s, HostSide(host, 8), side, 8, 4, 2) },
		"Copy3DAsync, peer": func() error { return Copy3DAsync(s, side, far, 8, 4, 2) },
		"CopyToDevice":      func() error { return CopyToDevice(ctx, at, words) },
		"CopyToHost":        func() error { return CopyToHost(s, words, at) },
		"Fill, waiting":     func() error { return Fill(s, at, uint8(200), 64) },
		"GraphExec.Launch":  func() error { return exec.Launch(s) },
		"Synchronize":       func() error { return ctx.Synchronize(bg) },
		"Launch.Run":        func() error { return plainLaunch.Run(s) },
		"Launch.Run null":   func() error { return plainLaunch.Run(ctx.NullStream()) },
		"Launch.Run urgent": func() error { return urgent.Run(s) },
		"Launch.Run memory": func() error { return onMemory.Run(s) },
		"Launch.Set":        func() error { number++; return plainLaunch.Set(1, number) },

		"Stream.Synchronize":             func() error { return s.Synchronize(bg) },
		"Stream.Synchronize cancellable": func() error { return s.Synchronize(limited) },
		"Stream.WaitEvent":               func() error { return s.WaitEvent(e) },
		"Stream.WaitValue32":             func() error { return s.WaitValue32(4096, 1, WaitGEQ) },
		"Stream.WaitValue64":             func() error { return s.WaitValue64(4096, 1, WaitGEQ) },
		"Stream.WriteValue32":            func() error { return s.WriteValue32(4096, 1, WriteDefault) },
		"Stream.WriteValue64":            func() error { return s.WriteValue64(4096, 1, WriteDefault) },
		"Stream.BatchMemOps":             func() error { return s.BatchMemOps(batch...) },
		"Event.Record":                   func() error { return e.Record(s) },
		"Event.Record null":              func() error { return e.Record(ctx.NullStream()) },
		"Event.Query":                    func() error { _, err := e.Query(); return err },
		"Event.Synchronize":              func() error { return e.Synchronize(bg) },
		"Event.Synchronize cancellable":  func() error { return e.Synchronize(limited) },
	}
}

// Invariant 10.
func TestHotCallsDoNotAllocate(t *testing.T) {
	if raceDetector {
		t.Skip("the race detector makes sync.Pool forget at random")
	}
	for name, call := range hotCalls(hollow(t)) {
		require.NoError(t, call(), name)
		require.Zero(t, testing.AllocsPerRun(200, func() { _ = call() }), name)
	}
}

// For the race detector: runs of one Launch share nothing that one of them changes.
func TestRunsMayOverlap(t *testing.T) {
	calls := hotCalls(hollow(t, func(_ sys.Call, call func() sys.CUresult) sys.CUresult {
		runtime.Gosched() // so that another run begins before this one ends
		return call()
	}))
	for _, name := range []string{"Launch.Run", "Launch.Run urgent"} {
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				for range 100 {
					assert.NoError(t, calls[name]())
				}
			})
		}
		wg.Wait()
	}
}

func BenchmarkHotCalls(b *testing.B) {
	for name, call := range hotCalls(hollow(b)) {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				_ = call()
			}
		})
	}
}
