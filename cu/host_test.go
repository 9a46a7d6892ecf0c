package cu_test

import (
	"errors"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/cutest"
)

// hostMemory is pinned memory until the test ends.
func hostMemory(t testing.TB, ctx *cu.Context, size uint64) *cu.HostMemory {
	t.Helper()
	m, err := ctx.AllocHost(size, 0)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, m.Close()) })
	return m
}

// registered pins b until the test ends.
func registered(t testing.TB, ctx *cu.Context, b []byte) *cu.HostRegistration {
	t.Helper()
	m, err := ctx.RegisterHost(b, 0)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, m.Close()) })
	return m
}

// pages is memory of mmap until the test ends.
func pages(t testing.TB, size int) []byte {
	t.Helper()
	b, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, unix.Munmap(b)) })
	return b
}

// The host and the device see the same bytes.
func TestPinnedMemory(t *testing.T) {
	s, drv := spied(t)
	ctx := cutest.Context(t, firstDevice(t, drv))
	for _, flags := range []cu.HostFlags{0, cu.HostPortable, cu.HostMapped, cu.HostWriteCombined, cu.HostPortable | cu.HostMapped | cu.HostWriteCombined} {
		m, err := ctx.AllocHost(10_000, flags)
		require.NoError(t, err)
		require.Len(t, m.Bytes(), 10_000)
		require.EqualValues(t, 10_000, m.Size())
		have, err := m.Flags()
		require.NoError(t, err)
		require.Equal(t, (flags|cu.HostMapped)&^cu.HostPortable, have&^cu.HostPortable)

		p, err := m.DevicePtr()
		require.NoError(t, err)
		require.NoError(t, cu.Fill(ctx, p, uint8(7), 5000))
		require.NoError(t, ctx.Synchronize(t.Context()))
		require.Equal(t, []byte{7, 7}, m.Bytes()[4998:5000])
		words, err := cu.HostSlice[uint32](m)
		require.NoError(t, err)
		require.Len(t, words, 2500)
		words[0] = 0x01020304
		mem := alloc(t, ctx, 4)
		require.NoError(t, cu.Copy(ctx, mem.Ptr(), p, 4))
		got := make([]byte, 4)
		require.NoError(t, cu.CopyToHost(ctx, got, mem.Ptr()))
		require.Equal(t, []byte{4, 3, 2, 1}, got)

		for range 2 {
			require.NoError(t, m.Close())
		}
		require.Nil(t, m.Bytes())
		before := s.calls()
		_, err = cu.HostSlice[byte](m)
		require.ErrorIs(t, err, cu.ErrClosed)
		_, err = m.DevicePtr()
		require.ErrorIs(t, err, cu.ErrClosed)
		_, err = m.Flags()
		require.ErrorIs(t, err, cu.ErrClosed)
		require.Equal(t, before, s.calls())
	}
	require.Equal(t, 5, s.count("cuMemFreeHost"))
}

func TestHostSlices(t *testing.T) {
	ctx := cutest.Context(t, cutest.Device(t))
	m := hostMemory(t, ctx, 30)
	_, err := cu.HostSlice[*int](m)
	require.ErrorIs(t, err, cu.ErrPointers)
	pixels, err := cu.HostSlice[pixel](m)
	require.NoError(t, err)
	require.Len(t, pixels, 1)
	none, err := cu.HostSlice[struct{}](m)
	require.NoError(t, err)
	require.Empty(t, none)
}

func TestPinnedMemoryOfNothing(t *testing.T) {
	ctx := cutest.Context(t, cutest.Device(t))
	m, err := ctx.AllocHost(0, 0)
	require.NoError(t, err)
	require.Empty(t, m.Bytes())
	none, err := cu.HostSlice[uint32](m)
	require.NoError(t, err)
	require.Empty(t, none)
	require.NoError(t, m.Close())
}

func TestPinnedMemoryErrors(t *testing.T) {
	ctx := cutest.Context(t, cutest.Device(t))
	_, err := ctx.AllocHost(4096, 1<<20)
	require.ErrorIs(t, err, cu.ErrInvalidValue)
	_, err = ctx.AllocHost(1<<46, 0)
	require.ErrorIs(t, err, cu.ErrOutOfMemory)
}

