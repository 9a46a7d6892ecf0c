package share

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu/cutest"
	"github.com/gpufd/gpufd/vmm"
)

// BenchmarkHandoff is what a consumer waits for: attach to an offer that
// stands, and let go of it.
func BenchmarkHandoff(b *testing.B) {
	dev := cutest.Device(b)
	ctx := cutest.Context(b, dev)
	g := granularity(b, dev)
	for _, c := range []struct {
		name string
		opts []vmm.NewOption
	}{{"1 chunk", nil}, {"4 chunks", []vmm.NewOption{vmm.WithChunkSize(g)}}} {
		b.Run(c.name, func(b *testing.B) {
			srv := listen(b)
			put(b, srv, newBuffer(b, ctx, 4*g, c.opts...))
			bg := soon(b)
			for b.Loop() {
				att := ok(Attach(bg, srv.Path(), "data", dev))(b)
				require.NoError(b, att.Close())
			}
		})
	}
}
