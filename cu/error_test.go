package cu_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/ebitengine/purego"
	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/cutest"
	"github.com/gpufd/gpufd/cu/sys"
)

// D1 of docs/driver-facts.md seen through an error: the call, the result's name and number, the
// driver's words, what to do.
func TestErrorNamesCallResultAndRemedy(t *testing.T) {
	drv := cutest.Driver(t)
	dev := firstDevice(t, drv)
	g := granularity(t, dev)
	m := ok(dev.CreateMemory(g, cu.HandleFD))(t)
	p := ok(drv.ReserveAddress(2*g, 0, 0))(t)

	err := drv.Map(p, 2*g, 0, m)
	require.ErrorIs(t, err, cu.ErrNotSupported)
	require.NotErrorIs(t, err, cu.ErrInvalidValue)
	var e *cu.Error
	require.ErrorAs(t, err, &e)
	require.Equal(t, "cuMemMap", e.Op)
	require.Equal(t, cu.ErrNotSupported, e.Result)
	require.NotEmpty(t, e.Text)
	require.False(t, e.Bind)
	require.Equal(t, "cuMemMap: CUDA_ERROR_NOT_SUPPORTED (801): "+e.Text, err.Error())
	require.Equal(t, cutest.Kind(), e.Kind)
	e.Op, e.Kind, e.Detail = "cuMemCreate", cu.CUDA, "this and that"
	require.Equal(t, "cuMemCreate: CUDA_ERROR_NOT_SUPPORTED (801): "+e.Text+
		": this and that; for virtual memory the GPU needs compute capability 6.0 or newer and the driver CUDA 10.2 or newer (11.4 for this library)", e.Error())

	require.NoError(t, drv.FreeAddress(p, 2*g))
	require.NoError(t, m.Close())
}

// Every result that the driver knows is an error with its name, its number and
// the driver's own words.
func TestEveryResultHasTheDriversWords(t *testing.T) {
	s, drv, _ := spied(t)
	dev, raw := firstDevice(t, drv), drv.Caller()
	named := 0
	for r := sys.CUresult(1); r < 1000; r++ {
		name, text := new(*byte), new(*byte)
		if raw.CuGetErrorName(r, name) != sys.CUDA_SUCCESS {
			continue // no result, or newer than the driver
		}
		named++
		require.Equal(t, sys.CUDA_SUCCESS, raw.CuGetErrorString(r, text))
		s.Fail("cuMemCreate", cu.Result(r))
		_, err := dev.CreateMemory(2<<20, cu.HandleFD)
		var e *cu.Error
		require.ErrorAs(t, err, &e)
		require.Equal(t, sys.GoString(*name, 200), e.Result.Error())
		require.Equal(t, sys.GoString(*text, 200), e.Text)
		require.NotEmpty(t, e.Text)
		require.ErrorIs(t, err, cu.Result(r))
		want := fmt.Sprintf("cuMemCreate: %s (%d): %s", e.Result.Error(), r, e.Text)
		if e.Result.Fatal() {
			want = fmt.Sprintf("%s (%d), noticed by cuMemCreate: the context is lost\n%s; ", e.Result.Error(), r, e.Text)
		}
		require.ErrorContains(t, err, want)
	}
	require.Greater(t, named, 80)
}