// Registered memory is the caller's, before and after.
func TestRegisteredMemory(t *testing.T) {
	s, drv := spied(t)
	ctx := cutest.Context(t, firstDevice(t, drv))
	for name, b := range map[string][]byte{
		"mmap": pages(t, 3*4096), "Go heap": make([]byte, 10_001)[1:], "part of a mapping": pages(t, 3*4096)[100:8000],
	} {
		t.Run(name, func(t *testing.T) {
			m, err := ctx.RegisterHost(b, cu.RegisterPortable|cu.RegisterMapped)
			require.NoError(t, err)
			_, err = ctx.RegisterHost(b, 0)
			require.ErrorIs(t, err, cu.ErrHostMemoryAlreadyRegistered)
			p, err := m.DevicePtr()
			require.NoError(t, err)
			require.NoError(t, cu.Fill(ctx, p.Add(1), uint8(9), uint64(len(b)-1)))
			require.NoError(t, ctx.Synchronize(t.Context()))
			require.Equal(t, []byte{0, 9, 9}, append(append([]byte(nil), b[:2]...), b[len(b)-1]))
			require.Equal(t, b, m.Bytes())

			unregistered := s.count("cuMemHostUnregister")
			for range 2 {
				require.NoError(t, m.Close())
			}
			require.Equal(t, unregistered+1, s.count("cuMemHostUnregister"))
			_, err = m.DevicePtr()
			require.ErrorIs(t, err, cu.ErrClosed)
			require.EqualValues(t, 9, b[1], "it stays")
			again, err := ctx.RegisterHost(b, 0)
			require.NoError(t, err)
			require.NoError(t, again.Close())
		})
	}
}

// Pieces may lie beside each other, in one page too, but not overlap.
func TestRegisteredMemoryOverlaps(t *testing.T) {
	ctx := cutest.Context(t, cutest.Device(t))
	b := pages(t, 3*4096)
	one, err := ctx.RegisterHost(b[100:5000], 0)
	require.NoError(t, err)
	for _, part := range [][]byte{b[100:101], b[4999:5000], b[:101], b[4999:9000], b, b[200:300]} {
		_, err := ctx.RegisterHost(part, 0)
		require.ErrorIs(t, err, cu.ErrHostMemoryAlreadyRegistered)
	}
	registered(t, ctx, b[:100])
	registered(t, ctx, b[5000:])
	p, err := one.DevicePtr()
	require.NoError(t, err)
	require.NoError(t, one.Close())
	require.ErrorIs(t, cu.Fill(ctx, p, uint8(1), 1), cu.ErrInvalidValue, "it is not the device's any more")
	registered(t, ctx, b[100:5000])
	require.NoError(t, cu.Fill(ctx, p, uint8(1), 4900))
	require.NoError(t, ctx.Synchronize(t.Context()))
	require.Equal(t, []byte{0, 1}, b[99:101])
}

func TestRegisterErrors(t *testing.T) {
	ctx := cutest.Context(t, cutest.Device(t))
	for what, b := range map[string][]byte{"nothing": nil, "pinned": hostMemory(t, ctx, 4096).Bytes()} {
		_, err := ctx.RegisterHost(b, 0)
		require.ErrorIs(t, err, cu.ErrInvalidValue, what)
	}
	_, err := ctx.RegisterHost(make([]byte, 4096), 1<<20)
	require.ErrorIs(t, err, cu.ErrInvalidValue, "no such flag")
	_, err = ctx.RegisterHost(make([]byte, 4096), cu.RegisterIOMemory)
	require.ErrorIs(t, err, cu.ErrInvalidValue, "no memory of a device")
}

// The device may only read what is registered read-only, which memory that
// cannot be written must be.
func TestRegisteredReadOnly(t *testing.T) {
	dev := cutest.Device(t)
	ctx := cutest.Context(t, dev)
	can, err := dev.Attribute(cu.AttributeReadOnlyHostRegisterSupported)
	require.NoError(t, err)
	if can == 0 {
		t.Skip("the device has no AttributeReadOnlyHostRegisterSupported")
	}
	b := pages(t, 4096)
	copy(b, "read me")
	require.NoError(t, unix.Mprotect(b, unix.PROT_READ))
	_, err = ctx.RegisterHost(b, 0)
	require.ErrorIs(t, err, cu.ErrInvalidValue)
	m, err := ctx.RegisterHost(b, cu.RegisterReadOnly)
	require.NoError(t, err)
	p, err := m.DevicePtr()
	require.NoError(t, err)
	require.ErrorIs(t, cu.Fill(ctx, p, uint8(1), 1), cu.ErrInvalidValue)
	mem, got := alloc(t, ctx, 7), make([]byte, 7)
	require.NoError(t, cu.Copy(ctx, mem.Ptr(), p, 7))
	require.NoError(t, cu.CopyToHost(ctx, got, mem.Ptr()))
	require.Equal(t, "read me", string(got))
	require.NoError(t, m.Close())
}

