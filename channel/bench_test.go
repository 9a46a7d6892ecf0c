package channel

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/cutest"
)

// percentiles reports the median and the 99th of what each round took.
func percentiles(b *testing.B, took []time.Duration) {
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Nanoseconds()), "p50-ns")
	b.ReportMetric(float64(took[len(took)*99/100].Nanoseconds()), "p99-ns")
}

// BenchmarkHosts is one frame from a host to another and back, both spinning, in one process:
// two channels, each way one.
func BenchmarkHosts(b *testing.B) {
	ctx := cutest.Context(b, cutest.Device(b))
	there, back := listen(b), listen(b)
	w, w2 := newWriter(b, ctx, there, 4, 64), newWriter(b, ctx, back, 4, 64)
	r, r2 := newReader(b, ctx, there), newReader(b, ctx, back)
	bg, stop := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { // the other side
		defer close(done)
		for {
			if err := pass(bg, r, w2); err != nil {
				return
			}
		}
	}()
	took := make([]time.Duration, 0, b.N)
	b.ReportAllocs()
	for b.Loop() {
		begin := time.Now()
		s := ok(w.Acquire(bg))(b)
		require.NoError(b, w.Publish(s, Meta{Time: 1, Size: 64}))
		f := ok(r2.Next(bg))(b)
		require.NoError(b, r2.Release(f))
		took = append(took, time.Since(begin))
	}
	stop()
	<-done
	percentiles(b, took)
}

// pass takes a frame and publishes another.
func pass(ctx context.Context, r *Reader, w *Writer) error {
	f, err := r.Next(ctx)
	if err != nil {
		return err
	}
	if err := r.Release(f); err != nil {
		return err
	}
	s, err := w.Acquire(ctx)
	if err != nil {
		return err
	}
	return w.Publish(s, Meta{Time: 1, Size: 64})
}

// BenchmarkPolicies is what a frame costs both sides together, in one goroutine, by policy: each frame is taken
// ("quick"), or the reader holds one while a hundred come ("slow"), which takes one that keeps nobody waiting.
func BenchmarkPolicies(b *testing.B) {
	for _, c := range []struct {
		name  string
		every int
		of    []Policy
	}{{"quick", 1, policies}, {"slow", 100, []Policy{DropOldest, DropNewest, Latest}}} {
		for _, p := range c.of {
			b.Run(c.name+" "+p.String(), func(b *testing.B) {
				ctx := cutest.Context(b, cutest.Device(b))
				srv := listen(b)
				w, r := newWriter(b, ctx, srv, 8, 64), newReader(b, ctx, srv, WithPolicy(p))
				bg := context.Background()
				var held Frame
				var behind uint64
				n, takes := 0, 0
				b.ReportAllocs()
				for b.Loop() {
					s := ok(w.Acquire(bg))(b)
					require.NoError(b, w.Publish(s, Meta{Time: 1, Size: 64}))
					if n++; n%c.every != 0 {
						continue
					}
					if held.Sequence > 0 && c.every > 1 {
						if err := r.Release(held); p == Latest {
							require.NoError(b, err)
						}
					}
					held = ok(r.Next(bg))(b)
					behind += w.Last() - held.Sequence
					takes++
					if c.every == 1 {
						require.NoError(b, r.Release(held))
					}
				}
				if takes > 0 {
					b.ReportMetric(float64(behind)/float64(takes), "frames-behind")
				}
			})
		}
	}
}

