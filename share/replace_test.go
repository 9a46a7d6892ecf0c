package share

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/cutest"
	"github.com/gpufd/gpufd/internal/broker"
	"github.com/gpufd/gpufd/internal/serve"
	"github.com/gpufd/gpufd/internal/wire"
	"github.com/gpufd/gpufd/sock"
	"github.com/gpufd/gpufd/vmm"
)

// replace makes buf take the name "data", as put offers it.
func replace(t testing.TB, srv *Server, buf *vmm.Buffer, opts ...OfferOptions) *served {
	t.Helper()
	before, s := offeringOf(srv), newServed(srv)
	s.start(t, "data", func(ctx context.Context) error {
		return replaceFor(ctx, srv, "data", buf, cu.ReadWrite, s.watching(opts))
	})
	if before != 0 {
		require.Eventually(t, func() bool { return offeringOf(srv) != before }, 10*time.Second, 100*time.Microsecond)
	}
	return s
}

// offeringOf is what has the name "data".
func offeringOf(srv *Server) broker.OfferID {
	id, _ := offeredAs(srv, "data")
	return id
}

func awaitSuperseded(t testing.TB, att *Attachment) {
	t.Helper()
	select {
	case <-att.Superseded():
	case <-soon(t).Done():
		require.FailNow(t, "nobody says that it is superseded")
	}
}

// goesOn checks that Offer has not returned.
func (s *served) goesOn(t testing.TB) {
	t.Helper()
	select {
	case err := <-s.result:
		s.result <- err
		require.FailNow(t, "Offer has returned", "%v", err)
	case <-briefly(t).Done():
	}
}

// New consumers get the new memory and the others keep what they have, until they leave.
func TestReplace(t *testing.T) {
	dev, ctx, srv := listening(t)
	first, second := newBuffer(t, ctx, 1), newBuffer(t, ctx, 2)
	old := put(t, srv, first)
	before := attached(t, srv, "data", dev)
	replace(t, srv, second)
	for _, name := range []string{"data", ""} {
		att := attached(t, srv, name, dev)
		require.EqualValues(t, 2, att.Size())
		require.False(t, serve.IsClosed(att.Superseded()))
	}
	require.Len(t, leasesAs(srv, "data"), 2, "those of the new one")
	awaitSuperseded(t, before)
	requireNoise(t, ctx, before.Buffer(), 1)
	require.NoError(t, before.Progress(soon(t), 1, 2), "its lease goes on")
	old.goesOn(t)
	require.ErrorIs(t, first.Close(), vmm.ErrInUse)
	require.NoError(t, before.Close())
	require.NoError(t, old.end(t))
	require.NoError(t, old.await(t, Ended, 1).Err)
	require.NoError(t, first.Close())
}

// A consumer that does not read is told when it does, and waited for no longer than its lease.
func TestSupersededConsumerThatDoesNotRead(t *testing.T) {
	dev, ctx := leavesNothing(t)
	next := newBuffer(t, ctx, 2)
	for _, reads := range []bool{true, false} {
		srv := listen(t, ListenOptions{peer: goodbyes(brief)})
		old := put(t, srv, newBuffer(t, ctx, 1))
		conn := asked(t, srv, wants(dev))
		old.await(t, Sent, 1)
		n := 0
		for l := leasesAs(srv, "data")[0]; l.Notify(briefly(t), nil) == nil; n++ {
		}
		replace(t, srv, next)
		require.EqualValues(t, 2, attached(t, srv, "data", dev).Size())
		if reads {
			require.IsType(t, wire.Offer{}, heard(t, conn))
			for range n {
				require.IsType(t, wire.Notice{}, heard(t, conn))
			}
			require.Equal(t, wire.Superseded{Generation: next.Describe().Generation}, heard(t, conn))
			require.NoError(t, conn.Close())
		} else {
			old.cancel()
		}
		require.NoError(t, old.end(t))
		require.NoError(t, srv.Close())
	}
}

// Consumers take the word that there is something newer whenever it comes, and however often.
func TestSupersededAtAnyTime(t *testing.T) {
	dev, ctx := leavesNothing(t)
	tr := truthOf(t, ctx)
	says := lie{record: wire.Encode(wire.Superseded{Generation: 1})}
	first := tr.say(func(o *wire.Offer) { o.FDs, o.Pending = 2, true }, tr.files[:2]...)
	second := tr.say(func(o *wire.Offer) { o.First, o.FDs, o.Pending = 2, 1, true }, tr.files[2])
	publish := lie{record: wire.Encode(wire.Publish{Generation: tr.Memory.Generation})}
	path := impostor(t, tell(t, says, first, says, second, says, publish, says))
	att := ok(Attach(soon(t), path, "data", dev, nil))(t)
	awaitSuperseded(t, att)
	require.ErrorIs(t, awaitDone(t, att), sock.ErrPeerLost, "nothing else was wrong")
	require.NoError(t, att.Close())
}

