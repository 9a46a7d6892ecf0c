package cu_test

import (
	"encoding/json"
	"errors"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/cutest"
	"github.com/gpufd/gpufd/cu/sys"
)

const ipcSize = 2*mib + 4096

// byteOf reads the byte at p.
func byteOf(t testing.TB, ctx *cu.Context, p cu.DevicePtr) byte {
	t.Helper()
	b := make([]byte, 1)
	require.NoError(t, cu.CopyToHost(ctx, b, p))
	return b[0]
}

// opened is memory of another process, closed when t ends.
func opened(t testing.TB, ctx *cu.Context, h cu.IPCHandle) *cu.IPCMemory {
	t.Helper()
	return untilEnd(t, ok(ctx.OpenIPC(h))(t))
}

// Two processes use the same bytes, without a copy, both ways.
func TestIPCMemoryIsShared(t *testing.T) {
	ctx := cutest.Context(t, cutest.Device(t))
	peer := newPeer(t, 0)
	m := opened(t, ctx, peer.memory(t, ipcSize, 7))
	require.GreaterOrEqual(t, m.Size(), uint64(ipcSize))
	require.Same(t, ctx, m.Context())
	require.EqualValues(t, 7, byteOf(t, ctx, m.Ptr()))
	require.EqualValues(t, 7, byteOf(t, ctx, m.Ptr().Add(ipcSize-1)))
	require.NoError(t, cu.Fill(ctx, m.Ptr(), uint8(9), ipcSize))
	require.NoError(t, ctx.Synchronize(soon(t)))
	require.Equal(t, "true", peer.ask(t, "filled", 0, 9))

	own := ok(ctx.Alloc(4096))(t)
	require.NoError(t, cu.Fill(ctx, own.Ptr(), uint8(5), 4096))
	require.NoError(t, ctx.Synchronize(soon(t)))
	h := ok(own.IPCHandle())(t)
	require.Equal(t, "5", peer.ask(t, "open", h))
	require.Equal(t, h, ok(own.IPCHandle())(t))
	require.NoError(t, m.Close())
	peer.end(t) // it closes first
	require.NoError(t, own.Close())
}

// An address inside memory travels as its memory's handle and an offset.
func TestIPCHandleOfAnAddressInside(t *testing.T) {
	ctx := cutest.Context(t, cutest.Device(t))
	peer := newPeer(t, 0)
	var h cu.IPCHandle
	words := strings.Fields(peer.ask(t, "inside", ipcSize, 12345))
	require.NoError(t, h.UnmarshalText([]byte(words[0])))
	require.Equal(t, "12345", words[1])
	whole := peer.ask(t, "handle", 0)
	require.Equal(t, whole, h.String())
	m := opened(t, ctx, h)
	require.NoError(t, cu.Fill(ctx, m.Ptr(), uint8(3), ipcSize))
	require.NoError(t, ctx.Synchronize(soon(t)))
	require.Equal(t, "true", peer.ask(t, "filled", 0, 3))
	require.NoError(t, m.Close())
	peer.end(t)
}

// FAULTS 10, D16 of docs/driver-facts.md: opened again in the same context it is at the same address,
// counted; a Close too many does nothing, and to the driver itself is an error.
func TestFault10_OpenedTwiceClosedThrice(t *testing.T) {
	s, _, _, ctx := spiedContext(t)
	peer := newPeer(t, 0)
	h := peer.memory(t, ipcSize, 7)
	a := ok(ctx.OpenIPC(h))(t)
	b := ok(ctx.OpenIPC(h))(t)
	require.Equal(t, a.Ptr(), b.Ptr())

	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() { require.NoError(t, a.Close()) })
	}
	wg.Wait()
	require.Equal(t, 1, s.count("cuIpcCloseMemHandle"))
	require.EqualValues(t, 7, byteOf(t, ctx, b.Ptr()), "the other keeps it")
	require.NoError(t, b.Close())
	require.NoError(t, b.Close())
	require.NoError(t, (*cu.IPCMemory)(nil).Close())
	require.Equal(t, 2, s.count("cuIpcCloseMemHandle"))
	require.Equal(t, sys.CUDA_ERROR_INVALID_VALUE, ctx.Caller().CuIpcCloseMemHandle(sys.CUdeviceptr(b.Ptr())))
	require.Error(t, cu.CopyToHost(ctx, make([]byte, 1), b.Ptr()))

	c := opened(t, ctx, h) // and can be opened anew
	require.EqualValues(t, 7, byteOf(t, ctx, c.Ptr()))
	require.NoError(t, c.Close())
	peer.end(t)
}

