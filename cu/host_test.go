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
	b := lostHostMemory(get(cutest.Open()))
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

func lostHostMemory(drv *cu.Driver) []byte {
	ctx := get(get(drv.Device(0)).PrimaryContext())
	return get(ctx.AllocHost(4096, 0)).Bytes()
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
