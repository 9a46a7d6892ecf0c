package handoff

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/gpufd/gpufd/tests/internal/programs"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu/sys"
)

// TestFault43_BadLibcuda: a libcuda that is there and cannot do what is needed
// is an error that says so, exit 3, and never a reason to take the software
// driver.
func TestFault43_BadLibcuda(t *testing.T) {
	programs.Parallel(t)
	const broken = "the driver is installed but does not work"
	for name, c := range map[string]struct {
		functions map[string]answer
		auto      []string // words of the line with -driver auto
		cuda      []string // and with -driver cuda
	}{
		"cuInit fails": {
			map[string]answer{"cuInit": returns(999)},
			args(broken, "cuInit: CUDA_ERROR_UNKNOWN (999)", "GPUFD_DRIVER=soft"), args("cuInit: CUDA_ERROR_UNKNOWN (999)"),
		},
		"libcuda and kernel module differ": {
			map[string]answer{"cuInit": returns(803)},
			args(broken, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH (803)", "reboot"), args("CUDA_ERROR_SYSTEM_DRIVER_MISMATCH (803)", "reboot"),
		},
		"stub": {
			map[string]answer{"cuInit": returns(34)},
			args(broken, "CUDA_ERROR_STUB_LIBRARY (34)", "LD_LIBRARY_PATH"), args("CUDA_ERROR_STUB_LIBRARY (34)"),
		},
		"no cuInit": {
			map[string]answer{"cuDriverGetVersion": stores(9000)},
			args(broken, "cuInit", "does not have this function"), args("cuInit", "does not have this function"),
		},
		"no functions at all": {
			nil,
			args(broken, "cuInit", "does not have this function"), args("cuInit", "does not have this function"),
		},
		"devices cannot be counted": {
			with(fakeDevice, map[string]answer{"cuDeviceGetCount": returns(3)}),
			args(broken, "cuDeviceGetCount: CUDA_ERROR_NOT_INITIALIZED (3)"), args("cuDeviceGetCount"),
		},
	} {
		t.Run(name, func(t *testing.T) {
			env := fakeLibcuda(t, c.functions)
			for _, program := range []string{"producer", "consumer"} {
				programs.NewScene(t).Start(program, env, "-driver", "auto").Fails(3, c.auto...)
				programs.NewScene(t).Start(program, env, "-driver", "cuda").Fails(3, c.cuda...)
			}
		})
	}
}

// TestFault43_NoVMM: a driver from before virtual memory management, by any of
// the ways in which it shows.
func TestFault43_NoVMM(t *testing.T) {
	programs.Parallel(t)
	t.Run("no symbols", func(t *testing.T) {
		env := fakeLibcuda(t, fakeDevice)
		for _, driver := range []string{"auto", "cuda"} {
			programs.NewScene(t).Start("producer", env, "-driver", driver).
				Fails(3, "cuMemGetAllocationGranularity", "does not have this function", "CUDA 10.2", "CUDA 9.0", "newer driver")
		}
	})
	for name, attribute := range map[string]answer{"attribute says no": stores(0), "attribute unknown": returns(1)} {
		t.Run(name, func(t *testing.T) {
			env := fakeLibcuda(t, with(fakeDevice, map[string]answer{"cuDeviceGetAttribute": attribute}))
			for _, program := range []string{"producer", "consumer"} {
				programs.NewScene(t).Start(program, env, "-driver", "cuda").
					Fails(3, "does not support virtual memory management (CUDA_ERROR_NOT_SUPPORTED)", "0: fake (GPU-78563412-")
			}
		})
	}
}

// TestFault43_VMMRefused: a device that says it has virtual memory management, and refuses it.
func TestFault43_VMMRefused(t *testing.T) {
	programs.Parallel(t)
	env := fakeLibcuda(t, with(fakeDevice, map[string]answer{
		"cuMemGetAllocationGranularity": stores(2 << 20), "cuDeviceTotalMem_v2": stores(1 << 30), "cuMemCreate": returns(801),
	}))
	programs.NewScene(t).Start("producer", env, "-driver", "cuda").
		Fails(3, "cuMemCreate: ", "CUDA_ERROR_NOT_SUPPORTED", "compute capability 6.0 or newer", "CUDA 10.2 or newer")
}

// TestFault43_NoDevice: a libcuda that sees no GPU. auto takes the software
// driver and says so; cuda fails.
func TestFault43_NoDevice(t *testing.T) {
	programs.Parallel(t)
	env := fakeLibcuda(t, map[string]answer{"cuInit": returns(100)})
	for _, program := range []string{"producer", "consumer"} {
		programs.NewScene(t).Start(program, env, "-driver", "cuda").Fails(3, "CUDA_ERROR_NO_DEVICE (100)", "nvidia-smi")
	}
	requireSoftware(t, env, "libcuda sees no GPU")
}

// TestFault43_NoLibcuda: auto takes the software driver and says so; cuda
// fails and lists what was tried.
func TestFault43_NoLibcuda(t *testing.T) {
	programs.Parallel(t)
	if _, name, err := sys.OpenCUDA(); err == nil {
		t.Skip("libcuda is installed here: " + name)
	}
	for _, program := range []string{"producer", "consumer"} {
		line := programs.NewScene(t).Start(program, nil, "-driver", "cuda").
			Fails(3, "libcuda could not be opened", "Tried: libcuda.so.1: ", "/usr/lib64/libcuda.so.1", "/usr/lib/wsl/lib/libcuda.so.1")
		require.NotContains(t, line, ":;")
	}
	requireSoftware(t, nil, "libcuda is not installed here")
}

// requireSoftware has a producer and a consumer with -driver auto take the
// software driver, for that reason.
func requireSoftware(t *testing.T, env []string, why string) {
	t.Helper()
	s := programs.NewScene(t)
	producer := s.Start("producer", env, "-driver", "auto")
	producer.WaitLine("Waiting for consumer connection...")
	consumer := s.Start("consumer", env, "-driver", "auto")
	consumer.Succeeds()
	producer.Succeeds()
	for _, p := range []*programs.Process{producer, consumer} {
		require.Regexp(t, `^Driver: software driver \(CUDA \d+\.\d\): `+why+`$`, p.Out.All()[0])
	}
}

// TestUnloadableLibcuda: a libcuda that is there and cannot be loaded is
// broken, not absent.
func TestUnloadableLibcuda(t *testing.T) {
	programs.Parallel(t)
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "libcuda.so.1"), []byte("this is no library\n"), 0o700))
	env := args("LD_LIBRARY_PATH=" + dir)
	if _, _, err := sys.OpenCUDA(); err == nil {
		t.Skip("the loader would find the real libcuda behind it")
	}
	programs.NewScene(t).Start("producer", env, "-driver", "cuda").Fails(3, dir+"/libcuda.so.1")
	programs.NewScene(t).Start("producer", env, "-driver", "auto").Fails(3, dir+"/libcuda.so.1", "GPUFD_DRIVER=soft")
}

