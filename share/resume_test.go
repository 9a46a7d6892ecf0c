package share

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/fence"
	"github.com/gpufd/gpufd/internal/serve"
	"github.com/gpufd/gpufd/internal/wire"
	"github.com/gpufd/gpufd/sock"
	"github.com/gpufd/gpufd/vmm"
)

// lostAttachment is an attachment to buf, offered as "data" and for reading and writing,
// whose producer has gone. It is closed when t ends.
func lostAttachment(t testing.TB, dev *cu.Device, buf *vmm.Buffer, opts ...AttachOptions) *Attachment {
	t.Helper()
	srv := ok(Listen(socketPath(t), nil))(t)
	put(t, srv, buf)
	att := attached(t, srv, "data", dev, opts...)
	require.NoError(t, srv.Close())
	require.ErrorIs(t, awaitDone(t, att), ErrWithdrawn)
	return att
}

// again is a producer at the path of an attachment that was lost.
func again(t testing.TB, att *Attachment, opts ...ListenOptions) *Server {
	t.Helper()
	srv := ok(Listen(att.path, first(opts)))(t)
	t.Cleanup(func() { require.NoError(t, srv.Close()) })
	return srv
}

// A consumer that has the memory mapped takes a new lease of it. Nothing is mapped anew, and no
// chunk is imported. Everything about a lease works then, and it can be lost and resumed again.
func TestResume(t *testing.T) {
	spy, dev, ctx := spied(t)
	g := granularity(t, dev)
	buf := newBuffer(t, ctx, (sock.MaxFDs+1)*g, vmm.WithChunkSize(g))
	att := lostAttachment(t, dev, buf, AttachOptions{Access: cu.ReadWrite, NewerThan: buf.Describe().Generation - 1})
	at, taken := att.Ptr(), spy.count("cuMemMap")+spy.count("cuMemImportFromShareableHandle")
	for _, size := range []uint64{3, 1 << 20} {
		srv := again(t, att)
		s := put(t, srv, buf, OfferOptions{Data: noise(size, 2)})
		next := ok(att.Resume(soon(t)))(t)
		require.Equal(t, at, next.Ptr())
		require.Equal(t, buf.Describe(), next.Offer().Descriptor)
		require.Equal(t, noise(size, 2), next.Offer().Data)
		require.NoError(t, next.Context().Err())
		require.ErrorIs(t, errOf(att.Resume(soon(t))), ErrClosed, "it has given the memory away")
		require.NoError(t, att.Close(), "and takes nothing with it")

		s.await(t, Mapped, 1)
		l := leasesAs(srv, "data")[0]
		require.Equal(t, cu.ReadWrite, l.Access())
		require.NoError(t, l.Notify(soon(t), []byte("hello")))
		require.Equal(t, "hello", string(<-next.Notices()))
		requireNoise(t, ctx, next.Buffer(), 1)
		l.Revoke("")
		require.ErrorIs(t, awaitDone(t, next), ErrRevoked)
		require.NoError(t, srv.Close())
		att = next
	}
	require.Equal(t, taken, spy.count("cuMemMap")+spy.count("cuMemImportFromShareableHandle"))
	t.Cleanup(func() { require.NoError(t, att.Close()) })
}

// A consumer that resumes prepared memory is sent no descriptor, and is told when the data is
// there.
func TestResumeOfPreparedMemory(t *testing.T) {
	dev, ctx, srv := listening(t)
	buf := newBuffer(t, ctx, 1)
	p, s := prepared(t, srv, "data", buf, cu.ReadOnly)
	want := wants(dev)
	want.Resume = buf.Describe().Generation
	conn := asked(t, srv, want)
	o := heard(t, conn).(wire.Offer)
	require.Equal(t, want.Resume, o.Resume)
	require.Zero(t, o.FDs)
	require.True(t, o.Pending)
	s.start(t, "data", p.offer)
	require.Equal(t, wire.Publish(isMapped(buf)), heard(t, conn))
	require.NoError(t, conn.Close())
}

