package sys

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/internal/testenv"
)

// skipWithoutGPU skips the test, or fails it where a GPU was promised.
func skipWithoutGPU(t *testing.T, format string, args ...any) {
	t.Helper()
	testenv.Need(t, testenv.GPU, false, fmt.Sprintf(format, args...))
}

// Every function that the driver's version promises is there under its symbol.
func TestResolveAllOnCUDA(t *testing.T) {
	r, name, err := OpenCUDA()
	if err != nil {
		skipWithoutGPU(t, "no libcuda here: %v", err)
	}
	l := NewLibrary(r)
	c := l.Caller()
	if r := c.CuInit(0); r == CUDA_ERROR_NO_DEVICE {
		skipWithoutGPU(t, "no device here: cuInit of %s: %v", name, r)
	} else {
		require.Equal(t, CUDA_SUCCESS, r)
	}
	var version, devices int32
	require.Equal(t, CUDA_SUCCESS, c.CuDriverGetVersion(&version))
	require.Equal(t, CUDA_SUCCESS, c.CuDeviceGetCount(&devices))
	require.Positive(t, devices)
	t.Logf("%s: CUDA %s, %d device(s)", name, Version(int(version)), devices)

	var missing, absentOlder []string
	a := readABI(t)
	for _, f := range a.Functions {
		if !l.Has(f.Symbol) && f.Since <= int(version) {
			missing = append(missing, f.Symbol)
		}
	}
	for _, f := range a.Older {
		if !l.Has(f.Symbol) {
			absentOlder = append(absentOlder, f.Symbol)
		}
	}
	require.Empty(t, missing)
	t.Logf("%d of %d older ABIs resolve; missing: %v", len(a.Older)-len(absentOlder), len(a.Older), absentOlder)
}
