package cutest

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu/sys"
)

// What succeeded is noted, once; what did not is not.
func TestCallsThatSucceedAreNoted(t *testing.T) {
	dir := t.TempDir()
	t.Setenv(calledEnv, dir)
	called.mu.Lock()
	before := called.seen
	called.seen = nil
	called.mu.Unlock()
	defer func() { called.seen = before }()

	drv, err := Open()
	if err != nil {
		NoGPU(t, err.Error())
	}
	require.Equal(t, sys.CUDA_ERROR_INVALID_VALUE, drv.Caller().CuMemCreate(nil, 1, nil, 0))
	require.NotEqual(t, sys.CUDA_SUCCESS, drv.Caller().CuMemFree_v2(1))
	names, err := filepath.Glob(filepath.Join(dir, "*.txt"))
	require.NoError(t, err)
	require.Len(t, names, 1)
	b, err := os.ReadFile(names[0])
	require.NoError(t, err)
	require.Regexp(t, `(?s)^cuDriverGetVersion\ncuInit\ncuDeviceGetCount\ncuDeviceGet\n`, string(b))
	require.NotContains(t, string(b), "cuMem")
}