// A stopped process that has a lease keeps nobody from the name, and a grace period gives
// the memory back.
func TestFault80_StoppedConsumerOfWhatIsReplaced(t *testing.T) {
	dev, ctx, srv := listening(t)
	old := put(t, srv, newBuffer(t, ctx, 1), OfferOptions{Grace: brief, terms: goodbyeIn(1, brief)})
	c := start(t, "consumer", srv.Path(), "stop when mapped")
	c.says(t, "mapped")
	c.stop(t)
	fresh := replace(t, srv, newBuffer(t, ctx, 2))
	n := 0
	for ; len(old.result) == 0; n++ { // until it returns, and not once without the name
		att := ok(Attach(soon(t), srv.Path(), "data", dev, nil))(t)
		require.EqualValues(t, 2, att.Size())
		require.NoError(t, att.Close())
	}
	require.Positive(t, n)
	require.NoError(t, old.end(t))
	require.ErrorIs(t, old.await(t, Ended, 1).Err, ErrSuperseded)
	c.kill()
	require.NoError(t, fresh.await(t, Ended, n).Err)
}

// Some consumers want the latest of a thousand versions, and attach again and again. None is
// refused, and each sees one version while it is attached: the memory is written again when the last
// has left, and not before. The versions of a consumer go up.
//
//fault:rows 80
func TestThousandReplacements(t *testing.T) {
	versions, size := 1000, uint64(64<<10)
	if cutest.Kind() == cu.CUDA && !cutest.All() {
		versions = 100
	}
	_, ctx, srv := listening(t)
	expect(srv, "data")
	over, stop := context.WithCancel(context.Background()) // of the consumers
	serving, end := context.WithCancel(context.Background())
	var consumers, offers sync.WaitGroup
	defer func() {
		stop()
		consumers.Wait()
		end()
		offers.Wait()
	}()
	for range 8 {
		consumers.Go(func() {
			if err := wantLatest(over, srv.Path(), ctx); err != nil {
				t.Error(err)
			}
		})
	}
	free := make(chan *vmm.Buffer, 3)
	for range cap(free) {
		free <- newBuffer(t, ctx, size)
	}
	for v := range versions {
		var buf *vmm.Buffer
		select {
		case buf = <-free:
		case <-soon(t).Done():
			require.FailNow(t, "no offer returns")
		}
		require.NoError(t, cu.Fill(ctx, buf.Ptr(), uint32(v+1), size/4))
		taken := make(chan struct{})
		offers.Go(func() {
			err := replaceFor(serving, srv, "data", buf, cu.ReadOnly, OfferOptions{OnLease: func(l *Lease) {
				if l.Number() == 1 {
					close(taken)
				}
			}})
			if err != nil {
				t.Error(err)
			}
			free <- buf
		})
		select {
		case <-taken: // by one consumer at least
		case <-soon(t).Done():
			require.FailNow(t, "nobody comes for the new version")
		}
	}
}

// wantLatest attaches, looks at the memory, waits for something newer, looks again, and lets go,
// over and over.
func wantLatest(over context.Context, path string, ctx *cu.Context) error {
	for last := uint32(0); over.Err() == nil; {
		att, err := Attach(context.Background(), path, "data", ctx.Device(), nil)
		if err != nil {
			return err
		}
		first, err1 := versionOf(ctx, att)
		select {
		case <-att.Superseded():
		case <-over.Done():
		}
		again, err2 := versionOf(ctx, att)
		if err := errors.Join(err1, err2, att.Close()); err != nil {
			return err
		}
		if first != again || first < last {
			return fmt.Errorf("version %d, behind version %d, became %d", first, last, again)
		}
		last = first
	}
	return nil
}

// versionOf returns the version of every word of the memory.
func versionOf(ctx *cu.Context, att *Attachment) (uint32, error) {
	got := make([]uint32, att.Size()/4)
	if err := cu.CopyToHost(ctx, got, att.Ptr()); err != nil {
		return 0, err
	}
	if slices.ContainsFunc(got, func(v uint32) bool { return v != got[0] }) {
		return 0, errors.New("two versions at once")
	}
	return got[0], nil
}

