package share

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gpufd/gpufd/cu/cutest"
	"github.com/gpufd/gpufd/internal/descriptor"
	"github.com/gpufd/gpufd/internal/wire"
	"github.com/gpufd/gpufd/sock"
	"github.com/gpufd/gpufd/vmm"
)

// Application data of any size that is allowed comes as it was given, to every consumer, and
// a list says how much it is.
func TestDataOfAnySize(t *testing.T) {
	dev, ctx := leavesNothing(t)
	g := granularity(t, dev)
	buf := newBuffer(t, ctx, (sock.MaxFDs+1)*g, vmm.WithChunkSize(g))
	for _, size := range []uint64{0, 1, wire.MaxData, wire.MaxData + 1, 1 << 20, MaxData} {
		data := noise(size, 3)
		srv := listen(t)
		serveAs(t, srv, "data", buf, ReadOnly, WithData(data))
		require.Equal(t, size, listedBy(t, srv)[0].DataSize)
		for range 2 {
			att := attached(t, srv, "data", dev)
			require.True(t, bytes.Equal(data, att.Offer().Data), "%d bytes", size)
			require.NoError(t, att.Close())
		}
		require.NoError(t, srv.Close())
	}
}

// Large data comes behind the offer of legacy memory as well.
func TestDataOfLegacyMemory(t *testing.T) {
	dev, ctx, srv := listening(t)
	data := noise(wire.MaxData+1, 5)
	serveLegacy(t, srv, newLegacy(t, ctx, 1), WithData(data))
	want := wants(dev)
	want.Capabilities = wire.TakesLegacy | wire.TakesData
	conn := asked(t, srv, want)
	rec := ok(conn.Receive(soon(t)))(t)
	m := ok(wire.Decode(rec.Data))(t)
	require.NotNil(t, m.(wire.Offer).Legacy)
	rec = ok(conn.Receive(soon(t)))(t)
	got := ok(readSealed(rec.Files[0], m.(wire.Offer).DataSize))(t)
	require.True(t, bytes.Equal(data, got))
	require.NoError(t, errors.Join(rec.Close(), conn.Close()))
}

// A consumer that waits for the offer, or for its data in memory, gets the application data; so
// does a consumer that comes after the offer was replaced.
func TestDataForAConsumerThatWaits(t *testing.T) {
	dev, ctx := leavesNothing(t)
	buf, data := newBuffer(t, ctx, 1), noise(1<<20, 4)
	srv := listen(t)
	srv.Expect("data")
	got := make(chan []byte, 2)
	attach := func() {
		att, err := Attach(soon(t), srv.Path(), "data", dev)
		if err != nil {
			t.Error(err)
		}
		got <- att.Offer().Data
		_ = att.Close()
	}
	go attach()
	awaitWaiting(t, srv, 1)
	p, s := prepared(t, srv, "data", buf, ReadOnly, WithData(data))
	go attach()
	s.await(t, Sent, 2)
	s.start(t, "data", p.Offer)
	for range 2 {
		require.True(t, bytes.Equal(data, <-got))
	}
	next, other := newServed(srv), newBuffer(t, ctx, 1)
	next.start(t, "data", func(ctx context.Context) error {
		return srv.Replace(ctx, "data", other, ReadOnly, WithData(data[1:]))
	})
	require.NoError(t, s.end(t))
	go attach()
	require.True(t, bytes.Equal(data[1:], <-got))
}

// The producer puts large data in one sealed file, which is closed with the offer.
func TestDataFileIsSealedAndGoesWithTheOffer(t *testing.T) {
	_, ctx := leavesNothing(t)
	buf := newBuffer(t, ctx, 1)
	f := ok(descriptor.Sealed("data", noise(5000, 1)))(t)
	seals := ok(unix.FcntlInt(f.Fd(), unix.F_GET_SEALS, 0))(t)
	require.Equal(t, sealed|unix.F_SEAL_SEAL, seals&^unix.F_SEAL_EXEC)
	require.ErrorIs(t, errOf(f.WriteAt([]byte("x"), 0)), unix.EPERM)
	require.ErrorIs(t, f.Truncate(1), unix.EPERM)
	require.NoError(t, f.Close())

	srv := listen(t)
	before := cutest.Descriptors()
	p := ok(srv.Prepare("x", buf, ReadOnly, WithData(noise(5000, 1))))(t)
	require.ErrorIs(t, errOf(srv.Prepare("x", buf, ReadOnly, WithData(noise(5000, 1)))), ErrNameTaken)
	require.NoError(t, p.Close())
	after := cutest.Descriptors()
	require.Equal(t, before["data"], after["data"])
}

