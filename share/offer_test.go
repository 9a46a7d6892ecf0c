package share

import (
	"context"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/gpufd/gpufd/internal/wire"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/sock"
	"github.com/gpufd/gpufd/vmm"
)

// The whole way: offer, attach, read, write, go.
func TestOfferIsAttachedTo(t *testing.T) {
	dev, ctx := leavesNothing(t)
	g := granularity(t, dev)
	buf := newBuffer(t, ctx, g+5, vmm.WithChunkSize(g))
	srv := listen(t)
	s := put(t, srv, buf, WithData([]byte("of the application")))

	att := attached(t, srv, "data", dev)
	require.Equal(t, "data", att.Offer().Name)
	require.Equal(t, "of the application", string(att.Offer().Data))
	require.Equal(t, buf.Describe(), att.Offer().Descriptor)
	require.Equal(t, ReadWrite, att.Offer().Access)
	require.Equal(t, ReadOnly, att.Buffer().Access())
	require.Equal(t, sock.Peer{UID: uid(), GID: gid(), PID: pid()}, att.Offer().Producer)
	requireNoise(t, ctx, att.Buffer(), 1)
	require.ErrorIs(t, cu.CopyToDevice(ctx, att.Buffer().Ptr(), make([]byte, 8)), cu.ErrInvalidValue, "invariant 7")

	writer := attached(t, srv, "data", dev, WithAccess(ReadWrite))
	require.NoError(t, cu.CopyToDevice(ctx, writer.Buffer().Ptr(), noise(g+5, 2)))
	requireNoise(t, ctx, att.Buffer(), 2)
	requireNoise(t, ctx, buf, 2)

	require.NoError(t, writer.Close())
	require.NoError(t, s.await(t, Ended, 1).Err)
	require.NoError(t, att.Err(), "the other's going is nothing to it")
	require.NoError(t, att.Close())
	s.await(t, Ended, 2)
	s.stop(t)
}

func TestEventsTellTheLeaseInOrder(t *testing.T) {
	dev, ctx, srv := listening(t)
	s := put(t, srv, newBuffer(t, ctx, 1), WithVerdict(), WithLeases(1))
	att := attached(t, srv, "", dev, WithAccess(ReadWrite))
	require.NoError(t, att.Progress(soon(t), 3, 9))
	require.NoError(t, att.Report(soon(t), nil))
	require.NoError(t, s.end(t))
	var kinds []string
	for _, e := range s.of(0) {
		kinds = append(kinds, e.Kind.String())
		if e.Kind == Offered {
			require.Zero(t, e.Lease)
			continue
		}
		require.Equal(t, 1, e.Lease)
		require.Equal(t, pid(), e.Peer.PID)
		require.Equal(t, ReadWrite, e.Access)
		require.NoError(t, e.Err)
	}
	require.Equal(t, "Offered Connected Sent Mapped Progress Verdict Ended", strings.Join(kinds, " "))
	require.Equal(t, []uint64{3, 9}, []uint64{s.of(Progress)[0].Done, s.of(Progress)[0].Total})
	require.Equal(t, "EventKind(0) PeerRefused EventKind(9)", EventKind(0).String()+" "+PeerRefused.String()+" "+EventKind(9).String())
}

