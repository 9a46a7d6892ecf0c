package kernels_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/cutest"
	"github.com/gpufd/gpufd/vmm"
)

// mapPeer gives k size bytes of memory of the second device, as a member of a ring
// has them: exported, imported and mapped for the first one. Without two devices
// that reach each other t is skipped.
func mapPeer(t testing.TB, k bench, size uint64) (peer *cu.Device, mapped cu.DevicePtr) {
	t.Helper()
	dev := k.ctx.Device()
	_, peer = cutest.TwoDevices(t, dev.Driver())
	if can, err := dev.CanAccessPeer(peer); err != nil || !can {
		t.Skipf("takes two devices that reach each other: %v", err)
	}
	granularity := ok(vmm.Granularity(peer))(t)
	size, _ = vmm.AlignUp(size, granularity)
	made := ok(vmm.Create(peer, size))(t)
	file := ok(made.Export())(t)
	chunk := ok(vmm.ImportAllocation(peer, file, size))(t)
	room := ok(vmm.Reserve(dev.Driver(), size))(t)
	m := ok(room.Map(0, chunk))(t)
	for _, closer := range []interface{ Close() error }{made, file, chunk} {
		require.NoError(t, closer.Close())
	}
	t.Cleanup(func() {
		require.NoError(t, m.Close())
		require.NoError(t, room.Close())
	})
	require.NoError(t, m.SetAccess(cu.ReadWrite, dev))
	return peer, m.Ptr()
}

// fillPeer fills a peer's chunk through the mapping, and checks it there.
func fillPeer(t testing.TB, k bench, mapped cu.DevicePtr, size uint64) {
	t.Helper()
	require.NoError(t, k.FillAsync(k.s, mapped, size, 0, 1))
	require.Zero(t, ok(k.Check(soon(t), k.s, mapped, size, 0, 1))(t))
}

// Kernels of one device work on the memory of another.
func TestPeersChunk(t *testing.T) {
	const size = 1<<20 + 3
	k := newBench(t, size)
	_, mapped := mapPeer(t, k, size)
	fillPeer(t, k, mapped, size)
	require.NoError(t, k.CopyAsync(k.s, k.DevicePtr, mapped, size))
	require.Zero(t, ok(k.Check(soon(t), k.s, k.DevicePtr, size, 0, 1))(t))
}
