package cli

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/cutest"
	"github.com/gpufd/gpufd/cu/sys"
)

// FAULTS 43. auto takes the software driver only where libcuda is absent or
// says that there is no device; what is there and broken is an error.
func TestFault43_ChoiceOfDriver(t *testing.T) {
	hard, soft := &cu.Driver{}, &cu.Driver{}
	fails := func(r cu.Result) error { return &cu.Error{Op: "cuInit", Result: r} }
	absent := &sys.LibraryError{Tried: []string{"libcuda.so.1: no such file"}}
	unloadable := &sys.LibraryError{Tried: []string{"libcuda.so.1: undefined symbol"}, Found: true}
	broken := errors.New("software broken")
	for _, c := range []struct {
		choice     string
		cuda, soft error
		want       *cu.Driver
		why        string
		err        error
	}{
		{"cuda", nil, nil, hard, "", nil},
		{"cuda", absent, nil, nil, "", absent},
		{"cuda", fails(cu.ErrNoDevice), nil, nil, "", cu.ErrNoDevice},
		{"cuda", fails(cu.ErrSystemDriverMismatch), nil, nil, "", cu.ErrSystemDriverMismatch},
		{"soft", nil, nil, soft, "as asked", nil},
		{"soft", absent, nil, soft, "as asked", nil},
		{"soft", nil, broken, nil, "", broken},
		{"auto", nil, nil, hard, "", nil},
		{"auto", absent, nil, soft, "not installed", nil},
		{"auto", absent, broken, nil, "", broken},
		{"auto", fails(cu.ErrNoDevice), nil, soft, "sees no GPU", nil},
		{"auto", fails(cu.ErrNoDevice), broken, nil, "", broken},
		{"auto", unloadable, nil, nil, "", unloadable},
		{"auto", fails(cu.ErrSystemDriverMismatch), nil, nil, "", cu.ErrSystemDriverMismatch},
		{"auto", fails(cu.ErrUnknown), nil, nil, "", cu.ErrUnknown},
		{"auto", &cu.SymbolError{Symbol: "cuInit"}, nil, nil, "", cu.ErrSymbolMissing},
		{"auto", broken, nil, nil, "", broken},
	} {
		asked := ""
		open := func(name string, d *cu.Driver, err error) func() (*cu.Driver, error) {
			return func() (*cu.Driver, error) {
				asked += name
				if err != nil {
					return nil, err
				}
				return d, nil
			}
		}
		d, why, err := openDriver(c.choice, open("cuda ", hard, c.cuda), open("soft ", soft, c.soft))
		if c.err != nil {
			require.ErrorIs(t, err, c.err, "%+v", c)
			if c.choice == "auto" && c.soft == nil {
				require.ErrorContains(t, err, "installed but does not work")
				require.ErrorContains(t, err, "-driver soft")
				require.Equal(t, "cuda ", asked, "broken is broken")
			}
			continue
		}
		require.NoError(t, err)
		require.Same(t, c.want, d, "%+v", c)
		require.Contains(t, why, c.why)
	}
}

func TestDefaultDriverIsTheEnvironments(t *testing.T) {
	t.Setenv("GPUFD_DRIVER", "")
	require.Equal(t, "auto", defaultDriver())
	t.Setenv("GPUFD_DRIVER", "soft")
	require.Equal(t, "soft", defaultDriver())
}

// A device that cannot share is told apart from one that cannot be asked.
func TestNeedVMM(t *testing.T) {
	answer := map[int]int32{}
	r := sys.CUDA_SUCCESS
	drv := cutest.Driver(t, cu.WithHook(func(call sys.Call, next func() sys.CUresult) sys.CUresult {
		if call.Symbol() == "cuDeviceGetAttribute" {
			if _, no := answer[int(call.Arg(1))]; no {
				if r != sys.CUDA_SUCCESS {
					return r
				}
				return sys.CUDA_ERROR_INVALID_VALUE // older than the attribute, which is a no
			}
		}
		return next()
	}))
	dev, err := drv.Device(0)
	require.NoError(t, err)
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
