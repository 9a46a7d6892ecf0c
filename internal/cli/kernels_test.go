package cli

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/soft"
	"github.com/gpufd/gpufd/internal/pattern"
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

// Who does the work that nobody asked for in one way, and what is said about it.
func TestChoiceOfWay(t *testing.T) {
	const noLoading = "cuModuleLoadDataEx"
	for _, c := range []struct {
		hidden []string
		way    string
		gpu    bool
		says   string
		code   int
	}{
		{[]string{}, "", false, "  verifying on the CPU\n", ExitOK},
		{[]string{}, "gpu", true, "  verifying on the GPU\n", ExitOK},
		{[]string{soft.Marker}, "", true, "  verifying on the GPU\n", ExitOK},
		{[]string{soft.Marker}, "cpu", false, "  verifying on the CPU\n", ExitOK},
		{[]string{soft.Marker, noLoading}, "", false, "  verifying on the CPU: this driver cannot load the kernels: kernels: pattern: " + noLoading, ExitOK},
		{[]string{soft.Marker, noLoading}, "cpu", false, "  verifying on the CPU\n", ExitOK},
		{[]string{soft.Marker, noLoading}, "gpu", false, "--verify gpu: this driver cannot load the kernels: kernels: pattern: " + noLoading, ExitMachine},
		{[]string{noLoading}, "gpu", false, "--verify gpu: this driver cannot load the kernels: kernels: pattern: " + noLoading, ExitMachine},
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

// Where pieces meet, no integer is left out, filled twice or counted twice.
func TestPiecesOfKernels(t *testing.T) {
	dev, err := softWithout(t).Device(0)
	require.NoError(t, err)
	ctx, err := dev.PrimaryContext()
	require.NoError(t, err)
	defer func() { require.NoError(t, ctx.Close()) }()
	before := piece[cu.Soft]
	piece[cu.Soft] = 48
	defer func() { piece[cu.Soft] = before }()
	k, err := NewKernels(ctx)
	require.NoError(t, err)
	const room = 512
	mem, err := ctx.Alloc(room)
	require.NoError(t, err)
	none := func(uint64) error { return nil }
	for _, size := range []uint64{1, 47, 48, 49, 96, 97, 500} {
		require.NoError(t, cu.Fill(ctx, mem.Ptr(), uint8(0xee), room))
		require.NoError(t, ctx.Synchronize(t.Context()))
		require.NoError(t, k.Fill(t.Context(), mem.Ptr(), size, 9, none))
		got := make([]byte, room)
		require.NoError(t, cu.CopyToHost(ctx, got, mem.Ptr()))
		require.Zero(t, pattern.Check(got[:size], 0, 9))
		require.Equal(t, slices.Repeat([]byte{0xee}, int(room-size)), got[size:], "%d bytes, and no more", size)
		for _, at := range []uint64{size - 1, size / 2, 0} { // and so more and more are wrong
			got[at] ^= 0x80
			require.NoError(t, cu.CopyToDevice(ctx, mem.Ptr(), got))
			var seen []uint64
			wrong, err := k.Check(t.Context(), mem.Ptr(), size, 9, func(done uint64) error { seen = append(seen, done); return nil })
			require.NoError(t, err)
			require.Equal(t, pattern.Check(got[:size], 0, 9), wrong, "%d bytes", size)
			require.Equal(t, size, seen[len(seen)-1])
			require.True(t, slices.IsSorted(seen))
		}
	}
	require.NoError(t, k.Close())
}