// newer is an Attach that waits for newer memory than buf.
type newer struct {
	att   chan *Attachment
	err   chan error
	tries atomic.Int32 // connections
}

func waitForNewer(t testing.TB, srv *Server, dev *cu.Device, buf *vmm.Buffer, opts ...AttachOptions) *newer {
	t.Helper()
	n := &newer{att: make(chan *Attachment, 1), err: make(chan error, 1)}
	o := first(opts)
	o.NewerThan, o.Wait, o.OnConnected = buf.Describe().Generation, true, func(sock.Peer) { n.tries.Add(1) }
	go func() {
		att, err := Attach(soon(t), srv.Path(), "data", dev, o)
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
	expect(srv, "data")
	working(srv, "data", 1, 2)
	require.Equal(t, wire.Progress{Done: 1, Total: 2, Capabilities: wire.TakesDetach}, heard(t, conn))
	require.NoError(t, attached(t, srv, "data", dev).Close())
	newer := &AttachOptions{NewerThan: old.Describe().Generation}
	require.ErrorIs(t, errOf(Attach(soon(t), srv.Path(), "data", dev, newer)), ErrStale, "it does not want to wait")
	require.ErrorIs(t, errOf(Attach(soon(t), srv.Path(), "data", dev, &AttachOptions{NewerThan: newer.NewerThan, Wait: true, Timeout: 50 * time.Millisecond})), ErrTimeout)
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
	srv := listen(t, ListenOptions{Authorize: func(sock.Peer, OfferInfo) error { return errSecret }})
	buf := filled(t, ctx, 1)
	put(t, srv, buf)
	p, _ := prepared(t, srv, "prepared", buf, cu.ReadOnly)
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
			att, err := Attach(soon(t), path, "data", dev, &AttachOptions{NewerThan: c.newerThan})
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
	grown := serveAs(t, srv, "grown", buf, cu.ReadOnly)
	require.ErrorIs(t, errOf(Attach(soon(t), srv.Path(), "data", dev, &AttachOptions{NewerThan: small.Generation})), ErrStale, "that offer is as it was")
	require.ErrorContains(t, s.await(t, Ended, 1).Err, ErrStale.Error())
	after := attached(t, srv, "grown", dev, AttachOptions{NewerThan: small.Generation})
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

// Legacy memory replaces a buffer, and a buffer legacy memory, which is kept until its
// last consumer has closed it.
func TestReplaceLegacy(t *testing.T) {
	dev, ctx, srv := listening(t)
	m := newLegacy(t, ctx, 4096)
	old := put(t, srv, newBuffer(t, ctx, 1))
	att := attached(t, srv, "data", dev)
	s := newServed(srv)
	s.start(t, "data", func(ctx context.Context) error {
		return replaceLegacyFor(ctx, srv, "data", m, OfferOptions{OnEvent: s.see})
	})
	awaitSuperseded(t, att)
	require.NoError(t, att.Close())
	require.NoError(t, old.end(t))

	c := start(t, "consumer", srv.Path(), "stop when mapped") // it can be opened in another process alone
	c.says(t, "mapped")
	replace(t, srv, newBuffer(t, ctx, 1))
	requireServed(t, srv, ctx)
	s.goesOn(t)
	require.ErrorIs(t, m.Close(), ErrInUse)
	c.end(t)
	require.NoError(t, s.end(t))
}

// A Replace that fails leaves the offer that is there as it was, and nobody waiting.
func TestReplaceThatFails(t *testing.T) {
	spy, dev, ctx := spied(t)
	srv, next := listen(t), newBuffer(t, ctx, 2) // which was never exported
	old := put(t, srv, newBuffer(t, ctx, 1))
	att := attached(t, srv, "data", dev)
	for _, call := range []string{exports, "cuCtxSynchronize"} {
		err := spy.during(call, func() error { return replaceFor(soon(t), srv, "data", next, cu.ReadOnly) })
		require.ErrorIs(t, err, cu.ErrOutOfMemory)
		old.goesOn(t)
		require.False(t, serve.IsClosed(att.Superseded()))
	}
	require.EqualValues(t, 1, attached(t, srv, "data", dev).Size())
	old.stop(t)
	require.ErrorIs(t, errOf(Attach(soon(t), srv.Path(), "data", dev, nil)), ErrRefused)
}
