package tests

import (
	"regexp"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu/cutest"
	"github.com/gpufd/gpufd/cu/sys"
	"github.com/gpufd/gpufd/internal/cli"
	"github.com/gpufd/gpufd/share"
)

// The rows of the seed's troubleshooting table: what the row says is what the
// programs say, or what they see to.

// TestTroubleshooting_NotSupported: CUDA_ERROR_NOT_SUPPORTED, VMM not
// supported: check compute capability and CUDA version.
func TestTroubleshooting_NotSupported(t *testing.T) {
	words := args("CUDA_ERROR_NOT_SUPPORTED", "compute capability 6.0 or newer", "CUDA 10.2 or newer")
	t.Run("device without it", func(t *testing.T) {
		env := fakeLibcuda(t, with(fakeDevice, map[string]answer{"cuDeviceGetAttribute": stores(0)}))
		for _, program := range []string{"producer", "consumer"} {
			newScene(t).start(program, env, "-driver", "cuda").fails(3, words...)
		}
	})
	t.Run("call refused", func(t *testing.T) {
		env := fakeLibcuda(t, with(fakeDevice, map[string]answer{
			"cuMemGetAllocationGranularity": stores(2 << 20), "cuDeviceTotalMem_v2": stores(1 << 30), "cuMemCreate": returns(801),
		}))
		newScene(t).start("producer", env, "-driver", "cuda").fails(3, append(words, "cuMemCreate: ")...)
	})
	t.Run("cannot export", func(t *testing.T) {
		faults := cutest.NewFaults(t)
		faults.Hook("cuDeviceGetAttribute", func(call sys.Call, next func() sys.CUresult) sys.CUresult {
			if sys.CUdevice_attribute(call.Arg(1)) == sys.CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED {
				return sys.CUDA_ERROR_INVALID_VALUE // an attribute that the driver does not know
			}
			return next()
		})
		dev := cutest.Device(t, faults.Option())
		err := cli.NeedVMM(dev)
		require.ErrorContains(t, err, "cannot export memory as file descriptors")
		require.Equal(t, cli.ExitMachine, cli.ExitCode(err))
		require.NoError(t, cli.NeedVMM(cutest.Device(t)))
	})
}

// TestTroubleshooting_InvalidValue: CUDA_ERROR_INVALID_VALUE, size not
// aligned: handled automatically.
func TestTroubleshooting_InvalidValue(t *testing.T) {
	for _, size := range []uint64{1, 2*mib - 1, 2*mib + 1, 6*mib + 4095} {
		t.Run(decimal(size), func(t *testing.T) {
			handOver(t, size, 0) // checks the aligned size, too
		})
	}
}

// TestTroubleshooting_ConnectionRefused: producer not running: start it,
// before the consumer or soon after it.
func TestTroubleshooting_ConnectionRefused(t *testing.T) {
	s := newScene(t)
	s.consumer("-timeout", "1s").fails(1, "no producer there within 1s", "start the producer with the same --socket")
	s.kill(s.serving())
	s.consumer("-timeout", "1s").fails(1, "no producer there within 1s", "connection refused")
	s.reclaimed()
}

// TestTroubleshooting_SocketFileExists: the previous run did not clean up:
// nobody has to.
func TestTroubleshooting_SocketFileExists(t *testing.T) {
	s := newScene(t)
	s.kill(s.serving())
	require.FileExists(t, s.socket)
	s.reclaimed()
}

// TestTroubleshooting_SegfaultOnClose: wrong cleanup function: a consumer
// gives memory back with cuMemRelease and never with cuMemFree; and closing
// twice is harmless.
func TestTroubleshooting_SegfaultOnClose(t *testing.T) {
	producer, consumer := traced(t, "cpu")
	for _, calls := range [][]string{producer, consumer} {
		require.Contains(t, calls, "cuMemRelease")
		require.False(t, slices.ContainsFunc(calls, regexp.MustCompile(`^cuMemFree(_v2|Async)?$`).MatchString), calls)
		require.Equal(t, 1, count(calls, "cuMemRelease"))
		require.Equal(t, 1, count(calls, "cuMemUnmap"))
		require.Equal(t, 1, count(calls, "cuMemAddressFree"))
	}

	s := newScene(t)
	p := s.serving()
	att, err := s.attach(share.WithAnyDevice())
	require.NoError(t, err)
	report(t, att, nil)
	for range 2 {
		require.NoError(t, att.Close())
		require.NoError(t, att.Buffer().Close())
	}
	p.succeeds()
}

func count(calls []string, name string) (n int) {
	for _, c := range calls {
		if c == name {
			n++
		}
	}
	return n
}
