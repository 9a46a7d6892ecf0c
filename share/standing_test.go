package share

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/vmm"
)

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
	_, dev, ctx := spied(t)
	srv := listen(t)
	srv.Start()
	memory, files := kept(t, ctx, 1, 1)
	old := ok(srv.OfferFiles("data", memory, files, ReadWrite))(t)
	att := attached(t, srv, "data", dev)
	old.Supersede(77)
	<-att.Superseded()
	<-old.Replaced()
	old.Supersede(78)
	require.ErrorIs(t, errOf(Attach(t.Context(), srv.Path(), "data", dev)), ErrRefused)
	require.Len(t, old.Leases(), 1)
	memory, files = kept(t, ctx, 1, 2)
	next := ok(srv.OfferFiles("data", memory, files, ReadWrite))(t)
	requireNoise(t, ctx, attached(t, srv, "data", dev).Buffer(), 2)
	require.NoError(t, att.Err())
	requireNoise(t, ctx, att.Buffer(), 1)
	require.NoError(t, old.Close())
	<-att.Done()
	require.ErrorIs(t, att.Err(), ErrRevoked)
	require.NoError(t, next.Close())
	(*Standing)(nil).Supersede(1)
}

// Memory outlives the process that made it, in a process that has its descriptors and makes no
// driver call.
func TestOfferFiles(t *testing.T) {
	s, dev, ctx := spied(t)
	srv := listen(t)
	chunk := granularity(t, dev)
	memory, files := kept(t, ctx, 3*chunk+1, 1, vmm.WithChunkSize(chunk))
	calls := s.count("")
	first := ok(srv.OfferFiles("data", memory, files, ReadWrite, WithData([]byte("table"))))(t)
	require.Equal(t, calls, s.count(""), "the driver was called")

	att := attached(t, srv, "data", dev)
	require.Equal(t, "table", string(att.Offer().Data))
	requireNoise(t, ctx, att.Buffer(), 1)
	require.Len(t, first.Leases(), 1)

	memory, files = kept(t, ctx, 100, 2)
	second := ok(srv.OfferFiles("data", memory, files, ReadOnly))(t)
	<-first.Replaced()
	awaitSuperseded(t, att)
	require.Len(t, first.Leases(), 1, "a lease goes on")
	newer := attached(t, srv, "data", dev, WithNewerThan(att.Offer().Descriptor.Generation))
	requireNoise(t, ctx, newer.Buffer(), 2)

	require.NoError(t, first.Close())
	<-att.Done()
	require.ErrorIs(t, att.Err(), ErrRevoked)
	requireNoise(t, ctx, att.Buffer(), 1)
	require.NoError(t, att.Close())
	require.NoError(t, newer.Close())
	require.NoError(t, second.Close())
	require.NoError(t, second.Close())
	require.ErrorIs(t, errOf(Attach(soon(t), srv.Path(), "data", dev)), ErrRefused)
}

