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
	return untilEnd(t, ok(ctx.AllocHost(size, 0))(t))
}

// registered pins b until the test ends.
func registered(t testing.TB, ctx *cu.Context, b []byte) *cu.HostRegistration {
	t.Helper()
	return untilEnd(t, ok(ctx.RegisterHost(b, 0))(t))
}

// pages is memory of mmap until the test ends.
func pages(t testing.TB, size int) []byte {
	t.Helper()
	b := ok(unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON))(t)
	t.Cleanup(func() { require.NoError(t, unix.Munmap(b)) })
	return b
}

// The host and the device see the same bytes.
func TestPinnedMemory(t *testing.T) {
	s, _, _, ctx := spiedContext(t)
	for _, flags := range []cu.HostFlags{0, cu.HostPortable, cu.HostMapped, cu.HostWriteCombined, cu.HostPortable | cu.HostMapped | cu.HostWriteCombined} {
		m := ok(ctx.AllocHost(10_000, flags))(t)
		require.Len(t, m.Bytes(), 10_000)
		require.EqualValues(t, 10_000, m.Size())
		require.Equal(t, (flags|cu.HostMapped)&^cu.HostPortable, ok(m.Flags())(t)&^cu.HostPortable)

		p := m.Ptr()
		require.NoError(t, cu.Fill(ctx, p, uint8(7), 5000))
		require.NoError(t, ctx.Synchronize(t.Context()))
		require.Equal(t, []byte{7, 7}, m.Bytes()[4998:5000])
		words := ok(cu.HostSlice[uint32](m))(t)
		require.Len(t, words, 2500)
		words[0] = 0x01020304
		mem := alloc(t, ctx, 4)
		require.NoError(t, cu.Copy(ctx, mem.Ptr(), p, 4))
		require.Equal(t, []byte{4, 3, 2, 1}, readBack[byte](t, ctx, mem.Ptr(), 4))

		for range 2 {
			require.NoError(t, m.Close())
		}
		require.Nil(t, m.Bytes())
		require.ErrorIs(t, errOf(cu.HostSlice[byte](m)), cu.ErrClosed)
	}
	require.Equal(t, 5, s.count("cuMemFreeHost"))
}

func TestHostSlices(t *testing.T) {
	ctx := cutest.Context(t, cutest.Device(t))
	m := hostMemory(t, ctx, 30)
	require.ErrorIs(t, errOf(cu.HostSlice[*int](m)), cu.ErrPointers)
	require.Len(t, ok(cu.HostSlice[pixel](m))(t), 1)
	require.Empty(t, ok(cu.HostSlice[struct{}](m))(t))
}

func TestPinnedMemoryOfNothing(t *testing.T) {
	ctx := cutest.Context(t, cutest.Device(t))
	m := ok(ctx.AllocHost(0, 0))(t)
	require.Empty(t, m.Bytes())
	require.Empty(t, ok(cu.HostSlice[uint32](m))(t))
	require.NoError(t, m.Close())
}

// Registered memory is the caller's, before and after.
func TestRegisteredMemory(t *testing.T) {
	s, _, _, ctx := spiedContext(t)
	for name, b := range map[string][]byte{
		"mmap": pages(t, 3*4096), "Go heap": make([]byte, 10_001)[1:], "part of a mapping": pages(t, 3*4096)[100:8000],
	} {
		t.Run(name, func(t *testing.T) {
			m := ok(ctx.RegisterHost(b, cu.RegisterPortable|cu.RegisterMapped))(t)
			require.ErrorIs(t, errOf(ctx.RegisterHost(b, 0)), cu.ErrHostMemoryAlreadyRegistered)
			require.NoError(t, cu.Fill(ctx, m.Ptr().Add(1), uint8(9), uint64(len(b)-1)))
			require.NoError(t, ctx.Synchronize(t.Context()))
			require.Equal(t, []byte{0, 9, 9}, append(append([]byte(nil), b[:2]...), b[len(b)-1]))
			require.Equal(t, b, m.Bytes())

			unregistered := s.count("cuMemHostUnregister")
			for range 2 {
				require.NoError(t, m.Close())
			}
			require.Equal(t, unregistered+1, s.count("cuMemHostUnregister"))
			require.Zero(t, m.Ptr())
			require.EqualValues(t, 9, b[1], "it stays")
			require.NoError(t, ok(ctx.RegisterHost(b, 0))(t).Close())
		})
	}
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
	s, _, _, ctx := spiedContext(t)
	for _, size := range []uint32{4, 8, 16} {
		m := ok(ctx.AllocPitch(700, 9, size))(t)
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
	require.ErrorIs(t, errOf(ctx.AllocPitch(700, 9, 3)), cu.ErrInvalidValue)
	require.ErrorIs(t, errOf(ctx.AllocPitch(0, 9, 4)), cu.ErrInvalidValue)
	require.Error(t, errOf(ctx.AllocPitch(1<<40, 4, 4)))
	require.NoError(t, (*cu.PitchedMemory)(nil).Close())
}