// A consumer that has not said that it takes a DATA is told by name, and is sent nothing of
// the offer.
func TestDataIsForWhoTakesIt(t *testing.T) {
	dev, ctx, srv := listening(t, goodbyes(brief))
	s := put(t, srv, newBuffer(t, ctx, 1), WithData(noise(wire.MaxData+1, 1)))
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
	_, err := Attach(soon(t), srv.Path(), "data", dev, WithMaxData(wire.MaxData))
	require.ErrorIs(t, err, ErrTooLarge)
	require.ErrorContains(t, err, "4097 bytes of application data; want 4096 at most")
	requireServed(t, srv, ctx)
}

// Data that fits the record is bounded by the consumer, too.
func TestMaxDataOfSmallData(t *testing.T) {
	dev, ctx, srv := listening(t)
	put(t, srv, newBuffer(t, ctx, 1), WithData([]byte("xy")))
	for n, want := range map[int]error{0: ErrTooLarge, 1: ErrTooLarge, 2: nil} {
		att, err := Attach(soon(t), srv.Path(), "data", dev, WithMaxData(n))
		require.ErrorIs(t, err, want, n)
		require.NoError(t, att.Close())
	}
}

// A consumer that keeps the descriptor, and does to it what it can, changes nothing for
// others.
func TestHostileConsumerOfData(t *testing.T) {
	dev, ctx, srv := listening(t)
	data := noise(10000, 9)
	put(t, srv, newBuffer(t, ctx, 1), WithData(data))
	want := wants(dev)
	want.Capabilities = wire.TakesData
	conn := asked(t, srv, want)
	offer := ok(conn.Receive(soon(t)))(t)
	rec := ok(conn.Receive(soon(t)))(t)
	require.Len(t, rec.Files, 1)
	f := rec.Files[0]
	require.NoError(t, errOf(f.Seek(0, 2)))
	require.ErrorIs(t, unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, 4096), unix.EPERM)
	require.ErrorIs(t, errOf(f.Write([]byte("x"))), unix.EPERM)
	if w, err := os.OpenFile("/proc/self/fd/"+fmt.Sprint(f.Fd()), os.O_RDWR|os.O_TRUNC, 0); err == nil {
		_ = w.Close()
		require.Fail(t, "cut off")
	}
	att := attached(t, srv, "data", dev)
	require.True(t, bytes.Equal(data, att.Offer().Data))
	require.NoError(t, errors.Join(att.Close(), rec.Close(), offer.Close(), conn.Close()))
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
	tmpfs := ok(os.CreateTemp("/dev/shm", "gpufd"))(t)
	require.NoError(t, errors.Join(os.Remove(tmpfs.Name()), tmpfs.Truncate(size)))
	path := ok(unix.Open(".", unix.O_PATH|unix.O_CLOEXEC, 0))(t)
	odd := os.NewFile(uintptr(path), "path")
	t.Cleanup(func() { require.NoError(t, sock.CloseFiles([]*os.File{r, w, writeOnly, tmpfs, odd})) })

	says := func(size uint64) lie { return tr.say(func(o *wire.Offer) { o.DataSize = size }, tr.files...) }
	with := func(files ...*os.File) []lie { return []lie{says(size), {wire.Encode(wire.Data{}), files}} }
	for name, c := range map[string]struct {
		lies []lie
		want error
		text string
	}{
		"not sealed against writing": {with(writable), ErrWire, "no sealed memory"},
		"not sealed at all":          {with(memory(t, size, 0)), ErrWire, "no sealed memory"},
		"may grow":                   {with(memory(t, size, sealed&^unix.F_SEAL_GROW)), ErrWire, "no sealed memory"},
		"may shrink":                 {with(memory(t, size, sealed&^unix.F_SEAL_SHRINK)), ErrWire, "no sealed memory"},
		"sealed for later alone":     {with(memory(t, size, unix.F_SEAL_FUTURE_WRITE|sealed&^unix.F_SEAL_WRITE)), ErrWire, "no sealed memory"},
		"a file of tmpfs":            {with(tmpfs), ErrWire, "no sealed memory"},
		"a pipe":                     {with(r), ErrWire, "no sealed memory"},
		"a path":                     {with(odd), ErrWire, "no sealed memory"},
		"device memory":              {with(tr.other), ErrWire, "no sealed memory"},
		"only to be written":         {with(writeOnly), ErrWire, "bad file descriptor"},
		"smaller":                    {with(other), ErrWire, "4999 bytes; the offer says 5000"},
		"larger":                     {with(memory(t, size+1, sealed)), ErrWire, "5001 bytes"},
		"empty":                      {with(memory(t, 0, sealed)), ErrWire, "0 bytes"},
		"no descriptor":              {with(), ErrWire, "0 descriptors instead of 1"},
		"two descriptors":            {with(good, good), ErrWire, "2 descriptors instead of 1"},
		"it does not come":           {[]lie{says(size)}, ErrTimeout, ""},
		"it ends before":             {[]lie{says(size), {wire.Encode(wire.Revoke{}), nil}}, ErrRevoked, ""},
		"an offer again":             {[]lie{says(size), says(size)}, ErrProtocol, "OFFER where application data belongs"},
		"published before":           {[]lie{says(size), {wire.Encode(wire.Publish{}), nil}}, ErrProtocol, "PUBLISH"},
		"before the offer":           {[]lie{{wire.Encode(wire.Data{}), []*os.File{good}}}, ErrProtocol, "DATA before"},
		"between its records": {[]lie{tr.say(func(o *wire.Offer) { o.DataSize, o.FDs = size, 2 }, tr.files[:2]...),
			{wire.Encode(wire.Data{}), []*os.File{good}}}, ErrProtocol, "DATA before"},
		"data in both":   {[]lie{tr.say(func(o *wire.Offer) { o.DataSize, o.Data = size, []byte("x") }, tr.files...)}, ErrWire, "1 bytes of data"},
		"more than 64 M": {[]lie{says(MaxData + 1)}, ErrTooLarge, "67108865"},
		"2^64-1":         {[]lie{says(1<<64 - 1)}, ErrTooLarge, ""},
		"another size in the second": {[]lie{tr.say(func(o *wire.Offer) { o.DataSize, o.FDs = size, 2 }, tr.files[:2]...),
			tr.say(func(o *wire.Offer) { o.DataSize, o.First, o.FDs = size+1, 2, 1 }, tr.files[2])}, ErrWire, "contradict"},
	} {
		t.Run(name, func(t *testing.T) {
			leavesNothing(t)
			timeout := DefaultTimeout
			if errors.Is(c.want, ErrTimeout) {
				timeout = 100 * time.Millisecond
			}
			_, err := Attach(soon(t), impostor(t, tell(t, c.lies...)), "data", dev, WithTimeout(timeout))
			require.ErrorIs(t, err, c.want)
			require.ErrorContains(t, err, c.text)
		})
	}
	for name, lies := range map[string][]lie{
		"honest":          with(good),
		"progress":        {says(size), {wire.Encode(wire.Progress{}), nil}, with(good)[1]},
		"sealed for good": with(memory(t, size, sealed|unix.F_SEAL_SEAL)),
	} {
		att, err := Attach(soon(t), impostor(t, tell(t, lies...)), "data", dev)
		require.NoError(t, err, name)
		require.Equal(t, make([]byte, size), att.Offer().Data)
		require.NoError(t, att.Close())
	}
}

// Data that nobody announced, and data that comes again, is no part of an offer: the
// consumer is attached, and its lease ends.
func TestDataThatWasNotAnnounced(t *testing.T) {
	dev, ctx := leavesNothing(t)
	tr := truthOf(t, ctx)
	f := memory(t, 5000, sealed)
	extra := lie{wire.Encode(wire.Data{}), []*os.File{f}}
	for name, lies := range map[string][]lie{
		"without field 4": {tr.say(nil, tr.files...), extra},
		"twice":           {tr.say(func(o *wire.Offer) { o.DataSize = 5000 }, tr.files...), extra, extra},
	} {
		t.Run(name, func(t *testing.T) {
			leavesNothing(t)
			att := ok(Attach(soon(t), impostor(t, tell(t, lies...)), "data", dev))(t)
			ended := awaitDone(t, att)
			require.True(t, errors.Is(ended, sock.ErrTooManyFDs) || errors.Is(ended, sock.ErrPeerLost), "%v: it was told, or the kernel took no descriptor", ended)
			require.NoError(t, att.Close())
		})
	}
}