// D16.
func TestIPCHandleOfOnesOwn(t *testing.T) {
	ctx := cutest.Context(t, cutest.Device(t))
	m := ok(ctx.Alloc(4096))(t)
	h := ok(m.IPCHandle())(t)
	_, err := ctx.OpenIPC(h)
	require.ErrorIs(t, err, cu.ErrInvalidContext)
	require.ErrorContains(t, err, "of this very process")
	require.NoError(t, m.Close())
	require.ErrorIs(t, errOf(m.IPCHandle()), cu.ErrClosed)
	require.ErrorIs(t, errOf((*cu.Memory)(nil).IPCHandle()), cu.ErrClosed)
}

// For memory that legacy IPC cannot share, the error says what kind it is.
func TestIPCHandleOfOtherMemory(t *testing.T) {
	dev, ctx := deviceContext(t)
	virtual, _ := mappedMemory(t, dev, granularity(t, dev))
	pooled := ok(newPool(t, dev).AllocAsync(ctx.NullStream(), 4096))(t)
	pinned := hostMemory(t, ctx, 4096).Ptr()
	peer := newPeer(t, 0)
	theirs := opened(t, ctx, peer.memory(t, ipcSize, 1))
	for want, p := range map[string]cu.DevicePtr{
		"virtual memory of cuMemCreate": virtual,
		"belongs to a memory pool":      pooled.Ptr(),
		"pinned host memory":            pinned,
		"knows no memory there":         8,
		"pass on the handle":            theirs.Ptr(),
	} {
		_, _, err := ctx.IPCHandle(p)
		require.ErrorIs(t, err, cu.ErrInvalidValue, want)
		require.ErrorContains(t, err, want)
	}
	require.NoError(t, errors.Join(theirs.Close(), pooled.Close(), ctx.Synchronize(soon(t))))
	peer.end(t)
}

// Bytes that are no handle are an error and open nothing. A change to a byte that the driver
// ignores opens the same memory.
func TestIPCHandleThatIsNone(t *testing.T) {
	ctx := cutest.Context(t, cutest.Device(t))
	peer := newPeer(t, 0)
	good, event := peer.memory(t, ipcSize, 1), peer.event(t)
	flipped := good
	flipped[20] ^= 1
	require.EqualValues(t, 1, byteOf(t, ctx, opened(t, ctx, flipped).Ptr()))
	for name, h := range map[string]cu.IPCHandle{"zeros": {}, "ones": ones(), "an event's": cu.IPCHandle(event)} {
		m, err := ctx.OpenIPC(h)
		require.Error(t, err, name)
		require.Nil(t, m, name)
	}
	_, err := ctx.OpenIPC(cu.IPCHandle{})
	require.ErrorIs(t, err, cu.ErrInvalidValue)
	require.ErrorContains(t, err, "not a handle")
	require.ErrorIs(t, errOf(ctx.OpenIPCEvent(cu.IPCEventHandle{})), cu.ErrMapFailed)
	require.ErrorIs(t, errOf(ctx.OpenIPCEvent(cu.IPCEventHandle(good))), cu.ErrMapFailed)
}

func ones() (h cu.IPCHandle) {
	for i := range h {
		h[i] = 0xff
	}
	return h
}

