package share

import (
	"context"
	"errors"
	"os"
	"sync"
	"testing"
	"time"

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

// Memory that the application has expected, prepared, or that it decides about, is resumed
// as it is attached to.
func TestResumeOfWhatIsNotThereYet(t *testing.T) {
	dev, ctx := leavesNothing(t)
	buf := newBuffer(t, ctx, 1)
	att := lostAttachment(t, dev, buf)
	door := doorkeeper{}
	srv := again(t, att, WithAuthorize(door.authorize))
	srv.Expect("data")
	type result struct {
		att *Attachment
		err error
	}
	results := make(chan result, 1)
	go func() { next, err := att.Resume(soon(t)); results <- result{next, err} }()
	awaitWaiting(t, srv, 1)
	p, s := prepared(t, srv, "data", buf, ReadOnly)
	s.await(t, Sent, 1)
	s.start(t, "data", p.Offer)
	r := <-results
	require.NoError(t, r.err)
	require.Len(t, door.all(), 1)
	requireNoise(t, ctx, r.att.Buffer(), 1)
	require.NoError(t, r.att.Close())
	require.Zero(t, att.Ptr(), "it was the other's")
}

// A Resume that fails returns an error that says why, and the memory stays.
func TestResumeIsRefused(t *testing.T) {
	dev, ctx := leavesNothing(t)
	buf, other := newBuffer(t, ctx, 1), newBuffer(t, ctx, 1)
	att := lostAttachment(t, dev, buf, WithAccess(ReadWrite))
	denied := errors.New("not you")
	for name, c := range map[string]struct {
		opts  []ListenOption
		offer func(*testing.T, *Server)
		want  error
		code  RefusalCode
	}{
		"no such offer": {nil, func(t *testing.T, srv *Server) { serveAs(t, srv, "x", buf, ReadWrite) }, ErrRefused, RefusedName},
		"other memory":  {nil, func(t *testing.T, srv *Server) { put(t, srv, other) }, ErrStale, RefusedStale},
		"legacy memory": {nil, func(t *testing.T, srv *Server) { serveLegacy(t, srv, newLegacy(t, ctx, 1)) }, ErrStale, RefusedStale},
		"less access":   {nil, func(t *testing.T, srv *Server) { serveAs(t, srv, "data", buf, ReadOnly) }, ErrRefused, RefusedAccess},
		"not allowed":   {[]ListenOption{WithAuthorize(func(sock.Peer, Offer) error { return denied })}, func(t *testing.T, srv *Server) { put(t, srv, buf) }, ErrRefused, RefusedPolicy},
		"no place": {nil, func(t *testing.T, srv *Server) {
			put(t, srv, buf, WithLeases(1))
			attached(t, srv, "data", dev)
		}, ErrRefused, RefusedBusy},
	} {
		srv := again(t, att, c.opts...)
		c.offer(t, srv)
		_, err := att.Resume(soon(t))
		require.ErrorIs(t, err, c.want, name)
		var no *RefusalError
		require.ErrorAs(t, err, &no, name)
		require.Equal(t, c.code, no.Code, name)
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
	require.ErrorIs(t, errOf(next.Resume(soon(t))), ErrClosed)
	for _, a := range []*Attachment{nil, {}} {
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
		for range 4 {
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
		close(got)
		require.LessOrEqual(t, len(got), 1)
		for next := range got {
			requireNoise(t, ctx, next.Buffer(), 1)
			require.NoError(t, next.Close())
		}
		require.NoError(t, srv.Close())
	}
}

// A counter keeps the memory through a resume, and the attachment that has it is refused
// to be closed before.
func TestResumeOfHeldMemory(t *testing.T) {
	dev, ctx := leavesNothing(t)
	buf := newBuffer(t, ctx, 4096)
	require.NoError(t, cu.Fill(ctx, buf.Ptr(), uint8(0), 4096))
	att := lostAttachment(t, dev, buf, WithAccess(ReadWrite))
	c := ok(NewCounter(ctx, att.Buffer(), 0))(t)
	srv := again(t, att)
	put(t, srv, buf)
	next := ok(att.Resume(soon(t)))(t)
	require.ErrorIs(t, next.Close(), ErrInUse)
	require.ErrorIs(t, errOf(next.Resume(soon(t))), ErrClosed)
	require.NoError(t, c.Close())
	require.NoError(t, next.Close())
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
			if change != nil {
				change(o)
			}
		}, files...)}
	}
	for name, c := range map[string]struct {
		lies []lie
		want error
	}{
		"an offer as ever":      {[]lie{tr.say(nil, tr.files...)}, ErrProtocol},
		"no descriptors at all": {says(func(o *wire.Offer) { o.Resume = 0 }), ErrWire},
		"a descriptor":          {says(func(o *wire.Offer) { o.FDs = 1 }, tr.files[0]), ErrWire},
		"one that was not said": {says(nil, tr.files[0]), ErrWire},
		"another generation":    {says(func(o *wire.Offer) { o.Resume++; o.Memory.Generation++ }), ErrProtocol},
		"two generations":       {says(func(o *wire.Offer) { o.Resume++ }), ErrWire},
		"another size":          {says(func(o *wire.Offer) { o.Memory.Size-- }), ErrProtocol},
		"another device":        {says(func(o *wire.Offer) { o.Memory.Device[0] ^= 1 }), ErrProtocol},
		"more chunks":           {says(func(o *wire.Offer) { o.Memory.Chunks++ }), ErrProtocol},
		"another name":          {says(func(o *wire.Offer) { o.Name = "x" }), ErrProtocol},
		"a legacy handle": {says(func(o *wire.Offer) {
			o.Legacy, o.Access, o.Memory.Chunks, o.Memory.Granularity = &LegacyHandle{}, ReadWrite, 1, 0
		}), ErrWire},
		"not from the beginning": {says(func(o *wire.Offer) { o.First = 1 }), ErrWire},
		"published otherwise":    {append(says(func(o *wire.Offer) { o.Pending = true }), lie{wire.Encode(wire.Publish{Generation: 1}), nil}), ErrProtocol},
		"a revocation":           {[]lie{{wire.Encode(wire.Revoke{}), nil}}, ErrRevoked},
		"stale":                  {[]lie{{wire.Encode(wire.Refuse{Code: RefusedStale}), nil}}, ErrStale},
		"it does not know":       {[]lie{{wire.Encode(wire.Refuse{Code: RefusedUnsupported, Text: "field 32769"}), nil}}, ErrUnsupported},
		"silence":                {nil, ErrTimeout},
	} {
		t.Run(name, func(t *testing.T) {
			att.path, att.opts.Timeout = impostor(t, tell(t, c.lies...)), DefaultTimeout
			if errors.Is(c.want, ErrTimeout) {
				att.opts.Timeout = 100 * time.Millisecond
			}
			require.ErrorIs(t, errOf(att.Resume(soon(t))), c.want)
			requireNoise(t, ctx, att.Buffer(), 1)
		})
	}
	att.path, att.opts.Timeout = impostor(t, tell(t, says(nil)...)), DefaultTimeout
	next, err := att.Resume(soon(t))
	require.NoError(t, err, "an honest one")
	require.NoError(t, next.Close())

	require.ErrorIs(t, errOf(Attach(soon(t), impostor(t, tell(t, says(nil)...)), "data", dev)), ErrProtocol, "nobody asked to resume")
}

// A consumer that says it has memory that it does not have is sent no descriptor, and has
// a lease like another; one of other memory is refused.
func TestLyingConsumerThatResumes(t *testing.T) {
	dev, ctx, srv := listening(t)
	buf := newBuffer(t, ctx, 1)
	s := put(t, srv, buf)
	generation := buf.Describe().Generation
	for _, wrong := range []uint64{1, generation - 1, generation + 1, 1<<64 - 1} {
		want := wants(dev)
		want.Resume = wrong
		conn := asked(t, srv, want)
		requireRefusal(t, conn, RefusedStale, "other memory")
		require.NoError(t, conn.Close())
	}
	want := wants(dev)
	want.Resume = generation
	conn := asked(t, srv, want)
	o := heard(t, conn).(wire.Offer)
	require.Equal(t, generation, o.Resume)
	require.Zero(t, o.FDs)
	require.NoError(t, conn.Send(soon(t), wire.Encode(wire.Mapped{Generation: generation + 1})))
	requireRefusal(t, conn, RefusedRecord, "mapped something else")
	require.NoError(t, conn.Close())
	require.ErrorIs(t, s.await(t, Ended, 1).Err, ErrProtocol)
	requireServed(t, srv, ctx)
}
