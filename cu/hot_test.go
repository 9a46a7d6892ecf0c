package cu

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu/sys"
)

// hollow is a context and a stream of a driver whose every function is libc's
// sched_yield: C that takes what it is given, does nothing and returns 0. (A
// callback, which the software driver is made of, allocates.)
func hollow(tb testing.TB) (*Context, *Stream) {
	libc, err := sys.OpenFile("libc.so.6")
	require.NoError(tb, err)
	addr, err := libc("sched_yield")
	require.NoError(tb, err)
	lib := sys.NewLibrary(func(string) (uintptr, error) { return addr, nil })
	drv := &Driver{call: lib.Caller()}
	ctx := &Context{&contextHandle{dev: &Device{drv: drv}, ctx: 1, fate: new(fate), children: map[closer]struct{}{}}}
	return ctx, &Stream{&streamHandle{stream: 2}, ctx}
}

// hotCalls are what a program does in its inner loop.
func hotCalls(ctx *Context, s *Stream) map[string]func() error {
	host, words := make([]byte, 64), make([]float32, 16)
	return map[string]func() error{
		"Stream.Query":      func() error { _, err := s.Query(); return err },
		"CopyToDeviceAsync": func() error { return CopyToDeviceAsync(ctx, s, 4096, host) },
		"CopyToHostAsync":   func() error { return CopyToHostAsync(ctx, s, words, 4096) },
		"CopyDevice":        func() error { return CopyDevice(ctx, s, 4096, 8192, 64) },
		"Fill 8":            func() error { return Fill(ctx, s, 4096, uint8(200), 64) },
		"Fill 16":           func() error { return Fill(ctx, s, 4096, uint16(60000), 64) },
		"Fill 32":           func() error { return Fill(ctx, s, 4096, uint32(0xdeadbeef), 64) },
		"CopyToDevice":      func() error { return CopyToDevice(ctx, nil, 4096, words) },
		"Synchronize":       func() error { return ctx.Synchronize(context.Background()) },
	}
}

// Invariant 10.
func TestHotCallsDoNotAllocate(t *testing.T) {
	if raceDetector {
		t.Skip("the race detector makes sync.Pool forget at random")
	}
	for name, call := range hotCalls(hollow(t)) {
		require.NoError(t, call())
		require.Zero(t, testing.AllocsPerRun(200, func() { _ = call() }), name)
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
