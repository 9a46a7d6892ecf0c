package share

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/sock"
	"github.com/gpufd/gpufd/vmm"
)

// poison queues work in ctx that fails, and its context with it (D20b): it
// writes to p, which is mapped read-only.
func poison(ctx *cu.Context, p cu.DevicePtr) error {
	stream, err := ctx.NewStream()
	if err != nil {
		return err
	}
	if err := stream.WriteValue32(p, 0xbad, 0); err != nil {
		return err
	}
	if err := stream.Close(); !errors.Is(err, cu.ErrContextLost) { // which may notice already
		return err
	}
	return nil
}

// wantLost says what is wrong with an error that has to be a lost context's.
func wantLost(what string, err error) error {
	if errors.Is(err, cu.ErrLaunchFailed) && errors.Is(err, cu.ErrContextLost) {
		return nil
	}
	return fmt.Errorf("%s: %v", what, err)
}

// childPoisonedConsumer attaches, loses its context, and tells the producer if
// it is to.
func childPoisonedConsumer() error {
	dev, ctx, err := childDevice()
	if err != nil {
		return err
	}
	att, err := Attach(context.Background(), os.Getenv(pathEnv), "data", dev)
	if err != nil {
		return err
	}
	if err := childReads(ctx, att); err != nil {
		return err
	}
	untilInputEnds("attached")
	if err := poison(ctx, att.Buffer().Ptr()); err != nil {
		return err
	}
	if err := wantLost("waiting for it", ctx.Synchronize(context.Background())); err != nil {
		return err
	}
	fault := childReads(ctx, att)
	if err := wantLost("reading", fault); err != nil {
		return err
	}
	fmt.Println("poisoned")
	if os.Getenv(doEnv) == "report" {
		err = att.Report(context.Background(), fault)
	}
	return errors.Join(err, att.Close(), ctx.Close())
}

// TestFault47_PoisonedConsumer: one consumer's context is lost. Its producer
// hears of it, in words if it gets to say any, and is well, and so are its
// other consumers; the memory returns when they are done.
func TestFault47_PoisonedConsumer(t *testing.T) {
	for do, want := range map[string]error{"report": ErrVerdict, "go": ErrNoVerdict} {
		t.Run(do, func(t *testing.T) {
			dev, ctx, srv := listening(t)
			buf := newBuffer(t, ctx, 3<<20)
			s := put(t, srv, buf, WithVerdict())
			neighbour := start(t, "consumer", srv.Path(), "stop when mapped")
			neighbour.says(t, "mapped")
			here := attached(t, srv, "data", dev)
			victim := start(t, "poisoned consumer", srv.Path(), do)
			victim.says(t, "attached")
			require.NoError(t, victim.in.Close())
			victim.says(t, "poisoned")
			require.NoError(t, victim.cmd.Wait())

			lost := s.await(t, Ended, 1)
			require.EqualValues(t, victim.cmd.Process.Pid, lost.Peer.PID)
			require.ErrorIs(t, lost.Err, want)
			if do == "report" {
				require.ErrorContains(t, lost.Err, "the context is lost")
				require.ErrorContains(t, lost.Err, "CUDA_ERROR_LAUNCH_FAILED (719)")
				require.ErrorContains(t, lost.Err, " was not called; ", "on one line")
			}
			requireNoise(t, ctx, buf, 1)
			requireNoise(t, ctx, here.Buffer(), 1)
			require.NoError(t, here.Err())
			requireServed(t, srv, ctx)
			require.NoError(t, here.Report(soon(t), nil))
			neighbour.end(t)
			requireNoise(t, ctx, buf, 2) // the neighbour has written
		})
	}
}

