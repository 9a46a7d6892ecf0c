package vmm_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/cutest"
	"github.com/gpufd/gpufd/kernels"
	"github.com/gpufd/gpufd/vmm"
)

// hostMemory is a granule of memory of node 0, with the driver's books. It skips t
// where there is none.
func hostMemory(t *testing.T) (b *books, dev *cu.Device, ctx *cu.Context, a *vmm.Allocation) {
	t.Helper()
	b, dev, ctx, g := tidy(t)
	can, err := dev.Attribute(cu.AttributeHostNUMAVirtualMemoryManagementSupported)
	if err != nil || can == 0 {
		t.Skip("no memory of NUMA nodes here")
	}
	return b, dev, ctx, untilEnd(t, ok(vmm.CreateHost(dev.Driver(), 0, g))(t))
}

// mapHost maps memory of the host, for device and host to read and write, until t
// ends.
func mapHost(t testing.TB, dev *cu.Device, a *vmm.Allocation) *vmm.Mapping {
	t.Helper()
	r := untilEnd(t, ok(vmm.Reserve(dev.Driver(), a.Size()))(t))
	m := untilEnd(t, ok(r.Map(0, a))(t))
	require.NoError(t, m.SetAccess(cu.ReadWrite, dev))
	require.NoError(t, m.SetHostAccess(cu.ReadWrite))
	return m
}

// C43: host and device use the same bytes at one address, which are none of the
// device's memory.
func TestHostMemoryIsForHostAndDevice(t *testing.T) {
	_, dev, ctx, a := hostMemory(t)
	require.Nil(t, a.Device())
	require.Equal(t, cu.HostNUMALocation(0), a.Location())
	m := mapHost(t, dev, a)
	g := m.Size()
	host := m.HostBytes()
	require.Len(t, host, int(g))
	require.Equal(t, make([]byte, 4096), host[:4096], "zeros at first")

	copy(host, noise(g, 1))
	require.True(t, string(noise(g, 1)) == string(read(t, ctx, m.Ptr(), g)))
	require.NoError(t, cu.Fill(ctx, m.Ptr(), uint8(9), 4096))
	require.Equal(t, strings.Repeat("\t", 4096), string(host[:4096]))

	require.NoError(t, cu.CopyToHost(ctx, host[:64], m.Ptr().Add(8192)), "to where it is itself")
	require.True(t, string(noise(g, 1)[8192:8192+64]) == string(host[:64]))

	k := untilEnd(t, ok(kernels.Load(ctx))(t))
	require.Equal(t, kernels.Checksum(host[:4096]), ok(k.Checksum(t.Context(), ctx.NullStream(), m.Ptr(), 4096))(t), "a kernel reads")
	require.NoError(t, k.FillBytesAsync(ctx.NullStream(), m.Ptr().Add(4090), 3, 7))
	require.NoError(t, ctx.Synchronize(t.Context()))
	require.Equal(t, []byte{9, 7, 7, 7, 9}, host[4089:4094], "and writes")
}

// faults reports whether the host may not do what f does.
func faults(f func()) (yes bool) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() { yes = recover() != nil }()
	f()
	return false
}

