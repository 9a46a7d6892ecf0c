package server

import (
	"os"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/cutest"
	"github.com/gpufd/gpufd/keeper"
	"github.com/gpufd/gpufd/keeper/api"
	"github.com/gpufd/gpufd/keeper/internal/state"
	"github.com/gpufd/gpufd/share"
)

// granule is the size of a small chunk of the pool.
const granule = 2 << 20

// pooled is a keeper with a pool of n small chunks, and a client of it.
func pooled(t testing.TB, n int) (*Server, *client, *cu.Device) {
	t.Helper()
	dev := cutest.Device(t)
	requireHostMemory(t, dev)
	opts := options(newSocket(t))
	opts.Pool = uint64(n) * granule
	s := opened(t, opts)
	c := dialled(t, opts.Socket)
	awaitPool(t, c)
	return s, c, dev
}

// requireHostMemory skips a test where devices have no use for memory of the host.
func requireHostMemory(t testing.TB, dev *cu.Device) {
	t.Helper()
	can, err := dev.Attribute(cu.AttributeHostNUMAVirtualMemoryManagementSupported)
	if err != nil || can == 0 {
		t.Skip("no memory of NUMA nodes here")
	}
}

// awaitPool waits until the pool is as large as it was to be.
func awaitPool(t testing.TB, c *client) {
	t.Helper()
	require.Eventually(t, func() bool {
		p := ok(c.Status(soon(t)))(t).Pool
		require.Empty(t, p.Error)
		return p.Bytes >= p.Wanted
	}, waitLong, waitStep)
}

// chunksOf returns the pool of a keeper, and freeChunks what is free of it.
func chunksOf(s *Server) []state.Chunk {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.state.Pool()
}

func freeChunks(s *Server) []state.Chunk {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.state.FreeChunks()
}

// attached is a reader of the only part of a name, which ends with the test.
func attached(t testing.TB, s *Server, dev *cu.Device, name string) *share.Attachment {
	t.Helper()
	a := ok(share.Attach(soon(t), s.opts.Socket, name, dev, nil))(t)
	t.Cleanup(func() { require.NoError(t, a.Close()) })
	return a
}

// A version is parked: its device's memory is free. The first reader brings it back, with the same name, version, digest
// and bytes.
func TestParkAndUnpark(t *testing.T) {
	cutest.Alone(t, "it counts free memory")
	s, c, dev := pooled(t, 4)
	_, err := c.Put(soon(t), keeper.Put{Name: "x"}, keeper.Part{Device: dev, Size: 2*granule + 3, Write: writeAll(7)})
	require.NoError(t, err)
	before := stat(t, c, "x")
	free := freeOf(t, dev)
	m := ok(c.Park(soon(t), "x", 1))(t)
	require.Equal(t, before.Bytes, m.Bytes)
	require.Equal(t, uint64(1), m.Version)
	require.Positive(t, m.Copy)
	require.GreaterOrEqual(t, m.Seconds, m.Copy)
	require.Eventually(t, func() bool { return freeOf(t, dev) >= free+3*granule }, waitLong, waitStep)
	require.Equal(t, before.Bytes, stat(t, c, "x").ParkedBytes)
	require.Equal(t, uint64(granule), ok(c.Status(soon(t)))(t).Pool.Free)
	require.Zero(t, ok(c.Park(soon(t), "x", 0))(t).Bytes, "it is parked already")

	a := attach(t, c, dev, "x")[0]
	requireBytes(t, a, 7)
	require.Equal(t, uint64(1), a.Data.Version)
	now := stat(t, c, "x")
	require.Equal(t, before.Parts, now.Parts)
	require.Equal(t, before.Digest, now.Digest)
	require.Zero(t, now.ParkedBytes)
	require.Equal(t, uint64(4*granule), ok(c.Status(soon(t)))(t).Pool.Free)
	no := requireCode(t, "conflict", errOf(c.Park(soon(t), "x", 0)))
	require.Equal(t, int32(os.Getpid()), no.Holders[0].PID)
	require.Zero(t, ok(c.Unpark(soon(t), "x", 0))(t).Bytes)
	require.NoError(t, a.Close())

	eventually(t, c, "x", func(n api.Info) bool { return len(n.Holders) == 0 })
	require.Positive(t, ok(c.Park(soon(t), "x", 0))(t).Bytes)
	require.Equal(t, before.Bytes, ok(c.Unpark(soon(t), "x", 1))(t).Bytes)
	requireBytes(t, attach(t, c, dev, "x")[0], 7)
	require.Equal(t, 4, len(freeChunks(s)))
}

func freeOf(t testing.TB, dev *cu.Device) uint64 {
	t.Helper()
	ctx := ok(dev.PrimaryContext())(t)
	defer ctx.Close()
	free, _, err := ctx.MemInfo()
	require.NoError(t, err)
	return free
}

// Readers that have detached keep their leases, and none of them hears of the parking. Several that reattach at once
// cause one unparking, and get the memory at their addresses.
func TestDetachedReadersOfAParkedVersion(t *testing.T) {
	h := hookSteps(t)
	s, c, dev := pooled(t, 2)
	put(t, c, dev, "x", 5)
	var readers []*share.Attachment
	for range 4 {
		readers = append(readers, attached(t, s, dev, "x"))
	}
	at := map[*share.Attachment]cu.DevicePtr{}
	for _, a := range readers {
		at[a] = a.Ptr()
		require.True(t, ok(a.Detach(soon(t), 0))(t))
	}
	var moves atomic.Int64
	count := func(step string) {
		if step == "unparked" {
			moves.Add(1)
		}
	}
	h.Store(&count)
	require.Positive(t, ok(c.Park(soon(t), "x", 0))(t).Bytes)
	for _, h := range stat(t, c, "x").Holders {
		require.True(t, h.Detached)
	}
	var work sync.WaitGroup
	for i, a := range readers {
		work.Go(func() {
			next, err := a.Reattach(soon(t), share.Same)
			if err != nil {
				t.Errorf("reattaching: %v", err)
				return
			}
			if next.Ptr() != at[a] {
				t.Errorf("at %v, and was at %v", next.Ptr(), at[a])
			}
			readers[i] = next
		})
	}
	work.Wait()
	require.Equal(t, int64(1), moves.Load())
	j := ok(newJudge(dev))(t)
	for _, a := range readers {
		require.NoError(t, j.check(a, dataOf(t, a), 5))
		select {
		case <-a.Superseded():
			t.Error("it was told of newer memory")
		case <-a.Done():
			t.Errorf("its lease has ended: %v", a.Err())
		default:
		}
		require.NoError(t, a.Close())
	}
	require.NoError(t, j.close())
}

// A lease that the state does not know yet is no hindrance, either, once its reader has detached.
func TestDetachedBeforeItIsRecorded(t *testing.T) {
	s, c, dev := pooled(t, 1)
	put(t, c, dev, "x", 5)
	hold(s)
	a := attached(t, s, dev, "x")
	require.Len(t, s.holders.soon(), 1)
	require.False(t, s.holders.soon()[0].Holder.Detached)
	require.True(t, ok(a.Detach(soon(t), 0))(t))
	require.Eventually(t, func() bool { return s.holders.soon()[0].Holder.Detached }, waitLong, waitStep)
	s.finish()
	require.True(t, eventually(t, c, "x", func(n api.Info) bool { return len(n.Holders) == 1 }).Holders[0].Detached)
	require.Positive(t, ok(c.Park(soon(t), "x", 0))(t).Bytes)
}
