package cu_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/cutest"
)

// mappedMemory is memory of the first device, mapped and not yet accessible,
// until the test ends.
func mappedMemory(t testing.TB, dev *cu.Device, size uint64) (cu.DevicePtr, *cu.MemHandle) {
	t.Helper()
	drv := dev.Driver()
	m := ok(dev.CreateMemory(size, cu.HandleFD))(t)
	p := ok(drv.ReserveAddress(size, 0, 0))(t)
	require.NoError(t, drv.Map(p, size, 0, m))
	t.Cleanup(func() {
		require.NoError(t, drv.Unmap(p, size))
		require.NoError(t, drv.FreeAddress(p, size))
		require.NoError(t, m.Close())
	})
	return p, m
}

// The driver tells what memory was made as; D6 of docs/driver-facts.md for what was imported.
func TestMemoryProperties(t *testing.T) {
	drv := cutest.Driver(t)
	dev := firstDevice(t, drv)
	g := granularity(t, dev)
	for _, types := range []cu.HandleType{cu.HandleNone, cu.HandleFD} {
		m := ok(drv.CreateMemory(g, cu.MemProperties{Location: dev.Location(), HandleTypes: types}))(t)
		p := ok(m.Properties())(t)
		require.Equal(t, cu.MemProperties{Type: cu.AllocationPinned, Location: dev.Location(), HandleTypes: types}, p)
		require.NoError(t, m.Close())
		require.ErrorIs(t, errOf(m.Properties()), cu.ErrClosed)
	}
	minimum, recommended, err := drv.Granularity(cu.MemProperties{Location: dev.Location()})
	require.NoError(t, err)
	require.Equal(t, g, minimum)
	require.GreaterOrEqual(t, recommended, minimum)
	require.ErrorIs(t, errOf(drv.CreateMemory(g, cu.MemProperties{})), cu.ErrInvalidValue, "no place")
	_, err = drv.CreateMemory(g, cu.MemProperties{Location: cu.Location{Type: cu.LocationDevice, ID: 99}})
	require.ErrorIs(t, err, cu.ErrInvalidDevice)
	require.Error(t, errOf(drv.CreateMemory(g, cu.MemProperties{Type: 77, Location: dev.Location()})))
}

// Properties are granted or refused, except compression and RDMA, which are wishes.
func TestMemoryWishes(t *testing.T) {
	drv := cutest.Driver(t)
	dev := firstDevice(t, drv)
	can := func(a cu.Attribute) bool {
		v := ok(dev.Attribute(a))(t)
		return v != 0
	}
	m := ok(drv.CreateMemory(granularity(t, dev), cu.MemProperties{Location: dev.Location(), Compressible: true, GPUDirectRDMA: true}))(t)
	p := ok(m.Properties())(t)
	// An H200 has not always granted compression.
	require.True(t, can(cu.AttributeGenericCompressionSupported) || !p.Compressible)
	require.True(t, can(cu.AttributeGPUDirectRDMAWithCUDAVMMSupported) || !p.GPUDirectRDMA)
	require.NoError(t, m.Close())
}

// Memory of the host is there where the device says so, for the host too.
func TestMemoryOnTheHost(t *testing.T) {
	drv, dev, ctx := driverContext(t)
	can, err := dev.Attribute(cu.AttributeHostNUMAVirtualMemoryManagementSupported)
	if can == 0 || err != nil {
		require.Error(t, errOf(drv.CreateMemory(granularity(t, dev), cu.MemProperties{Location: cu.HostNUMALocation(0)})))
		return
	}
	node := ok(dev.Attribute(cu.AttributeHostNUMAID))(t)
	want := cu.MemProperties{Type: cu.AllocationPinned, Location: cu.HostNUMALocation(node), HandleTypes: cu.HandleFD}
	g, _, err := drv.Granularity(want)
	require.NoError(t, err)
	m := ok(drv.CreateMemory(g, want))(t)
	require.Equal(t, want, ok(m.Properties())(t))
	p := ok(drv.ReserveAddress(g, 0, 0))(t)
	require.NoError(t, drv.Map(p, g, 0, m))
	require.NoError(t, drv.SetAccessEach(p, g, cu.LocationAccess{Location: dev.Location(), Access: cu.ReadWrite},
		cu.LocationAccess{Location: want.Location, Access: cu.ReadWrite}))
	require.Equal(t, cu.ReadWrite, ok(drv.AccessAt(p, want.Location))(t))
	require.NoError(t, cu.Fill(ctx, p, uint8(7), g))
	require.Equal(t, []byte{7, 7, 7, 7}, readBack[byte](t, ctx, p.Add(g-4), 4))
	require.NoError(t, drv.Unmap(p, g))
	require.NoError(t, drv.FreeAddress(p, g))
	require.NoError(t, m.Close())
}

