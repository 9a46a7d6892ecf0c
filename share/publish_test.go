package share

import (
	"bytes"
	"context"
	"errors"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/cutest"
	"github.com/gpufd/gpufd/sock"
	"github.com/gpufd/gpufd/vmm"
)

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
	att, err := Attach(context.Background(), os.Getenv(pathEnv), "data", dev)
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
	for name, c := range map[string]struct {
		prepared bool // the consumer has the descriptors meanwhile
		lies     bool // the producer
	}{
		"expected":            {false, false},
		"prepared":            {true, false},
		"expected, and a lie": {false, true},
		"prepared, and a lie": {true, true},
	} {
		t.Run(name, func(t *testing.T) {
			warmUp(t)
			_, ctx, srv := listening(t)
			buf := newBuffer(t, ctx, 1<<20) // unfinished
			h := holding(t, ctx, buf)
			s := newServed(srv)
			opts := []OfferOption{OnEvent(s.see), WithLeases(1), WithVerdict()}
			if c.lies {
				opts = append(opts, WithSynchronized())
			}
			offer := func(ctx context.Context) error { return srv.Offer(ctx, "data", buf, ReadOnly, opts...) }
			srv.Expect("data")
			if c.prepared {
				offer = ok(srv.Prepare("data", buf, ReadOnly, opts...))(t).Offer
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
				require.Empty(t, s.of(Offered))
				require.Empty(t, s.of(Mapped))
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
	srv, err := Listen(os.Getenv(pathEnv))
	if err != nil {
		return err
	}
	srv.Expect("data")
	offer := func() error { return srv.Offer(context.Background(), "data", buf, ReadWrite) }
	do := writers[os.Getenv(doEnv)]
	if do.prepares {
		p, err := srv.Prepare("data", buf, ReadWrite)
		if err != nil {
			return err
		}
		offer = func() error { return p.Offer(context.Background()) }
	}
	if !do.offers {
		err := cu.CopyToDevice(ctx, buf.Ptr(), noise(1<<19, 1))
		untilInputEnds("half written")
		return err
	}
	if _, err := hold(ctx, buf); err != nil {
		return err
	}
	go untilInputEnds("half written")
	return offer()
}

// writers are the ways in which a producer can be killed while its data is in the
// making.
var writers = map[string]struct{ prepares, offers bool }{
	"expected":                               {false, false},
	"prepared":                               {true, false},
	"expected, and its stream has not ended": {false, true},
	"prepared, and its stream has not ended": {true, true},
}

// A producer is killed while it writes, with a consumer that waits for the data, with
// the memory mapped or not. It gets an error, and never what is unfinished.
func TestFault4_ProducerKilledWhileItWrites(t *testing.T) {
	for name, do := range writers {
		t.Run(name, func(t *testing.T) {
			spy, dev, _ := spied(t)
			path := socketPath(t)
			c := start(t, "writer", path, name)
			c.says(t, "half written")
			says := "before its offer was complete"
			opt := OnConnected(func(sock.Peer) { c.kill() })
			if do.prepares {
				says = "before it said that its data is there"
				opt = nil
				spy.at("access", c.kill)
			}
			att, err := Attach(soon(t), path, "data", dev, opt)
			require.ErrorIs(t, err, sock.ErrPeerLost)
			require.ErrorContains(t, err, says)
			require.Nil(t, att)
			srv, err := Listen(path) // what it left on disk is reclaimed
			require.NoError(t, err)
			require.NoError(t, srv.Close())
		})
	}
}
