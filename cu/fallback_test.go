package cu_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ebitengine/purego"
	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/cutest"
	"github.com/gpufd/gpufd/cu/soft"
	"github.com/gpufd/gpufd/cu/sys"
)

// starter is the driver that tests run on, except that its cuInit notes a name and gives
// an answer.
func starter(t *testing.T, name string, asked *[]string, answer *sys.CUresult) sys.Resolver {
	driver := driverResolver(t)
	cuInit := purego.NewCallback(func(uint32) sys.CUresult {
		*asked = append(*asked, name)
		return *answer
	})
	return func(symbol string) (uintptr, error) {
		if symbol == "cuInit" {
			return cuInit, nil
		}
		return driver(symbol)
	}
}

// FAULTS 43. The fallback is opened only where libcuda sees no device, or where GPUFD_DRIVER
// says so. What is there and broken is an error.
func TestFault43_ChoiceOfDriver(t *testing.T) {
	cutest.Driver(t) // calls the real cuInit
	var asked []string
	libcuda, fallback := new(sys.CUresult), new(sys.CUresult)
	options := []cu.Option{cu.WithResolver(starter(t, "libcuda", &asked, libcuda)), cu.WithFallback(starter(t, "fallback", &asked, fallback))}
	const (
		ok, none, broken = sys.CUDA_SUCCESS, sys.CUDA_ERROR_NO_DEVICE, sys.CUDA_ERROR_UNKNOWN
		brokenHere       = "cu: the driver is installed but does not work: cuInit: CUDA_ERROR_UNKNOWN"
	)
	for _, c := range []struct {
		choice            string
		libcuda, fallback sys.CUresult
		asked             []string
		why               string // at the end of the driver's String
		err               string // at the beginning of the error
	}{
		{"cuda", ok, ok, []string{"libcuda"}, "", ""},
		{"cuda", none, ok, []string{"libcuda"}, "", "cuInit: CUDA_ERROR_NO_DEVICE"},
		{"cuda", broken, ok, []string{"libcuda"}, "", "cuInit: CUDA_ERROR_UNKNOWN"},
		{"soft", ok, ok, []string{"fallback"}, ": as asked", ""},
		{"soft", broken, ok, []string{"fallback"}, ": as asked", ""},
		{"soft", ok, broken, []string{"fallback"}, "", "cu: GPUFD_DRIVER=soft: cuInit: CUDA_ERROR_UNKNOWN"},
		{"auto", ok, ok, []string{"libcuda"}, "", ""},
		{"auto", none, ok, []string{"libcuda", "fallback"}, ": libcuda sees no GPU", ""},
		{"auto", none, broken, []string{"libcuda", "fallback"}, "", "cu: libcuda sees no GPU, and the fallback fails: cuInit: CUDA_ERROR_UNKNOWN"},
		{"auto", broken, ok, []string{"libcuda"}, "", brokenHere},
		{"", ok, ok, []string{"libcuda"}, "", ""},
		{"", none, ok, []string{"libcuda", "fallback"}, ": libcuda sees no GPU", ""},
		{"", broken, ok, []string{"libcuda"}, "", brokenHere},
		{"gpu", ok, ok, nil, "", `cu: GPUFD_DRIVER="gpu": want auto, cuda or soft`},
	} {
		t.Run(fmt.Sprintf("%q, %v, %v", c.choice, c.libcuda, c.fallback), func(t *testing.T) {
			t.Setenv("GPUFD_DRIVER", c.choice)
			asked, *libcuda, *fallback = nil, c.libcuda, c.fallback
			drv, err := cu.Open(options...)
			require.Equal(t, c.asked, asked)
			if c.err != "" {
				require.Nil(t, drv)
				require.Regexp(t, "^"+c.err, err)
				require.Equal(t, c.err == brokenHere, strings.HasSuffix(err.Error(), "repair it, or set GPUFD_DRIVER=soft to do without a GPU"))
				return
			}
			require.NoError(t, err)
			require.NotEmpty(t, drv.Devices())
			require.Regexp(t, `\(CUDA \d+\.\d\)`+c.why+"$", drv.String())
		})
	}
}

func TestFallbackThatIsNone(t *testing.T) {
	require.ErrorContains(t, errOf(cu.Open(cu.WithFallback(nil))), "WithFallback: the resolver is nil")
}

// FAULTS 43. Of errors with which libcuda was not opened, two say that there is no GPU.
func TestFault43_WhatSaysThatThereIsNoGPU(t *testing.T) {
	for _, c := range []struct {
		err error
		why string
	}{
		{&sys.LibraryError{Tried: []string{"libcuda.so.1: no such file"}}, "libcuda is not installed here"},
		{&sys.LibraryError{Tried: []string{"libcuda.so.1: undefined symbol"}, Found: true}, ""},
		{&cu.Error{Op: "cuInit", Result: cu.ErrNoDevice}, "libcuda sees no GPU"},
		{&cu.Error{Op: "cuInit", Result: cu.ErrSystemDriverMismatch}, ""},
		{&cu.SymbolError{Symbol: "cuInit"}, ""},
		{errHidden, ""},
	} {
		require.Equal(t, c.why, cu.WhyNoGPU(c.err), "%v", c.err)
	}
}

// A setting of the software driver that makes no sense is an error of Open, in its own words.
func TestOpenSaysWhatIsWrongWithTheSoftwareDriversEnvironment(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	for _, c := range []struct{ name, value, want string }{
		{"GPUFD_SOFT_DEVICES", "banana", "want a number from 0 to 64"},
		{"GPUFD_SOFT_MEMORY", "lots", "want bytes, or a number and KiB, MiB or GiB"},
		{"GPUFD_SOFT_VERSION", "13.0", "want a number from 1000 to 13000"},
		{"GPUFD_SOFT_PEERS", "no", "want a number from 0 to 1"},
		{"GPUFD_SOFT_IPC", "no", "want a number from 0 to 1"},
		{"GPUFD_SOFT_VMM", "no", "want a number from 0 to 1"},
		{"GPUFD_SOFT_IMEX", "yes", "want a number from 0 to 1"},
		{"GPUFD_SOFT_DIR", file, "not a directory; want a directory of your own with mode 0700, or the path of a new one"},
	} {
		out, err := cutest.Child(soon(t), "open the software driver", "GPUFD_DRIVER=soft", c.name+"="+c.value).CombinedOutput()
		require.NoError(t, err, "%s", out)
		require.Equal(t, fmt.Sprintf("cu: GPUFD_DRIVER=soft: the software driver cannot start: %s=%q: %s\n", c.name, c.value, c.want), string(out))
	}
}

// childOpenSoft prints why the software driver cannot be opened, by either of the options
// that open it.
func childOpenSoft() error {
	var bad *soft.ConfigError
	_, err := cu.Open(cu.WithFallback(soft.Resolver))
	_, again := cu.Open(cu.WithResolver(soft.Resolver))
	if !errors.As(err, &bad) || again == nil || !strings.HasSuffix(err.Error(), ": "+again.Error()) {
		return fmt.Errorf("%w, and then %w", err, again)
	}
	fmt.Println(err)
	return nil
}
