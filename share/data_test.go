package share

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/internal/serve"
	"github.com/gpufd/gpufd/internal/wire"
	"github.com/gpufd/gpufd/sock"
	"github.com/gpufd/gpufd/vmm"
)

// Application data of any size that is allowed comes as it was given, to every consumer that
// takes so much, and a list says how much it is.
func TestDataOfAnySize(t *testing.T) {
	dev, ctx := leavesNothing(t)
	g := granularity(t, dev)
	buf := newBuffer(t, ctx, (sock.MaxFDs+1)*g, vmm.WithChunkSize(g))
	for _, size := range []uint64{0, 1, wire.MaxData, wire.MaxData + 1, 1 << 20, MaxData} {
		data := noise(size, 3)
		srv := listen(t)
		serveAs(t, srv, "data", buf, cu.ReadOnly, OfferOptions{Data: data})
		require.Equal(t, size, listedBy(t, srv)[0].DataSize)
		att := attached(t, srv, "data", dev)
		require.True(t, bytes.Equal(data, att.Offer().Data), "%d bytes", size)
		require.NoError(t, att.Close())
		require.NoError(t, srv.Close())
	}
}

// Large data comes behind the offer of legacy memory as well. A consumer that keeps the
// descriptor, and does to it what it can, changes nothing for others.
func TestDataOfLegacyMemory(t *testing.T) {
	dev, ctx, srv := listening(t)
	data := noise(wire.MaxData+1, 5)
	serveLegacy(t, srv, newLegacy(t, ctx, 1), OfferOptions{Data: data})
	want := wants(dev)
	want.Capabilities = wire.TakesLegacy | wire.TakesData
	for range 2 {
		conn := asked(t, srv, want)
		offer := heard(t, conn).(wire.Offer)
		require.NotNil(t, offer.Legacy)
		rec := ok(conn.Receive(soon(t)))(t)
		require.Len(t, rec.Files, 1)
		got := ok(readSealed(rec.Files[0], offer.DataSize))(t)
		require.True(t, bytes.Equal(data, got))
		require.NoError(t, errOf(rec.Files[0].Seek(0, 2)))
		require.ErrorIs(t, errOf(rec.Files[0].Write([]byte("x"))), unix.EPERM)
		require.NoError(t, errors.Join(rec.Close(), conn.Close()))
	}
}

// A consumer that has not said that it takes a DATA is told by name, and is sent nothing of
// the offer.
func TestDataIsForWhoTakesIt(t *testing.T) {
	dev, ctx, srv := listening(t, ListenOptions{peer: goodbyes(brief)})
	s := put(t, srv, newBuffer(t, ctx, 1), OfferOptions{Data: noise(wire.MaxData+1, 1)})
	for i, bits := range []wire.Capabilities{0, ^wire.TakesData} {
		want := wants(dev)
		want.Capabilities = bits
		conn := asked(t, srv, want)
		rec := ok(conn.Receive(soon(t)))(t)
		require.Empty(t, rec.Files)
		requireNamed(t, rec.Data, "4097 bytes of application data")
		require.ErrorContains(t, s.await(t, PeerRefused, i+1).Err, "4097 bytes")
		require.NoError(t, conn.Close())
	}
	requireServed(t, srv, ctx)
}

// memory is a file of memory (memfd_create(2)) of that size, with those seals.
func memory(t testing.TB, size int64, seals int) *os.File {
	t.Helper()
	fd := ok(unix.MemfdCreate("test", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING))(t)
	f := os.NewFile(uintptr(fd), "test")
	t.Cleanup(func() { require.NoError(t, f.Close()) })
	require.NoError(t, f.Truncate(size))
	require.NoError(t, errOf(unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals)))
	return f
}

// unwanted is what an offer comes with, the error of Attach, and what that says.
type unwanted struct {
	lies []lie
	want error
	text string
}

// requireRefused checks that a consumer takes none of it, ends in time and keeps nothing.
func requireRefused(t *testing.T, dev *cu.Device, cases map[string]unwanted, opts ...AttachOptions) {
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			leavesNothing(t)
			timeout := serve.DefaultTimeout
			if errors.Is(c.want, ErrTimeout) {
				timeout = 100 * time.Millisecond
			}
			o := first(opts)
			o.Timeout = timeout
			_, err := Attach(soon(t), impostor(t, tell(t, c.lies...)), "data", dev, o)
			require.ErrorIs(t, err, c.want)
			require.ErrorContains(t, err, c.text)
		})
	}
}