// Rights of the host come and go.
func TestHostAccess(t *testing.T) {
	_, dev, ctx, a := hostMemory(t)
	drv := dev.Driver()
	r := untilEnd(t, ok(vmm.Reserve(drv, a.Size()))(t))
	m := ok(r.Map(0, a))(t)
	place := a.Location()
	require.Nil(t, m.HostBytes(), "before SetHostAccess")
	require.ErrorIs(t, m.SetAccess(cu.ReadWrite), vmm.ErrNil, "it has no device of its own")
	require.NoError(t, m.SetAccess(cu.ReadWrite, dev))
	require.NoError(t, cu.Fill(ctx, m.Ptr(), uint8(3), 16))
	for _, access := range []cu.Access{cu.ReadOnly, cu.ReadWrite} {
		require.NoError(t, m.SetHostAccess(access))
		require.Equal(t, access, ok(drv.AccessAt(m.Ptr(), place))(t))
		require.EqualValues(t, 3, m.HostBytes()[15])
		require.Equal(t, access == cu.ReadOnly, faults(func() { m.HostBytes()[0] = 3 }))
	}
	m.HostBytes()[15] = 4
	require.EqualValues(t, 4, read(t, ctx, m.Ptr(), 16)[15])
	require.ErrorIs(t, m.SetHostAccess(2), cu.ErrInvalidValue)
	require.NotNil(t, m.HostBytes(), "as before")
	host, seen := m.HostBytes(), byte(0)
	require.NoError(t, m.SetHostAccess(cu.NoAccess))
	require.Nil(t, m.HostBytes())
	require.True(t, faults(func() { seen = host[0] }))
	require.NoError(t, m.SetHostAccess(cu.ReadOnly))
	require.False(t, faults(func() { seen = host[0] }))
	require.EqualValues(t, 3, seen)
	require.NoError(t, m.Close())
	require.True(t, faults(func() { seen = host[0] }))
	require.NoError(t, m.Close())
	require.Nil(t, m.HostBytes())
	require.ErrorIs(t, m.SetHostAccess(cu.ReadOnly), cu.ErrClosed)
	again := ok(r.Map(0, a))(t)
	require.Nil(t, again.HostBytes(), "the next mapping has rights of its own")
	require.NoError(t, again.Close())
}

func TestHostMemoryErrors(t *testing.T) {
	b, dev, _, a := hostMemory(t)
	drv, g := dev.Driver(), a.Size()
	owed := b.owed()
	for _, c := range []struct {
		node int
		size uint64
		want error
		text string
	}{
		{0, 0, vmm.ErrSize, "0 bytes on host NUMA node 0"}, {0, g + 1, vmm.ErrSize, "granularity"}, {0, ^uint64(0), vmm.ErrSize, "granularity"},
		{0, 1 << 46, cu.ErrOutOfMemory, "on host NUMA node 0"},
		{99, g, cu.ErrInvalidValue, "on host NUMA node 99"},
		{-1, g, cu.ErrInvalidValue, "there is no host NUMA node -1"}, {1 << 40, g, cu.ErrInvalidValue, "there is no host NUMA node"},
	} {
		_, err := vmm.CreateHost(drv, c.node, c.size)
		require.ErrorIs(t, err, c.want)
		require.ErrorContains(t, err, c.text)
		require.Regexp(t, "^vmm: ", err.Error())
	}

	gone := ok(os.Open(os.DevNull))(t)
	require.NoError(t, gone.Close())
	null := untilEnd(t, ok(os.OpenFile(os.DevNull, os.O_RDWR, 0))(t))
	require.ErrorIs(t, errOf(vmm.ImportHost(drv, nil, g)), os.ErrInvalid)
	require.ErrorIs(t, errOf(vmm.ImportHost(drv, gone, g)), os.ErrClosed)
	require.ErrorIs(t, errOf(vmm.ImportHost(drv, null, g)), cu.ErrUnknown)

	// Memory of a device is none of the host, nor the reverse.
	onDevice := ok(vmm.Create(dev, g))(t)
	f := ok(onDevice.Export())(t)
	require.ErrorIs(t, errOf(vmm.ImportHost(drv, f, g)), vmm.ErrDescriptor)
	require.NoError(t, f.Close())
	f = ok(a.Export())(t)
	require.ErrorIs(t, errOf(vmm.ImportAllocation(dev, f, g)), vmm.ErrDescriptor)
	require.NoError(t, f.Close())
	r := ok(vmm.Reserve(drv, g))(t)
	m := ok(r.Map(0, onDevice))(t)
	require.ErrorIs(t, m.SetHostAccess(cu.ReadWrite), vmm.ErrAccess)
	require.Nil(t, m.HostBytes())
	for _, c := range []io.Closer{m, r, onDevice} {
		require.NoError(t, c.Close())
	}
	require.Equal(t, owed, b.owed())
}

