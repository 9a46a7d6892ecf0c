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
	buf, err := vmm.New(dev, 1<<20)
	if err != nil {
		return err
	}
	if err := cu.CopyToDevice(ctx, buf.Ptr(), noise(1<<20, 1)); err != nil {
		return err
	}
	srv, err := Listen(os.Getenv(pathEnv))
	if err != nil {
		return err
	}
	offered := make(chan error)
	go func() { offered <- srv.Offer(context.Background(), "data", buf, ReadWrite) }()
	untilInputEnds("listening")
	if err := buf.Close(); !errors.Is(err, vmm.ErrInUse) {
		return fmt.Errorf("closing a buffer that is offered: %w", err)
	}
	if err := ctx.Close(); err != nil {
		return err
	}
	fmt.Println("kept")
	return <-offered // never
}

// The producer cannot free the memory under its offer, and dies while a consumer is at
// any step of mapping it, or has mapped it. That just works, and the memory is free
// when the consumer lets go.
func TestFault9_ProducerFreesWhileAConsumerMaps(t *testing.T) {
	for _, when := range []string{"received", "import", "reserve", "map", "access", "attached"} {
		t.Run(when, func(t *testing.T) {
			spy, dev, ctx := spied(t)
			path := socketPath(t)
			c := start(t, "freer", path, "")
			c.says(t, "listening")
			frees := func(now string) {
				if now == when {
					require.NoError(t, c.in.Close())
					c.says(t, "kept")
					c.kill()
				}
			}
			spy.onStep(frees)
			att := ok(Attach(soon(t), path, "data", dev,
				OnReceived(func(Offer, []*os.File) { frees("received") })))(t)
			frees("attached")
			require.ErrorIs(t, awaitDone(t, att), sock.ErrPeerLost)
			requireNoise(t, ctx, att.Buffer(), 1)
			require.NoError(t, att.Close())
			srv := ok(Listen(path))(t)
			require.NoError(t, srv.Close())
		})
	}
}

// A producer that ends in good order does not wait for a consumer that is mapping the memory.
func TestFault9_ProducerEndsWhileAConsumerMaps(t *testing.T) {
	dev, ctx := leavesNothing(t)
	path := socketPath(t)
	c := start(t, "producer", path, "1048576")
	c.says(t, "listening")
	att := ok(Attach(soon(t), path, "data", dev, OnReceived(func(Offer, []*os.File) { c.end(t) })))(t)
	require.ErrorIs(t, awaitDone(t, att), ErrRevoked)
	requireNoise(t, ctx, att.Buffer(), 1)
	require.NoError(t, att.Close())
}

// Whatever is closed first, nothing is left, and nothing fails but to close a buffer
// that is offered.
//
//fault:rows 78
func TestFault12_CloseInAnyOrder(t *testing.T) {
	for order := range permutations([]string{"attachment", "buffer", "server", "context"}) {
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

// permutations yields every order of list.
func permutations(list []string) func(yield func([]string) bool) {
	return func(yield func([]string) bool) { permute(list, 0, yield) }
}

func permute(list []string, done int, yield func([]string) bool) bool {
	if done == len(list) {
		return yield(slices.Clone(list))
	}
	for i := done; i < len(list); i++ {
		list[done], list[i] = list[i], list[done]
		goOn := permute(list, done+1, yield)
		list[done], list[i] = list[i], list[done]
		if !goOn {
			return false
		}
	}
	return true
}

// The producer frees its memory, makes other memory at the same address and offers
// that. A consumer that is attached to the old memory keeps that; a consumer that asks for newer
// memory gets the new one.
func TestFault13_OtherMemoryAtTheSameAddress(t *testing.T) {
	dev, ctx := leavesNothing(t)
	g := granularity(t, dev)
	r := ok(vmm.Reserve(dev.Driver(), 2*g))(t)
	a := ok(vmm.Create(dev, g))(t)
	srv := listen(t)
	var beside *vmm.Mapping
	var atts []*Attachment
	newest, p := uint64(0), r.Ptr()
	for seed := range 2 {
		buf, err := vmm.New(dev, g, vmm.WithReservation(r))
		require.NoError(t, err)
		require.Equal(t, p, buf.Ptr())
		if seed == 0 {
			beside, err = r.Map(g, a) // keeps the driver from giving the address to others
			require.NoError(t, err)
		}
		require.NoError(t, cu.CopyToDevice(ctx, p, noise(g, seed)))
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