// OfferFiles refuses memory that no consumer would take, and the files stay the caller's.
func TestOfferFilesWrong(t *testing.T) {
	_, ctx, srv := listening(t)
	memory, files := kept(t, ctx, 100, 1)
	with := func(change func(*vmm.Descriptor)) vmm.Descriptor {
		m := memory
		change(&m)
		return m
	}
	for says, m := range map[string]vmm.Descriptor{
		"1 descriptors for memory of 2 chunks": with(func(m *vmm.Descriptor) { m.Chunks = 2 }),
		"size":                                 with(func(m *vmm.Descriptor) { m.Size = 0 }),
		"chunk size":                           with(func(m *vmm.Descriptor) { m.ChunkSize = 0 }),
		"granularity":                          with(func(m *vmm.Descriptor) { m.Granularity = 0 }),
		"unknown driver":                       with(func(m *vmm.Descriptor) { m.Kind = 0 }),
		"size is ":                             with(func(m *vmm.Descriptor) { m.Size = 2 * m.ChunkSize }),
		"generation 0":                         with(func(m *vmm.Descriptor) { m.Generation = 0 }),
	} {
		require.ErrorContains(t, errOf(srv.OfferFiles("data", m, files, ReadOnly)), says)
	}
	with2 := with(func(m *vmm.Descriptor) { m.Chunks = 2 })
	require.ErrorContains(t, errOf(srv.OfferResumed("data", with2, files, ReadOnly)), "descriptors for memory of 2 chunks")
	require.Zero(t, offers(srv))
	require.False(t, stands(srv, "data"))
	for _, opt := range []OfferOption{WithLeases(1), WithIdleTimeout(1), WithGrace(1)} {
		require.ErrorIs(t, errOf(srv.OfferFiles("data", memory, files, ReadOnly, opt)), errStanding)
	}
	require.Error(t, errOf(srv.OfferFiles("data", memory, []*os.File{nil}, ReadOnly)))
	require.ErrorIs(t, errOf((*Server)(nil).OfferFiles("data", memory, files, ReadOnly)), ErrClosed)
	p := ok(srv.Prepare("data", newBuffer(t, ctx, 1), ReadOnly))(t)
	require.ErrorIs(t, errOf(srv.OfferFiles("data", memory, files, ReadOnly)), ErrNameTaken)
	require.NoError(t, p.Close())

	s, err := srv.OfferFiles("data", memory, files, ReadOnly)
	require.NoError(t, err, "the files are still open")
	require.NoError(t, srv.Close())
	require.NoError(t, s.Close(), "after its server")
	require.ErrorIs(t, errOf(srv.OfferFiles("data", memory, files, ReadOnly)), ErrClosed)
	require.NoError(t, (*Standing)(nil).Close())
	require.NoError(t, (&Standing{}).Close())
	require.Empty(t, (&Standing{}).Leases())
	<-(&Standing{}).Replaced()
}

// An offer that fails because there is no descriptor for its data leaves the caller's
// alone.
func TestOfferFilesWithoutADescriptorForData(t *testing.T) {
	dev, ctx, srv := listening(t)
	memory, files := kept(t, ctx, 100, 1)
	var all unix.Rlimit
	require.NoError(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &all))
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 3, Max: all.Max}))
	_, err := srv.OfferFiles("data", memory, files, ReadOnly, WithData(noise(5000, 2)))
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &all))
	require.ErrorIs(t, err, unix.EMFILE)

	s := ok(srv.OfferFiles("data", memory, files, ReadOnly, WithData(noise(5000, 2))))(t)
	att := attached(t, srv, "data", dev)
	requireNoise(t, ctx, att.Buffer(), 1)
	require.Equal(t, noise(5000, 2), att.Offer().Data)
	require.NoError(t, s.Close())
}

// A consumer of memory whose name another offer has resumes its lease, hears that there is a
// newer offer, and may stay. Nobody else gets that memory.
func TestOfferResumed(t *testing.T) {
	dev, ctx := leavesNothing(t)
	first := ok(Listen(socketPath(t)))(t)
	buf := newBuffer(t, ctx, 100)
	put(t, first, buf)
	att, late := attached(t, first, "data", dev), attached(t, first, "data", dev)
	require.NoError(t, first.Close())
	require.ErrorIs(t, awaitDone(t, att), ErrRevoked)
	require.ErrorIs(t, awaitDone(t, late), ErrRevoked)

	second := again(t, att)
	one, files, err := buf.Export()
	require.NoError(t, err)
	beside := ok(second.OfferResumed("data", one, files, ReadOnly))(t)
	early := ok(late.Resume(soon(t)))(t) // before another has the name
	two, files := kept(t, ctx, 100, 2)
	now := ok(second.OfferFiles("data", two, files, ReadOnly))(t)
	awaitSuperseded(t, early)
	next := ok(att.Resume(soon(t)))(t)
	awaitSuperseded(t, next)
	requireNoise(t, ctx, next.Buffer(), 1)
	require.Len(t, beside.Leases(), 2)
	for _, name := range []string{"data", ""} {
		fresh := attached(t, second, name, dev)
		requireNoise(t, ctx, fresh.Buffer(), 2)
		require.NoError(t, fresh.Close())
	}
	list := ok(List(soon(t), att.path))(t)
	require.Len(t, list, 1)

	require.NoError(t, early.Close())
	require.NoError(t, beside.Close())
	require.ErrorIs(t, awaitDone(t, next), ErrRevoked)
	require.ErrorIs(t, errOf(next.Resume(soon(t))), ErrStale)
	require.NoError(t, next.Close())
	require.NoError(t, now.Close())
}