// An error whose cause lies outside the program, or whose name misleads, says what to do with
// this driver. One with many possible causes does not guess.
func TestErrorSaysWhatToDo(t *testing.T) {
	for _, c := range []struct {
		op         string
		result     cu.Result
		cuda, soft string
	}{
		{"cuInit", cu.ErrNoDevice, "nvidia-smi", "GPUFD_SOFT_DEVICES"},
		{"cuInit", cu.ErrSystemNotReady, "nvidia-fabricmanager", ""},
		{"cuInit", cu.ErrCompatNotSupportedOnDevice, "LD_LIBRARY_PATH", ""},
		{"cuInit", cu.ErrMPSConnectionFailed, "nvidia-cuda-mps-control", ""},
		{"cuInit", cu.ErrUnknown, "nvidia-modprobe -u", ""},
		{"cuInit", cu.ErrOperatingSystem, "dmesg", "GPUFD_SOFT_DIR"},
		{"cuMemAlloc_v2", cu.ErrOutOfMemory, "nvidia-smi", "GPUFD_SOFT_MEMORY"},
		{"cuMemAddressReserve", cu.ErrOutOfMemory, "ulimit -v", "ulimit -v"},
		{"cuDevicePrimaryCtxRetain", cu.ErrDeviceUnavailable, "compute mode", ""},
		{"cuCtxEnablePeerAccess", cu.ErrPeerAccessAlreadyEnabled, "go on", "go on"},
		{"cuCtxEnablePeerAccess", cu.ErrPeerAccessUnsupported, "nvidia-smi topo", "GPUFD_SOFT_PEERS"},
		{"cuMemHostRegister", cu.ErrHostMemoryAlreadyRegistered, "registered part of this memory", "registered part of this memory"},
		{"cuMemCreate", cu.ErrNotSupported, "compute capability", "GPUFD_SOFT_VMM"},
		{"cuMemCreate", cu.ErrNotPermitted, "nvidia-imex", "GPUFD_SOFT_IMEX"},
		{"cuLaunchKernel", cu.ErrIllegalAddress, "restart the process", "soft.LastFault"},
		{"cuLaunchKernel", cu.ErrLaunchOutOfResources, "fewer registers", ""},
		{"cuModuleLoadDataEx", cu.ErrNoBinaryForGPU, "compute capability", "nvcc -ptx"},
		{"cuModuleLoadDataEx", cu.ErrUnsupportedPTXVersion, "install a newer driver", "GPUFD_SOFT_VERSION"},
		{"cuIpcOpenMemHandle_v2", cu.ErrInvalidContext, "this very process", "this very process"},
		{"cuIpcOpenMemHandle", cu.ErrInvalidHandle, "another context", "has ended"},
		{"cuIpcOpenMemHandle", cu.ErrInvalidValue, "has freed", "not a handle"},
		{"cuIpcOpenMemHandle_v2", cu.ErrMapFailed, "ask for a descriptor", "GPUFD_SOFT_DIR"},
		{"cuIpcOpenMemHandle_v2", cu.ErrTooManyPeers, "the most peers", "the most peers"},
		{"cuIpcOpenMemHandle_v2", cu.ErrAlreadyMapped, "by another handle", "by another handle"},
		{"cuIpcOpenMemHandle_v2", cu.ErrPeerAccessUnsupported, "on another device", "on another device"},
		{"cuIpcOpenMemHandle_v2", cu.ErrNotSupported, "SupportsIPC", "GPUFD_SOFT_IPC"},
		{"cuIpcCloseMemHandle", cu.ErrInvalidValue, "closed before", "closed before"},
		{"cuIpcGetEventHandle", cu.ErrInvalidHandle, "EventInterprocess", "EventInterprocess"},
		{"cuIpcOpenEventHandle", cu.ErrMapFailed, "another /dev/shm", "GPUFD_SOFT_DIR"},
		{"cuMemImportFromShareableHandle", cu.ErrNotPermitted, "nvidia-imex", "GPUFD_SOFT_IMEX"},
	} {
		for kind, want := range map[cu.Kind]string{cu.CUDA: c.cuda, cu.Soft: c.soft} {
			err := &cu.Error{Op: c.op, Result: c.result, Kind: kind}
			if want == "" {
				require.NotContains(t, err.Error(), ";")
			}
			require.ErrorContains(t, err, want, fmt.Sprint(kind, c.op, c.result))
		}
	}
	for op, r := range map[string]cu.Result{
		"cuMemMap": cu.ErrNotSupported, "cuCtxSetLimit": cu.ErrNotPermitted, "cuMemImportFromShareableHandle": cu.ErrUnknown, "cuX": cu.ErrInvalidValue,
	} {
		require.NotContains(t, (&cu.Error{Op: op, Result: r}).Error(), ";")
	}
	bind := &cu.Error{Op: "cuIpcOpenMemHandle", Result: cu.ErrInvalidContext, Bind: true}
	require.NotContains(t, bind.Error(), ";", "it was not called")
}

