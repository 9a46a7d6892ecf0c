package cu_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/cutest"
)

// The driver knows whose memory an address is, and what a context may do there.
func TestPointerAttributes(t *testing.T) {
	drv, dev, ctx := driverContext(t)
	g := granularity(t, dev)
	mem := alloc(t, ctx, 1000)
	pinned := hostMemory(t, ctx, 5000).Ptr()
	pages := registered(t, ctx, pages(t, 8192)).Ptr()
	virtual, _ := mappedMemory(t, dev, g)
	readable, _ := mappedMemory(t, dev, g)
	require.NoError(t, drv.SetAccess(readable, g, cu.ReadOnly, dev))
	hole := holed(t, dev)
	for name, x := range map[string]struct {
		p    cu.DevicePtr
		want cu.PointerAttributes
	}{
		"device": {mem.Ptr(), cu.PointerAttributes{
			Type: cu.MemoryDevice, Context: ctx.Handle(), RangeStart: mem.Ptr(), RangeSize: 1000,
			Mapped: true, LegacyIPC: true, DevicePtr: mem.Ptr() + 10, Access: cu.ReadWrite,
		}},
		"pinned": {pinned, cu.PointerAttributes{
			Type: cu.MemoryHost, Context: ctx.Handle(), RangeStart: pinned, RangeSize: 5000, HostPtr: uintptr(pinned) + 10,
			Mapped: true, DevicePtr: pinned + 10, Access: cu.ReadWrite,
		}},
		"registered": {pages, cu.PointerAttributes{
			Type: cu.MemoryHost, Context: ctx.Handle(), RangeStart: pages, RangeSize: 8192, HostPtr: uintptr(pages) + 10,
			Mapped: true, DevicePtr: pages + 10, Access: cu.ReadWrite,
		}},
		"mapped, no access": {virtual, cu.PointerAttributes{
			Type: cu.MemoryDevice, RangeStart: virtual, RangeSize: g, Mapped: true, HandleTypes: cu.HandleFD,
		}},
		"mapped, read-only": {readable, cu.PointerAttributes{
			Type: cu.MemoryDevice, RangeStart: readable, RangeSize: g, Mapped: true, HandleTypes: cu.HandleFD,
			DevicePtr: readable + 10, Access: cu.ReadOnly,
		}},
		"mapped, last of three": {hole.Add(2 * g), cu.PointerAttributes{
			Type: cu.MemoryDevice, RangeStart: hole, RangeSize: 3 * g, Mapped: true, HandleTypes: cu.HandleFD,
			DevicePtr: hole.Add(2*g + 10), Access: cu.ReadWrite,
		}},
		"reserved": {hole.Add(g), cu.PointerAttributes{
			Device: -2, RangeStart: hole, RangeSize: 3 * g, HostPtr: uintptr(hole.Add(g + 10)),
		}},
	} {
		a := ok(ctx.PointerAttributes(x.p.Add(10)))(t, name)
		require.Equal(t, x.want.Mapped, a.BufferID != 0, name)
		if x.want.Mapped && drv.Version() >= 11070 {
			require.NotZero(t, a.BlockID, name)
			require.LessOrEqual(t, a.MappingStart, x.p, name)
			require.Greater(t, a.MappingStart.Add(a.MappingSize), x.p.Add(10), name)
		}
		a.BufferID, a.BlockID, a.MappingStart, a.MappingSize = 0, 0, 0, 0
		a.GPUDirectRDMA = false // is as the device can
		require.Equal(t, x.want, a, name)

		x.want.DevicePtr, x.want.Access = 0, 0
		b := ok(drv.PointerAttributes(x.p.Add(10)))(t, name)
		b.BufferID, b.BlockID, b.MappingStart, b.MappingSize, b.GPUDirectRDMA = 0, 0, 0, 0, false
		require.Equal(t, x.want, b, name)
	}
}

// The same memory at two addresses is one block of two buffers.
func TestAliasesAreOneBlock(t *testing.T) {
	drv := cutest.Driver(t)
	if drv.Version() < 11070 {
		t.Skip("CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID came with CUDA 11.7")
	}
	dev := firstDevice(t, drv)
	g := granularity(t, dev)
	p, m := mappedMemory(t, dev, g)
	q := ok(drv.ReserveAddress(2*g, 0, 0))(t)
	require.NoError(t, drv.Map(q.Add(g), g, 0, m))
	a := ok(drv.PointerAttributes(p))(t)
	b := ok(drv.PointerAttributes(q.Add(2*g - 1)))(t)
	require.Equal(t, a.BlockID, b.BlockID)
	require.Equal(t, []cu.DevicePtr{q, q.Add(g)}, []cu.DevicePtr{b.RangeStart, b.MappingStart})
	require.Equal(t, []uint64{2 * g, g}, []uint64{b.RangeSize, b.MappingSize})
	require.NoError(t, drv.Unmap(q.Add(g), g))
	require.NoError(t, drv.FreeAddress(q, 2*g))
}

func TestSyncMemops(t *testing.T) {
	drv, _, ctx := driverContext(t)
	mem, other := alloc(t, ctx, 1000), alloc(t, ctx, 1000)
	require.NoError(t, drv.SyncMemops(mem.Ptr()))
	require.True(t, ok(drv.PointerAttributes(mem.Ptr()))(t).SyncMemops)
	require.False(t, ok(drv.PointerAttributes(other.Ptr()))(t).SyncMemops)
	require.ErrorIs(t, drv.SyncMemops(0), cu.ErrInvalidValue)
	p, _ := mappedMemory(t, firstDevice(t, drv), granularity(t, firstDevice(t, drv)))
	require.ErrorIs(t, drv.SyncMemops(p), cu.ErrNotSupported)
}

func TestMemoryTypeText(t *testing.T) {
	require.Equal(t, "unknown host device array unified MemoryType(9)",
		cu.MemoryType(0).String()+" "+cu.MemoryHost.String()+" "+cu.MemoryDevice.String()+" "+
			cu.MemoryArray.String()+" "+cu.MemoryUnified.String()+" "+cu.MemoryType(9).String())
}