// TestFault84_DataThatIsNotAsItShouldBe: whatever comes as application data, the consumer
// gets an error, in time, and keeps nothing.
func TestFault84_DataThatIsNotAsItShouldBe(t *testing.T) {
	dev, ctx := leavesNothing(t)
	tr := truthOf(t, ctx)
	const size = 5000
	good, other := memory(t, size, sealed), memory(t, size-1, sealed)
	writable := memory(t, size, sealed&^unix.F_SEAL_WRITE)
	r, w, err := os.Pipe()
	require.NoError(t, err)
	writeOnly := ok(os.OpenFile("/proc/self/fd/"+fmt.Sprint(good.Fd()), os.O_WRONLY, 0))(t)
	t.Cleanup(func() { require.NoError(t, sock.CloseFiles([]*os.File{r, w, writeOnly})) })

	says := func(size uint64) lie { return tr.say(func(o *wire.Offer) { o.DataSize = size }, tr.files...) }
	with := func(files ...*os.File) []lie { return []lie{says(size), {wire.Encode(wire.Data{}), files}} }
	requireRefused(t, dev, map[string]unwanted{
		"not sealed against writing": {with(writable), wire.ErrMalformed, "no sealed memory"},
		"not sealed at all":          {with(memory(t, size, 0)), wire.ErrMalformed, "no sealed memory"},
		"may grow":                   {with(memory(t, size, sealed&^unix.F_SEAL_GROW)), wire.ErrMalformed, "no sealed memory"},
		"may shrink":                 {with(memory(t, size, sealed&^unix.F_SEAL_SHRINK)), wire.ErrMalformed, "no sealed memory"},
		"sealed for later alone":     {with(memory(t, size, unix.F_SEAL_FUTURE_WRITE|sealed&^unix.F_SEAL_WRITE)), wire.ErrMalformed, "no sealed memory"},
		"a pipe":                     {with(r), wire.ErrMalformed, "no sealed memory"},
		"device memory":              {with(tr.other), wire.ErrMalformed, "no sealed memory"},
		"only to be written":         {with(writeOnly), wire.ErrMalformed, "bad file descriptor"},
		"smaller":                    {with(other), wire.ErrMalformed, "4999 bytes; the offer says 5000"},
		"larger":                     {with(memory(t, size+1, sealed)), wire.ErrMalformed, "5001 bytes"},
		"empty":                      {with(memory(t, 0, sealed)), wire.ErrMalformed, "0 bytes"},
		"no descriptor":              {with(), wire.ErrMalformed, "0 descriptors instead of 1"},
		"two descriptors":            {with(good, good), wire.ErrMalformed, "2 descriptors instead of 1"},
		"it does not come":           {[]lie{says(size)}, ErrTimeout, ""},
		"it ends before":             {[]lie{says(size), {wire.Encode(wire.Revoke{}), nil}}, ErrRevoked, ""},
		"an offer again":             {[]lie{says(size), says(size)}, serve.ErrUnexpected, "OFFER where application data belongs"},
		"published before":           {[]lie{says(size), {wire.Encode(wire.Publish{}), nil}}, serve.ErrUnexpected, "PUBLISH"},
		"before the offer":           {[]lie{{wire.Encode(wire.Data{}), []*os.File{good}}}, serve.ErrUnexpected, "DATA before"},
		"between its records": {[]lie{tr.say(func(o *wire.Offer) { o.DataSize, o.FDs = size, 2 }, tr.files[:2]...),
			{wire.Encode(wire.Data{}), []*os.File{good}}}, serve.ErrUnexpected, "DATA before"},
		"data in both":   {[]lie{tr.say(func(o *wire.Offer) { o.DataSize, o.Data = size, []byte("x") }, tr.files...)}, wire.ErrMalformed, "1 bytes of data"},
		"more than 64 M": {[]lie{says(MaxData + 1)}, ErrTooLarge, "67108865"},
		"2^64-1":         {[]lie{says(1<<64 - 1)}, ErrTooLarge, ""},
		"another size in the second": {[]lie{tr.say(func(o *wire.Offer) { o.DataSize, o.FDs = size, 2 }, tr.files[:2]...),
			tr.say(func(o *wire.Offer) { o.DataSize, o.First, o.FDs = size+1, 2, 1 }, tr.files[2])}, wire.ErrMalformed, "contradict"},
	})
	for name, lies := range map[string][]lie{
		"honest":          with(good),
		"progress":        {says(size), {wire.Encode(wire.Progress{}), nil}, with(good)[1]},
		"sealed for good": with(memory(t, size, sealed|unix.F_SEAL_SEAL)),
	} {
		att, err := Attach(soon(t), impostor(t, tell(t, lies...)), "data", dev, nil)
		require.NoError(t, err, name)
		require.Equal(t, make([]byte, size), att.Offer().Data)
		require.NoError(t, att.Close())
	}
}

