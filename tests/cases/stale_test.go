package cases

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
)

// A waiting copy that is given the stream copies what a kernel of the stream has written. One that is given the
// context does not wait for the stream.
func TestStale(t *testing.T) {
	_, ctx := device(t, patience)
	add := adder(t, ctx)
	a, sums := untilEnd(t, ok(cu.Alloc[float32](ctx, 1024))(t)), untilEnd(t, ok(cu.Alloc[float32](ctx, 1024))(t))
	s, k := newStream(t, ctx), held(t, ctx)
	ones, twos, got := make([]float32, 1024), make([]float32, 1024), make([]float32, 1024)
	for i := range ones {
		ones[i], twos[i] = 1, 2
	}
	require.NoError(t, a.CopyFrom(s, ones))
	require.NoError(t, sums.CopyFrom(s, ones))

	require.NoError(t, k.run(s, k.memory))
	require.NoError(t, add(s, a, a, sums))
	require.NoError(t, sums.CopyTo(ctx, got))
	require.Equal(t, ones, got, "the null stream waits for no other stream")

	late := time.AfterFunc(10*time.Millisecond, k.release)
	defer late.Stop()
	require.NoError(t, cu.CopyToHost(s, got, sums))
	require.Equal(t, twos, got)
}
