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
		functions map[string]programs.Answer
		auto      []string // words of the line with -driver auto
		cuda      []string // and with -driver cuda
	}{
		"cuInit fails": {
			map[string]programs.Answer{"cuInit": programs.Returns(999)},
			programs.Args(broken, "cuInit: CUDA_ERROR_UNKNOWN (999)", "GPUFD_DRIVER=soft"), programs.Args("cuInit: CUDA_ERROR_UNKNOWN (999)"),
		},
		"libcuda and kernel module differ": {
			map[string]programs.Answer{"cuInit": programs.Returns(803)},
			programs.Args(broken, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH (803)", "reboot"), programs.Args("CUDA_ERROR_SYSTEM_DRIVER_MISMATCH (803)", "reboot"),
		},
		"stub": {
			map[string]programs.Answer{"cuInit": programs.Returns(34)},
			programs.Args(broken, "CUDA_ERROR_STUB_LIBRARY (34)", "LD_LIBRARY_PATH"), programs.Args("CUDA_ERROR_STUB_LIBRARY (34)"),
		},
		"no cuInit": {
			map[string]programs.Answer{"cuDriverGetVersion": programs.Stores(9000)},
			programs.Args(broken, "cuInit", "does not have this function"), programs.Args("cuInit", "does not have this function"),
		},
		"no functions at all": {
			nil,
			programs.Args(broken, "cuInit", "does not have this function"), programs.Args("cuInit", "does not have this function"),
		},
		"devices cannot be counted": {
			programs.With(programs.FakeDevice, map[string]programs.Answer{"cuDeviceGetCount": programs.Returns(3)}),
			programs.Args(broken, "cuDeviceGetCount: CUDA_ERROR_NOT_INITIALIZED (3)"), programs.Args("cuDeviceGetCount"),
		},
	} {
		t.Run(name, func(t *testing.T) {
			env := programs.FakeLibcuda(t, c.functions)
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
		env := programs.FakeLibcuda(t, programs.FakeDevice)
		for _, driver := range []string{"auto", "cuda"} {
			programs.NewScene(t).Start("producer", env, "-driver", driver).
				Fails(3, "cuMemGetAllocationGranularity", "does not have this function", "CUDA 10.2", "CUDA 9.0", "newer driver")
		}
	})
	for name, attribute := range map[string]programs.Answer{"attribute says no": programs.Stores(0), "attribute unknown": programs.Returns(1)} {
		t.Run(name, func(t *testing.T) {
			env := programs.FakeLibcuda(t, programs.With(programs.FakeDevice, map[string]programs.Answer{"cuDeviceGetAttribute": attribute}))
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
	env := programs.FakeLibcuda(t, programs.With(programs.FakeDevice, map[string]programs.Answer{
		"cuMemGetAllocationGranularity": programs.Stores(2 << 20), "cuDeviceTotalMem_v2": programs.Stores(1 << 30), "cuMemCreate": programs.Returns(801),
	}))
	programs.NewScene(t).Start("producer", env, "-driver", "cuda").
		Fails(3, "cuMemCreate: ", "CUDA_ERROR_NOT_SUPPORTED", "compute capability 6.0 or newer", "CUDA 10.2 or newer")
}

// TestFault43_NoDevice: a libcuda that sees no GPU. auto takes the software
// driver and says so; cuda fails.
func TestFault43_NoDevice(t *testing.T) {
	programs.Parallel(t)
	env := programs.FakeLibcuda(t, map[string]programs.Answer{"cuInit": programs.Returns(100)})
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
	env := programs.Args("LD_LIBRARY_PATH=" + dir)
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
	env := programs.FakeLibcuda(t, programs.FakeDevice)
	s.Start("consumer", env, "-driver", "cuda").Fails(1, "soft", "cuda", "run both with the same --driver")
	producer.WaitLine("  turned a peer away")
	s.Start("consumer", nil, "-driver", "soft").Succeeds()
	producer.Succeeds()
}