// Each place has rights of its own.
func TestAccessOfEach(t *testing.T) {
	drv := cutest.Driver(t)
	dev := firstDevice(t, drv)
	g := granularity(t, dev)
	p, _ := mappedMemory(t, dev, g)
	devices := drv.Devices()
	rights := []cu.LocationAccess{{Location: dev.Location(), Access: cu.ReadWrite}}
	if len(devices) > 1 {
		rights = append(rights, cu.LocationAccess{Location: devices[1].Location(), Access: cu.ReadOnly})
	}
	require.NoError(t, drv.SetAccessEach(p, g, rights...))
	for _, r := range rights {
		require.Equal(t, r.Access, ok(drv.AccessAt(p, r.Location))(t), r.Location.String())
	}
	require.ErrorIs(t, drv.SetAccessEach(p, g), cu.ErrInvalidValue, "nobody")
	require.ErrorIs(t, drv.SetAccessEach(p, g, cu.LocationAccess{Location: dev.Location(), Access: 2}), cu.ErrInvalidValue)
}

// A handle that was retained by address is another for the same memory, of the
// whole size, wherever the address lies in it; invariant 5.
func TestRetainedMemoryIsTheSame(t *testing.T) {
	s, drv, dev, ctx := spiedContext(t)
	g := granularity(t, dev)
	p, own := mappedMemory(t, dev, 2*g)
	require.NoError(t, drv.SetAccess(p, 2*g, cu.ReadWrite, dev))
	again := ok(drv.RetainMemory(p.Add(g + 12345)))(t)
	if drv.Version() >= 11070 {
		require.EqualValues(t, 2*g, again.Size())
	} else {
		require.Zero(t, again.Size(), "cannot be asked for")
	}
	require.NoError(t, own.Close())
	require.Equal(t, 1, s.count("cuMemRelease"))

	q := ok(drv.ReserveAddress(2*g, 0, 0))(t)
	require.NoError(t, drv.Map(q, 2*g, 0, again))
	require.NoError(t, drv.SetAccess(q, 2*g, cu.ReadOnly, dev))
	require.NoError(t, cu.Fill(ctx, p.Add(g), uint32(0x12345678), 1))
	require.EqualValues(t, 0x12345678, readBack[uint32](t, ctx, q.Add(g), 1)[0])
	require.NoError(t, drv.Unmap(q, 2*g))
	require.NoError(t, drv.FreeAddress(q, 2*g))
	for range 2 {
		require.NoError(t, again.Close())
	}
	require.Equal(t, 2, s.count("cuMemRelease"))

	hole := holed(t, dev)
	part := ok(drv.RetainMemory(hole.Add(2*g + 5)))(t)
	if drv.Version() >= 11070 {
		require.Equal(t, g, part.Size(), "not the reservation's")
	}
	require.NoError(t, part.Close())
	require.ErrorIs(t, errOf(drv.RetainMemory(hole.Add(g))), cu.ErrInvalidValue)
	m := alloc(t, ctx, 4096)
	require.ErrorIs(t, errOf(drv.RetainMemory(m.Ptr())), cu.ErrInvalidValue)
	require.ErrorIs(t, errOf(drv.RetainMemory(4096)), cu.ErrInvalidValue)
}

// A dma-buf is there where the device says so, and nowhere else.
func TestDMABuf(t *testing.T) {
	drv := cutest.Driver(t)
	dev := firstDevice(t, drv)
	g := granularity(t, dev)
	p, _ := mappedMemory(t, dev, g)
	require.NoError(t, drv.SetAccess(p, g, cu.ReadWrite, dev))
	can := ok(dev.Attribute(cu.AttributeDMABufSupported))(t)
	f, err := drv.DMABuf(p, g, 0)
	if lacks(t, drv, "cuMemGetHandleForAddressRange", err) {
		return
	}
	if can == 0 {
		require.ErrorIs(t, err, cu.ErrNotSupported)
		return
	}
	require.NoError(t, err)
	require.NoError(t, f.Close())
}

func TestLocationText(t *testing.T) {
	for want, l := range map[string]cu.Location{
		"device 1":             {Type: cu.LocationDevice, ID: 1},
		"host":                 cu.HostLocation(),
		"host NUMA node 2":     cu.HostNUMALocation(2),
		"host, this NUMA node": {Type: cu.LocationHostNUMACurrent},
		"Location(77, 3)":      {Type: 77, ID: 3},
	} {
		require.Equal(t, want, l.String())
	}
}
