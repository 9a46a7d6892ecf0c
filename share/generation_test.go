package share

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/internal/broker"
	"github.com/gpufd/gpufd/internal/wire"
	"github.com/gpufd/gpufd/sock"
	"github.com/gpufd/gpufd/vmm"
)

// newer is an Attach that waits for newer memory than buf.
type newer struct {
	att   chan *Attachment
	err   chan error
	tries atomic.Int32 // connections
}

func waitForNewer(t testing.TB, srv *Server, dev *cu.Device, buf *vmm.Buffer, opts ...AttachOption) *newer {
	t.Helper()
	n := &newer{att: make(chan *Attachment, 1), err: make(chan error, 1)}
	opts = append(opts, WithNewerThan(buf.Describe().Generation), WithWait(), OnConnected(func(sock.Peer) { n.tries.Add(1) }))
	go func() {
		att, err := Attach(soon(t), srv.Path(), "data", dev, opts...)
		n.att <- att
		n.err <- err
	}()
	return n
}

// gets is the attachment to want, which is closed.
func (n *newer) gets(t testing.TB, want *vmm.Buffer) {
	t.Helper()
	att := <-n.att
	require.NoError(t, <-n.err)
	require.Equal(t, want.Describe(), att.Offer().Descriptor)
	require.NoError(t, att.Close())
	require.EqualValues(t, 1, n.tries.Load(), "it asked once")
}

// awaitBehind waits until n consumers wait for newer memory than is offered.
func awaitBehind(t testing.TB, srv *Server, n int) {
	t.Helper()
	require.Eventually(t, func() bool {
		all := 0
		srv.core.Look(func(b *broker.Broker) { all = len(b.Waiting()) })
		return all-len(waiting(srv)) == n
	}, 10*time.Second, time.Millisecond)
}

// A consumer that knows the memory of a name waits for newer memory and hears of progress, while
// others get the present offer. It goes on waiting if the producer goes back to older memory.
func TestWaitForNewer(t *testing.T) {
	dev, ctx, srv := listening(t)
	oldest, old, next := filled(t, ctx, 1), filled(t, ctx, 2), filled(t, ctx, 3)
	put(t, srv, old)
	n := waitForNewer(t, srv, dev, old)
	want := wants(dev)
	want.After = 1<<64 - 1
	conn := asked(t, srv, want)
	awaitBehind(t, srv, 2)
	srv.Expect("data")
	srv.Working("data", 1, 2)
	require.Equal(t, wire.Progress{Done: 1, Total: 2}, heard(t, conn))
	require.NoError(t, attached(t, srv, "data", dev).Close())
	require.ErrorIs(t, errOf(Attach(soon(t), srv.Path(), "data", dev, WithNewerThan(old.Describe().Generation))), ErrStale, "it does not want to wait")
	replace(t, srv, oldest)
	awaitBehind(t, srv, 2)
	replace(t, srv, next)
	n.gets(t, next)
	awaitBehind(t, srv, 1)
	require.NoError(t, conn.Close())
}

// A consumer that is not admitted gets the same answer whatever generation it says that it knows.
// If it had to wait for some and not for others, it would find out which generation there is.
func TestConsumerThatIsNotAdmittedLearnsNoGeneration(t *testing.T) {
	dev, ctx := leavesNothing(t)
	srv := listen(t, WithAuthorize(func(sock.Peer, Offer) error { return errSecret }))
	buf := filled(t, ctx, 1)
	put(t, srv, buf)
	p, _ := prepared(t, srv, "prepared", buf, ReadOnly)
	generation := buf.Describe().Generation
	for _, name := range []string{"data", "prepared"} {
		for _, known := range []uint64{0, generation - 1, generation, 1<<64 - 1} {
			want := wants(dev)
			want.Name, want.After = name, known
			conn := asked(t, srv, want)
			require.Equal(t, turnedAway, heard(t, conn), "%s, newer than %d", name, known)
			require.NoError(t, conn.Close())
		}
	}
	require.NoError(t, p.Close())
}

// A consumer that waits for newer memory may not speak meanwhile, and waits until its own time is over.
func TestWaitForNewerIsBounded(t *testing.T) {
	dev, ctx, srv := listening(t)
	old := filled(t, ctx, 1)
	s := put(t, srv, old)
	want := wants(dev)
	want.After = 1<<64 - 1
	conn := asked(t, srv, want)
	awaitBehind(t, srv, 1)
	require.NoError(t, conn.Send(soon(t), wire.Encode(isMapped(old))))
	requireRefusal(t, conn, RefusedRecord, "mapped what was not offered")
	require.NoError(t, conn.Close())
	require.ErrorIs(t, s.await(t, PeerRefused, 1).Err, ErrProtocol)
	require.ErrorIs(t, errOf(Attach(soon(t), srv.Path(), "data", dev, WithNewerThan(old.Describe().Generation), WithWait(), WithTimeout(50*time.Millisecond))), ErrTimeout)
	awaitBehind(t, srv, 0)
}

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
		"the next":              {whole, earlier - 1, nil},
		"the same":              {whole, earlier, ErrStale},
		"an earlier one":        {whole, earlier + 1, ErrStale},
		"the same, in parts":    {parts, earlier, ErrStale},
		"the same, and no data": {pending, earlier, ErrStale},
	} {
		t.Run(name, func(t *testing.T) {
			leavesNothing(t)
			answered := make(chan wire.Message, 1)
			path := impostor(t, func(conn *sock.Conn) {
				for _, l := range c.lies {
					_ = conn.Send(soon(t), l.record, l.files...)
				}
				answered <- heard(t, conn)
			})
			att, err := Attach(soon(t), path, "data", dev, WithNewerThan(c.newerThan))
			require.ErrorIs(t, err, c.want)
			if c.want == nil {
				require.Equal(t, wire.Mapped{Generation: earlier}, <-answered)
				require.NoError(t, att.Close())
				return
			}
			require.Equal(t, wire.Verdict{Text: "attaching failed: " + err.Error()}, <-answered)
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