func TestIPCHandleText(t *testing.T) {
	h := ones()
	h[0] = 0x1a
	b := ok(json.Marshal(map[string]any{"memory": h, "event": cu.IPCEventHandle(h), "fabric": cu.FabricHandle(h), "pool": cu.PoolPointer(h)}))(t)
	require.Contains(t, string(b), `"1aff`)
	require.Len(t, h.String(), 128)
	var back struct {
		Memory cu.IPCHandle
		Event  cu.IPCEventHandle
		Fabric cu.FabricHandle
		Pool   cu.PoolPointer
	}
	require.NoError(t, json.Unmarshal(b, &back))
	require.Equal(t, h, back.Memory)
	require.Equal(t, h, cu.IPCHandle(back.Event))
	require.Equal(t, h, cu.IPCHandle(back.Fabric))
	require.Equal(t, h, cu.IPCHandle(back.Pool))
	for _, bad := range []string{"", "1a", strings.Repeat("g", 128), strings.Repeat("1", 129)} {
		require.Error(t, back.Memory.UnmarshalText([]byte(bad)))
		require.Error(t, back.Event.UnmarshalText([]byte(bad)))
		require.Error(t, back.Fabric.UnmarshalText([]byte(bad)))
		require.Error(t, back.Pool.UnmarshalText([]byte(bad)))
		require.Equal(t, h, back.Memory, "left alone")
	}
}

// FAULTS 9: a process that has memory open when its owner frees it reads the old bytes or gets an
// error, never the memory of others. Opening it anew is an error.
func TestFault9_OwnerFreesWhatIsOpen(t *testing.T) {
	ctx := cutest.Context(t, cutest.Device(t))
	peer := newPeer(t, 0)
	h := peer.memory(t, ipcSize, 7)
	m := opened(t, ctx, h)
	peer.ask(t, "free", 0)
	require.EqualValues(t, 7, byteOf(t, ctx, m.Ptr()))
	require.NoError(t, m.Close())
	_, err := ctx.OpenIPC(h)
	require.ErrorIs(t, err, cu.ErrInvalidValue)
	require.ErrorContains(t, err, "owner has freed")
	peer.end(t)
}

// FAULTS 13: new memory at the address of freed memory has a handle of its own,
// by which the old is not reached. The old handle may reach the new: the driver
// does not notice, as IPCHandle says, and package share has to.
func TestFault13_OldIPCHandle(t *testing.T) {
	ctx := cutest.Context(t, cutest.Device(t))
	peer := newPeer(t, 0)
	old := peer.memory(t, 32*mib, 7)
	m := opened(t, ctx, old)
	at := peer.ask(t, "address", 0)
	peer.ask(t, "free", 0)
	again := false
	for i := 1; i <= 8 && !again; i++ {
		h := peer.memory(t, 32*mib, 8)
		require.NotEqual(t, old, h)
		again = peer.ask(t, "address", i) == at
		n := ok(ctx.OpenIPC(h))(t)
		require.NotEqual(t, m.Ptr(), n.Ptr())
		require.EqualValues(t, 8, byteOf(t, ctx, n.Ptr()))
		require.NoError(t, n.Close())
	}
	t.Log("at the same address:", again)
	require.NoError(t, m.Close())
	stale, err := ctx.OpenIPC(old)
	if again {
		require.NoError(t, err)
		require.EqualValues(t, 8, byteOf(t, ctx, stale.Ptr()), "the new memory")
		require.NoError(t, stale.Close())
	} else {
		require.ErrorIs(t, err, cu.ErrInvalidValue)
	}
	peer.end(t)
}

// Invariant 8: memory that is open stays usable when its owner is killed. Opening more of it is an
// error.
func TestIPCOwnerIsKilled(t *testing.T) {
	ctx := cutest.Context(t, cutest.Device(t))
	peer := newPeer(t, 0)
	h, late := peer.memory(t, ipcSize, 7), peer.memory(t, ipcSize, 8)
	m := opened(t, ctx, h)
	peer.kill()
	require.EqualValues(t, 7, byteOf(t, ctx, m.Ptr()))
	_, err := ctx.OpenIPC(late)
	require.ErrorIs(t, err, cu.ErrInvalidHandle)
	require.ErrorContains(t, err, "owner of the memory has ended")
	require.NoError(t, m.Close())
}

// Memory of one device is used by another, which is given access.
func TestIPCMemoryOfAnotherDevice(t *testing.T) {
	drv := cutest.Driver(t)
	cutest.TwoDevices(t, drv)
	ctx := cutest.Context(t, firstDevice(t, drv))
	peer := newPeer(t, 1)
	m := opened(t, ctx, peer.memory(t, ipcSize, 7))
	a := ok(ctx.PointerAttributes(m.Ptr()))(t)
	require.Equal(t, ctx.Device().Ordinal(), a.Device, "the device that has opened it")
	require.NoError(t, cu.Fill(ctx, m.Ptr(), uint8(4), ipcSize)) // takes peer access, unlike a copy
	require.NoError(t, ctx.Synchronize(soon(t)))
	require.Equal(t, "true", peer.ask(t, "filled", 0, 4))
	require.NoError(t, m.Close())
	peer.end(t)
}

