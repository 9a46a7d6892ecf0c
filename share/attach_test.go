package share

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/cutest"
	"github.com/gpufd/gpufd/internal/serve"
	"github.com/gpufd/gpufd/sock"
	"github.com/gpufd/gpufd/vmm"
)

const (
	reserves = "cuMemAddressReserve"
	frees    = "cuMemAddressFree"
)

func TestAttachTellsOfItsSteps(t *testing.T) {
	spy, dev, ctx := spied(t)
	srv := listen(t)
	put(t, srv, newBuffer(t, ctx, 7), WithData([]byte{1, 2}))
	var said []string
	spy.onStep(func(step string) { said = append(said, step) })
	attached(t, srv, "", dev,
		OnConnected(func(p sock.Peer) {
			require.Equal(t, pid(), p.PID)
			said = append(said, "connected")
		}),
		OnReceived(func(o Offer, files []*os.File) {
			require.Equal(t, "data", o.Name)
			require.Equal(t, []byte{1, 2}, o.Data)
			require.Len(t, files, 1)
			said = append(said, "received")
		}))
	require.Equal(t, []string{"connected", "received", "import", "reserve", "map", "access"}, said)
}

// An attachment that is lost was made by whoever called Attach, which calls attach.
func TestAttachNotesItsCaller(t *testing.T) {
	dev, ctx, srv := listening(t)
	put(t, srv, newBuffer(t, ctx, 1))
	o := ok(newAttachOptions(nil))(t)
	a := &attaching{opts: o, path: srv.Path(), dev: dev}
	att := ok(a.attach(soon(t)))(t)
	require.NoError(t, att.Close())
	caller, _, _ := strings.Cut(a.made.String(), "\n")
	require.Contains(t, caller, t.Name())
}

// FAULTS 39, 41: the UUID decides, not the ordinal. Room is reserved on the memory's device.
func TestFault39and41_AttachOnTheWrongDevice(t *testing.T) {
	spy, dev, ctx := spied(t)
	_, other := cutest.TwoDevices(t, dev.Driver())
	srv := listen(t)
	s := put(t, srv, newBuffer(t, ctx, 1))
	_, err := Attach(soon(t), srv.Path(), "", other)
	require.ErrorIs(t, err, vmm.ErrDevice)
	require.ErrorContains(t, err, dev.UUID().String())
	told := s.await(t, Ended, 1).Err
	require.ErrorIs(t, told, ErrVerdict, "the producer is told why")
	require.ErrorContains(t, told, "attaching failed: ")

	before := spy.count(reserves)
	att := attached(t, srv, "", other, WithAnyDevice(), WithRoom(1))
	require.Same(t, dev, att.Buffer().Device())
	require.Equal(t, 1, spy.count(reserves)-before)
}

// A RefusalError is the producer's no, with a code and words.
func TestAttachIsRefused(t *testing.T) {
	dev, ctx, srv := listening(t)
	buf := newBuffer(t, ctx, 1)
	serveAs(t, srv, "ro", buf, ReadOnly)
	busy := serveAs(t, srv, "busy", buf, ReadOnly, WithLeases(1))
	held := attached(t, srv, "busy", dev)
	for i, c := range []struct {
		name string
		opt  AttachOption
		code RefusalCode
		text string
	}{
		{"no", nil, RefusedName, `there is no offer "no" here`},
		{"", nil, RefusedName, `there is not exactly one offer here; ask for one by its name: "busy", "ro"`},
		{"ro", WithAccess(ReadWrite), RefusedAccess, `"ro" is offered read-only, and read-write was asked for`},
		{"busy", nil, RefusedBusy, `"busy" has all it waits for: 1 consumer`},
	} {
		_, err := Attach(soon(t), srv.Path(), c.name, dev, c.opt)
		require.ErrorIs(t, err, ErrRefused)
		var no *RefusalError
		require.ErrorAs(t, err, &no)
		require.Equal(t, c.code, no.Code)
		require.Equal(t, c.text, no.Text)
		require.EqualError(t, busy.await(t, PeerRefused, i+1).Err, c.code.String()+": "+c.text, "every offer's observer hears of it")
	}
	require.NoError(t, held.Close())
	require.NoError(t, busy.end(t))
}

func TestAttachWithoutAProducer(t *testing.T) {
	dev, _ := leavesNothing(t)
	dir := t.TempDir()
	for path, want := range map[string]error{
		filepath.Join(dir, "none"):      sock.ErrNoListener,
		filepath.Join(dir, "no", "dir"): sock.ErrNoListener,
		"":                              sock.ErrPath,
		dir + strings.Repeat("x", 200):  sock.ErrPath,
	} {
		require.ErrorIs(t, errOf(Attach(soon(t), path, "", dev)), want, path)
	}
}

// Before the first consumer hears of the memory, the work on it is done.
func TestFault68_OfferWaitsForWorkOnTheMemory(t *testing.T) {
	dev, ctx := leavesNothing(t)
	g := granularity(t, dev)
	buf := newBuffer(t, ctx, 8*g)
	stream := ok(ctx.NewStream())(t)
	srv := listen(t)
	for i := range 10 {
		want := uint8(i + 1)
		require.NoError(t, cu.FillAsync(stream, buf.Ptr(), want, 8*g))
		s := put(t, srv, buf)
		done := ok(stream.Query())(t)
		require.True(t, done)
		att := attached(t, srv, "", dev)
		got := make([]byte, 1)
		require.NoError(t, cu.CopyToHost(ctx, got, att.Buffer().Ptr().Add(8*g-1)))
		require.Equal(t, want, got[0])
		s.stop(t)
	}
	require.NoError(t, stream.Close())
}

