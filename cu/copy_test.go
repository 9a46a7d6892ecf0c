package cu_test

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/cutest"
)

// there and back again, through one buffer to another on the device.
func roundTrip[T comparable](t *testing.T, ctx *cu.Context, stream *cu.Stream, src []T, bytes uint64) {
	t.Helper()
	mem := ok(ctx.Alloc(2 * max(bytes, 1)))(t)
	far := mem.Ptr().Add(bytes)
	require.NoError(t, errors.Join(cu.CopyToDeviceAsync(stream, mem.Ptr(), src), stream.Synchronize(t.Context())))
	require.NoError(t, cu.CopyAsync(stream, far, mem.Ptr(), bytes))
	got := make([]T, len(src))
	require.NoError(t, errors.Join(cu.CopyToHostAsync(stream, got, far), stream.Synchronize(t.Context())))
	require.Equal(t, src, got)

	clear(got)
	require.NoError(t, cu.CopyToDeviceAsync(stream, far, src))
	require.NoError(t, cu.CopyToHostAsync(stream, got, far))
	require.NoError(t, ctx.Synchronize(t.Context()))
	require.Equal(t, src, got)
	require.NoError(t, mem.Close())
}

type pixel struct {
	X, Y int32
	V    float64
}

func TestCopiesOfAllTypesAndSizes(t *testing.T) {
	ctx := cutest.Context(t, cutest.Device(t))
	for name, stream := range map[string]*cu.Stream{"null stream": ctx.NullStream(), "own stream": newStream(t, ctx)} {
		t.Run(name, func(t *testing.T) {
			for _, n := range []int{1, 3, 4096, 1<<20 + 1} {
				bytes, words := make([]byte, n), make([]uint32, n)
				for i := range n {
					bytes[i], words[i] = byte(i*7), uint32(i*2654435761)
				}
				roundTrip(t, ctx, stream, bytes, uint64(n))
				roundTrip(t, ctx, stream, words, 4*uint64(n))
			}
			roundTrip(t, ctx, stream, []float64{1.5, -2, 1e300}, 24)
			roundTrip(t, ctx, stream, []int16{-1, 2}, 4)
			roundTrip(t, ctx, stream, []pixel{{1, 2, 3}, {-4, 5, 6.5}}, 32)
			roundTrip(t, ctx, stream, [][3]byte{{1, 2, 3}, {4, 5, 6}}, 6)
		})
	}
}

// Pointers would come back as garbage that the garbage collector follows.
func TestPointersAreNotCopied(t *testing.T) {
	ctx := cutest.Context(t, cutest.Device(t))
	mem := ok(ctx.Alloc(64))(t)
	type node struct {
		N    int32
		Next *node
	}
	require.ErrorIs(t, cu.CopyToHost(ctx, make([]string, 1), mem.Ptr()), cu.ErrPointers)
	require.ErrorIs(t, cu.CopyToDevice(ctx, mem.Ptr(), []*int{new(int)}), cu.ErrPointers)
	require.ErrorIs(t, cu.CopyToDevice(ctx, mem.Ptr(), []node{{}}), cu.ErrPointers)
	require.ErrorIs(t, cu.CopyToHostAsync(ctx.NullStream(), make([][1]any, 1), mem.Ptr()), cu.ErrPointers)
	require.ErrorIs(t, cu.CopyToDeviceAsync(ctx.NullStream(), mem.Ptr(), []bool{true}), cu.ErrPointers, "a bool can come back as neither")
	require.NoError(t, mem.Close())
}

func TestCopiesOfNothingSucceed(t *testing.T) {
	ctx := cutest.Context(t, cutest.Device(t))
	mem := alloc(t, ctx, 64)
	require.NoError(t, cu.CopyToDevice(ctx, mem.Ptr(), []byte{}))
	require.NoError(t, cu.CopyToDevice[uint64](ctx, mem.Ptr(), nil))
	require.NoError(t, cu.CopyToHost(ctx, []byte{}, mem.Ptr()))
	require.NoError(t, cu.Copy(ctx, mem.Ptr(), mem.Ptr(), 0))
	require.NoError(t, cu.Fill(ctx, mem.Ptr(), uint32(1), 0))
}

func TestFillSetsItsElementsAndNoOthers(t *testing.T) {
	ctx := cutest.Context(t, cutest.Device(t))
	mem := alloc(t, ctx, 64)
	require.NoError(t, cu.Fill(ctx, mem.Ptr(), uint8(0xee), 64))
	require.NoError(t, cu.Fill(ctx, mem.Ptr().Add(1), uint8(0xab), 2))
	require.NoError(t, cu.Fill(ctx, mem.Ptr().Add(4), uint16(0x1234), 2))
	require.NoError(t, cu.Fill(ctx, mem.Ptr().Add(12), uint32(0xdeadbeef), 1))
	got := make([]byte, 20)
	require.NoError(t, cu.CopyToHost(ctx, got, mem.Ptr()))
	require.Equal(t, []byte{
		0xee, 0xab, 0xab, 0xee, 0x34, 0x12, 0x34, 0x12, 0xee, 0xee, 0xee, 0xee,
		0xef, 0xbe, 0xad, 0xde, 0xee, 0xee, 0xee, 0xee,
	}, got)
	require.ErrorIs(t, cu.Fill(ctx, mem.Ptr().Add(1), uint32(1), 1), cu.ErrInvalidValue, "not aligned")
}

// FAULTS 13: memory that was freed is not reached through its old owner.
func TestFault13_FreedMemoryIsNotFreedAgain(t *testing.T) {
	s, _, _, ctx := spiedContext(t)
	old := ok(ctx.Alloc(1 << 20))(t)
	require.NoError(t, old.Close())
	again := ok(ctx.Alloc(1 << 20))(t) // most likely at the same address
	require.NoError(t, old.Close())
	require.NoError(t, cu.Fill(ctx, again.Ptr(), uint8(1), again.Size()))
	require.NoError(t, ctx.Synchronize(t.Context()))
	require.NoError(t, again.Close())
	require.Equal(t, 2, s.count("cuMemFree_v2"))
}

func TestDevicePtrText(t *testing.T) {
	require.Equal(t, "0x7f2c00000010", cu.DevicePtr(0x7f2c00000000).Add(16).String())
	require.Equal(t, []string{"none", "read-only", "read-write", "Access(9)"},
		[]string{cu.NoAccess.String(), cu.ReadOnly.String(), cu.ReadWrite.String(), cu.Access(9).String()})
}
