package cu_test

import (
	"bytes"
	"io"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/cutest"
	"github.com/gpufd/gpufd/cu/soft"
	"github.com/gpufd/gpufd/cu/sys"
)

func TestOpenTellsWhichDriverItIs(t *testing.T) {
	drv := cutest.Driver(t)
	require.Equal(t, cutest.Kind(), drv.Kind())
	require.GreaterOrEqual(t, drv.Version(), 11040)
	require.Contains(t, drv.String(), "CUDA "+sys.Version(drv.Version()))
	if drv.Kind() == cu.Soft {
		require.Contains(t, drv.String(), "software driver")
		require.Equal(t, "soft", drv.Kind().String())
	} else {
		require.Contains(t, drv.String(), "libcuda")
		require.Equal(t, "cuda", drv.Kind().String())
	}
	require.Equal(t, "Kind(7)", cu.Kind(7).String())
}

func TestOpeningAgainGivesTheSameDevices(t *testing.T) {
	a, b := cutest.Driver(t), cutest.Driver(t)
	require.NotSame(t, a, b, "a driver is a value")
	require.Equal(t, len(a.Devices()), len(b.Devices()))
	for i, dev := range a.Devices() {
		require.Equal(t, dev.UUID(), b.Devices()[i].UUID())
		require.Same(t, a, dev.Driver())
	}
}

func TestDeviceListIsTheCallers(t *testing.T) {
	drv := cutest.Driver(t)
	drv.Devices()[0] = nil
	require.NotNil(t, drv.Devices()[0])
}

// FAULTS 43: no libcuda.
func TestFault43_OpenWithoutLibcuda(t *testing.T) {
	_, err := cu.Open()
	if err == nil {
		t.Skip("there is a libcuda here")
	}
	var absent *sys.LibraryError
	require.ErrorAs(t, err, &absent)
	for _, place := range []string{"libcuda.so.1", "/usr/lib64/libcuda.so.1", "/usr/lib/wsl/lib/libcuda.so.1", "/usr/local/nvidia/lib64/libcuda.so.1"} {
		require.ErrorContains(t, err, place)
	}
}

// FAULTS 43: no device, and a libcuda whose cuInit fails.
func TestFault43_OpenTellsABrokenDriverFromAnAbsentDevice(t *testing.T) {
	for _, c := range []struct {
		result cu.Result
		hint   string
	}{
		{cu.ErrNoDevice, "CUDA_VISIBLE_DEVICES"}, // D19 of docs/driver-facts.md
		{cu.ErrSystemDriverMismatch, "reload the nvidia module"},
		{cu.ErrStubLibrary, "LD_LIBRARY_PATH"},
		{cu.ErrUnknown, "cuInit: CUDA_ERROR_UNKNOWN (999)"},
	} {
		faults := cutest.NewFaults(t)
		faults.Fail("cuInit", c.result)
		drv, err := cutest.Open(without(t, "gpufdSoftDriver"), faults.Option())
		require.Nil(t, drv)
		require.ErrorIs(t, err, c.result)
		require.ErrorContains(t, err, c.hint)
	}
}

func TestOpenFailsWithAnyOfItsCalls(t *testing.T) {
	for _, symbol := range []string{"cuInit", "cuDeviceGetCount", "cuDeviceGet", "cuDeviceGetName", "cuDeviceGetUuid_v2"} {
		faults := cutest.NewFaults(t)
		faults.Fail(symbol, cu.ErrDeviceUnavailable)
		_, err := cutest.Open(faults.Option())
		require.ErrorIs(t, err, cu.ErrDeviceUnavailable, symbol)
		require.ErrorContains(t, err, symbol+": ")
	}
}

// lines is a writer that a test can read while it is written to.
type lines struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(b)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

