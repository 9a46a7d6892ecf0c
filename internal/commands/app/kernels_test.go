package app

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/soft"
	"github.com/gpufd/gpufd/internal/cli"
)

// softWithout opens the software driver without some of its symbols. Without its
// marker it passes for a GPU's.
func softWithout(t *testing.T, symbols ...string) *cu.Driver {
	t.Helper()
	drv, err := cu.Open(cu.WithResolver(func(symbol string) (uintptr, error) {
		if slices.Contains(symbols, symbol) {
			return 0, errors.New("hidden by the test")
		}
		return soft.Resolver(symbol)
	}))
	require.NoError(t, err)
	return drv
}

// The way of filling and verifying is chosen by flag, driver and kernels, and printed.
func TestChoiceOfWay(t *testing.T) {
	const noLoading = "cuModuleLoadDataEx"
	for _, c := range []struct {
		hidden []string
		way    string
		gpu    bool
		says   string
		code   int
	}{
		{[]string{}, "", false, "  verifying on the CPU\n", cli.ExitOK},
		{[]string{}, "gpu", true, "  verifying on the GPU\n", cli.ExitOK},
		{[]string{soft.Marker}, "", true, "  verifying on the GPU\n", cli.ExitOK},
		{[]string{soft.Marker}, "cpu", false, "  verifying on the CPU\n", cli.ExitOK},
		{[]string{soft.Marker, noLoading}, "", false, "  verifying on the CPU: this driver cannot load the kernels: kernels: pattern: " + noLoading, cli.ExitOK},
		{[]string{soft.Marker, noLoading}, "cpu", false, "  verifying on the CPU\n", cli.ExitOK},
		{[]string{soft.Marker, noLoading}, "gpu", false, "--verify gpu: this driver cannot load the kernels: kernels: pattern: " + noLoading, cli.ExitMachine},
		{[]string{noLoading}, "gpu", false, "--verify gpu: this driver cannot load the kernels: kernels: pattern: " + noLoading, cli.ExitMachine},
	} {
		code, out, errs := run(t, func(_ context.Context, a *App) (err error) {
			a.Driver = softWithout(t, c.hidden...)
			dev, err := a.Driver.Device(0)
			require.NoError(t, err)
			ctx, err := dev.PrimaryContext()
			require.NoError(t, err)
			defer func() { err = errors.Join(err, ctx.Close()) }()
			k, err := a.Kernels(ctx, "verify", c.way)
			if err != nil {
				return err
			}
			require.Equal(t, c.gpu, k.OnGPU())
			a.SayWay("verify", "verifying", k)
			require.Equal(t, map[bool]string{true: "gpu", false: "cpu"}[c.gpu], a.Result["verify"])
			return k.Close()
		})
		require.Equal(t, c.code, code, "%+v", c)
		require.Contains(t, out+errs, c.says, "%+v", c)
		require.NotContains(t, out+errs, map[bool]string{true: "GPU\n", false: "CPU"}[!c.gpu], "%+v", c)
	}
}
