package share

import (
	"context"
	"errors"
	"os"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/internal/wire"
	"github.com/gpufd/gpufd/sock"
	"github.com/gpufd/gpufd/vmm"
)

// lostAttachment is an attachment to buf, offered as "data" and for reading and writing,
// whose producer has gone. It is closed when t ends.
func lostAttachment(t testing.TB, dev *cu.Device, buf *vmm.Buffer, opts ...AttachOption) *Attachment {
	t.Helper()
	srv := ok(Listen(socketPath(t)))(t)
	put(t, srv, buf)
	att := attached(t, srv, "data", dev, opts...)
	require.NoError(t, srv.Close())
	require.ErrorIs(t, awaitDone(t, att), ErrRevoked)
	return att
}

// again is a producer at the path of an attachment that was lost.
func again(t testing.TB, att *Attachment, opts ...ListenOption) *Server {
	t.Helper()
	srv := ok(Listen(att.path, opts...))(t)
	t.Cleanup(func() { require.NoError(t, srv.Close()) })
	return srv
}

// A consumer that has the memory mapped takes a new lease of it. Nothing is mapped anew, and no
// chunk is imported. Everything about a lease works then, and it can be lost and resumed again.
func TestResume(t *testing.T) {
	spy, dev, ctx := spied(t)
	g := granularity(t, dev)
	buf := newBuffer(t, ctx, (sock.MaxFDs+1)*g, vmm.WithChunkSize(g))
	att := lostAttachment(t, dev, buf, WithAccess(ReadWrite), WithRoom(1<<20), WithNewerThan(buf.Describe().Generation-1))
	at, taken := att.Ptr(), spy.count("cuMemMap")+spy.count("cuMemImportFromShareableHandle")
	for _, size := range []uint64{3, 1 << 20} {
		srv := again(t, att)
		s := put(t, srv, buf, WithData(noise(size, 2)))
		next := ok(att.Resume(soon(t)))(t)
		require.Equal(t, at, next.Ptr())
		require.Equal(t, buf.Describe(), next.Offer().Descriptor)
		require.Equal(t, noise(size, 2), next.Offer().Data)
		require.NoError(t, next.Err())
		require.NoError(t, next.Context().Err())
		require.ErrorIs(t, errOf(att.Resume(soon(t))), ErrClosed, "it has given the memory away")
		require.NoError(t, att.Close(), "and takes nothing with it")
		require.ErrorIs(t, att.Err(), ErrRevoked)

		s.await(t, Mapped, 1)
		l := srv.Leases("data")[0]
		require.Equal(t, ReadWrite, l.Access())
		require.NoError(t, l.Notify(soon(t), []byte("hello")))
		require.Equal(t, "hello", string(<-next.Notices()))
		requireNoise(t, ctx, next.Buffer(), 1)
		l.Revoke()
		require.ErrorIs(t, awaitDone(t, next), ErrRevoked)
		require.NoError(t, srv.Close())
		att = next
	}
	require.Equal(t, taken, spy.count("cuMemMap")+spy.count("cuMemImportFromShareableHandle"))
	require.Positive(t, taken)
	t.Cleanup(func() { require.NoError(t, att.Close()) })
}

// A consumer that resumes prepared memory is sent no descriptor, and is told when the data is
// there.
func TestResumeOfPreparedMemory(t *testing.T) {
	dev, ctx, srv := listening(t)
	buf := newBuffer(t, ctx, 1)
	p, s := prepared(t, srv, "data", buf, ReadOnly)
	want := wants(dev)
	want.Resume = buf.Describe().Generation
	conn := asked(t, srv, want)
	o := heard(t, conn).(wire.Offer)
	require.Equal(t, want.Resume, o.Resume)
	require.Zero(t, o.FDs)
	require.True(t, o.Pending)
	s.start(t, "data", p.Offer)
	require.Equal(t, wire.Publish(isMapped(buf)), heard(t, conn))
	require.NoError(t, conn.Close())
}

