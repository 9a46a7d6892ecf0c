package cli

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/cutest"
	"github.com/gpufd/gpufd/cu/sys"
)

func TestDefaultDriverIsTheEnvironments(t *testing.T) {
	t.Setenv("GPUFD_DRIVER", "")
	require.Equal(t, "auto", DefaultDriver())
	t.Setenv("GPUFD_DRIVER", "soft")
	require.Equal(t, "soft", DefaultDriver())
}

// A device that cannot share is told apart from one that cannot be asked.
func TestNeedVMM(t *testing.T) {
	answer := map[int]int32{}
	r := sys.CUDA_SUCCESS
	faults := cutest.NewFaults(t)
	faults.Hook("cuDeviceGetAttribute", func(call sys.Call, next func() sys.CUresult) sys.CUresult {
		if _, no := answer[int(call.Arg(1))]; no {
			if r != sys.CUDA_SUCCESS {
				return r
			}
			return sys.CUDA_ERROR_INVALID_VALUE // older than the attribute, which is a no
		}
		return next()
	})
	dev := cutest.Device(t, faults.Option())
	require.NoError(t, NeedVMM(dev))
	for attribute, words := range map[cu.Attribute]string{
		cu.AttributeVirtualMemoryManagementSupported:       "does not support virtual memory management (CUDA_ERROR_NOT_SUPPORTED)",
		cu.AttributeHandleTypePosixFileDescriptorSupported: "cannot export memory as file descriptors",
	} {
		answer, r = map[int]int32{int(attribute): 0}, sys.CUDA_SUCCESS
		err := NeedVMM(dev)
		require.ErrorContains(t, err, words)
		require.Equal(t, ExitMachine, ExitCode(err))
		r = sys.CUDA_ERROR_UNKNOWN
		require.ErrorIs(t, NeedVMM(dev), cu.ErrUnknown)
	}
}
