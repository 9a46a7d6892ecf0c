package share

import (
	"testing"

	"github.com/gpufd/gpufd/internal/wire"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/sock"
	"github.com/gpufd/gpufd/vmm"
)

// A producer dies and another takes its place. A consumer that attached to the first one, and
// says so, takes the second one's memory, and that only once.
func TestFault67_NextRunOfAProducer(t *testing.T) {
	dev, ctx := leavesNothing(t)
	path := socketPath(t)
	newest := uint64(0)
	for range 2 {
		c := start(t, "producer", path, "5")
		c.says(t, "listening")
		att := ok(Attach(soon(t), path, "data", dev, WithNewerThan(newest)))(t)
		require.Greater(t, att.Offer().Descriptor.Generation, newest)
		newest = att.Offer().Descriptor.Generation
		require.ErrorIs(t, errOf(Attach(soon(t), path, "data", dev, WithNewerThan(newest))), ErrStale, "it is known")
		requireNoise(t, ctx, att.Buffer(), 1)
		c.kill()
		require.ErrorIs(t, awaitDone(t, att), sock.ErrPeerLost)
		requireNoise(t, ctx, att.Buffer(), 1)
		require.NoError(t, att.Close())
	}
	srv := ok(Listen(path))(t)
	require.NoError(t, srv.Close())
}

// The descriptors of an earlier run work as long as somebody has them. A producer that offers
// them again is not believed.
func TestFault67_DescriptorsOfAnEarlierRun(t *testing.T) {
	dev, ctx := leavesNothing(t)
	tr := truthOf(t, ctx)
	earlier := tr.Memory.Generation
	whole, pending := []lie{tr.say(nil, tr.files...)}, []lie{tr.say(func(o *wire.Offer) { o.Pending = true }, tr.files...)}
	parts := []lie{tr.say(func(o *wire.Offer) { o.FDs = 2 }, tr.files[:2]...), tr.say(func(o *wire.Offer) { o.First, o.FDs = 2, 1 }, tr.files[2])}
	for name, c := range map[string]struct {
		lies      []lie
		newerThan uint64
		want      error
	}{
		"no bound":                {whole, 0, nil},
		"the next":                {whole, earlier - 1, nil},
		"the same":                {whole, earlier, ErrStale},
		"an earlier one":          {whole, earlier + 1, ErrStale},
		"the same, in parts":      {parts, earlier, ErrStale},
		"the same, and no data":   {pending, earlier, ErrStale},
		"the latest there can be": {whole, ^uint64(0), ErrStale},
	} {
		t.Run(name, func(t *testing.T) {
			leavesNothing(t)
			answered := make(chan wire.Message, 1)
			path := impostor(t, func(conn *sock.Conn) {
				for _, l := range c.lies {
					_ = conn.Send(soon(t), l.record, l.files...)
				}
				m, _, err := hearer(conn).Receive(soon(t), true)
				if err != nil {
					t.Error(err)
				}
				answered <- m
			})
			att, err := Attach(soon(t), path, "data", dev, WithNewerThan(c.newerThan))
			require.ErrorIs(t, err, c.want)
			if c.want == nil {
				require.Equal(t, wire.Mapped{Generation: earlier}, <-answered)
				require.NoError(t, att.Close())
				return
			}
			told := (<-answered).(wire.Verdict)
			require.False(t, told.OK)
			require.Contains(t, told.Text, "attaching failed: "+ErrStale.Error())
		})
	}
}

// A buffer that grows is offered anew. What was attached before stays what it was,
// is the same memory, and is told from the new shape by the generation.
func TestFault67_GrownBuffer(t *testing.T) {
	dev, ctx := leavesNothing(t)
	g := granularity(t, dev)
	buf := newBuffer(t, ctx, g, vmm.WithChunkSize(g), vmm.WithCapacity(2*g))
	srv := listen(t)
	s := put(t, srv, buf)
	before := attached(t, srv, "data", dev)
	small := before.Offer().Descriptor

	require.NoError(t, buf.Grow(2*g))
	grown := serveAs(t, srv, "grown", buf, ReadOnly)
	require.ErrorIs(t, errOf(Attach(soon(t), srv.Path(), "data", dev, WithNewerThan(small.Generation))), ErrStale, "that offer is as it was")
	require.ErrorContains(t, s.await(t, Ended, 1).Err, ErrStale.Error())
	after := attached(t, srv, "grown", dev, WithNewerThan(small.Generation))
	require.Greater(t, after.Offer().Descriptor.Generation, small.Generation)
	require.Equal(t, buf.Describe(), after.Offer().Descriptor)
	require.Equal(t, 2*g, after.Buffer().Size())

	require.NoError(t, before.Err())
	require.Equal(t, small, before.Buffer().Describe())
	require.Equal(t, g, before.Buffer().Mapped())
	require.NoError(t, cu.CopyToDevice(ctx, buf.Ptr(), noise(2*g, 5)))
	requireNoise(t, ctx, before.Buffer(), 5)
	requireNoise(t, ctx, after.Buffer(), 5)
	grown.await(t, Mapped, 1)
}