// A context's Close gives back what is pinned in it.
func TestContextUnpins(t *testing.T) {
	s, drv := spied(t)
	ctx, err := firstDevice(t, drv).PrimaryContext()
	require.NoError(t, err)
	m, err := ctx.AllocHost(4096, 0)
	require.NoError(t, err)
	r, err := ctx.RegisterHost(make([]byte, 4096), 0)
	require.NoError(t, err)
	require.NoError(t, ctx.Close())
	require.Equal(t, 1, s.count("cuMemFreeHost"))
	require.Equal(t, 1, s.count("cuMemHostUnregister"))
	require.Nil(t, m.Bytes())
	require.NoError(t, m.Close())
	require.NoError(t, r.Close())
	require.NoError(t, (*cu.HostMemory)(nil).Close())
	require.NoError(t, (*cu.HostRegistration)(nil).Close())
}

// The garbage collector must not free memory that slices may be of.
func TestLostPinnedMemoryIsReported(t *testing.T) { runChild(t, "lost pinned memory") }

func childLostPinnedMemory() error {
	cutest.ExpectLeaks()
	drv, err := cutest.Open()
	if err != nil {
		return err
	}
	b, err := lostHostMemory(drv)
	if err != nil {
		return err
	}
	for range 1000 {
		runtime.GC()
		if leaks := cutest.TakeLeaks(); len(leaks) > 0 {
			b[0] = 1
			if !strings.Contains(leaks[0].What, "a context with 4096 bytes of memory") {
				return errors.New(leaks[0].What)
			}
			return nil
		}
		time.Sleep(time.Millisecond)
	}
	return errors.New("it was not reported")
}

func lostHostMemory(drv *cu.Driver) ([]byte, error) {
	dev, err := drv.Device(0)
	if err != nil {
		return nil, err
	}
	ctx, err := dev.PrimaryContext()
	if err != nil {
		return nil, err
	}
	m, err := ctx.AllocHost(4096, 0)
	if err != nil {
		return nil, err
	}
	return m.Bytes(), nil
}

func TestPitchedMemory(t *testing.T) {
	s, drv := spied(t)
	ctx := cutest.Context(t, firstDevice(t, drv))
	for _, size := range []uint32{4, 8, 16} {
		m, err := ctx.AllocPitch(700, 9, size)
		require.NoError(t, err)
		require.EqualValues(t, []uint64{700, 9, 9 * m.Pitch()}, []uint64{m.Width(), m.Height(), m.Size()})
		require.GreaterOrEqual(t, m.Pitch(), uint64(700))
		require.Zero(t, m.Pitch()%256)
		src, got := make([]byte, 6300), make([]byte, 6300)
		for i := range src {
			src[i] = byte(i * 3)
		}
		require.NoError(t, cu.Copy2D(ctx, m.Side(), cu.HostSide(src, 700), 700, 9))
		require.NoError(t, cu.Copy2D(ctx, cu.HostSide(got, 700), m.Side(), 700, 9))
		require.Equal(t, src, got)
		require.NoError(t, cu.CopyToHost(ctx, got[:700], m.Ptr().Add(8*m.Pitch())))
		require.Equal(t, src[8*700:], got[:700])
		for range 2 {
			require.NoError(t, m.Close())
		}
	}
	require.Equal(t, 3, s.count("cuMemFree_v2"))
	_, err := ctx.AllocPitch(700, 9, 3)
	require.ErrorIs(t, err, cu.ErrInvalidValue)
	_, err = ctx.AllocPitch(0, 9, 4)
	require.ErrorIs(t, err, cu.ErrInvalidValue)
	_, err = ctx.AllocPitch(1<<40, 4, 4)
	require.Error(t, err)
	require.NoError(t, (*cu.PitchedMemory)(nil).Close())
}

func TestAddressRange(t *testing.T) {
	ctx := cutest.Context(t, cutest.Device(t))
	m := alloc(t, ctx, 1000)
	base, size, err := ctx.AddressRange(m.Ptr().Add(999))
	require.NoError(t, err)
	require.Equal(t, m.Ptr(), base)
	require.EqualValues(t, 1000, size)
	_, _, err = ctx.AddressRange(4096)
	require.ErrorIs(t, err, cu.ErrNotFound)
}
