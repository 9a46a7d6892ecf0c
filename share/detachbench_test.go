package share

import (
	"fmt"
	"testing"
	"time"

	"github.com/gpufd/gpufd/cu/cutest"
	"github.com/gpufd/gpufd/vmm"
)

// BenchmarkDetach says what it takes to detach so many chunks, and to reattach them.
func BenchmarkDetach(b *testing.B) {
	for _, chunks := range []uint64{1, 64} {
		b.Run(fmt.Sprintf("%d chunks", chunks), func(b *testing.B) {
			dev := cutest.Device(b)
			ctx, g := cutest.Context(b, dev), granularity(b, dev)
			srv := listen(b)
			put(b, srv, newBuffer(b, ctx, chunks*g, vmm.WithChunkSize(g)), OfferOptions{OnEvent: func(Event) {}})
			bound := b.Context()
			att := ok(Attach(bound, srv.Path(), "data", dev, nil))(b)
			var detaching, reattaching time.Duration
			for b.Loop() {
				begun := time.Now()
				ok(att.Detach(bound, 0))(b)
				detached := time.Now()
				att = ok(att.Reattach(bound, Same))(b)
				detaching += detached.Sub(begun)
				reattaching += time.Since(detached)
			}
			b.ReportMetric(float64(detaching.Nanoseconds())/float64(b.N), "ns/detach")
			b.ReportMetric(float64(reattaching.Nanoseconds())/float64(b.N), "ns/reattach")
			if err := att.Close(); err != nil {
				b.Fatal(err)
			}
		})
	}
}