// A Resume that fails returns an error that says why, and the memory stays.
func TestResumeIsRefused(t *testing.T) {
	dev, ctx := leavesNothing(t)
	buf, other := newBuffer(t, ctx, 1), newBuffer(t, ctx, 1)
	att := lostAttachment(t, dev, buf, AttachOptions{Access: cu.ReadWrite})
	for name, c := range map[string]struct {
		offer func(*testing.T, *Server)
		want  error
	}{
		"no such offer": {func(t *testing.T, srv *Server) { serveAs(t, srv, "x", buf, cu.ReadWrite) }, ErrRefused},
		"other memory":  {func(t *testing.T, srv *Server) { put(t, srv, other) }, ErrStale},
		"legacy memory": {func(t *testing.T, srv *Server) { serveLegacy(t, srv, newLegacy(t, ctx, 1)) }, ErrStale},
		"less access":   {func(t *testing.T, srv *Server) { serveAs(t, srv, "data", buf, cu.ReadOnly) }, ErrRefused},
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

// Invariant 2: whatever a producer answers to a consumer that resumes, the consumer keeps its
// memory, is told what was wrong, and takes no descriptors.
func TestLyingProducerOfAResumedLease(t *testing.T) {
	dev, ctx := leavesNothing(t)
	tr := truthOf(t, ctx)
	att := ok(Attach(soon(t), impostor(t, tell(t, tr.say(nil, tr.files...))), "data", dev, nil))(t)
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
		"a descriptor":        {says(func(o *wire.Offer) { o.FDs = 1 }, tr.files[0]), wire.ErrMalformed},
		"another generation":  {says(func(o *wire.Offer) { o.Resume++; o.Memory.Generation++ }), serve.ErrUnexpected},
		"another device":      {says(func(o *wire.Offer) { o.Memory.Device[0] ^= 1 }), serve.ErrUnexpected},
		"published otherwise": {append(says(func(o *wire.Offer) { o.Pending = true }), lie{wire.Encode(wire.Publish{Generation: 1}), nil}), serve.ErrUnexpected},
		"another size":        {says(func(o *wire.Offer) { o.Memory.Size-- }), serve.ErrUnexpected},
	} {
		att.path = impostor(t, tell(t, c.lies...))
		require.ErrorIs(t, errOf(att.Resume(soon(t))), c.want, name)
	}
	requireNoise(t, ctx, att.Buffer(), 1)
	att.path = impostor(t, tell(t, says(func(*wire.Offer) {})...)) // an honest one
	next := ok(att.Resume(soon(t)))(t)
	require.NoError(t, next.Close())

	require.ErrorIs(t, errOf(Attach(soon(t), impostor(t, tell(t, says(func(*wire.Offer) {})...)), "data", dev, nil)), serve.ErrUnexpected, "nobody asked to resume")
}

// kept is memory of which no more is left than its descriptors.
func kept(t testing.TB, ctx *cu.Context, size uint64, seed int, opts ...vmm.NewOption) (vmm.Descriptor, []*os.File) {
	t.Helper()
	buf := ok(vmm.New(ctx.Device(), size, opts...))(t)
	require.NoError(t, cu.CopyToDevice(ctx, buf.Ptr(), noise(size, seed)))
	memory, files, err := buf.Export()
	require.NoError(t, err)
	require.NoError(t, buf.Close())
	return memory, files
}

// Supersede tells the attached consumers, which stay, that another offer has the place of this one.
// New consumers do not get the memory. A later offer may have its name.
func TestSupersede(t *testing.T) {
	dev, ctx, srv := listening(t)
	srv.Start()
	memory, files := kept(t, ctx, 1, 1)
	old := ok(offerFiles(srv, "data", memory, files, cu.ReadWrite))(t)
	att := attached(t, srv, "data", dev)
	old.core.Supersede(77)
	<-att.Superseded()
	<-old.core.Replaced()
	old.core.Supersede(78)
	require.ErrorIs(t, errOf(Attach(t.Context(), srv.Path(), "data", dev, nil)), ErrRefused)
	require.Len(t, old.Leases(), 1)
	memory, files = kept(t, ctx, 1, 2)
	next := ok(offerFiles(srv, "data", memory, files, cu.ReadWrite))(t)
	requireNoise(t, ctx, attached(t, srv, "data", dev).Buffer(), 2)
	require.NoError(t, att.Err())
	requireNoise(t, ctx, att.Buffer(), 1)
	require.NoError(t, old.Close())
	require.ErrorIs(t, awaitDone(t, att), ErrSuperseded)
	require.NoError(t, next.Close())
	require.ErrorIs(t, errOf((*Offer)(nil).Supersede(nil, nil)), ErrClosed)
}

// Memory outlives the process that made it, in a process that has its descriptors and makes no
// driver call.
func TestOfferFiles(t *testing.T) {
	s, dev, ctx := spied(t)
	srv := listen(t)
	chunk := granularity(t, dev)
	memory, files := kept(t, ctx, 3*chunk+1, 1, vmm.WithChunkSize(chunk))
	calls := s.count("")
	first := ok(offerFiles(srv, "data", memory, files, cu.ReadWrite, OfferOptions{Data: []byte("table")}))(t)
	require.Equal(t, calls, s.count(""), "the driver was called")
	att := attached(t, srv, "data", dev)
	require.Equal(t, "table", string(att.Offer().Data))

	memory, files = kept(t, ctx, 100, 2)
	second := ok(offerFiles(srv, "data", memory, files, cu.ReadWrite, OfferOptions{Fence: fence.Released, FenceTimeout: time.Minute}))(t)
	<-first.core.Replaced()
	awaitSuperseded(t, att)
	require.Len(t, first.Leases(), 1, "a lease goes on")
	writer := attached(t, srv, "data", dev, AttachOptions{Access: cu.ReadWrite})
	requireNoise(t, ctx, writer.Buffer(), 2)
	require.NoError(t, first.Close())
	require.ErrorIs(t, awaitDone(t, att), ErrSuperseded)
	requireNoise(t, ctx, att.Buffer(), 1)
	closed := make(chan error, 1)
	go func() { closed <- second.Close() }()
	require.ErrorIs(t, awaitDone(t, writer), ErrWithdrawn)
	<-briefly(t).Done()
	require.Empty(t, closed, "it waits for the release")
	require.NoError(t, writer.Close())
	require.NoError(t, <-closed)
	require.NoError(t, second.Close())
	require.ErrorIs(t, errOf(Attach(soon(t), srv.Path(), "data", dev, nil)), ErrRefused)
}

// OfferFiles refuses memory that no consumer would take, and the files stay the caller's.
func TestOfferFilesWrong(t *testing.T) {
	_, ctx, srv := listening(t)
	memory, files := kept(t, ctx, 100, 1)
	for says, change := range map[string]func(*vmm.Descriptor){
		"1 descriptors for memory of 2 chunks": func(m *vmm.Descriptor) { m.Chunks = 2 },
		"size":                                 func(m *vmm.Descriptor) { m.Size = 0 },
		"unknown driver":                       func(m *vmm.Descriptor) { m.Kind = 0 },
		"generation 0":                         func(m *vmm.Descriptor) { m.Generation = 0 },
	} {
		wrong := memory
		change(&wrong)
		require.ErrorContains(t, errOf(offerFiles(srv, "data", wrong, files, cu.ReadOnly)), says)
	}
	require.ErrorContains(t, errOf(offerResumed(srv, "data", vmm.Descriptor{Chunks: 2}, files, cu.ReadOnly)), "descriptors for memory of 2 chunks")
	require.Zero(t, offers(srv))
	require.False(t, stands(srv, "data"))
	require.Error(t, errOf(offerFiles(srv, "data", memory, []*os.File{nil}, cu.ReadOnly)))
	require.ErrorIs(t, errOf((*Server)(nil).Offer("data", Descriptors{memory, files}, nil)), ErrClosed)
	p := ok(prepare(srv, "data", newBuffer(t, ctx, 1), cu.ReadOnly))(t)
	require.ErrorIs(t, errOf(offerFiles(srv, "data", memory, files, cu.ReadOnly)), ErrNameTaken)
	require.NoError(t, p.Close())

	s, err := offerFiles(srv, "data", memory, files, cu.ReadOnly)
	require.NoError(t, err, "the files are still open")
	require.NoError(t, srv.Close())
	require.NoError(t, s.Close(), "after its server")
	require.ErrorIs(t, errOf(offerFiles(srv, "data", memory, files, cu.ReadOnly)), ErrClosed)
}

// An offer that fails because there is no descriptor for its data leaves the caller's
// alone.
func TestOfferFilesWithoutADescriptorForData(t *testing.T) {
	dev, ctx, srv := listening(t)
	memory, files := kept(t, ctx, 100, 1)
	var all unix.Rlimit
	require.NoError(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &all))
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 3, Max: all.Max}))
	_, err := offerFiles(srv, "data", memory, files, cu.ReadOnly, OfferOptions{Data: noise(5000, 2)})
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &all))
	require.ErrorIs(t, err, unix.EMFILE)

	s := ok(offerFiles(srv, "data", memory, files, cu.ReadOnly, OfferOptions{Data: noise(5000, 2)}))(t)
	att := attached(t, srv, "data", dev)
	requireNoise(t, ctx, att.Buffer(), 1)
	require.NoError(t, s.Close())
}

