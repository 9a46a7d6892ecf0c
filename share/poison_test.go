package share

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/cutest"
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
	att, err := Attach(context.Background(), os.Getenv(pathEnv), "data", dev, nil)
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
			s := put(t, srv, buf, OfferOptions{Verdict: true})
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

// childBuffer makes memory full of noise.
func childBuffer(dev *cu.Device, ctx *cu.Context, size uint64) (*vmm.Buffer, error) {
	buf, err := vmm.New(dev, size)
	if err != nil {
		return nil, err
	}
	return buf, cu.CopyToDevice(ctx, buf.Ptr(), noise(size, 1))
}

// childPoisonedProducer loses its context at one point or another of an offer,
// when a consumer has come so far.
func childPoisonedProducer() error {
	dev, ctx, err := childDevice()
	if err != nil {
		return err
	}
	buf, err := childBuffer(dev, ctx, 3<<20)
	if err != nil {
		return err
	}
	ro, err := buf.NewView(cu.ReadOnly)
	if err != nil {
		return err
	}
	srv, err := Listen(os.Getenv(pathEnv), nil)
	if err != nil {
		return err
	}
	serving, stop := context.WithCancel(context.Background())
	defer stop()
	seen, do := newServed(srv), os.Getenv(doEnv)
	offer := func() error { return offerFor(serving, srv, "data", buf, cu.ReadOnly, OfferOptions{OnEvent: seen.see}) }
	come := func() bool { return len(seen.of(Mapped)) > 0 }
	switch do {
	case "expected":
		expect(srv, "data")
		come = func() bool { return len(waiting(srv)) > 0 }
	case "prepared":
		p, err := prepare(srv, "data", buf, cu.ReadOnly, OfferOptions{OnEvent: seen.see})
		if err != nil {
			return err
		}
		offer = func() error { return p.offer(serving) }
		come = func() bool { return len(seen.of(Sent)) > 0 }
	default:
		go func() { seen.result <- offer() }()
	}
	fmt.Println("ready")
	for !come() {
		time.Sleep(time.Millisecond)
	}
	if err := poison(ctx, ro.Ptr()); err != nil {
		return err
	}
	if do == "expected" || do == "prepared" {
		err = wantLost("offering", offer())
	} else {
		if err := wantLost("waiting for it", ctx.Synchronize(serving)); err != nil {
			return err
		}
		if do == "serving, and gone" {
			os.Exit(7)
		}
		untilInputEnds("poisoned")
		stop()
		err = <-seen.result
	}
	return errors.Join(err, srv.Close(), ro.Close(), buf.Close(), ctx.Close())
}

// TestFault47_PoisonedProducer: the producer's context is lost. What it had not
// published nobody takes for data; what consumers have mapped they go on reading,
// and they learn that it is gone. The memory returns when they are done.
func TestFault47_PoisonedProducer(t *testing.T) {
	for do, want := range map[string]error{
		"expected": ErrRefused, "prepared": ErrWithdrawn, "serving": ErrWithdrawn, "serving, and gone": sock.ErrPeerLost,
	} {
		t.Run(do, func(t *testing.T) {
			dev, ctx := leavesNothing(t)
			path := socketPath(t)
			c := start(t, "poisoned producer", path, do)
			c.says(t, "ready")
			att, err := Attach(soon(t), path, "data", dev, nil)
			switch do {
			case "expected", "prepared":
				require.ErrorIs(t, err, want)
				require.NoError(t, c.cmd.Wait())
				return
			case "serving":
				require.NoError(t, err)
				c.says(t, "poisoned")
				requireNoise(t, ctx, att.Buffer(), 1)
				require.NoError(t, att.Err())
				c.end(t)
			default:
				require.NoError(t, err)
				require.Error(t, c.cmd.Wait())
				require.Equal(t, 7, c.cmd.ProcessState.ExitCode())
			}
			require.ErrorIs(t, awaitDone(t, att), want)
			requireNoise(t, ctx, att.Buffer(), 1)
			require.NoError(t, att.Close())
			srv := ok(Listen(path, nil))(t) // what it left on disk is reclaimed
			require.NoError(t, srv.Close())
		})
	}
}

// lastPiece is what an address space that is used up has no room for, and much
// more than a process needs that goes on without.
const lastPiece = 64 << 20

