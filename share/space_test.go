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
	"github.com/gpufd/gpufd/vmm"
)

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
	dev, ctx, srv := listening(t)
	buf := newBuffer(t, ctx, lastPiece, vmm.WithChunkSize(granularity(t, dev)))
	s := put(t, srv, buf, WithVerdict())
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
	attach := func(opts ...AttachOption) (*Attachment, error) {
		return Attach(context.Background(), os.Getenv(pathEnv), "data", dev, opts...)
	}
	first, err := attach()
	if err != nil {
		return err
	}
	keepHeap()
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
	for range 2 {
		for name, opts := range map[string][]AttachOption{"at once": nil, "while it waits": {WithRoom(lastPiece)}} {
			if err := refusedForSpace(attach(opts...)); err != nil {
				return fmt.Errorf("reserving %s: %w", name, err)
			}
		}
	}
	if now := cutest.Descriptors(); !maps.Equal(before, now) {
		return fmt.Errorf("descriptors are left: %v, and were %v", now, before)
	}
	host := make([]byte, 64)
	if err := cu.CopyToHost(ctx, host, first.Ptr()); err != nil || string(host) != string(noise(64, 1)) {
		return fmt.Errorf("the producer's bytes are not there, or %w", err)
	}
	if err := errors.Join(first.Report(context.Background(), nil), first.Close()); err != nil {
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

var childAttachesTooOften = childRunsOutOfAddresses // main_test.go has both names

// keepHeap makes Go's heap take the address space that it will need, before there
// is none. The heap ends the process if it finds none, and does not give it back.
func keepHeap() {
	runtime.KeepAlive(make([]byte, 32<<20))
	runtime.GC()
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
