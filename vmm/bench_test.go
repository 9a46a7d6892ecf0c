package vmm_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu/cutest"
	"github.com/gpufd/gpufd/vmm"
)

func BenchmarkNew(b *testing.B) {
	dev := cutest.Device(b)
	cutest.Context(b, dev)
	g := granularity(b, dev)
	for name, opts := range map[string][]vmm.Option{"1 chunk": nil, "4 chunks": {vmm.WithChunkSize(g)}} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				buf, err := vmm.New(dev, 4*g, opts...)
				require.NoError(b, err)
				require.NoError(b, buf.Close())
			}
		})
	}
}

// BenchmarkImport is what a consumer does with the descriptor it got, and what
// it costs the producer to hand it out.
func BenchmarkImport(b *testing.B) {
	dev := cutest.Device(b)
	cutest.Context(b, dev)
	buf := newBuffer(b, dev, granularity(b, dev))
	for b.Loop() {
		d, files, err := buf.Export()
		require.NoError(b, err)
		got, err := vmm.Import(dev, d, files)
		require.NoError(b, err)
		require.NoError(b, got.Close())
	}
}
