package share

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/cutest"
	"github.com/gpufd/gpufd/internal/wire"
	"github.com/gpufd/gpufd/sock"
	"github.com/gpufd/gpufd/vmm"
)

func TestEventsTellTheLeaseInOrder(t *testing.T) {
	dev, ctx, srv := listening(t)
	s := put(t, srv, newBuffer(t, ctx, 1), OfferOptions{Verdict: true, MaxConsumers: 1})
	att := attached(t, srv, "", dev, AttachOptions{Access: cu.ReadWrite})
	require.NoError(t, att.Progress(soon(t), 3, 9))
	require.NoError(t, att.Report(soon(t), nil))
	require.NoError(t, s.end(t))
	var kinds []string
	for _, e := range s.of(0) {
		kinds = append(kinds, e.Kind.String())
		require.Equal(t, 1, e.Lease)
		require.Equal(t, pid(), e.Peer.PID)
		require.Equal(t, cu.ReadWrite, e.Access)
		require.NoError(t, e.Err)
	}
	require.Equal(t, "Connected Sent Mapped Progress Verdict Ended", strings.Join(kinds, " "))
	require.Equal(t, []uint64{3, 9}, []uint64{s.of(Progress)[0].Done, s.of(Progress)[0].Total})
	require.Equal(t, "EventKind(0) Detached EventKind(8)", EventKind(0).String()+" "+Detached.String()+" "+EventKind(8).String())
}