// A consumer of memory whose name another offer has resumes its lease, hears that there is a
// newer offer, and may stay. Nobody else gets that memory.
func TestOfferResumed(t *testing.T) {
	dev, ctx := leavesNothing(t)
	first := ok(Listen(socketPath(t), nil))(t)
	buf := newBuffer(t, ctx, 100)
	put(t, first, buf)
	att, late := attached(t, first, "data", dev), attached(t, first, "data", dev)
	require.NoError(t, first.Close())
	require.ErrorIs(t, awaitDone(t, att), ErrWithdrawn)
	require.ErrorIs(t, awaitDone(t, late), ErrWithdrawn)

	second := again(t, att)
	one, files, err := buf.Export()
	require.NoError(t, err)
	beside := ok(offerResumed(second, "data", one, files, cu.ReadOnly))(t)
	early := ok(late.Resume(soon(t)))(t) // before another has the name
	two, files := kept(t, ctx, 100, 2)
	now := ok(offerFiles(second, "data", two, files, cu.ReadOnly))(t)
	awaitSuperseded(t, early)
	next := ok(att.Resume(soon(t)))(t)
	awaitSuperseded(t, next)
	requireNoise(t, ctx, next.Buffer(), 1)
	require.Len(t, beside.Leases(), 2)
	for _, name := range []string{"data", ""} {
		requireNoise(t, ctx, attached(t, second, name, dev).Buffer(), 2)
	}
	require.Len(t, ok(List(soon(t), att.path, nil))(t), 1)

	require.NoError(t, early.Close())
	require.NoError(t, beside.Close())
	require.ErrorIs(t, awaitDone(t, next), ErrWithdrawn)
	require.ErrorIs(t, errOf(next.Resume(soon(t))), ErrStale)
	require.NoError(t, next.Close())
	require.NoError(t, now.Close())
}

// If several goroutines resume or close an attachment at once, at most one has the memory in the
// end.
func TestResumeAtOnce(t *testing.T) {
	dev, ctx := leavesNothing(t)
	buf := newBuffer(t, ctx, 1)
	att := lostAttachment(t, dev, buf)
	put(t, again(t, att), buf)
	got := make(chan *Attachment)
	for range 4 {
		go func() {
			next, _ := att.Resume(soon(t))
			got <- next
		}()
	}
	go func() { _ = att.Close(); got <- nil }()
	had := 0
	for range 5 {
		next := <-got
		if next != nil {
			had++
		}
		require.NoError(t, next.Close())
	}
	require.LessOrEqual(t, had, 1)
}
