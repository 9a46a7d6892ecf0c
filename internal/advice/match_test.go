package advice

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu/sys"
)

// The causes of results and of words are in the table, and where a result of one function
// has a cause in sharing, an error of the library says what to do, too, or the cause does.
func TestCausesAreInTheTable(t *testing.T) {
	for call, ids := range causesOf {
		require.NotEmpty(t, ids)
		for _, id := range ids {
			_, ok := Find(id)
			require.True(t, ok, "%v: %s", call, id)
		}
	}
	for _, w := range words() {
		for _, id := range w.causes {
			_, ok := Find(id)
			require.True(t, ok, "%v: %s", w.pattern, id)
		}
	}
	_, ok := Find("nothing")
	require.False(t, ok)
}

// The caller may change the result.
func TestCausesOfIsTheCallers(t *testing.T) {
	ids := CausesOf("cuIpcOpenMemHandle_v2", sys.CUDA_ERROR_INVALID_CONTEXT)
	require.Equal(t, []string{"own-handle", "pid-equal"}, ids)
	ids[0] = "changed"
	require.Equal(t, "own-handle", CausesOf("cuIpcOpenMemHandle", sys.CUDA_ERROR_INVALID_CONTEXT)[0])
	require.Equal(t, []string{"compute-mode"}, CausesOf("cuCtxCreate", sys.CUDA_ERROR_DEVICE_UNAVAILABLE), "of all functions")
	require.Empty(t, CausesOf("cuLaunchKernel", sys.CUDA_ERROR_NOT_FOUND))
}
