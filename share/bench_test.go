package share

import (
	"context"
	"errors"
	"math"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/cutest"
	"github.com/gpufd/gpufd/vmm"
)

// manyWaits is how many waits are outstanding at once.
const manyWaits = 1000

// cpuTime is what this process has used of all CPUs in nanoseconds, the driver's share included.
func cpuTime() int64 {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return u.Utime.Nano() + u.Stime.Nano()
}

// A crowd is many waits: of how many counters, in how many streams, or of the host.
type crowd struct{ counters, streams int }

var crowds = map[string]crowd{
	"one stream":      {1, 1},
	"several streams": {1, 4}, // which leave hardware queues to the signaller
	"many streams":    {1, manyWaits},
	"host":            {1, 0},
	"host, counters":  {manyWaits, 0},
}

// begin makes the crowd wait until ctx ends, or the number is 1, and returns the counters and
// what waits for the waits.
func (c crowd) begin(t testing.TB, ctx *cu.Context, limited context.Context) (counters []*Counter, wait func() []error) {
	t.Helper()
	buf := newBuffer(t, ctx, manyWaits*CounterStride)
	require.NoError(t, cu.Fill(ctx, buf.Ptr(), uint8(0), buf.Size()))
	for i := range c.counters {
		counter := ok(NewCounter(ctx, buf, i))(t)
		t.Cleanup(func() { require.NoError(t, counter.Close()) })
		counters = append(counters, counter)
	}
	var streams []*cu.Stream
	for range c.streams {
		streams = append(streams, newStream(t, ctx))
	}
	results := make([]error, manyWaits)
	var all sync.WaitGroup
	for i := range manyWaits {
		counter := counters[i%c.counters]
		if c.streams == 0 {
			all.Go(func() { results[i] = counter.Await(limited, 1) })
			continue
		}
		w := ok(counter.Wait(limited, streams[i%c.streams], 1))(t)
		all.Go(func() { results[i] = w.Result() })
	}
	return counters, func() []error { all.Wait(); return results }
}

// measure makes the crowd wait, and returns by how much spent grows in a second while nothing
// comes, and how long the waits take to end when the numbers have come.
func (c crowd) measure(t testing.TB, ctx *cu.Context, limited context.Context, settle, window time.Duration, spent func() int64) (perSecond float64, ends time.Duration) {
	t.Helper()
	s, err := ctx.NewStreamWith(mostUrgent) // streams that wait do not hold it up
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	counters, wait := c.begin(t, ctx, limited)
	time.Sleep(settle) // until the pauses are as long as they get
	perSecond = math.Inf(1)
	for range 2 { // whatever else goes on only adds to it
		begun, before := time.Now(), spent()
		time.Sleep(window)
		perSecond = min(perSecond, float64(spent()-before)/time.Since(begun).Seconds())
	}
	begun := time.Now()
	for _, counter := range counters {
		require.NoError(t, counter.Signal(s, 1))
	}
	require.NoError(t, errors.Join(wait()...))
	return perSecond, time.Since(begun)
}

// BenchmarkWaits measures a thousand outstanding waits, of streams or of the host.
func BenchmarkWaits(b *testing.B) {
	for name, c := range crowds {
		b.Run(name, func(b *testing.B) {
			if c.streams > 9 && cutest.Kind() == cu.CUDA {
				b.Skip("a GPU has few queues")
			}
			ctx := cutest.Context(b, cutest.Device(b))
			for b.Loop() {
				busy, ends := c.measure(b, ctx, soon(b), 3*time.Second, 2*time.Second, cpuTime)
				b.ReportMetric(100*busy/float64(time.Second), "%CPU")
				b.ReportMetric(float64(ends.Milliseconds()), "ms-to-end")
			}
		})
	}
}

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
