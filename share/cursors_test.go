package share

import (
	"errors"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gpufd/gpufd/internal/wire"
	"github.com/gpufd/gpufd/sock"
	"github.com/gpufd/gpufd/vmm"
)

// Each lease has memory of its own, which only its two sides have. It comes behind the data, also
// of an offer of several records, and for a consumer that resumes.
func TestCursorsAreOfOneLease(t *testing.T) {
	dev, ctx := leavesNothing(t)
	g := granularity(t, dev)
	buf := newBuffer(t, ctx, (sock.MaxFDs+1)*g, vmm.WithChunkSize(g))
	srv := listen(t)
	began := 0
	serveAs(t, srv, "data", buf, ReadOnly, WithData(noise(5000, 3)), WithCursors(4096, func(l *Lease, f *os.File) error {
		began++
		require.Equal(t, began, l.Number())
		_, err := f.WriteAt([]byte{byte(began)}, 100)
		return err
	}))
	for n := range byte(2) {
		att := attached(t, srv, "data", dev, WithCursorsOf(4096))
		b := make([]byte, 4096)
		require.NoError(t, errOf(att.Cursors().ReadAt(b, 0)))
		require.Equal(t, n+1, b[100])
		require.Error(t, att.Cursors().Truncate(8192), "its size is sealed")
		require.Error(t, att.Cursors().Truncate(0))
		require.NoError(t, att.Close())
	}
	_, err := Attach(soon(t), srv.Path(), "data", dev)
	var no *RefusalError
	require.ErrorAs(t, err, &no)
	require.Equal(t, RefusedUnsupported, no.Code)
	require.ErrorIs(t, errOf(Attach(soon(t), srv.Path(), "data", dev, WithCursorsOf(4095))), ErrTooLarge)
	require.NoError(t, srv.Close())
}

// The application may turn a consumer away when it is to have cursors.
func TestCursorsThatAreNotGiven(t *testing.T) {
	dev, ctx, srv := listening(t)
	s := put(t, srv, newBuffer(t, ctx, 100), WithCursors(8, func(*Lease, *os.File) error { return errors.New("no place for you") }))
	_, err := Attach(soon(t), srv.Path(), "data", dev, WithCursorsOf(8))
	require.ErrorIs(t, err, ErrRefused)
	require.ErrorContains(t, err, "no place for you")
	s.await(t, Ended, 1)
	for _, bad := range []OfferOption{WithCursors(0, func(*Lease, *os.File) error { return nil }), WithCursors(8, nil), WithCursors(MaxCursors+1, func(*Lease, *os.File) error { return nil })} {
		require.Error(t, errOf(newOfferOptions([]OfferOption{bad})))
	}
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
	for name, c := range map[string]struct {
		lies []lie
		want error
		text string
	}{
		"may shrink":       {with(memory(t, size, unix.F_SEAL_GROW)), ErrWire, "no sealed memory"},
		"may grow":         {with(memory(t, size, unix.F_SEAL_SHRINK)), ErrWire, "no sealed memory"},
		"device memory":    {with(tr.other), ErrWire, "no sealed memory"},
		"smaller":          {with(memory(t, size-1, cursorSeals)), ErrWire, "4095 bytes; the offer says 4096"},
		"no descriptor":    {with(), ErrWire, "0 descriptors instead of 1"},
		"before the offer": {[]lie{cursors}, ErrProtocol, "CURSORS where none belongs"},
		"without a word":   {[]lie{tr.say(func(o *wire.Offer) { o.DataSize = 5000 }, tr.files...), cursors}, ErrProtocol, "CURSORS where none belongs"},
		"it does not come": {[]lie{says}, ErrTimeout, ""},
		"more than wanted": {[]lie{tr.say(func(o *wire.Offer) { o.CursorSize = size + 1 }, tr.files...)}, ErrTooLarge, "4097"},
	} {
		t.Run(name, func(t *testing.T) {
			leavesNothing(t)
			timeout := DefaultTimeout
			if errors.Is(c.want, ErrTimeout) {
				timeout = 100 * time.Millisecond
			}
			_, err := Attach(soon(t), impostor(t, tell(t, c.lies...)), "data", dev, WithTimeout(timeout), WithCursorsOf(size))
			require.ErrorIs(t, err, c.want)
			require.ErrorContains(t, err, c.text)
		})
	}
}
