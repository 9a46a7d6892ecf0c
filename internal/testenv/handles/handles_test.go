package handles

import (
	"reflect"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu/sys"
)

// requireLeft wants so many things left, and their report to say where they
// were made: in the test.
func (f *fake) requireLeft(t *testing.T, n int) {
	t.Helper()
	left := f.Since(0)
	require.Len(t, left, n)
	for _, l := range left {
		_, stack, _ := strings.Cut(l, " was made at\n")
		require.Contains(t, stack, t.Name())
		require.NotContains(t, strings.SplitN(stack, "\n", 2)[0], "cu/sys.", "how the driver was called")
	}
}

// number is a thing's handle, address or number.
func number(k kind) uintptr {
	if k == primary {
		return 1
	}
	return address(1)
}

// Each call that gives something out is noticed, and each that gives it back;
// calls that fail do neither.
func TestEveryMakerAndEnder(t *testing.T) {
	for symbol, m := range makers {
		ends := 0
		for end, k := range enders {
			if k != m.kind {
				continue
			}
			ends++
			f := newFake()
			f.result = sys.CUDA_ERROR_UNKNOWN
			f.give(t, symbol, number(m.kind))
			f.requireLeft(t, 0)
			f.result = sys.CUDA_SUCCESS
			f.give(t, symbol, number(m.kind))
			f.requireLeft(t, 1)
			require.Contains(t, f.Since(0)[0], string(m.kind), symbol)
			require.Empty(t, f.Since(f.Mark()))

			if m.kind == mapping {
				f.call(t, end, map[int]uintptr{0: number(m.kind), 1: 0})
				f.requireLeft(t, 0)
				continue
			}
			f.take(t, end, number(m.kind)+8)
			f.requireLeft(t, 1)
			f.result = sys.CUDA_ERROR_UNKNOWN
			f.take(t, end, number(m.kind))
			f.requireLeft(t, 1)
			f.result = sys.CUDA_SUCCESS
			f.take(t, end, number(m.kind))
			f.requireLeft(t, 0)
			f.take(t, end, number(m.kind))
		}
		require.NotZero(t, ends, "nothing gives back what %s gives out", symbol)
	}
}

// Arguments are where the table says they are.
func TestMakersStoreAHandleAndHaveASize(t *testing.T) {
	for symbol, m := range makers {
		method, _ := reflect.TypeFor[sys.Caller]().MethodByName("C" + symbol[1:])
		arg := method.Type.In(1 + m.arg)
		if !m.in {
			require.Equal(t, reflect.Pointer, arg.Kind(), symbol)
			require.EqualValues(t, 8, arg.Elem().Size(), symbol)
		}
		if m.size > 0 {
			require.Contains(t, []reflect.Kind{reflect.Uintptr, reflect.Uint32}, method.Type.In(1+m.size).Kind(), symbol)
		}
	}
}

// A handle given out several times is given back as often.
func TestReferencesAreCounted(t *testing.T) {
	f := newFake()
	f.give(t, "cuMemCreate", address(1))
	first := f.Since(0)
	f.give(t, "cuMemRetainAllocationHandle", address(1))
	f.take(t, "cuMemRelease", address(1))
	require.Equal(t, first, f.Since(0), "who came first stays last")
	f.take(t, "cuMemRelease", address(1))
	f.requireLeft(t, 0)
}

// Memory that a pool's importer is given several times is given back once.
func TestImportsAreNotCounted(t *testing.T) {
	f := newFake()
	f.give(t, "cuMemPoolImportPointer", address(1))
	f.give(t, "cuMemPoolImportPointer", address(1))
	f.give(t, "cuMemPoolImportPointer", address(2))
	f.requireLeft(t, 2)
	f.take(t, "cuMemFreeAsync", address(1))
	f.take(t, "cuMemFreeAsync", address(2))
	f.requireLeft(t, 0)
}

// One unmapping may end several mappings, and no others.
func TestUnmapEndsARange(t *testing.T) {
	f := newFake()
	for i := range uintptr(4) {
		f.call(t, "cuMemMap", map[int]uintptr{0: 0x1000 * (i + 1), 1: 0x1000})
	}
	require.Contains(t, f.Since(0)[0], "mapping 0x1000 of 4096 bytes was made at\n")
	f.call(t, "cuMemUnmap", map[int]uintptr{0: 0x2000, 1: 0x2000})
	f.requireLeft(t, 2)
	f.call(t, "cuMemUnmap", map[int]uintptr{0: 0x1000, 1: 0x1000})
	f.requireLeft(t, 1)
	require.Contains(t, f.Since(0)[0], "mapping 0x4000")
}

// Objects end with their context: those of a created one with the first
// call, of the primary one with its last reference or a reset.
func TestContextEndsWhatIsInIt(t *testing.T) {
	inside := func(f *fake, ctx uintptr) {
		call := f.caller.With(sys.CUcontext(ctx))
		f.gives = address(2)
		require.Zero(t, call.CuStreamCreate(new(sys.CUstream), 0))
		require.Zero(t, call.CuMemAllocAsync(new(sys.CUdeviceptr), 64, 0))
	}
	retain := func(f *fake) {
		f.gives = address(1)
		f.call(t, "cuDevicePrimaryCtxRetain", map[int]uintptr{1: 1})
	}
	for name, c := range map[string]struct {
		make func(*fake)
		end  []string
		arg  uintptr
	}{
		"own":               {func(f *fake) { f.give(t, "cuCtxCreate_v4", address(1)) }, []string{"cuCtxDestroy_v2"}, address(1)},
		"primary":           {retain, []string{"cuDevicePrimaryCtxRelease_v2"}, 1},
		"primary, retained": {func(f *fake) { retain(f); retain(f) }, []string{"cuDevicePrimaryCtxRelease", "cuDevicePrimaryCtxRelease"}, 1},
		"primary, reset":    {retain, []string{"cuDevicePrimaryCtxReset_v2", "cuDevicePrimaryCtxRelease"}, 1},
	} {
		f := newFake()
		c.make(f)
		inside(f, address(1))
		inside(f, address(3)) // in another context
		have := len(c.end) + 4
		if strings.HasSuffix(name, "reset") {
			have--
		}
		f.requireLeft(t, have)
		for i, symbol := range c.end {
			f.take(t, symbol, c.arg)
			if i == 0 && name == "primary, retained" {
				f.requireLeft(t, have-1)
			}
		}
		require.Len(t, f.Since(0), 3, name) // the memory of a pool stays
	}
}

// Being attached to a context counts for cuCtxDetach alone.
func TestDestroyedContextHasNoUsers(t *testing.T) {
	f := newFake()
	f.give(t, "cuCtxCreate_v4", address(1))
	f.give(t, "cuCtxAttach", address(1))
	f.take(t, "cuCtxDetach", address(1))
	f.requireLeft(t, 1)
	f.give(t, "cuCtxAttach", address(1))
	f.give(t, "cuCtxCreate_v4", address(2))
	f.take(t, "cuCtxDestroy_v2", address(1))
	f.requireLeft(t, 1)
	f.take(t, "cuCtxDestroy_v2", address(2))
	f.requireLeft(t, 0)
}

// A handle that the driver gives out again at once is another's.
func TestHandleGivenOutWhileItIsGivenBack(t *testing.T) {
	f := newFake()
	f.give(t, "cuMemCreate", address(1))
	f.during = func() { f.give(t, "cuMemCreate", address(1)) }
	f.take(t, "cuMemRelease", address(1))
	f.requireLeft(t, 1)
	f.take(t, "cuMemRelease", address(1))
	f.requireLeft(t, 0)
}
