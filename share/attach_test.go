package share

import (
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

// FAULTS 39, 41: the UUID decides, not the ordinal.
func TestFault39and41_AttachOnTheWrongDevice(t *testing.T) {
	dev, ctx := leavesNothing(t)
	_, other := cutest.TwoDevices(t, dev.Driver())
	srv := listen(t)
	s := put(t, srv, newBuffer(t, ctx, 1))
	_, err := Attach(soon(t), srv.Path(), "", other)
	require.ErrorIs(t, err, vmm.ErrDevice)
	require.ErrorContains(t, err, dev.UUID().String())
	told := s.await(t, Ended, 1).Err
	require.ErrorIs(t, told, ErrVerdict, "the producer is told why")
	require.ErrorContains(t, told, "attaching failed: ")

	att := attached(t, srv, "", other, WithAnyDevice())
	require.Same(t, dev, att.Buffer().Device())
}

// A RefusalError is the producer's no, with a code and words.
func TestAttachIsRefused(t *testing.T) {
	dev, ctx, srv := listening(t)
	buf := newBuffer(t, ctx, 1)
	serveAs(t, srv, "ro", buf, ReadOnly)
	busy := serveAs(t, srv, "busy", buf, ReadOnly, WithLeases(1))
	held := attached(t, srv, "busy", dev)
	for _, c := range []struct {
		name string
		opt  AttachOption
		code RefusalCode
		text string
	}{
		{"no", WithAccess(ReadOnly), RefusedName, `there is no offer "no" here`},
		{"", WithAccess(ReadOnly), RefusedName, `there is not exactly one offer here; ask for one by its name: "busy", "ro"`},
		{"ro", WithAccess(ReadWrite), RefusedAccess, `"ro" is offered read-only, and read-write was asked for`},
		{"busy", WithAccess(ReadOnly), RefusedBusy, `"busy" has all it waits for: 1 consumer`},
	} {
		_, err := Attach(soon(t), srv.Path(), c.name, dev, c.opt)
		require.ErrorIs(t, err, ErrRefused)
		var no *RefusalError
		require.ErrorAs(t, err, &no)
		require.Equal(t, c.code, no.Code)
		require.Equal(t, c.text, no.Text)
		refused := busy.of(PeerRefused)
		require.EqualError(t, refused[len(refused)-1].Err, c.code.String()+": "+c.text, "every offer's observer hears of it")
	}
	require.NoError(t, held.Err())
	require.NoError(t, held.Close())
	require.NoError(t, busy.end(t))
	requireServed(t, srv, ctx)
}

func TestAttachWithoutAProducer(t *testing.T) {
	dev, _ := leavesNothing(t)
	dir := t.TempDir()
	for path, want := range map[string]error{
		filepath.Join(dir, "none"):         sock.ErrNoListener,
		filepath.Join(dir, "no", "dir"):    sock.ErrNoListener,
		"":                                 sock.ErrPath,
		filepath.Join(dir, string(longer)): sock.ErrPath,
	} {
		require.ErrorIs(t, errOf(Attach(soon(t), path, "", dev)), want, path)
	}
}

var longer = make([]byte, 200)

func init() {
	for i := range longer {
		longer[i] = 'x'
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