// FAULTS 43: a libcuda without a function. Never a panic, never at start-up.
func TestFault43_MissingSymbolNamesItself(t *testing.T) {
	drv := cutest.Driver(t, without(t, "cuMemCreate"))
	_, err := firstDevice(t, drv).CreateMemory(2<<20, cu.HandleFD)
	require.ErrorIs(t, err, cu.ErrSymbolMissing)
	var missing *cu.SymbolError
	require.ErrorAs(t, err, &missing)
	require.Equal(t, "cuMemCreate", missing.Symbol)
	require.Equal(t, 10020, missing.Needs)
	require.Equal(t, drv.Version(), missing.Has)
	require.Equal(t, cutest.Kind(), missing.Kind)
	require.EqualError(t, err, "cuMemCreate: the driver does not have this function, which came with CUDA 10.2; the driver is of CUDA "+sys.Version(drv.Version()))
	require.EqualError(t, &cu.SymbolError{Symbol: "cuNew", Needs: 13010, Has: 12040},
		"cuNew: the driver does not have this function, which came with CUDA 13.1; the driver is of CUDA 12.4; install a newer driver")
	require.EqualError(t, &cu.SymbolError{Symbol: "cuNew", Needs: 12040, Has: 11040, Kind: cu.Soft},
		"cuNew: the driver does not have this function, which came with CUDA 12.4; the driver is of CUDA 11.4; unset GPUFD_SOFT_VERSION, or set it to that CUDA version")
	require.EqualError(t, &cu.SymbolError{Symbol: "cuOdd"}, "cuOdd: the driver does not have this function")
}

func TestOlderABIsStandInForMissingOnes(t *testing.T) {
	want := cutest.Device(t).UUID()
	dev := cutest.Device(t, without(t, "cuDeviceGetUuid_v2", "cuDevicePrimaryCtxRelease_v2"))
	require.Equal(t, want, dev.UUID())
	require.NoError(t, ok(dev.PrimaryContext())(t).Close())
}

func TestMissingSymbolWithoutAnOlderABI(t *testing.T) {
	_, err := cutest.Open(without(t, "cuDeviceGetUuid_v2", "cuDeviceGetUuid"))
	var missing *cu.SymbolError
	require.ErrorAs(t, err, &missing)
	require.Equal(t, "cuDeviceGetUuid", missing.Symbol)
}

// The error of a bind is told apart from the call's own, which was not made.
func TestBindFailureIsToldApart(t *testing.T) {
	r := driverResolver(t)
	bind := purego.NewCallback(func(uintptr) uintptr { return uintptr(sys.CUDA_ERROR_INVALID_CONTEXT) })
	drv := cutest.Driver(t, cu.WithResolver(func(symbol string) (uintptr, error) {
		if symbol == "cuCtxSetCurrent" {
			return bind, nil
		}
		return r(symbol)
	}))
	ctx := cutest.Context(t, firstDevice(t, drv))
	_, _, err := ctx.MemInfo()
	require.ErrorIs(t, err, cu.ErrInvalidContext)
	var e *cu.Error
	require.ErrorAs(t, err, &e)
	require.True(t, e.Bind)
	require.ErrorContains(t, err, "cuMemGetInfo_v2 (binding its context): CUDA_ERROR_INVALID_CONTEXT (201)")
}

func TestBindWithoutItsSymbol(t *testing.T) {
	_, _, ctx := driverContext(t, without(t, "cuCtxSetCurrent"))
	_, _, err := ctx.MemInfo()
	var missing *cu.SymbolError
	require.ErrorAs(t, err, &missing)
	require.Equal(t, "cuCtxSetCurrent", missing.Symbol)
}

// The error has its number even where the driver has no words for it.
func TestErrorWithoutTheDriversWords(t *testing.T) {
	s, _, dev := spied(t)
	s.Fail("cuMemCreate", cu.ErrOutOfMemory)
	s.Fail("cuGetErrorString", cu.ErrInvalidValue)
	_, err := dev.CreateMemory(2<<20, cu.HandleFD)
	require.ErrorContains(t, err, "cuMemCreate: CUDA_ERROR_OUT_OF_MEMORY (2); the device does not have that much memory free")
	require.False(t, errors.Is(err, cu.ErrUnknown))
}
