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
	"golang.org/x/sys/unix"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/cutest"
	"github.com/gpufd/gpufd/vmm"
)

// lastPiece is what an address space that is used up has no room for, and much
// more than a process needs that goes on without.
const lastPiece = 64 << 20

// TestFault62_NoAddressSpace: a process that has none left cannot attach, keeps
// nothing of what it tried, and says why, to the producer too. With address
// space it can.
func TestFault62_NoAddressSpace(t *testing.T) {
	needsOwnAddresses(t)
	dev, ctx := leavesNothing(t)
	buf := newBuffer(t, ctx, lastPiece, vmm.WithChunkSize(granularity(t, dev)))
	srv := listen(t)
	s := put(t, srv, buf, WithVerdict())
	c := start(t, "runs out of addresses", srv.Path(), "")
	require.True(t, c.out.Scan())
	t.Log(c.out.Text())
	c.says(t, "attached")
	c.end(t)
	ends := 2*tries + 1
	require.NoError(t, s.await(t, Ended, ends).Err)
	for _, e := range s.of(Ended)[:ends-1] {
		require.ErrorIs(t, e.Err, ErrVerdict)
		require.ErrorContains(t, e.Err, "attaching failed: ")
		require.ErrorContains(t, e.Err, "CUDA_ERROR_OUT_OF_MEMORY")
	}
	require.Len(t, s.of(Mapped), 1)
	requireServed(t, srv, ctx)
}

// needsOwnAddresses skips where an emulator shares the process' addresses.
func needsOwnAddresses(t *testing.T) {
	t.Helper()
	if cutest.Emulated() {
		t.Skip("under qemu-user the addresses are the emulator's, too: using them up ends it, and limits are not those of the process")
	}
}

const tries = 3

func childRunsOutOfAddresses() error {
	dev, ctx, err := childDevice()
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
	for range tries {
		for name, opts := range map[string][]AttachOption{"at once": nil, "while it waits": {WithRoom(lastPiece)}} {
			att, err := Attach(context.Background(), os.Getenv(pathEnv), "data", dev, opts...)
			if err := refusedForSpace(att, err); err != nil {
				return fmt.Errorf("reserving %s: %w", name, err)
			}
		}
	}
	if now := cutest.Descriptors(); !maps.Equal(before, now) {
		return fmt.Errorf("descriptors are left: %v, and were %v", now, before)
	}
	for _, r := range taken {
		if err := r.Close(); err != nil {
			return err
		}
	}
	att, err := Attach(context.Background(), os.Getenv(pathEnv), "data", dev)
	if err != nil {
		return fmt.Errorf("with address space: %w", err)
	}
	if err := childReads(ctx, att); err != nil {
		return err
	}
	untilInputEnds("attached")
	return errors.Join(att.Report(context.Background(), nil), att.Close(), ctx.Close())
}

// TestFault62_UsedUpByAttaching: attaching again and again uses a process'
// address space up. Earlier attachments go on, and a process that closes one can
// have another.
func TestFault62_UsedUpByAttaching(t *testing.T) {
	if cutest.Kind() != cu.Soft {
		t.Skip("a GPU's driver gives 128 TiB, which is room for two million attachments")
	}
	needsOwnAddresses(t)
	dev, ctx := leavesNothing(t)
	buf := newBuffer(t, ctx, lastPiece, vmm.WithChunkSize(granularity(t, dev)))
	srv := listen(t)
	s := put(t, srv, buf)
	// Each thread for which the C library makes an arena of its own takes 128 MiB of the
	// addresses that are left, and how many threads there are is Go's affair.
	c := startCommand(t, cutest.Child(soon(t), "attaches too often", pathEnv+"="+srv.Path(), "MALLOC_ARENA_MAX=1"))
	c.says(t, "attached")
	c.end(t)
	require.ErrorIs(t, s.await(t, Ended, 1).Err, ErrVerdict)
	require.NoError(t, s.await(t, Ended, fitting+2).Err)
}

// fitting is how many attachments the child has room for.
const fitting = 5

func childAttachesTooOften() error {
	dev, ctx, err := childDevice()
	if err != nil {
		return err
	}
	keepHeap()
	// Each takes room twice; what is left over is for threads.
	if err := limitAddressSpace(fitting*2*lastPiece + lastPiece*3/2); err != nil {
		return err
	}
	attach := func() (*Attachment, error) {
		return Attach(context.Background(), os.Getenv(pathEnv), "data", dev)
	}
	var all []*Attachment
	for range fitting {
		att, err := attach()
		if err != nil {
			return fmt.Errorf("with %d attachments: %w", len(all), err)
		}
		all = append(all, att)
	}
	if err := refusedForSpace(attach()); err != nil {
		return err
	}
	if err := all[0].Close(); err != nil {
		return err
	}
	if all[0], err = attach(); err != nil {
		return fmt.Errorf("with one less: %w", err)
	}
	for _, att := range all {
		host := make([]byte, 64)
		if err := cu.CopyToHost(ctx, host, att.Buffer().Ptr()); err != nil || string(host) != string(noise(64, 1)) {
			return fmt.Errorf("the producer's bytes are not there, or %w", err)
		}
	}
	untilInputEnds("attached")
	for _, att := range all {
		err = errors.Join(err, att.Close())
	}
	return errors.Join(err, ctx.Close())
}

// keepHeap makes Go's heap take the address space that it will need, before there
// is none. The heap ends the process if it finds none, and does not give it back.
func keepHeap() {
	runtime.KeepAlive(make([]byte, 32<<20))
	runtime.GC()
}

// limitAddressSpace allows this process so many bytes more than it has.
func limitAddressSpace(more uint64) error {
	statm, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return err
	}
	var pages uint64
	if _, err := fmt.Sscan(string(statm), &pages); err != nil {
		return err
	}
	limit := pages*uint64(os.Getpagesize()) + more
	return unix.Setrlimit(unix.RLIMIT_AS, &unix.Rlimit{Cur: limit, Max: limit})
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