// FAULTS 59: several at once. Each lease has a number of its own.
//
//fault:rows 59
func TestManyConsumersAtOnce(t *testing.T) {
	dev, ctx, srv := listening(t)
	const consumers = 16
	s := put(t, srv, newBuffer(t, ctx, 4096), WithVerdict(), WithLeases(consumers))
	var wg, all sync.WaitGroup
	all.Add(consumers)
	for range consumers {
		wg.Go(func() {
			att, err := Attach(soon(t), srv.Path(), "data", dev)
			all.Done()
			if err != nil {
				t.Error(err)
				return
			}
			defer att.Close()
			all.Wait() // every one of them is attached now
			got := make([]byte, 4096)
			if err := cu.CopyToHost(ctx, got, att.Buffer().Ptr()); err != nil || string(got) != string(noise(4096, 1)) {
				t.Errorf("wrong data, or %v", err)
			}
			if err := att.Report(soon(t), nil); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	require.NoError(t, s.end(t))
	numbers := map[int]bool{}
	for _, e := range s.of(Ended) {
		require.NoError(t, e.Err)
		numbers[e.Lease] = true
	}
	require.Len(t, numbers, consumers)
	require.True(t, numbers[1] && numbers[consumers])
}

func TestOffersAreToldApartByName(t *testing.T) {
	dev, ctx, srv := listening(t)
	a, b := newBuffer(t, ctx, 1), newBuffer(t, ctx, 2)
	serveAs(t, srv, "a", a, ReadOnly)
	require.EqualValues(t, 1, attached(t, srv, "", dev).Buffer().Size(), "the only offer")
	serveAs(t, srv, "Gewichte-ä-重み", b, ReadOnly)
	require.EqualValues(t, 1, attached(t, srv, "a", dev).Buffer().Size())
	require.EqualValues(t, 2, attached(t, srv, "Gewichte-ä-重み", dev).Buffer().Size())
	for _, name := range []string{"", "A", "b", "a "} {
		require.ErrorIs(t, errOf(Attach(soon(t), srv.Path(), name, dev)), ErrRefused, "%q", name)
	}
	require.ErrorIs(t, srv.Offer(soon(t), "a", b, ReadOnly), ErrNameTaken)
}

// Wrong arguments never reach a peer.
func TestOfferChecksItsArguments(t *testing.T) {
	_, ctx, srv := listening(t)
	buf := newBuffer(t, ctx, 1)
	bg := soon(t)
	for _, name := range []string{"", strings.Repeat("n", 256), "a\nb", "\x1b[2J", "\xff"} {
		require.Error(t, srv.Offer(bg, name, buf, ReadOnly), "%q", name)
		if name != "" {
			_, err := Attach(bg, srv.Path(), name, ctx.Device())
			require.Error(t, err, "%q", name)
			require.NotErrorIs(t, err, ErrRefused)
		}
	}
	for _, a := range []cu.Access{cu.NoAccess, 2, 4, ^cu.Access(0)} {
		require.Error(t, srv.Offer(bg, "x", buf, a))
		_, err := Attach(bg, srv.Path(), "x", ctx.Device(), WithAccess(a))
		require.Error(t, err)
		require.NotErrorIs(t, err, ErrRefused)
	}
	require.ErrorContains(t, srv.Offer(bg, "x", buf, ReadOnly, WithData(make([]byte, MaxData+1))), "67108865 bytes")
	require.Zero(t, offers(srv))

	closed := ok(vmm.New(ctx.Device(), 1))(t)
	require.NoError(t, closed.Close())
	require.ErrorIs(t, srv.Offer(bg, "x", closed, ReadOnly), cu.ErrClosed)

	over, cancel := context.WithCancel(bg)
	cancel()
	require.NoError(t, srv.Offer(over, "x", buf, ReadOnly, WithData(make([]byte, wire.MaxData))))
}

func uid() uint32 { return uint32(os.Geteuid()) }
func gid() uint32 { return uint32(os.Getegid()) }
func pid() int32  { return int32(os.Getpid()) }

// Once an offer has ended its observer hears of nothing any more, not even of an event that
// another offer's observer heard of first.
func TestObserverHearsNothingAfterTheEnd(t *testing.T) {
	_, ctx := leavesNothing(t)
	buf := newBuffer(t, ctx, 1)
	for range 20 { // whichever hears first
		srv := listen(t)
		heard := make(chan struct{})
		var ended, late atomic.Bool
		observe := OnEvent(func(e Event) {
			if e.Kind == PeerRefused && ended.Load() {
				late.Store(true)
			}
		})
		first := serveAs(t, srv, "first", buf, ReadOnly, observe)
		serveAs(t, srv, "second", buf, ReadOnly, OnEvent(func(e Event) {
			if e.Kind == PeerRefused {
				first.cancel()
				first.result <- <-first.result
				ended.Store(true)
				close(heard)
			}
		}))
		require.NoError(t, dialed(t, srv).Close())
		<-heard
		require.NoError(t, srv.Close())
		require.False(t, late.Load())
	}
}
