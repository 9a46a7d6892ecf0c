package cu_test

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ebitengine/purego"
	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/cutest"
	"github.com/gpufd/gpufd/cu/sys"
)

func TestDevicesAreFoundByOrdinalAndUUID(t *testing.T) {
	drv := cutest.Driver(t)
	for i, want := range drv.Devices() {
		dev := ok(drv.Device(i))(t)
		require.Same(t, want, dev)
		require.Equal(t, i, dev.Ordinal())
		require.NotEmpty(t, dev.Name())
		require.NotEqual(t, cu.UUID{}, dev.UUID())

		require.Same(t, want, ok(drv.DeviceByUUID(want.UUID()))(t))

		id := ok(cu.ParseUUID(want.UUID().String()))(t)
		require.Equal(t, want.UUID(), id)
		for _, name := range []string{id.String(), strings.ToUpper(id.String()), id.String()[:len(id.String())-1]} {
			require.Same(t, want, ok(drv.FindDevice(name))(t))
		}
	}
	require.Zero(t, ok(drv.FindDevice("0"))(t).Ordinal())
}

// FAULTS 39, 42: an unknown device is an error that says what there is.
func TestFault39and42_UnknownDeviceListsTheVisibleOnes(t *testing.T) {
	drv := cutest.Driver(t)
	have := drv.Devices()[0].String()
	for _, name := range []string{"64", "-1", "gpu0", "", "GPU-", "GPU-ffffffff-ffff-ffff-ffff-ffffffffffff", "MIG-ffffffff", drv.Devices()[0].UUID().String() + "0"} {
		_, err := drv.FindDevice(name)
		var none *cu.NoDeviceError
		require.ErrorAs(t, err, &none, "%q", name)
		require.Equal(t, name, none.Want)
		require.ErrorContains(t, err, have)
	}
	require.ErrorContains(t, errOf(drv.FindDevice("")), `no device "" here`)
	require.ErrorContains(t, errOf(drv.DeviceByUUID(cu.UUID{})), "GPU-00000000-0000-0000-0000-000000000000")
}

func TestUUIDText(t *testing.T) {
	u := cu.UUID{0x8f, 0x7d, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 0xff}
	text := "GPU-8f7d0102-0304-0506-0708-090a0b0c0dff"
	require.Equal(t, text, u.String())
	for _, s := range []string{text, "MIG" + text[3:], "GPU-8F7D0102-0304-0506-0708-090A0B0C0DFF"} {
		require.Equal(t, u, ok(cu.ParseUUID(s))(t))
	}
	for _, s := range []string{"", "GPU-", text[4:], text + "00", text[:len(text)-2], "CPU" + text[3:], strings.Replace(text, "f", "g", 1)} {
		require.Error(t, errOf(cu.ParseUUID(s)), "%q", s)
	}
}

func TestDeviceTellsWhatItIs(t *testing.T) {
	dev := cutest.Device(t)
	require.Positive(t, ok(dev.TotalMemory())(t))
	major, _, err := dev.ComputeCapability()
	require.NoError(t, err)
	require.GreaterOrEqual(t, major, 6)
	require.True(t, ok(dev.SupportsVMM())(t))
	require.True(t, ok(dev.SupportsFD())(t))
	require.Equal(t, 32, ok(dev.Attribute(cu.AttributeWarpSize))(t))
	require.ErrorIs(t, errOf(dev.Attribute(cu.Attribute(1<<20))), cu.ErrInvalidValue)
}

// Every attribute that the driver knows, by what it is called in C.
func TestAttributes(t *testing.T) {
	s, _, dev := spied(t)
	all, err := dev.Attributes()
	require.NoError(t, err)
	require.Equal(t, 32, all[cu.AttributeWarpSize])
	require.Greater(t, len(all), 100)
	for a, v := range all {
		named, ok := cu.ParseAttribute(a.String())
		require.True(t, ok, a.String())
		require.Equal(t, a, named)
		now, err := dev.Attribute(a)
		require.NoError(t, err)
		require.Equal(t, v, now, a.String())
	}
	for _, name := range []string{"CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED",
		"CU_DEVICE_ATTRIBUTE_VIRTUAL_ADDRESS_MANAGEMENT_SUPPORTED", "virtual_memory_management_supported"} {
		a, ok := cu.ParseAttribute(name)
		require.True(t, ok, name)
		require.Equal(t, cu.AttributeVirtualMemoryManagementSupported, a)
	}
	for _, name := range []string{"", "MAX", "CU_DEVICE_ATTRIBUTE_", "warp", "WARP_SIZE "} {
		_, ok := cu.ParseAttribute(name)
		require.False(t, ok, "%q", name)
	}

	// Older drivers do not know them all; that is no error, but others are.
	s.Fail("cuDeviceGetAttribute", cu.ErrInvalidValue)
	all, err = dev.Attributes()
	require.NoError(t, err)
	require.Empty(t, all)
	s.Fail("cuDeviceGetAttribute", cu.ErrDeinitialized)
	require.ErrorIs(t, errOf(dev.Attributes()), cu.ErrDeinitialized)
}

