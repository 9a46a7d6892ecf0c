package handoff

import (
	"testing"

	"github.com/gpufd/gpufd/tests/internal/programs"

	"github.com/stretchr/testify/require"
)

// traced runs a producer and a consumer with GPUFD_TRACE=1 and returns the
// calls that each made, in order.
func traced(t *testing.T, way string) (producerCalls, consumerCalls []string) {
	t.Helper()
	s := programs.NewScene(t)
	env := args("GPUFD_TRACE=1")
	producer := s.Start("producer", env, "-fill", way)
	producer.WaitLine("Waiting for consumer connection...")
	consumer := s.Start("consumer", env, "-verify", way)
	require.Equal(t, 0, consumer.Wait(), consumer.Dump())
	require.Equal(t, 0, producer.Wait(), producer.Dump())
	return programs.Calls(t, producer), programs.Calls(t, consumer)
}

// TestTrace: GPUFD_TRACE=1 prints every driver call as strace does, on standard
// error; the steps of the transcript are the calls.
func TestTrace(t *testing.T) {
	programs.Parallel(t)
	producer, consumer := traced(t, "cpu")
	requireOrder(t, producer, "cuInit", "cuDeviceGetCount", "cuMemGetAllocationGranularity", "cuMemCreate",
		"cuMemAddressReserve", "cuMemMap", "cuMemSetAccess", "cuMemcpyHtoDAsync_v2", "cuMemExportToShareableHandle",
		"cuMemUnmap", "cuMemAddressFree", "cuMemRelease")
	requireOrder(t, consumer, "cuInit", "cuDeviceGetCount", "cuMemImportFromShareableHandle",
		"cuMemAddressReserve", "cuMemMap", "cuMemSetAccess", "cuMemcpyDtoHAsync_v2",
		"cuMemUnmap", "cuMemAddressFree", "cuMemRelease")
}

// TestTraceOfKernels: on the GPU, the kernels that are loaded do what the copies
// did.
func TestTraceOfKernels(t *testing.T) {
	programs.Parallel(t)
	producer, consumer := traced(t, "gpu")
	requireOrder(t, producer, "cuModuleLoadDataEx", "cuMemSetAccess", "cuLaunchKernel", "cuMemExportToShareableHandle", "cuModuleUnload")
	requireOrder(t, consumer, "cuModuleLoadDataEx", "cuMemSetAccess", "cuLaunchKernel", "cuModuleUnload", "cuMemUnmap")
	require.NotContains(t, producer, "cuMemcpyHtoDAsync_v2")
}

// requireOrder checks that the calls of want are in calls in that order.
func requireOrder(t *testing.T, calls []string, want ...string) {
	t.Helper()
	i := 0
	for _, c := range calls {
		if i < len(want) && c == want[i] {
			i++
		}
	}
	require.Equal(t, len(want), i, "%q are not all in\n%q", want, calls)
}

// TestTraceShowsArguments: as C would write them.
func TestTraceShowsArguments(t *testing.T) {
	programs.Parallel(t)
	s := programs.NewScene(t)
	p := s.Start("producer", args("GPUFD_TRACE=1"), "-timeout", "1ms")
	require.Equal(t, 4, p.Wait(), p.Dump())
	require.Regexp(t, `(?m)^  \| cuInit\(0\) = CUDA_SUCCESS <`, p.Err.String())
	require.Regexp(t, `(?m)^  \| cuMemMap\(0x[0-9a-f]+, 2097152, 0, 0x[0-9a-f]+, 0\) = CUDA_SUCCESS <`, p.Err.String())
	require.Regexp(t, `(?m)^  \| producer: share: no consumer came in time`, p.Err.String())
}