// Invariant 4: what fails on the way leaves nothing.
func TestFailedHostMemoryLeavesNothing(t *testing.T) {
	b, dev, ctx, a := hostMemory(t)
	drv := dev.Driver()
	f := untilEnd(t, ok(a.Export())(t))
	require.NotEmpty(t, failEach(t, b, ctx, func() (io.Closer, error) { return vmm.CreateHost(drv, 0, a.Size()) }))
	require.Equal(t, []string{"cuMemImportFromShareableHandle", "cuMemGetAllocationPropertiesFromHandle"},
		failEach(t, b, ctx, func() (io.Closer, error) { return vmm.ImportHost(drv, f, a.Size()) }))
	r := untilEnd(t, ok(vmm.Reserve(drv, a.Size()))(t))
	m := untilEnd(t, ok(r.Map(0, a))(t))
	b.FailNth("cuMemSetAccess", 1, cu.ErrOutOfMemory)
	require.ErrorIs(t, m.SetHostAccess(cu.ReadWrite), cu.ErrOutOfMemory)
	require.Nil(t, m.HostBytes())
}

// Two processes share memory of the host as a descriptor, whose maker may be gone.
func TestHostMemoryOfAnotherProcess(t *testing.T) {
	_, dev, ctx, a := hostMemory(t)
	m := mapHost(t, dev, a)
	copy(m.HostBytes(), noise(m.Size(), 1))
	f := ok(a.Export())(t)
	limit, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := cutest.Child(limit, "shares host memory", doEnv+"="+fmt.Sprint(m.Size()))
	cmd.ExtraFiles = []*os.File{f}
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.NoError(t, f.Close())
	require.True(t, string(noise(m.Size(), 2)) == string(m.HostBytes()))
	require.True(t, string(noise(m.Size(), 2)) == string(read(t, ctx, m.Ptr(), m.Size())))
}

func childSharesHostMemory() error {
	var size uint64
	get(fmt.Sscan(os.Getenv(doEnv), &size))
	drv := get(cutest.Open())
	f := os.NewFile(3, "inherited")
	a, err := vmm.ImportHost(drv, f, size)
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	if _, err := a.Export(); !errors.Is(err, vmm.ErrNotShareable) {
		return fmt.Errorf("export of imported memory: %v", err)
	}
	r := get(vmm.Reserve(drv, size))
	m := get(r.Map(0, a))
	must(a.Close())
	must(m.SetHostAccess(cu.ReadWrite))
	if string(m.HostBytes()) != string(noise(size, 1)) {
		return errors.New("the parent's bytes are not there")
	}
	copy(m.HostBytes(), noise(size, 2))
	return errors.Join(m.Close(), r.Close())
}

// An error says what is missing: a driver that is new enough, or a device.
func TestNoHostMemory(t *testing.T) {
	if cutest.Kind() != cu.Soft {
		t.Skip("an old driver takes the software driver")
	}
	for env, want := range map[string]string{
		"GPUFD_SOFT_VERSION=12010": "memory of NUMA nodes needs CUDA 12.2, and the driver is software driver (CUDA 12.1)",
		"GPUFD_SOFT_VMM=0":         "no device here supports memory of NUMA nodes",
	} {
		limit, cancel := context.WithTimeout(t.Context(), time.Minute)
		out, err := cutest.Child(limit, "no host memory", "GPUFD_SOFT_VERSION=13000", env).CombinedOutput()
		cancel()
		require.NoError(t, err, "%s", out)
		require.Contains(t, string(out), want)
	}
}

func childNoHostMemory() error {
	_, err := vmm.CreateHost(get(cutest.Open()), 0, 2<<20)
	if err == nil {
		return errors.New("there is some")
	}
	fmt.Println(err)
	return nil
}