func TestDeviceIsFoundByPCIAddress(t *testing.T) {
	s, drv, _ := spied(t)
	for _, want := range drv.Devices() {
		id := ok(want.PCIBusID())(t)
		require.Regexp(t, `^[0-9a-fA-F]{4,}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-9a-fA-F]$`, id)
		for _, name := range []string{id, strings.ToLower(id), strings.TrimSuffix(id, ".0")} {
			require.Same(t, want, ok(drv.DeviceByPCIBusID(name))(t, name))
		}
	}
	for _, name := range []string{"ffff:ff:1f.0", "", "gpu0"} {
		_, err := drv.DeviceByPCIBusID(name)
		var none *cu.NoDeviceError
		require.ErrorAs(t, err, &none, name)
		require.Equal(t, "at PCI address "+name, none.Want)
		at, err2 := drv.Devices()[0].PCIBusID()
		require.NoError(t, err2)
		require.ErrorContains(t, err, at+" "+drv.Devices()[0].String())
	}
	s.Fail("cuDeviceGetByPCIBusId", cu.ErrDeinitialized)
	require.ErrorIs(t, errOf(drv.DeviceByPCIBusID("0000:01:00.0")), cu.ErrDeinitialized)
}

func TestComputeMode(t *testing.T) {
	mode := ok(cutest.Device(t).ComputeMode())(t)
	require.Contains(t, []cu.ComputeMode{cu.ComputeModeDefault, cu.ComputeModeExclusiveProcess}, mode)
	require.Equal(t, "CU_COMPUTEMODE_DEFAULT", cu.ComputeModeDefault.String())
}

// A MIG instance is known by having another UUID than its GPU, and is printed
// as one.
func TestMIGInstance(t *testing.T) {
	whole := cutest.Device(t)
	require.False(t, whole.IsMIG(), "the tests want a whole GPU")
	parent := purego.NewCallback(func(out *sys.CUuuid, _ sys.CUdevice) uintptr {
		out.Bytes = [16]uint8{0xaa}
		return 0
	})
	r := driverResolver(t)
	drv := cutest.Driver(t, cu.WithResolver(func(symbol string) (uintptr, error) {
		if symbol == "cuDeviceGetUuid" {
			return parent, nil
		}
		return r(symbol)
	}))
	mig := firstDevice(t, drv)
	require.True(t, mig.IsMIG())
	require.Equal(t, whole.UUID(), mig.UUID())
	id := strings.Replace(whole.UUID().String(), "GPU-", "MIG-", 1)
	require.Contains(t, mig.String(), "("+id+")")
	require.Same(t, mig, ok(drv.FindDevice(id))(t))

	// With one of the functions it cannot be told.
	for _, missing := range []string{"cuDeviceGetUuid", "cuDeviceGetUuid_v2"} {
		require.False(t, firstDevice(t, cutest.Driver(t, without(t, missing))).IsMIG())
	}
}

// The driver is asked for each kind of handle once, if it answers.
func TestGranularityIsRemembered(t *testing.T) {
	s, _, dev := spied(t)
	const call = "cuMemGetAllocationGranularity"
	full := s.Fail(call, cu.ErrOutOfMemory)
	_, _, err := dev.Granularity(cu.HandleFD)
	require.ErrorIs(t, err, cu.ErrOutOfMemory)
	full.Stop()
	for range 3 {
		granularity(t, dev)
	}
	require.Equal(t, 2, s.count(call), "the minimum and what is recommended")
	_, _, err = dev.Granularity(cu.HandleNone)
	require.NoError(t, err)
	require.Equal(t, 4, s.count(call))
}

func TestSynchronizeWaitsOnlyForAnActiveContext(t *testing.T) {
	s, _, dev := spied(t)
	require.NoError(t, dev.Synchronize(t.Context()))
	if cutest.Kind() == cu.Soft { // on a GPU, cutest.Main keeps a context
		require.Zero(t, s.count("cuCtxSynchronize"), "no context, no work to wait for")
	}
	ctx := cutest.Context(t, dev)
	m := ok(ctx.Alloc(1 << 20))(t)
	require.NoError(t, cu.Fill(ctx, m.Ptr(), uint8(1), m.Size()))
	before := s.count("cuCtxSynchronize")
	require.NoError(t, dev.Synchronize(t.Context()))
	require.Equal(t, before+1, s.count("cuCtxSynchronize"))
	require.NoError(t, ctx.Synchronize(t.Context()))
	require.NoError(t, m.Close())
}

// A wait can be given up though the work is of another reference to the primary
// context, which Device.Synchronize always looks at from outside.
func TestFault64_WaitForAnotherReferencesStreamIsGivenUp(t *testing.T) {
	dev := cutest.Device(t)
	ctx, twin := cutest.Context(t, dev), cutest.Context(t, dev)
	m := ok(ctx.Alloc(4096))(t)
	require.NoError(t, cu.Fill(ctx, m.Ptr(), uint32(0), 1))
	require.NoError(t, ctx.Synchronize(soon(t)))
	waits, writes := newStream(t, ctx), newStream(t, ctx)
	require.NoError(t, waits.WaitValue32(m.Ptr(), 1, cu.WaitEQ))
	free := sync.OnceValue(func() error { return writes.WriteValue32(m.Ptr(), 1, cu.WriteDefault) })
	defer time.AfterFunc(10*time.Second, func() { _ = free() }).Stop() // so that a failure ends

	for name, wait := range map[string]func(context.Context) error{"device": dev.Synchronize, "twin": twin.Synchronize} {
		short, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		require.ErrorIs(t, wait(short), context.DeadlineExceeded, name)
		cancel()
	}
	require.NoError(t, free())
	require.NoError(t, dev.Synchronize(soon(t)))
	require.NoError(t, m.Close())
}
