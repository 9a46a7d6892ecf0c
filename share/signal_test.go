package share

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/cutest"
	"github.com/gpufd/gpufd/cu/soft"
	"github.com/gpufd/gpufd/cu/sys"
)

// hollow is a counter and a stream of the software driver, in which signals are libc's
// pthread_getconcurrency: C that takes what it is given, does nothing and returns 0, so that what is
// measured is ours.
func hollow(t testing.TB) (*Counter, *cu.Stream) {
	t.Helper()
	libc := ok(sys.OpenFile("libc.so.6"))(t)
	drv := ok(cu.Open(cu.WithResolver(func(symbol string) (uintptr, error) {
		switch symbol {
		case "cuStreamWriteValue64_v2", "cuEventRecord":
			return libc("pthread_getconcurrency")
		}
		return soft.Resolver(symbol)
	})))(t)
	ctx := cutest.Context(t, ok(drv.Device(0))(t))
	buf := zeros(t, ctx)
	c := ok(NewCounter(ctx, buf, 0))(t)
	t.Cleanup(func() { require.NoError(t, errors.Join(c.Close(), buf.Close())) })
	return c, newStream(t, ctx)
}

// Invariant 10, of signals: they allocate no more than the two driver calls that they are
// made of, which set the context by a callback here.
func TestSignalDoesNotAllocate(t *testing.T) {
	if cutest.Kind() != cu.Soft {
		t.Skip("nothing of it reaches the driver")
	}
	c, s := hollow(t)
	e := ok(s.Context().NewEvent(cu.EventDisableTiming))(t)
	require.NoError(t, c.Signal(s, 1))
	calls := testing.AllocsPerRun(200, func() { _, _ = s.WriteValue64(c.word, 1, cu.WriteDefault), e.Record(s) })
	n := uint64(1)
	require.Equal(t, calls, testing.AllocsPerRun(200, func() { n++; _ = c.Signal(s, n) }))
	require.NoError(t, e.Close())
}