// Each lease has memory of its own, which only its two sides have. It comes behind the data, also
// of an offer of several records, and for a consumer that resumes.
func TestCursorsAreOfOneLease(t *testing.T) {
	dev, ctx := leavesNothing(t)
	g := granularity(t, dev)
	buf := newBuffer(t, ctx, (sock.MaxFDs+1)*g, vmm.WithChunkSize(g))
	srv := listen(t)
	began := 0
	serveAs(t, srv, "data", buf, cu.ReadOnly, OfferOptions{Data: noise(5000, 3), CursorSize: 4096, OnCursors: func(l *Lease, f *os.File) error {
		began++
		require.Equal(t, began, l.Number())
		_, err := f.WriteAt([]byte{byte(began)}, 100)
		return err
	}})
	for n := range byte(2) {
		att := attached(t, srv, "data", dev, AttachOptions{MaxCursors: 4096})
		b := make([]byte, 4096)
		require.NoError(t, errOf(att.Cursors().ReadAt(b, 0)))
		require.Equal(t, n+1, b[100])
		require.Error(t, att.Cursors().Truncate(8192), "its size is sealed")
		require.Error(t, att.Cursors().Truncate(0))
		require.NoError(t, att.Close())
	}
	_, err := Attach(soon(t), srv.Path(), "data", dev, nil)
	var no *serve.RefusalError
	require.ErrorAs(t, err, &no)
	require.Equal(t, wire.RefusedUnsupported, no.Code)
	require.ErrorIs(t, errOf(Attach(soon(t), srv.Path(), "data", dev, &AttachOptions{MaxCursors: 4095})), ErrTooLarge)
	require.NoError(t, srv.Close())
}

// The application may turn a consumer away when it is to have cursors.
func TestCursorsThatAreNotGiven(t *testing.T) {
	dev, ctx, srv := listening(t)
	s := put(t, srv, newBuffer(t, ctx, 100), OfferOptions{CursorSize: 8, OnCursors: func(*Lease, *os.File) error { return errors.New("no place for you") }})
	_, err := Attach(soon(t), srv.Path(), "data", dev, &AttachOptions{MaxCursors: 8})
	require.ErrorIs(t, err, ErrRefused)
	require.ErrorContains(t, err, "no place for you")
	s.await(t, Ended, 1)
}

// FAULT 95: cursors that are not sealed, or not as large as the offer says, or come where none
// belong, are refused, and nothing is kept.
func TestFault95_CursorsThatAreNotAsTheyShouldBe(t *testing.T) {
	dev, ctx := leavesNothing(t)
	tr := truthOf(t, ctx)
	const size = 4096
	good := memory(t, size, cursorSeals)
	says := tr.say(func(o *wire.Offer) { o.CursorSize = size }, tr.files...)
	with := func(files ...*os.File) []lie { return []lie{says, {wire.Encode(wire.Cursors{}), files}} }
	cursors := lie{wire.Encode(wire.Cursors{}), []*os.File{good}}
	requireRefused(t, dev, map[string]unwanted{
		"may shrink":       {with(memory(t, size, unix.F_SEAL_GROW)), wire.ErrMalformed, "no sealed memory"},
		"may grow":         {with(memory(t, size, unix.F_SEAL_SHRINK)), wire.ErrMalformed, "no sealed memory"},
		"device memory":    {with(tr.other), wire.ErrMalformed, "no sealed memory"},
		"smaller":          {with(memory(t, size-1, cursorSeals)), wire.ErrMalformed, "4095 bytes; the offer says 4096"},
		"no descriptor":    {with(), wire.ErrMalformed, "0 descriptors instead of 1"},
		"before the offer": {[]lie{cursors}, serve.ErrUnexpected, "CURSORS where none belongs"},
		"without a word":   {[]lie{tr.say(func(o *wire.Offer) { o.DataSize = 5000 }, tr.files...), cursors}, serve.ErrUnexpected, "CURSORS where none belongs"},
		"it does not come": {[]lie{says}, ErrTimeout, ""},
		"more than wanted": {[]lie{tr.say(func(o *wire.Offer) { o.CursorSize = size + 1 }, tr.files...)}, ErrTooLarge, "4097"},
	}, AttachOptions{MaxCursors: size})
}