// childPoisonedProducer loses its context at one point or another of an offer,
// when a consumer has come so far.
func childPoisonedProducer() error {
	dev, ctx, err := childDevice()
	if err != nil {
		return err
	}
	buf, err := vmm.New(dev, 3<<20)
	if err != nil {
		return err
	}
	if err := cu.CopyToDevice(ctx, buf.Ptr(), noise(3<<20, 1)); err != nil {
		return err
	}
	ro, err := buf.NewView(ReadOnly)
	if err != nil {
		return err
	}
	srv, err := Listen(os.Getenv(pathEnv))
	if err != nil {
		return err
	}
	p := &poisonedProducer{srv, buf, func() error { return poison(ctx, ro.Ptr()) }, newServed(srv)}
	switch do := os.Getenv(doEnv); do {
	case "expected":
		err = p.whileExpected()
	case "prepared":
		err = p.whilePrepared()
	default:
		err = p.whileServing(ctx, do == "serving, and gone")
	}
	return errors.Join(err, srv.Close(), ro.Close(), buf.Close(), ctx.Close())
}

type poisonedProducer struct {
	srv    *Server
	buf    *vmm.Buffer
	poison func() error
	seen   *served
}

func (p *poisonedProducer) whileExpected() error {
	p.srv.Expect("data")
	fmt.Println("ready")
	for len(waiting(p.srv)) == 0 {
		time.Sleep(time.Millisecond)
	}
	if err := p.poison(); err != nil {
		return err
	}
	return wantLost("offering", p.srv.Offer(context.Background(), "data", p.buf, ReadOnly))
}

func (p *poisonedProducer) whilePrepared() error {
	prepared, err := p.srv.Prepare("data", p.buf, ReadOnly, OnEvent(p.seen.see))
	if err != nil {
		return err
	}
	fmt.Println("ready")
	for len(p.seen.of(Sent)) == 0 {
		<-p.seen.moved
	}
	if err := p.poison(); err != nil {
		return err
	}
	return wantLost("offering", prepared.Offer(context.Background()))
}

func (p *poisonedProducer) whileServing(ctx *cu.Context, gone bool) error {
	serving, stop := context.WithCancel(context.Background())
	defer stop()
	offer := make(chan error, 1)
	go func() { offer <- p.srv.Offer(serving, "data", p.buf, ReadOnly, OnEvent(p.seen.see)) }()
	fmt.Println("ready")
	for len(p.seen.of(Mapped)) == 0 {
		<-p.seen.moved
	}
	err := p.poison()
	if err == nil {
		err = wantLost("waiting for it", ctx.Synchronize(context.Background()))
	}
	if err != nil {
		return err
	}
	if gone {
		os.Exit(7)
	}
	untilInputEnds("poisoned")
	stop()
	return <-offer
}

// TestFault47_PoisonedProducer: the producer's context is lost. What it had not
// published nobody takes for data; what consumers have mapped they go on reading,
// and they learn that it is gone. The memory returns when they are done.
func TestFault47_PoisonedProducer(t *testing.T) {
	for do, want := range map[string]error{"expected": ErrRefused, "prepared": ErrRevoked} {
		t.Run(do, func(t *testing.T) {
			dev, _ := leavesNothing(t)
			path := socketPath(t)
			c := start(t, "poisoned producer", path, do)
			c.says(t, "ready")
			require.ErrorIs(t, errOf(Attach(soon(t), path, "data", dev)), want)
			require.NoError(t, c.cmd.Wait())
		})
	}
	for do, want := range map[string]error{"serving": ErrRevoked, "serving, and gone": sock.ErrPeerLost} {
		t.Run(do, func(t *testing.T) {
			dev, ctx := leavesNothing(t)
			path := socketPath(t)
			c := start(t, "poisoned producer", path, do)
			c.says(t, "ready")
			att := ok(Attach(soon(t), path, "data", dev))(t)
			if do == "serving" {
				c.says(t, "poisoned")
				requireNoise(t, ctx, att.Buffer(), 1)
				require.NoError(t, att.Err())
				c.end(t)
			} else {
				require.Error(t, c.cmd.Wait())
				require.Equal(t, 7, c.cmd.ProcessState.ExitCode())
			}
			require.ErrorIs(t, awaitDone(t, att), want)
			requireNoise(t, ctx, att.Buffer(), 1)
			require.NoError(t, att.Close())
			srv, err := Listen(path) // what it left on disk is reclaimed
			require.NoError(t, err)
			require.NoError(t, srv.Close())
		})
	}
}
