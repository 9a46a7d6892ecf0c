package cutest

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/soft"
	"github.com/gpufd/gpufd/kernels"
)

// A maker is a test that makes something in its context and has to close it.
type maker struct {
	make func(*cu.Context) error
	says string
}

var makers = map[string]maker{
	"memory": {func(c *cu.Context) error {
		for range 100 {
			if _, err := c.Alloc(4096); err != nil {
				return err
			}
		}
		return nil
	}, "device memory: 100, of 409600 bytes in all, made at\n"},
	"memory of a pool": {func(c *cu.Context) error { return second(c.NullStream().AllocAsync(4096)) }, "device memory: 1, of 4096 bytes in all, made at\n"},
	"pitched memory":   {func(c *cu.Context) error { return second(c.AllocPitch(16, 4, 4)) }, "device memory: 1, of "},
	"pinned memory":    {func(c *cu.Context) error { return second(c.AllocHost(4096, 0)) }, "pinned memory: 1, of 4096 bytes in all, made at\n"},
	"registration":     {func(c *cu.Context) error { return second(c.RegisterHost(make([]byte, 4096), 0)) }, "registered memory: 1, of 4096 bytes in all, made at\n"},
	"stream":           {func(c *cu.Context) error { return second(c.NewStream()) }, "stream: 1, made at\n"},
	"event":            {func(c *cu.Context) error { return second(c.NewEvent(0)) }, "event: 1, made at\n"},
	"module":           {func(c *cu.Context) error { return second(c.LoadModule([]byte(kernels.Memory))) }, "module: 1, made at\n"},
	"graph":            {func(c *cu.Context) error { return second(c.NewGraph()) }, "graph: 1, made at\n"},
	"executable graph": {func(c *cu.Context) error {
		g, err := c.NewGraph()
		if err != nil {
			return err
		}
		_, err = g.Instantiate(0)
		return errors.Join(err, g.Close())
	}, "executable graph: 1, made at\n"},
}

// An object left for its context to close fails the test, which names it and its maker once.
func TestUnclosedFailsTheTest(t *testing.T) {
	for name, m := range makers {
		got := record(t, func(t testing.TB) { require.NoError(t, m.make(Context(t, Device(t)))) })
		require.Len(t, got.failures, 1, name)
		require.Contains(t, got.failures[0], "the test did not close this in its context (AllowUnclosed allows that):\n  "+m.says)
		require.Contains(t, got.failures[0], pkg+"TestUnclosedFailsTheTest", name)

		got = record(t, func(t testing.TB) { require.NoError(t, m.make(Context(t, Device(t), AllowUnclosed()))) })
		require.Empty(t, got.failures, name)
	}
}

// Each kind has its lines.
func TestUnclosedOfSeveralKinds(t *testing.T) {
	got := record(t, func(t testing.TB) {
		ctx := Context(t, Device(t))
		for _, name := range []string{"stream", "event", "memory"} {
			require.NoError(t, makers[name].make(ctx))
		}
	})
	require.Len(t, got.failures, 1)
	require.Regexp(t, `(?s)\n  device memory: 100, .*\n  event: 1, .*\n  stream: 1, `, got.failures[0])
}

// Closed objects, and those of other owners, do not fail the test.
func TestClosedIsNotUnclosed(t *testing.T) {
	dev := Device(t)
	other, err := dev.PrimaryContext()
	require.NoError(t, err)
	got := record(t, func(t testing.TB) {
		ctx := Context(t, dev)
		s, err := ctx.NewStream()
		require.NoError(t, err)
		m, err := ctx.Alloc(4096)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, m.Close()) })
		require.NoError(t, s.Close())
		require.NoError(t, makers["stream"].make(other))
	})
	require.Empty(t, got.failures)
	require.Len(t, other.Unclosed(), 1)
	require.NoError(t, other.Close())
	require.Len(t, other.Unclosed(), 1, "what it ended")
}

// A test that closes the context itself hides nothing by that.
func TestUnclosedInAContextThatIsClosed(t *testing.T) {
	got := record(t, func(t testing.TB) {
		ctx := Context(t, Device(t))
		require.NoError(t, makers["memory"].make(ctx))
		require.NoError(t, ctx.Close())
	})
	require.Len(t, got.failures, 1)
	require.Contains(t, got.failures[0], "device memory: 100, of 409600 bytes in all")
}

// A test that failed may not have come to its Close.
func TestUnclosedOfAFailedTest(t *testing.T) {
	got := record(t, func(t testing.TB) {
		require.NoError(t, makers["stream"].make(Context(t, Device(t))))
		t.Fatal("why")
	})
	require.Equal(t, []string{"why"}, got.failures)
}

// Without an account of its driver's calls, a test is not told who made what.
func TestUnclosedOfADriverOfItsOwn(t *testing.T) {
	onlySoft(t)
	drv, err := cu.Open(cu.WithResolver(soft.Resolver))
	require.NoError(t, err)
	got := record(t, func(t testing.TB) { require.NoError(t, makers["memory"].make(Context(t, drv.Devices()[0]))) })
	require.Len(t, got.failures, 1)
	require.Regexp(t, `:\n  device memory: 100, of 409600 bytes in all\n$`, got.failures[0])
}