// TestDriversOfDifferentKinds: a consumer on libcuda cannot use the memory of
// a producer on the software driver, and both say so.
func TestDriversOfDifferentKinds(t *testing.T) {
	programs.Parallel(t)
	s := programs.NewScene(t)
	producer := s.Start("producer", nil, "-driver", "soft")
	producer.WaitLine("Waiting for consumer connection...")
	env := fakeLibcuda(t, fakeDevice)
	s.Start("consumer", env, "-driver", "cuda").Fails(1, "soft", "cuda", "run both with the same --driver")
	producer.WaitLine("  turned a peer away")
	s.Start("consumer", nil, "-driver", "soft").Succeeds()
	producer.Succeeds()
}

// TestFault43_RingWithoutDevice: devices that cannot take part are named with the reason, and
// without one that can it is exit 3.
func TestFault43_RingWithoutDevice(t *testing.T) {
	programs.Parallel(t)
	for name, c := range map[string]struct {
		attribute answer
		words     string
	}{
		"no virtual memory management": {stores(0), "does not support virtual memory management (CUDA_ERROR_NOT_SUPPORTED)"},
		"attribute unknown":            {returns(1), "does not support virtual memory management"},
		"compute mode":                 {stores(3), "is in compute mode CU_COMPUTEMODE_EXCLUSIVE_PROCESS, and several processes would use it"},
	} {
		t.Run(name, func(t *testing.T) {
			env := fakeLibcuda(t, with(fakeDevice, map[string]answer{"cuDeviceGetAttribute": c.attribute}))
			p := programs.Start(t, "ring", programs.ProgramPath(t, "ring"), env, "-driver", "cuda")
			p.Fails(3, "no device can take part: ", c.words, "0: fake (GPU-78563412-")
			require.Len(t, programs.Find(p, "Not using CUDA device 0: "), 1)
		})
	}
}
