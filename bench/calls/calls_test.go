//go:build cgo

package main

import (
	"maps"
	"sync"
	"testing"

	"github.com/ebitengine/purego"
	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/soft"
	"github.com/gpufd/gpufd/cu/sys"
)

// watched are the functions that a ledger notes, with what of each argument
// counts: a word, d 32 bits, b 8 bits, - nothing, as of out-pointers.
var watched = map[string]string{
	"cuCtxGetCurrent":         "-",
	"cuCtxSetCurrent":         "w",
	"cuDeviceGetAttribute":    "-dd",
	"cuEventQuery":            "w",
	"cuEventRecord":           "ww",
	"cuEventSynchronize":      "w",
	"cuLaunchKernel":          "wdddddddw-w", // of no parameters the address is any
	"cuMemcpyAsync":           "wwww",
	"cuMemcpyDtoHAsync_v2":    "wwww",
	"cuMemcpyHtoDAsync_v2":    "wwww",
	"cuMemsetD8Async":         "wbww",
	"cuPointerGetAttribute":   "-dw",
	"cuStreamQuery":           "w",
	"cuStreamSynchronize":     "w",
	"cuStreamWriteValue32_v2": "wwdd",
}

// A ledger is the software driver with eyes: it notes the calls that reach it,
// from C and from Go.
type ledger struct {
	mu      sync.Mutex
	calls   map[string][][]uintptr
	refuses bool               // all that is watched, but contexts
	made    map[string]uintptr // callbacks, which are never freed
}

// eyes is the one ledger, as the driver is one.
var eyes = &ledger{calls: map[string][][]uintptr{}, made: map[string]uintptr{}}

// resolver is the software driver's, with the ledger before it.
func (l *ledger) resolver(symbol string) (uintptr, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if addr := l.made[symbol]; addr != 0 {
		return addr, nil
	}
	addr, err := soft.Resolver(symbol)
	if f := l.replaced(symbol, addr); f != nil && err == nil {
		addr = purego.NewCallback(f)
		l.made[symbol] = addr
	}
	return addr, err
}

// replaced is what stands in the place of the driver's function, or nil.
func (l *ledger) replaced(symbol string, addr uintptr) any {
	kinds := watched[symbol]
	if kinds == "" {
		return nil
	}
	return func(a, b, c, d, e, f, g, h, i, j, k uintptr) uintptr {
		args := []uintptr{a, b, c, d, e, f, g, h, i, j, k}[:len(kinds)]
		l.note(symbol, kinds, args)
		switch {
		case l.refuses && symbol != "cuCtxSetCurrent":
			return uintptr(sys.CUDA_ERROR_INVALID_HANDLE)
		}
		r, _, _ := purego.SyscallN(addr, args...)
		return r
	}
}

func (l *ledger) note(symbol, kinds string, args []uintptr) {
	masks := map[byte]uintptr{'-': 0, 'w': ^uintptr(0), 'd': 1<<32 - 1, 'b': 1<<8 - 1}
	noted := make([]uintptr, len(args))
	for i := range args {
		noted[i] = args[i] & masks[kinds[i]]
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.calls[symbol] = append(l.calls[symbol], noted)
}

// during is what reaches the driver while f runs.
func (l *ledger) during(f func()) map[string][][]uintptr {
	clear(l.calls)
	f()
	return maps.Clone(l.calls)
}

// stageWithEyes is a stage of the ledger's driver, and all calls.
func stageWithEyes(t *testing.T) (*stage, []call) {
	drv, err := cu.Open(cu.WithResolver(eyes.resolver))
	require.NoError(t, err)
	s, err := newStage(drv)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.close()) })
	calls, cannot := s.calls()
	require.Equal(t, lacking(drv), cannot)
	require.Len(t, calls, 18-len(cannot))
	return s, calls
}

// lacking is the call that drivers before CUDA 11.7 lack.
func lacking(drv *cu.Driver) []string {
	if drv.Version() >= 11070 {
		return nil
	}
	return []string{"cuStreamWriteValue32_v2"}
}

// binds is how often a way sets the context in a batch of n calls that make so
// many calls of the driver in all.
func binds(c call, w way, made int) int {
	switch {
	case w.name == byC || w.name == byCgo:
		return 1 // outside the time
	case c.name == "cuDeviceGetAttribute":
		return 0
	}
	return made
}

// Every way makes the calls that it is said to make, with the arguments of all
// others, and binds the context as often as it is said to.
func TestEveryWayMakesTheSameCalls(t *testing.T) {
	const n = 3
	s, calls := stageWithEyes(t)
	for _, c := range calls {
		want := map[string][][]uintptr{}
		for _, w := range c.ways {
			t.Run(c.name+" by "+w.name, func(t *testing.T) {
				require.NoError(t, s.drain())
				made := eyes.during(func() {
					_, err := w.run(n)
					require.NoError(t, err)
				})
				expectCalls(t, c, w, n, made)
				if w.name == byC {
					want = made
				}
				for _, symbol := range c.symbols {
					require.Equal(t, want[symbol], made[symbol], symbol)
				}
			})
		}
		require.NotEmpty(t, want, "the first way is C's")
	}
}

// expectCalls counts the calls of a batch of n.
func expectCalls(t *testing.T, c call, w way, n int, made map[string][][]uintptr) {
	want := map[string]int{}
	for _, symbol := range c.symbols {
		want[symbol] = n
	}
	if c.name == sustained {
		want["cuStreamSynchronize"] = 1
	}
	all := 0
	for _, k := range want {
		all += k
	}
	if k := binds(c, w, all); k > 0 {
		want["cuCtxSetCurrent"] = k
	}
	got := map[string]int{}
	for symbol, calls := range made {
		got[symbol] = len(calls)
	}
	require.Equal(t, want, got)
}

func TestFailedCallsAreErrors(t *testing.T) {
	_, calls := stageWithEyes(t)
	for _, c := range calls {
		for _, w := range c.ways {
			eyes.refuses = true
			_, err := w.run(1)
			eyes.refuses = false
			require.ErrorIs(t, err, cu.ErrInvalidHandle, "%s by %s", c.name, w.name)
		}
	}
}