// BenchmarkWake is from a host's, or a stream's, publishing to a host that sleeps.
func BenchmarkWake(b *testing.B) {
	for _, streams := range []bool{false, true} {
		b.Run(map[bool]string{false: "host", true: "stream"}[streams], func(b *testing.B) {
			ctx := cutest.Context(b, cutest.Device(b))
			srv := listen(b)
			w, r := newWriter(b, ctx, srv, 4, 64, WithStreams()), newReader(b, ctx, srv)
			s := newStream(b, ctx)
			bg := context.Background()
			seen := make(chan time.Time)
			go func() {
				defer close(seen)
				for {
					f, err := r.Next(bg)
					at := time.Now()
					if err != nil || r.Release(f) != nil {
						return
					}
					seen <- at
				}
			}()
			took := make([]time.Duration, 0, b.N)
			for b.Loop() {
				time.Sleep(2 * time.Millisecond) // until it sleeps
				slot, err := w.Acquire(bg)
				require.NoError(b, err)
				begin := time.Now()
				if streams {
					err = w.PublishOn(s, slot, Meta{})
				} else {
					err = w.Publish(slot, Meta{})
				}
				require.NoError(b, err)
				took = append(took, (<-seen).Sub(begin))
			}
			percentiles(b, took)
			require.NoError(b, w.Close())
			for range seen {
			}
		})
	}
}

// BenchmarkStreams is one way from a stream to others: a writer's stream publishes what it was
// told to, and readers' streams, which wait, each tell the host. On a GPU eight of them wait at most, to be
// safe: an H100 went on with nine waiting streams of a context, and hung with 16 (docs/driver-facts.md,
// Queues).
func BenchmarkStreams(b *testing.B) {
	for _, readers := range map[cu.Kind][]int{cu.Soft: {1, 4, 16}, cu.CUDA: {1, 4, 8}}[cutest.Kind()] {
		b.Run(fmt.Sprint("readers ", readers), func(b *testing.B) {
			ctx := cutest.Context(b, cutest.Device(b))
			srv := listen(b)
			w, ws := newWriter(b, ctx, srv, 8, 64, WithStreams()), newStream(b, ctx)
			var rs []*Reader
			var streams []*cu.Stream
			for range readers {
				rs, streams = append(rs, newReader(b, ctx, srv)), append(streams, newStream(b, ctx))
			}
			took := make([]time.Duration, 0, b.N)
			for b.Loop() {
				for i, r := range rs {
					f := ok(r.NextOn(streams[i]))(b)
					require.NoError(b, r.ReleaseOn(streams[i], f))
				}
				begin := time.Now()
				s := ok(w.AcquireOn(ws))(b)
				require.NoError(b, w.PublishOn(ws, s, Meta{}))
				for _, r := range rs {
					for r.load(offReleased) < r.next-1 {
						if time.Since(begin) > time.Minute {
							b.Fatal("a stream does not go on")
						}
					}
				}
				took = append(took, time.Since(begin))
			}
			percentiles(b, took)
		})
	}
}

// BenchmarkFrames is the time a frame of that size takes, queued ahead by streams: the writer
// fills it and the reader copies it to the host.
func BenchmarkFrames(b *testing.B) {
	for _, size := range []uint64{4 << 10, 128 << 10, 4 << 20, 64 << 20} {
		for _, slots := range []int{4, 8} {
			b.Run(fmt.Sprintf("%d KiB, %d slots", size>>10, slots), func(b *testing.B) {
				ctx := cutest.Context(b, cutest.Device(b))
				srv := listen(b)
				w, r := newWriter(b, ctx, srv, slots, size, WithStreams()), newReader(b, ctx, srv)
				ws, rs := newStream(b, ctx), newStream(b, ctx)
				host := ok(ctx.AllocHost(size, 0))(b)
				defer host.Close()
				b.SetBytes(int64(size))
				for b.Loop() {
					s := ok(w.AcquireOn(ws))(b)
					require.NoError(b, cu.FillAsync(ws, s.Ptr(), uint32(s.Sequence), size/4))
					require.NoError(b, w.PublishOn(ws, s, Meta{}))
					f := ok(r.NextOn(rs))(b)
					require.NoError(b, cu.CopyToHostAsync(rs, host.Bytes(), f.Ptr()))
					require.NoError(b, r.ReleaseOn(rs, f))
					if s.Sequence%64 == 0 {
						require.NoError(b, rs.Synchronize(soon(b)))
					}
				}
				require.NoError(b, rs.Synchronize(soon(b)))
			})
		}
	}
}