// Close is idempotent and nil-safe; what ended says so.
func TestClosedAttachmentIsClosed(t *testing.T) {
	dev, ctx, srv := listening(t)
	s := put(t, srv, newBuffer(t, ctx, 1))
	att := ok(Attach(soon(t), srv.Path(), "", dev))(t)
	require.NoError(t, att.Err(), "nothing has ended")
	for range 3 {
		require.NoError(t, att.Close())
	}
	require.NoError(t, (*Attachment)(nil).Close())
	require.ErrorIs(t, awaitDone(t, att), ErrClosed)
	require.ErrorIs(t, att.Progress(soon(t), 1, 2), ErrClosed)
	require.ErrorIs(t, att.Report(soon(t), nil), ErrClosed)
	require.NoError(t, s.await(t, Ended, 1).Err)
}

// Close waits until the descriptors that came with the offer are closed, but no longer than for a
// peer's goodbye: a liar's may never be.
func TestCloseWaitsForDescriptors(t *testing.T) {
	dev, ctx, srv := listening(t)
	put(t, srv, newBuffer(t, ctx, 1))
	att := attached(t, srv, "data", dev)
	<-att.closing
	att.closing = make(chan struct{})
	start := time.Now()
	require.NoError(t, att.Close())
	require.GreaterOrEqual(t, time.Since(start), serve.Goodbye)
}

// FAULTS 14 in small: a hundred handoffs leave nothing.
func TestFault14_HandoffsLeaveNothing(t *testing.T) {
	dev, ctx, srv := listening(t)
	s := put(t, srv, newBuffer(t, ctx, 1))
	for range 100 {
		att := ok(Attach(soon(t), srv.Path(), "", dev, WithTimeout(time.Minute)))(t)
		require.NoError(t, att.Close())
	}
	require.NoError(t, s.await(t, Ended, 100).Err)
}

// Room that was reserved while the offer was waited for is used if it is enough;
// if not, the memory gets a reservation as without.
func TestRoomIsReservedBeforehand(t *testing.T) {
	spy, dev, ctx := spied(t)
	g := granularity(t, dev)
	srv := listen(t)
	put(t, srv, newBuffer(t, ctx, 3*g-1, vmm.WithChunkSize(g)))
	for _, c := range []struct {
		room          uint64
		before, after int // reservations when the offer is here, and at the end
	}{
		{0, 0, 1}, {3*g - 1, 1, 1}, {3 * g, 1, 1}, {5 * g, 1, 1}, {2 * g, 1, 2}, {1, 1, 2},
	} {
		t.Run(fmt.Sprint(c.room/g), func(t *testing.T) {
			first, owed, received := spy.count(reserves), spy.count(frees), -1
			att := ok(Attach(soon(t), srv.Path(), "", dev, WithRoom(c.room),
				OnReceived(func(Offer, []*os.File) { received = spy.count(reserves) - first })))(t)
			require.Equal(t, c.before, received)
			require.Equal(t, c.after, spy.count(reserves)-first)
			require.Equal(t, c.after-1, spy.count(frees)-owed, "what did not do is given back")
			requireNoise(t, ctx, att.Buffer(), 1)
			require.NoError(t, att.Close())
			require.Equal(t, c.after, spy.count(frees)-owed)
		})
	}
}

// Where there is no room, attaching fails, and the producer is told why.
func TestRoomThatCannotBeReserved(t *testing.T) {
	spy, dev, ctx := spied(t)
	srv := listen(t)
	s := put(t, srv, newBuffer(t, ctx, 1))
	srv.Expect("later")
	attach := func(name string, room uint64) error {
		return errOf(Attach(soon(t), srv.Path(), name, dev, WithRoom(room)))
	}
	requireTold := func(told error) {
		require.ErrorIs(t, told, ErrVerdict)
		require.ErrorContains(t, told, "attaching failed: ")
	}
	require.ErrorIs(t, attach("data", ^uint64(0)), vmm.ErrSize)
	requireTold(s.await(t, Ended, 1).Err)
	full := spy.Fail(reserves, cu.ErrOutOfMemory)
	require.ErrorIs(t, attach("data", 1), cu.ErrOutOfMemory)
	requireTold(s.await(t, Ended, 2).Err)
	require.ErrorIs(t, attach("later", 1), cu.ErrOutOfMemory)
	requireTold(s.await(t, PeerRefused, 1).Err) // of what is not there yet it has no lease
	full.Stop()
	require.Empty(t, waiting(srv))
	requireServed(t, srv, ctx)
}

// Invariant 4: whatever keeps the memory from being mapped, the room is given back.
func TestRoomIsGivenBack(t *testing.T) {
	spy, dev, ctx := spied(t)
	srv := listen(t)
	put(t, srv, newBuffer(t, ctx, 1))
	for _, c := range []struct {
		name, fail string
		want       error
	}{
		{"none", "", ErrRefused}, {"data", "cuMemMap", cu.ErrOutOfMemory}, {"data", "cuMemImportFromShareableHandle", cu.ErrOutOfMemory},
	} {
		reserved, freed := spy.count(reserves), spy.count(frees)
		require.ErrorIs(t, spy.during(c.fail, func() error {
			return errOf(Attach(soon(t), srv.Path(), c.name, dev, WithRoom(1)))
		}), c.want)
		require.Equal(t, reserved+1, spy.count(reserves))
		require.Equal(t, freed+1, spy.count(frees))
	}
}