func TestTraceShowsEveryCall(t *testing.T) {
	out := &lines{}
	dev := firstDevice(t, cutest.Driver(t, cu.WithTrace(out)))
	require.ErrorIs(t, errOf(dev.CreateMemory(1, cu.HandleFD)), cu.ErrInvalidValue)
	text := out.String()
	require.Contains(t, text, "cuInit(0) = CUDA_SUCCESS <")
	require.Regexp(t, `(?m)^cuMemCreate\(0x[0-9a-f]+, 1, 0x[0-9a-f]+, 0\) = CUDA_ERROR_INVALID_VALUE <[0-9.]+[µm]s>$`, text)
}

// Several hooks nest, and the trace shows what comes out of them all.
func TestHooksNest(t *testing.T) {
	var seen []string
	hook := func(name string, r sys.CUresult) cu.Option {
		return cu.WithHook(func(call sys.Call, next func() sys.CUresult) sys.CUresult {
			if call.Symbol() != "cuMemAddressReserve" {
				return next()
			}
			seen = append(seen, name)
			if r != sys.CUDA_SUCCESS {
				return r
			}
			return next()
		})
	}
	out := &lines{}
	drv := cutest.Driver(t, hook("first", sys.CUDA_SUCCESS), hook("second", sys.CUDA_ERROR_UNKNOWN), hook("third", sys.CUDA_SUCCESS), cu.WithTrace(out))
	require.ErrorIs(t, errOf(drv.ReserveAddress(2<<20, 0, 0)), cu.ErrUnknown)
	require.Equal(t, []string{"first", "second"}, seen)
	require.Contains(t, out.String(), ") = CUDA_ERROR_UNKNOWN <")
}

func TestEnvironmentTracesOnStandardError(t *testing.T) {
	for _, on := range []bool{true, false} {
		t.Setenv("GPUFD_TRACE", map[bool]string{true: "1", false: "0"}[on])
		r, w, err := os.Pipe()
		require.NoError(t, err)
		stderr := os.Stderr
		os.Stderr = w
		_, err = cutest.Open()
		os.Stderr = stderr
		require.NoError(t, w.Close())
		out, readErr := io.ReadAll(r)
		require.NoError(t, readErr)
		require.NoError(t, r.Close())
		if err != nil {
			cutest.SkipWithoutGPU(t, err.Error())
		}
		require.Equal(t, on, strings.Contains(string(out), "cuInit(0) = CUDA_SUCCESS"))
	}
}

func TestSoftwareDriverIsKnownByItsMarker(t *testing.T) {
	drv := ok(cu.Open(cu.WithResolver(soft.Resolver)))(t)
	require.Equal(t, cu.Soft, drv.Kind())
	drv, err := cu.Open(cu.WithResolver(func(symbol string) (uintptr, error) {
		if symbol == soft.Marker {
			return 0, errHidden
		}
		return soft.Resolver(symbol)
	}))
	require.NoError(t, err)
	require.Equal(t, cu.CUDA, drv.Kind())
	require.Contains(t, drv.String(), "CUDA driver")
}

// Functions that this package does not wrap can be called raw, with the handles of its objects.
func TestHandlesAreTheDrivers(t *testing.T) {
	dev, ctx := deviceContext(t)
	call := ctx.Caller()
	m := ok(dev.CreateMemory(granularity(t, dev), cu.HandleFD))(t)
	require.Equal(t, sys.CUDA_SUCCESS, call.CuMemGetAllocationPropertiesFromHandle(new(sys.CUmemAllocationProp), m.Handle()))
	require.NoError(t, m.Close())
	p := ok(dev.NewPool(cu.PoolOptions{}))(t)
	require.Equal(t, sys.CUDA_SUCCESS, call.CuMemPoolTrimTo(p.Handle(), 0))
	require.NoError(t, p.Close())
	g := ok(ctx.NewGraph())(t)
	require.Equal(t, sys.CUDA_SUCCESS, call.CuGraphGetNodes(g.Handle(), nil, new(uintptr)))
	e := ok(g.Instantiate(0))(t)
	require.Equal(t, sys.CUDA_SUCCESS, call.CuGraphLaunch(e.Handle(), 0))
	require.NoError(t, ctx.Synchronize(t.Context()))
	require.NoError(t, e.Close())
	require.NoError(t, g.Close())
}