// A Resume that fails returns an error that says why, and the memory stays.
func TestResumeIsRefused(t *testing.T) {
	dev, ctx := leavesNothing(t)
	buf, other := newBuffer(t, ctx, 1), newBuffer(t, ctx, 1)
	att := lostAttachment(t, dev, buf, WithAccess(ReadWrite))
	for name, c := range map[string]struct {
		offer func(*testing.T, *Server)
		want  error
	}{
		"no such offer": {func(t *testing.T, srv *Server) { serveAs(t, srv, "x", buf, ReadWrite) }, ErrRefused},
		"other memory":  {func(t *testing.T, srv *Server) { put(t, srv, other) }, ErrStale},
		"legacy memory": {func(t *testing.T, srv *Server) { serveLegacy(t, srv, newLegacy(t, ctx, 1)) }, ErrStale},
		"less access":   {func(t *testing.T, srv *Server) { serveAs(t, srv, "data", buf, ReadOnly) }, ErrRefused},
	} {
		srv := again(t, att)
		c.offer(t, srv)
		require.ErrorIs(t, errOf(att.Resume(soon(t))), c.want, name)
		require.NoError(t, srv.Close())
	}
	require.ErrorIs(t, errOf(att.Resume(soon(t))), sock.ErrNoListener)
	over, cancel := context.WithCancel(soon(t))
	cancel()
	require.ErrorIs(t, errOf(att.Resume(over)), context.Canceled)
	requireNoise(t, ctx, att.Buffer(), 1)

	srv := again(t, att)
	put(t, srv, buf)
	next := ok(att.Resume(soon(t)))(t)
	require.ErrorContains(t, errOf(next.Resume(soon(t))), "the lease has not ended")
	require.NoError(t, next.Close())
	for _, a := range []*Attachment{nil, {}, next} {
		require.ErrorIs(t, errOf(a.Resume(soon(t))), ErrClosed)
	}
}

// If several goroutines resume or close an attachment at once, at most one has the memory in the
// end.
func TestResumeAtOnce(t *testing.T) {
	dev, ctx := leavesNothing(t)
	buf := newBuffer(t, ctx, 1)
	for range 5 {
		att := lostAttachment(t, dev, buf)
		srv := again(t, att)
		put(t, srv, buf)
		var wg sync.WaitGroup
		got := make(chan *Attachment, 4)
		for range cap(got) {
			wg.Go(func() {
				if next, err := att.Resume(soon(t)); err == nil {
					got <- next
				} else if !errors.Is(err, ErrClosed) {
					t.Error(err)
				}
			})
		}
		wg.Go(func() { _ = att.Close() })
		wg.Wait()
		require.LessOrEqual(t, len(got), 1)
		if len(got) == 1 {
			require.NoError(t, (<-got).Close())
		}
		require.NoError(t, srv.Close())
	}
}

// Invariant 2: whatever a producer answers to a consumer that resumes, the consumer keeps its
// memory, is told what was wrong, and takes no descriptors.
func TestLyingProducerOfAResumedLease(t *testing.T) {
	dev, ctx := leavesNothing(t)
	tr := truthOf(t, ctx)
	att := ok(Attach(soon(t), impostor(t, tell(t, tr.say(nil, tr.files...))), "data", dev))(t)
	require.ErrorIs(t, awaitDone(t, att), sock.ErrPeerLost)
	generation := tr.Memory.Generation
	says := func(change func(o *wire.Offer), files ...*os.File) []lie {
		return []lie{tr.say(func(o *wire.Offer) {
			o.FDs, o.Resume = 0, generation
			change(o)
		}, files...)}
	}
	for name, c := range map[string]struct {
		lies []lie
		want error
	}{
		"a descriptor":          {says(func(o *wire.Offer) { o.FDs = 1 }, tr.files[0]), ErrWire},
		"one that was not said": {says(func(*wire.Offer) {}, tr.files[0]), ErrWire},
		"another generation":    {says(func(o *wire.Offer) { o.Resume++; o.Memory.Generation++ }), ErrProtocol},
		"another device":        {says(func(o *wire.Offer) { o.Memory.Device[0] ^= 1 }), ErrProtocol},
		"published otherwise":   {append(says(func(o *wire.Offer) { o.Pending = true }), lie{wire.Encode(wire.Publish{Generation: 1}), nil}), ErrProtocol},
		"a revocation":          {[]lie{{wire.Encode(wire.Revoke{}), nil}}, ErrRevoked},
		"stale":                 {[]lie{{wire.Encode(wire.Refuse{Code: RefusedStale}), nil}}, ErrStale},
		"it does not know":      {[]lie{{wire.Encode(wire.Refuse{Code: RefusedUnsupported, Text: "field 32769"}), nil}}, ErrUnsupported},
	} {
		att.path = impostor(t, tell(t, c.lies...))
		require.ErrorIs(t, errOf(att.Resume(soon(t))), c.want, name)
	}
	requireNoise(t, ctx, att.Buffer(), 1)
	att.path = impostor(t, tell(t, says(func(*wire.Offer) {})...)) // an honest one
	next := ok(att.Resume(soon(t)))(t)
	require.NoError(t, next.Close())

	require.ErrorIs(t, errOf(Attach(soon(t), impostor(t, tell(t, says(func(*wire.Offer) {})...)), "data", dev)), ErrProtocol, "nobody asked to resume")
}
