package cutest

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/soft"
	"github.com/gpufd/gpufd/cu/sys"
)

// TestMain is that of every package, but for the directory of the software
// driver: what is planted counts in one of its own.
func TestMain(m *testing.M) { Main(m, children) }

// onlySoft skips t on hardware, whose accounting is not the process' own.
func onlySoft(t *testing.T) {
	t.Helper()
	if Kind() != cu.Soft {
		t.Skip("only the software driver accounts for memory and misuse")
	}
}

func TestNothingPlantedNothingFound(t *testing.T) {
	before := Now()
	ctx, err := Device(t).PrimaryContext()
	require.NoError(t, err)
	mem, err := ctx.Alloc(1 << 20)
	require.NoError(t, err)
	require.NoError(t, mem.Close())
	require.NoError(t, ctx.Close())
	require.Empty(t, Left(before))
}

// Objects that end with their context do not count as left.
func TestWhatEndsWithItsContextIsNotFound(t *testing.T) {
	before := Now()
	ctx, err := Device(t).PrimaryContext()
	require.NoError(t, err)
	_, err = ctx.Alloc(1 << 20)
	require.NoError(t, err)
	_, err = ctx.NewStream()
	require.NoError(t, err)
	require.NoError(t, ctx.Close())
	require.Empty(t, Left(before))
}

// Answers of a test's own hook never came from the driver.
func TestInjectedAnswerIsNotFound(t *testing.T) {
	before := Now()
	faults := NewFaults(t)
	faults.Hook("cuMemAddressReserve", func(sys.Call, func() sys.CUresult) sys.CUresult { return sys.CUDA_SUCCESS })
	drv := Driver(t, faults.Option())
	p, err := drv.ReserveAddress(2<<20, 0, 0)
	require.NoError(t, err)
	require.Zero(t, p)
	require.Empty(t, Left(before))
}

func TestPlantedMisuseIsFound(t *testing.T) {
	onlySoft(t)
	before := Now()
	drv := Driver(t)
	p, err := drv.ReserveAddress(2<<20, 0, 0)
	require.NoError(t, err)
	require.Error(t, drv.Unmap(p, 2<<20), "nothing is mapped there (D4)")
	require.NoError(t, drv.FreeAddress(p, 2<<20))
	left := Left(before)
	soft.ForgetMisuses()
	require.Len(t, left, 1)
	require.Contains(t, left[0], "cuMemUnmap")
	require.Empty(t, Left(before))
}

func TestPlantedLeakIsFound(t *testing.T) {
	before := Now()
	Driver(t).ReportLeak(cu.Leak{What: "a thing", Stack: cu.Here(-1)})
	left := Left(before)
	require.Len(t, left, 1)
	require.Contains(t, left[0], "a thing was lost without Close")
	require.Contains(t, left[0], "TestPlantedLeakIsFound")
	require.Empty(t, Left(before), "it is reported once")
}

func TestFreeMemoryFollowsTheDevice(t *testing.T) {
	dev := Device(t)
	Context(t, dev)
	g, _, err := dev.Granularity(cu.HandleFD)
	require.NoError(t, err)
	free := FreeMemory(t, dev)
	m, err := dev.CreateMemory(g, cu.HandleFD)
	require.NoError(t, err)
	require.Equal(t, free-g, FreeMemory(t, dev))
	require.NoError(t, m.Close())
	require.Equal(t, free, FreeMemory(t, dev))
}

// A skip for want of a GPU is a failure where one is said to be, and always on
// the software driver.
func TestWantOfAGPU(t *testing.T) {
	for _, c := range []struct {
		driver, require string
		fails           bool
	}{{"cuda", "", false}, {"cuda", "gpu", true}, {"soft", "", true}, {"soft", "gpu", true}} {
		t.Setenv("GPUFD_DRIVER", c.driver)
		t.Setenv("GPUFD_REQUIRE", c.require)
		got := record(t, func(t testing.TB) { SkipWithoutGPU(t, "why") })
		require.Equal(t, c.fails, got.Failed(), "%+v", c)
		require.Equal(t, !c.fails, got.Skipped())
	}
}
