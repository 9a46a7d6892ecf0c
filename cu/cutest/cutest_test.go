package cutest

import (
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/soft"
)

// plantEnv makes the test binary run a single planted fault under Main.
const plantEnv = "GPUFD_CUTEST_PLANT"

func TestMain(m *testing.M) { Main(m) }

// onlySoft skips t on hardware, whose accounting is not the process' own.
func onlySoft(t *testing.T) {
	t.Helper()
	if Kind() != cu.Soft {
		t.Skip("only the software driver accounts for memory and misuse")
	}
}

func TestNothingPlantedNothingFound(t *testing.T) {
	require.Empty(t, Left(Descriptors()))
	dev := Device(t)
	ctx := Context(t, dev)
	before := Descriptors()
	mem, err := ctx.Alloc(1 << 20)
	require.NoError(t, err)
	require.NoError(t, mem.Close())
	require.Empty(t, Left(before))
}

func TestPlantedDescriptorIsFound(t *testing.T) {
	before := Descriptors()
	f, err := os.CreateTemp(t.TempDir(), "planted")
	require.NoError(t, err)
	left := Left(before)
	require.Len(t, left, 1)
	require.Contains(t, left[0], "1 more descriptors of "+f.Name())
	require.NoError(t, f.Close())
	require.Empty(t, Left(before))
}

// One that takes the place of another of its kind is none too many.
func TestReplacedDescriptorIsNotFound(t *testing.T) {
	open := func() *os.File {
		f, err := os.Open("/dev/zero")
		require.NoError(t, err)
		return f
	}
	old := open()
	before := Descriptors()
	replaced := open()
	require.NoError(t, old.Close())
	require.Empty(t, Left(before))
	second := open()
	require.Len(t, Left(before), 1)
	require.NoError(t, second.Close())
	require.NoError(t, replaced.Close())
}

func TestPlantedAllocationIsFound(t *testing.T) {
	onlySoft(t)
	dev := Device(t)
	before := Descriptors()
	m, err := dev.CreateMemory(2<<20, cu.HandleFD)
	require.NoError(t, err)
	left := Left(before)
	require.Len(t, left, 1)
	require.Contains(t, left[0], "2097152 bytes of device 0")
	require.NoError(t, m.Close())
	require.Empty(t, Left(before))
}

func TestPlantedMisuseIsFound(t *testing.T) {
	onlySoft(t)
	before := Descriptors()
	drv := Driver(t)
	p, err := drv.ReserveAddress(2<<20, 0, 0)
	require.NoError(t, err)
	require.Error(t, drv.Unmap(p, 2<<20), "nothing is mapped there (D4)")
	left := Left(before)
	soft.ForgetMisuses()
	require.Len(t, left, 1)
	require.Contains(t, left[0], "cuMemUnmap")
	require.NoError(t, drv.FreeAddress(p, 2<<20))
	require.Empty(t, Left(before))
}

func TestPlantedLeakIsFound(t *testing.T) {
	before := Descriptors()
	Driver(t).ReportLeak(cu.Leak{What: "a thing", Stack: cu.Here(0)})
	left := Left(before)
	require.Len(t, left, 1)
	require.Contains(t, left[0], "a thing was lost without Close")
	require.Empty(t, Left(before), "it is told once")
}

// What is planted makes a whole run fail although its tests pass.
func TestMainFailsForWhatIsLeft(t *testing.T) {
	for plant, want := range map[string]string{
		"nothing":    "",
		"descriptor": "more descriptors of /dev/zero",
		"leak":       "planted was lost without Close",
		"memory":     "2097152 bytes of device 0",
		"misuse":     "cuMemUnmap",
		"failure":    "FAIL",
	} {
		if Kind() != cu.Soft && (plant == "memory" || plant == "misuse") {
			continue
		}
		cmd := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.run=^TestPlant$", "-test.count=1")
		for _, v := range os.Environ() {
			if !strings.HasPrefix(v, "GPUFD_SOFT_DIR=") { // a run of its own
				cmd.Env = append(cmd.Env, v)
			}
		}
		cmd.Env = append(cmd.Env, plantEnv+"="+plant)
		out, err := cmd.CombinedOutput()
		if want == "" {
			require.NoError(t, err, "%s", out)
			continue
		}
		var exit *exec.ExitError
		require.True(t, errors.As(err, &exit), "%s: %s", plant, out)
		require.Equal(t, 1, exit.ExitCode(), plant)
		require.Contains(t, string(out), want)
		require.Equal(t, plant != "failure", strings.Contains(string(out), "the tests passed but left behind"))
	}
}

// kept is what a planted fault holds on to.
var kept []any

// TestPlant is for TestMainFailsForWhatIsLeft alone.
func TestPlant(t *testing.T) {
	switch os.Getenv(plantEnv) {
	case "descriptor":
		f, err := os.Open("/dev/zero")
		require.NoError(t, err)
		kept = append(kept, f)
	case "leak":
		Driver(t).ReportLeak(cu.Leak{What: "planted"})
	case "memory":
		m, err := Device(t).CreateMemory(2<<20, cu.HandleFD)
		require.NoError(t, err)
		kept = append(kept, m)
	case "misuse":
		p, err := Driver(t).ReserveAddress(2<<20, 0, 0)
		require.NoError(t, err)
		require.Error(t, Driver(t).Unmap(p, 2<<20))
	case "failure":
		t.Fail()
	}
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
	}{{"cuda", "", false}, {"cuda", "1", true}, {"soft", "", true}, {"soft", "1", true}} {
		t.Setenv("GPUFD_DRIVER", c.driver)
		t.Setenv("GPUFD_REQUIRE_GPU", c.require)
		fake := &fakeTB{TB: t}
		NoGPU(fake, "why")
		require.Equal(t, c.fails, fake.fatal, "%+v", c)
		require.Equal(t, !c.fails, fake.skipped && !fake.fatal)
	}
}

// A fakeTB notes how a test would have ended, and goes on.
type fakeTB struct {
	testing.TB
	fatal, skipped bool
}

func (f *fakeTB) Helper()      {}
func (f *fakeTB) Fatal(...any) { f.fatal = true }
func (f *fakeTB) Skip(...any)  { f.skipped = true }