// The device of the memory need not be visible (seeds/003).
func TestIPCMemoryOfAHiddenDevice(t *testing.T) {
	cutest.TwoDevices(t, cutest.Driver(t))
	peer, blind := newPeer(t, 1), newPeer(t, 0, "CUDA_VISIBLE_DEVICES=0")
	require.Equal(t, "7", blind.ask(t, "open", peer.memory(t, ipcSize, 7)))
	blind.end(t)
	peer.end(t)
}

// Invariants 3 and 5: a context closes what is open in it, once.
func TestContextClosesIPCMemory(t *testing.T) {
	s, _, dev := spied(t)
	ctx := ok(dev.PrimaryContext())(t)
	peer := newPeer(t, 0)
	h := peer.memory(t, ipcSize, 7)
	m := ok(ctx.OpenIPC(h))(t)
	require.Equal(t, []cu.Unclosed{{Kind: "memory of another process", Handle: uintptr(m.Ptr()), Bytes: m.Size()}}, ctx.Unclosed())
	require.NoError(t, ctx.Close())
	require.Equal(t, 1, s.count("cuIpcCloseMemHandle"))
	require.NoError(t, m.Close())
	require.Equal(t, 1, s.count("cuIpcCloseMemHandle"))
	require.ErrorIs(t, errOf(ctx.OpenIPC(h)), cu.ErrClosed)
	require.ErrorIs(t, errOf(ctx.OpenIPCEvent(cu.IPCEventHandle{})), cu.ErrClosed)
	_, _, err := ctx.IPCHandle(m.Ptr())
	require.ErrorIs(t, err, cu.ErrClosed)
	peer.end(t)
}

// Drivers that have the first ABI only open with that.
func TestOpenIPCWithTheFirstABI(t *testing.T) {
	_, _, ctx := driverContext(t, without(t, "cuIpcOpenMemHandle_v2"))
	peer := newPeer(t, 0)
	m := opened(t, ctx, peer.memory(t, ipcSize, 7))
	require.EqualValues(t, 7, byteOf(t, ctx, m.Ptr()))
	require.NoError(t, m.Close())
	peer.end(t)
	none := cutest.Driver(t, without(t, "cuIpcOpenMemHandle_v2", "cuIpcOpenMemHandle"))
	require.ErrorIs(t, errOf(cutest.Context(t, firstDevice(t, none)).OpenIPC(cu.IPCHandle{})), cu.ErrSymbolMissing)
}

// Memory whose size the driver has not told takes copies, also as a part of something else.
func TestIPCMemoryOfUnknownSize(t *testing.T) {
	faults := cutest.NewFaults(t)
	ctx := cutest.Context(t, cutest.Device(t, faults.Option()))
	peer := newPeer(t, 0)
	h := peer.memory(t, ipcSize, 7)
	untold := faults.Fail("cuMemGetAddressRange", cu.ErrNotSupported)
	m := opened(t, ctx, h)
	untold.Stop()
	require.Zero(t, m.Size())
	got := []byte{0}
	require.NoError(t, cu.CopyToHost(ctx, got, m))
	require.Equal(t, []byte{7}, got)
	named := struct {
		*cu.IPCMemory
		name string
	}{m, "x"}
	require.NoError(t, cu.Fill(ctx, named, uint8(9), 1))
	require.NoError(t, cu.CopyToHost(ctx, got, &named))
	require.Equal(t, []byte{9}, got)
	require.NoError(t, cu.Copy2D(ctx, cu.HostSide(got, 1), cu.DeviceSide(named, 1), 1, 1))
	require.NoError(t, m.Close())
	require.ErrorIs(t, cu.Fill(ctx, named, uint8(9), 1), cu.ErrClosed)
	named.IPCMemory = nil
	require.ErrorIs(t, cu.Fill(ctx, named, uint8(9), 1), cu.ErrClosed)
	peer.end(t)
}