// FAULTS 59: several at once. Each lease has a number of its own.
//
//fault:rows 59
func TestManyConsumersAtOnce(t *testing.T) {
	dev, ctx, srv := listening(t)
	const consumers = 16
	s := put(t, srv, newBuffer(t, ctx, 4096), OfferOptions{Verdict: true, MaxConsumers: consumers})
	var wg, all sync.WaitGroup
	all.Add(consumers)
	for range consumers {
		wg.Go(func() {
			att, err := Attach(soon(t), srv.Path(), "data", dev, nil)
			all.Done()
			all.Wait() // every one of them is attached now
			got := make([]byte, 4096)
			err = errors.Join(err, cu.CopyToHost(ctx, got, att.Ptr()), att.Report(soon(t), nil), att.Close())
			if err != nil || string(got) != string(noise(4096, 1)) {
				t.Errorf("wrong data, or %v", err)
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
	serveAs(t, srv, "a", a, cu.ReadOnly)
	require.EqualValues(t, 1, attached(t, srv, "", dev).Buffer().Size(), "the only offer")
	serveAs(t, srv, "Gewichte-ä-重み", b, cu.ReadOnly)
	require.EqualValues(t, 1, attached(t, srv, "a", dev).Buffer().Size())
	require.EqualValues(t, 2, attached(t, srv, "Gewichte-ä-重み", dev).Buffer().Size())
	for _, name := range []string{"", "A", "b", "a "} {
		require.ErrorIs(t, errOf(Attach(soon(t), srv.Path(), name, dev, nil)), ErrRefused, "%q", name)
	}
	require.ErrorIs(t, offerFor(soon(t), srv, "a", b, cu.ReadOnly), ErrNameTaken)
}

// Wrong arguments never reach a peer.
func TestOfferChecksItsArguments(t *testing.T) {
	_, ctx, srv := listening(t)
	buf := newBuffer(t, ctx, 1)
	bg := soon(t)
	for _, name := range []string{strings.Repeat("n", 256), "a\nb", "\x1b[2J", "\xff"} {
		require.Error(t, offerFor(bg, srv, name, buf, cu.ReadOnly), "%q", name)
		require.ErrorContains(t, errOf(Attach(bg, srv.Path(), name, ctx.Device(), nil)), "name", "%q", name)
	}
	require.Error(t, offerFor(bg, srv, "", buf, cu.ReadOnly))
	for _, a := range []cu.Access{2, 4, ^cu.Access(0)} {
		require.Error(t, offerFor(bg, srv, "x", buf, a))
		require.NotErrorIs(t, errOf(Attach(bg, srv.Path(), "x", ctx.Device(), &AttachOptions{Access: a})), ErrRefused)
	}
	require.ErrorContains(t, offerFor(bg, srv, "x", buf, cu.ReadOnly, OfferOptions{Data: make([]byte, MaxData+1)}), "67108865 bytes")
	require.Zero(t, offers(srv))

	closed := ok(vmm.New(ctx.Device(), 1))(t)
	require.NoError(t, closed.Close())
	require.ErrorIs(t, offerFor(bg, srv, "x", closed, cu.ReadOnly), cu.ErrClosed)

	over, cancel := context.WithCancel(bg)
	cancel()
	require.NoError(t, offerFor(over, srv, "x", buf, cu.ReadOnly, OfferOptions{Data: make([]byte, wire.MaxData)}))
}

func pid() int32 { return int32(os.Getpid()) }

// finished is what every byte is once the data is finished.
const finished = 7

// A held stream has work on a buffer to do, and does not begin before it is let go.
type held struct {
	gate          *vmm.Buffer
	works, writes *cu.Stream
}

// hold queues the writing of buf's data behind a gate.
func hold(ctx *cu.Context, buf *vmm.Buffer) (*held, error) {
	gate, err := vmm.New(ctx.Device(), 4)
	if err != nil {
		return nil, err
	}
	works, err1 := ctx.NewStream()
	writes, err2 := ctx.NewStream()
	h := &held{gate, works, writes}
	return h, errors.Join(err1, err2, works.WaitValue32(gate.Ptr(), 1, cu.WaitEQ),
		cu.FillAsync(works, buf.Ptr(), uint8(finished), buf.Size()))
}

// holding is hold; the work goes on when t ends, or before that hangs because of it.
func holding(t *testing.T, ctx *cu.Context, buf *vmm.Buffer) *held {
	t.Helper()
	h := ok(hold(ctx, buf))(t)
	late := time.AfterFunc(20*time.Second, func() { _ = h.letGo() })
	t.Cleanup(func() {
		late.Stop()
		require.NoError(t, errors.Join(h.letGo(), h.close(soon(t))))
	})
	return h
}

// warmUp holds a stream once. From the first time on a driver keeps some memory for
// that, which is nobody's leak.
func warmUp(t *testing.T) {
	t.Helper()
	ctx := cutest.Context(t, cutest.Device(t))
	h := ok(hold(ctx, newBuffer(t, ctx, 1)))(t)
	require.NoError(t, errors.Join(h.letGo(), h.close(soon(t))))
}

// letGo lets the work begin.
func (h *held) letGo() error { return h.writes.WriteValue32(h.gate.Ptr(), 1, cu.WriteDefault) }

// close waits for the work and ends the streams.
func (h *held) close(ctx context.Context) error {
	return errors.Join(h.works.Synchronize(ctx), h.writes.Synchronize(ctx), h.works.Close(), h.writes.Close(), h.gate.Close())
}

// childReader attaches, and complains of data that is not finished.
func childReader() error {
	dev, ctx, err := childDevice()
	if err != nil {
		return err
	}
	att, err := Attach(context.Background(), os.Getenv(pathEnv), "data", dev, nil)
	if err != nil {
		return err
	}
	got := make([]byte, att.Buffer().Size())
	err = cu.CopyToHost(ctx, got, att.Buffer().Ptr())
	if err == nil && !bytes.Equal(got, bytes.Repeat([]byte{finished}, len(got))) {
		err = errors.New("unfinished data")
	}
	return errors.Join(err, att.Report(context.Background(), err), att.Close(), ctx.Close())
}

// The consumer comes while the producer's stream is at work. Whichever way it comes,
// it does not see the memory before the stream has finished, unless the producer gives
// its word that it has.
func TestFault68_ConsumerComesBeforeTheStreamHasFinished(t *testing.T) {
	for _, c := range []struct {
		prepared bool // the consumer has the descriptors meanwhile
		lies     bool // the producer
	}{
		{false, false}, {true, false}, {false, true}, {true, true},
	} {
		t.Run(fmt.Sprintf("%+v", c), func(t *testing.T) {
			warmUp(t)
			_, ctx, srv := listening(t)
			buf := newBuffer(t, ctx, 1<<20) // unfinished
			h := holding(t, ctx, buf)
			s := newServed(srv)
			opts := OfferOptions{OnEvent: s.see, MaxConsumers: 1, Verdict: true, Synchronized: c.lies}
			offer := func(ctx context.Context) error { return offerFor(ctx, srv, "data", buf, cu.ReadOnly, opts) }
			expect(srv, "data")
			if c.prepared {
				offer = ok(prepare(srv, "data", buf, cu.ReadOnly, opts))(t).offer
			}
			reader := start(t, "reader", srv.Path(), "")
			if c.prepared {
				s.await(t, Sent, 1)
			} else {
				require.Eventually(t, func() bool { return len(waiting(srv)) == 1 }, 30*time.Second, time.Millisecond)
			}
			go func() { s.result <- offer(soon(t)) }()
			if !c.lies {
				<-briefly(t).Done() // it would have the data by now
				require.False(t, offered(srv, "data"))
				require.NoError(t, h.letGo())
			}
			require.NoError(t, s.end(t))
			require.Equal(t, c.lies, reader.cmd.Wait() != nil)
			require.Equal(t, c.lies, s.of(Ended)[0].Err != nil)
		})
	}
}

// childWriter is a producer whose data does not get finished: it prints a line, and
// waits to be killed.
func childWriter() error {
	dev, ctx, err := childDevice()
	if err != nil {
		return err
	}
	buf, err := vmm.New(dev, 1<<20)
	if err != nil {
		return err
	}
	srv, err := Listen(os.Getenv(pathEnv), nil)
	if err != nil {
		return err
	}
	expect(srv, "data")
	offer := func(ctx context.Context) error { return offerFor(ctx, srv, "data", buf, cu.ReadWrite) }
	if os.Getenv(doEnv) == "prepared" {
		p, err := prepare(srv, "data", buf, cu.ReadWrite)
		if err != nil {
			return err
		}
		offer = p.offer
	}
	if _, err := hold(ctx, buf); err != nil {
		return err
	}
	go untilInputEnds("half written")
	return offer(context.Background())
}

// A producer is killed while it writes, with a consumer that waits for the data, with
// the memory mapped or not. It gets an error, and never what is unfinished.
func TestFault4_ProducerKilledWhileItWrites(t *testing.T) {
	for do, says := range map[string]string{"expected": "before its offer was complete", "prepared": "before it said that its data is there"} {
		t.Run(do, func(t *testing.T) {
			spy, dev, _ := spied(t)
			path := socketPath(t)
			c := start(t, "writer", path, do)
			c.says(t, "half written")
			opts := &AttachOptions{}
			if do == "prepared" {
				spy.at("access", c.kill)
			} else {
				opts.OnConnected = func(sock.Peer) { c.kill() }
			}
			att, err := Attach(soon(t), path, "data", dev, opts)
			require.ErrorIs(t, err, sock.ErrPeerLost)
			require.ErrorContains(t, err, says)
			require.Nil(t, att)
			srv := ok(Listen(path, nil))(t) // what it left on disk is reclaimed
			require.NoError(t, srv.Close())
		})
	}
}
