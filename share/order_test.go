package share

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/cutest"
	"github.com/gpufd/gpufd/sock"
	"github.com/gpufd/gpufd/vmm"
)

// childFreer offers a buffer. When its input ends it tries to free it under its offer.
func childFreer() error {
	dev, ctx, err := childDevice()
	if err != nil {
		return err
	}
	buf, err := childBuffer(dev, ctx, 1<<20)
	if err != nil {
		return err
	}
	return serveUntilInputEnds(func(ended context.Context, srv *Server) error {
		go func() {
			<-ended.Done()
			if errors.Is(buf.Close(), vmm.ErrInUse) && ctx.Close() == nil {
				fmt.Println("kept")
			}
		}()
		return srv.Offer(context.Background(), "data", buf, ReadWrite) // for ever
	})
}

// The producer cannot free the memory under its offer, and dies or ends in good order while a
// consumer is at any step of mapping it, or has mapped it. That just works, and the memory is free
// when the consumer lets go.
func TestFault9_ProducerFreesWhileAConsumerMaps(t *testing.T) {
	for _, when := range []string{"received", "import", "reserve", "map", "access", "attached", "ended"} {
		t.Run(when, func(t *testing.T) {
			spy, dev, ctx := spied(t)
			path := socketPath(t)
			producer, want := "freer", sock.ErrPeerLost
			if when == "ended" {
				producer, want = "producer", ErrRevoked
			}
			c := start(t, producer, path, "1048576")
			c.says(t, "listening")
			frees := func(now string) {
				switch {
				case when == "ended" && now == "received":
					c.end(t)
				case now == when:
					require.NoError(t, c.in.Close())
					c.says(t, "kept")
					c.kill()
				}
			}
			spy.onStep(frees)
			att := ok(Attach(soon(t), path, "data", dev,
				OnReceived(func(Offer, []*os.File) { frees("received") })))(t)
			frees("attached")
			require.ErrorIs(t, awaitDone(t, att), want)
			requireNoise(t, ctx, att.Buffer(), 1)
			require.NoError(t, att.Close())
			srv := ok(Listen(path))(t)
			require.NoError(t, srv.Close())
		})
	}
}

// Whatever is closed first, nothing is left, and nothing fails but to close a buffer
// that is offered.
//
//fault:rows 78
func TestFault12_CloseInAnyOrder(t *testing.T) {
	for n := range 24 {
		order := permutation([]string{"attachment", "buffer", "server", "context"}, n)
		dev, _ := leavesNothing(t)
		ctx := ok(dev.PrimaryContext())(t)
		buf := ok(vmm.New(dev, 1<<20))(t)
		require.NoError(t, cu.CopyToDevice(ctx, buf.Ptr(), noise(1<<20, 1)))
		srv := ok(Listen(socketPath(t)))(t)
		s := put(t, srv, buf)
		att := ok(Attach(soon(t), srv.Path(), "data", dev))(t)
		s.await(t, Mapped, 1)
		closes := map[string]func() error{"attachment": att.Close, "buffer": buf.Close, "server": srv.Close, "context": ctx.Close}
		for i, what := range order {
			left := order[i+1:]
			if err := closes[what](); what == "buffer" && slices.Contains(left, "server") {
				require.ErrorIs(t, err, vmm.ErrInUse)
			} else {
				require.NoError(t, err, "%s of %v", what, order)
			}
			if slices.Contains(left, "attachment") {
				requireNoise(t, cutest.Context(t, dev), att.Buffer(), 1)
			}
		}
		require.ErrorIs(t, s.end(t), ErrClosed)
		for _, what := range order {
			require.NoError(t, closes[what](), "%s again, of %v", what, order)
		}
	}
}

// permutation returns the nth order of list.
func permutation(list []string, n int) (order []string) {
	for len(list) > 0 {
		i := n % len(list)
		n /= len(list)
		order = append(order, list[i])
		list = slices.Delete(list, i, i+1)
	}
	return order
}

// The producer frees its memory, makes other memory at the same address and offers
// that. A consumer that is attached to the old memory keeps that; a consumer that asks for newer
// memory gets the new one.
func TestFault13_OtherMemoryAtTheSameAddress(t *testing.T) {
	dev, ctx, srv := listening(t)
	g := granularity(t, dev)
	r := ok(vmm.Reserve(dev.Driver(), 2*g))(t)
	a := ok(vmm.Create(dev, g))(t)
	beside := ok(r.Map(g, a))(t) // keeps the driver from giving the address to others
	var atts []*Attachment
	newest := uint64(0)
	for seed := range 2 {
		buf := ok(vmm.New(dev, g, vmm.WithReservation(r)))(t)
		require.Equal(t, r.Ptr(), buf.Ptr())
		require.NoError(t, cu.CopyToDevice(ctx, buf.Ptr(), noise(g, seed)))
		s := put(t, srv, buf)
		atts = append(atts, attached(t, srv, "data", dev, WithNewerThan(newest)))
		newest = atts[seed].Offer().Descriptor.Generation
		s.await(t, Mapped, 1)
		s.stop(t)
		require.ErrorIs(t, buf.Close(), vmm.ErrMapped)
	}
	for seed, att := range atts {
		require.ErrorIs(t, awaitDone(t, att), ErrRevoked)
		requireNoise(t, ctx, att.Buffer(), seed)
	}
	require.NoError(t, errors.Join(beside.Close(), a.Close(), r.Close()))
}