// TestFault62_NoAddressSpace: a process that has none left cannot attach, keeps
// nothing of what it tried, and says why, to the producer too. Earlier attachments go
// on, and a process that closes one can have another.
func TestFault62_NoAddressSpace(t *testing.T) {
	if cutest.Emulated() {
		t.Skip("under qemu-user the addresses are the emulator's, too: using them up ends it, and limits are not those of the process")
	}
	if cutest.RaceDetector {
		t.Skip("the race detector takes addresses as it goes along, and ends the process that has none left")
	}
	dev, ctx, srv := listening(t)
	buf := newBuffer(t, ctx, lastPiece, vmm.WithChunkSize(granularity(t, dev)))
	s := put(t, srv, buf, OfferOptions{Verdict: true})
	c := start(t, "runs out of addresses", srv.Path(), "")
	require.True(t, c.out.Scan())
	t.Log(c.out.Text())
	c.says(t, "attached")
	c.end(t)
	s.await(t, Ended, 6)
	for i, e := range s.of(Ended)[:6] {
		if i >= 4 {
			require.NoError(t, e.Err)
			continue
		}
		require.ErrorIs(t, e.Err, ErrVerdict)
		require.ErrorContains(t, e.Err, "attaching failed: ")
		require.ErrorContains(t, e.Err, "CUDA_ERROR_OUT_OF_MEMORY")
	}
	require.Len(t, s.of(Mapped), 2)
	requireServed(t, srv, ctx)
}

func childRunsOutOfAddresses() error {
	dev, ctx, err := childDevice()
	if err != nil {
		return err
	}
	attach := func(opts ...AttachOptions) (*Attachment, error) {
		return Attach(context.Background(), os.Getenv(pathEnv), "data", dev, first(opts))
	}
	first, err := attach()
	if err != nil {
		return err
	}
	// Go's heap takes the address space that it will need: it ends the process if it finds none.
	runtime.KeepAlive(make([]byte, 32<<20))
	runtime.GC()
	began := time.Now()
	taken, err := takeAddresses(dev.Driver())
	if err != nil {
		return err
	}
	var total uint64
	for _, r := range taken {
		total += r.Size()
	}
	fmt.Printf("%d bytes (%.1f TiB) of address space in %d pieces, the largest of %d, in %s\n",
		total, float64(total)/(1<<40), len(taken), taken[0].Size(), time.Since(began))
	before := cutest.Descriptors()
	for range 4 {
		if err := refusedForSpace(attach()); err != nil {
			return err
		}
	}
	if now := cutest.Descriptors(); !maps.Equal(before, now) {
		return fmt.Errorf("descriptors are left: %v, and were %v", now, before)
	}
	host := make([]byte, 64)
	if err := cu.CopyToHost(ctx, host, first.Ptr()); err != nil || string(host) != string(noise(64, 1)) {
		return fmt.Errorf("the producer's bytes are not there, or %w", err)
	}
	// The place of the attachment alone would not do: the heap may have taken some of it.
	if err := errors.Join(first.Report(context.Background(), nil), first.Close(), taken[len(taken)-1].Close()); err != nil {
		return err
	}
	att, err := attach()
	if err != nil {
		return fmt.Errorf("with one less: %w", err)
	}
	for _, r := range taken {
		if err := r.Close(); err != nil {
			return err
		}
	}
	if err := childReads(ctx, att); err != nil {
		return err
	}
	untilInputEnds("attached")
	return errors.Join(att.Report(context.Background(), nil), att.Close(), ctx.Close())
}

// takeAddresses reserves all that the driver gives, in pieces that grow
// smaller, but for holes of less than lastPiece.
func takeAddresses(drv *cu.Driver) (taken []*vmm.Reservation, err error) {
	for size := uint64(1) << 46; size >= lastPiece; {
		r, err := vmm.Reserve(drv, size)
		switch {
		case err == nil && len(taken) < 100_000:
			taken = append(taken, r)
		case errors.Is(err, cu.ErrOutOfMemory):
			size /= 2
		default:
			return nil, fmt.Errorf("piece %d, of %d bytes: %w", len(taken), size, err)
		}
	}
	return taken, nil
}

// refusedForSpace says what is wrong with an attempt that has to fail. The
// software driver has memory of another process in its own address space, too.
func refusedForSpace(att *Attachment, err error) error {
	var refused *cu.Error
	switch {
	case err == nil:
		return errors.Join(errors.New("there was address space"), att.Close())
	case !errors.As(err, &refused) || refused.Result != cu.ErrOutOfMemory:
		return err
	case refused.Op == "cuMemAddressReserve":
		return nil
	case cutest.Kind() == cu.Soft && refused.Op == "cuMemImportFromShareableHandle":
		return nil
	}
	return err
}
