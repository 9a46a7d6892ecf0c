package report

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/soft"
)

func TestThisMachine(t *testing.T) {
	t.Setenv("PATH", t.TempDir()) // no nvidia-smi
	m := ThisMachine()
	require.NotEmpty(t, m.CPU)
	require.Positive(t, m.Cores)
	require.True(t, strings.HasPrefix(m.Kernel, "Linux "), m.Kernel)
	require.Equal(t, "none", m.GPU)
	require.Equal(t, "none", m.Driver)
	require.NotEmpty(t, m.Commit)
	require.Equal(t, strings.Join(os.Args, " "), m.Command)
	require.NotEmpty(t, m.Date)
}

// The software driver uses no GPU, also where there is one.
func TestMachineOfTheSoftwareDriver(t *testing.T) {
	drv, err := cu.Open(cu.WithResolver(soft.Resolver))
	require.NoError(t, err)
	m := MachineOf(drv)
	require.Equal(t, "none", m.GPU)
	require.Contains(t, m.Driver, "software driver")
}

func TestCommandMayBeGiven(t *testing.T) {
	t.Setenv("BENCH_COMMAND", "make bench")
	require.Equal(t, "make bench", command())
}

func TestParseGPUs(t *testing.T) {
	for out, want := range map[string][2]string{
		"NVIDIA H200, 580.82.07\n":                         {"NVIDIA H200", "580.82.07"},
		"NVIDIA H200, 580.82.07\nNVIDIA H200, 580.82.07\n": {"2 × NVIDIA H200", "580.82.07"},
		"No devices were found\n":                          {"none", "none"},
		"":                                                 {"none", "none"},
	} {
		gpu, driver := parseGPUs(out)
		require.Equal(t, want, [2]string{gpu, driver}, out)
	}
}
