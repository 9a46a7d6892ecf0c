package cu_test

import (
	"errors"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/cutest"
)

// A slice counts elements, as fills do, and its parts share its memory.
func TestSlice(t *testing.T) {
	ctx := cutest.Context(t, cutest.Device(t))
	s := newStream(t, ctx)
	xs := ok(cu.Alloc[uint32](ctx, 8))(t)
	require.Equal(t, 8, xs.Len())
	require.EqualValues(t, 32, xs.Size())
	require.NoError(t, cu.Fill(s, xs, uint32(7), uint64(xs.Len())))
	part := ok(xs.Slice(2, 5))(t)
	require.Equal(t, 3, part.Len())
	require.Equal(t, xs.Ptr().Add(8), part.Ptr())
	require.NoError(t, part.CopyFrom(s, []uint32{1, 2, 3}))
	require.NoError(t, part.Close(), "it owns nothing")
	inner := ok(part.Slice(1, 3))(t)
	got := make([]uint32, 2)
	require.NoError(t, inner.CopyTo(s, got))
	require.Equal(t, []uint32{2, 3}, got)
	all := make([]uint32, 8)
	require.NoError(t, xs.CopyTo(s, all))
	require.Equal(t, []uint32{7, 7, 1, 2, 3, 7, 7, 7}, all)

	require.NoError(t, errors.Join(xs.Close(), xs.Close()))
	require.Zero(t, xs.Ptr())
	require.Zero(t, inner.Ptr(), "closed with what it is part of")
	require.ErrorIs(t, inner.CopyTo(s, got), cu.ErrClosed)
}

// A fill of elements of another size would count in another unit, and leave a part as it was.
func TestFillsCountTheElementsOfASlice(t *testing.T) {
	spy, _, _, ctx := spiedContext(t)
	xs, g := ok(cu.Alloc[float64](ctx, 8))(t), ok(ctx.NewGraph())(t)
	before := spy.calls()
	for _, err := range []error{
		cu.Fill(ctx, xs, uint8(0), 8), cu.FillAsync(ctx.NullStream(), xs, uint32(0), 8), cu.Fill2D(ctx, xs, 8, uint16(0), 1, 1),
		errOf(cu.AddFill(g, xs, uint32(0), 8)),
	} {
		require.ErrorIs(t, err, cu.ErrInvalidValue)
		require.ErrorContains(t, err, "an element of the destination has 8 bytes and the value ")
	}
	require.Zero(t, spy.count("cuMemsetD8Async"))
	require.LessOrEqual(t, spy.calls(), before+2, "the two that wait have asked for captures")
	require.NoError(t, cu.Fill(ctx, ok(cu.View[uint32](xs, 16))(t), uint32(0), 16))
	require.NoError(t, errors.Join(g.Close(), xs.Close()))
}

func TestSlicesThatCannotBe(t *testing.T) {
	spy, _, _, ctx := spiedContext(t)
	mem := alloc(t, ctx, 30)
	xs := ok(cu.View[uint32](mem, 7))(t)
	before := spy.calls()
	for name, err := range map[string]error{
		"pointers":           errOf(cu.Alloc[*int](ctx, 1)),
		"a view of pointers": errOf(cu.View[string](mem, 1)),
		"bool":               errOf(cu.Alloc[bool](ctx, 1)),
	} {
		require.ErrorIs(t, err, cu.ErrPointers, name)
	}
	require.ErrorIs(t, errOf(cu.View[uint32](mem, 8)), cu.ErrTooShort)
	require.ErrorIs(t, errOf(cu.View[uint32](xs, 8)), cu.ErrTooShort)
	require.ErrorIs(t, errOf(cu.View[uint32]((*cu.Memory)(nil), 1)), cu.ErrClosed)
	require.ErrorIs(t, errOf(cu.View[uint32](nil, 1)), cu.ErrClosed)
	require.ErrorIs(t, errOf(cu.Alloc[uint32](nil, 1)), cu.ErrClosed)
	for _, err := range []error{
		errOf(cu.Alloc[uint32](ctx, -1)), errOf(cu.View[uint32](mem, -1)), errOf(cu.View[uint32](mem.Ptr(), math.MaxInt)),
		errOf(cu.View[uint32](mem, math.MaxInt)), errOf(cu.Alloc[uint64](ctx, math.MaxInt)),
		errOf(xs.Slice(-1, 2)), errOf(xs.Slice(3, 2)), errOf(xs.Slice(0, 8)), errOf(cu.Slice[uint32]{}.Slice(0, 1)),
	} {
		require.ErrorContains(t, err, "cu: ")
		require.ErrorIs(t, err, cu.ErrInvalidValue)
	}
	require.Equal(t, before, spy.calls(), "nothing reached the driver")
	require.ErrorIs(t, errOf(cu.Alloc[uint32](ctx, 0)), cu.ErrInvalidValue)

	var zero cu.Slice[uint32]
	require.Zero(t, zero.Len())
	require.Zero(t, zero.Size())
	require.Zero(t, zero.Ptr())
	require.NoError(t, zero.Close())
	require.Zero(t, ok(zero.Slice(0, 0))(t))
	require.ErrorIs(t, zero.CopyTo(ctx, nil), cu.ErrClosed)
}

// A slice of no elements takes none, wherever in its memory it lies.
func TestSlicesOfNoElements(t *testing.T) {
	spy, _, _, ctx := spiedContext(t)
	s := ctx.NullStream()
	xs := ok(cu.Alloc[uint32](ctx, 8))(t)
	for name, none := range map[string]cu.Slice[uint32]{
		"first": ok(xs.Slice(0, 0))(t), "within": ok(xs.Slice(3, 3))(t), "last": ok(xs.Slice(8, 8))(t),
		"view": ok(cu.View[uint32](xs, 0))(t), "view of an address": ok(cu.View[uint32](xs.Ptr(), 0))(t),
	} {
		require.NotZero(t, none.Ptr(), name)
		before := spy.calls()
		for what, err := range map[string]error{
			"copy to it":   cu.CopyToDeviceAsync(s, none, make([]uint32, 1)),
			"copy of it":   cu.CopyToHostAsync(s, make([]uint32, 1), none),
			"fill":         cu.FillAsync(s, none, uint32(1), 1),
			"view":         errOf(cu.View[uint32](none, 1)),
			"rows to it":   cu.Copy2DAsync(s, cu.DeviceSide(none, 4), cu.HostSide(make([]uint32, 1), 4), 4, 1),
			"rows of it":   cu.Copy2DAsync(s, cu.HostSide(make([]uint32, 1), 4), cu.DeviceSide(none, 4), 4, 1),
			"rows in Go":   cu.Copy2DAsync(s, cu.DeviceSide(xs, 4), cu.HostSide([]uint32{}, 4), 4, 1),
			"rows to fill": cu.Fill2DAsync(s, none, 4, uint32(1), 1, 1),
		} {
			require.ErrorIs(t, err, cu.ErrTooShort, "%s: %s", name, what)
		}
		require.Equal(t, before, spy.calls(), "nothing reached the driver")
		require.NoError(t, none.CopyFrom(s, nil), name)
	}
	require.NoError(t, xs.Close())
}

// A copy or fill that is longer than its memory is refused before the driver hears of it, wherever the size is
// known.
func TestTooShort(t *testing.T) {
	spy, _, _, ctx := spiedContext(t)
	s := ctx.NullStream()
	mem, other := alloc(t, ctx, 64), alloc(t, ctx, 128)
	host, pinned := make([]byte, 65), hostMemory(t, ctx, 64)
	fixed := registered(t, ctx, pages(t, 4096))
	elements := ok(cu.View[float32](mem, 16))(t)
	g := ok(ctx.NewGraph())(t)
	before := spy.calls()
	for name, err := range map[string]error{
		"to the device":        cu.CopyToDeviceAsync(s, mem, host),
		"to elements":          cu.CopyToDeviceAsync(s, elements, host),
		"to the host":          cu.CopyToHostAsync(s, host, mem),
		"from pinned memory":   cu.CopyToHostAsync(s, host, pinned),
		"a source":             cu.CopyAsync(s, other, mem, 65),
		"a destination":        cu.CopyAsync(s, mem, other, 65),
		"a copy of a peer":     cu.CopyPeerAsync(s, mem, ctx, other, ctx, 65),
		"bytes":                cu.FillAsync(s, mem, uint8(1), 65),
		"words":                cu.FillAsync(s, elements, uint32(1), 17),
		"words of 64 bits":     cu.FillAsync(s, elements, uint32(1), math.MaxUint64/2),
		"registered":           cu.FillAsync(s, fixed, uint16(1), 2049),
		"rows":                 cu.Fill2DAsync(s, mem, 16, uint32(1), 4, 5),
		"rows of 64 bits":      cu.Fill2DAsync(s, mem, math.MaxUint64, uint32(1), 4, 5),
		"rows to the memory":   cu.Copy2DAsync(s, cu.DeviceSide(mem, 16), cu.HostSide(host, 8), 8, 5),
		"rows from the memory": cu.Copy3DAsync(s, cu.HostSide(host, 8), cu.UnifiedSide(elements, 16), 8, 5, 1),
		"a node that copies":   errOf(g.AddCopy(mem, other, 65)),
		"a node that fills":    errOf(cu.AddFill(g, mem, uint8(1), 65)),
	} {
		require.ErrorIs(t, err, cu.ErrTooShort, name)
		require.ErrorContains(t, err, "cu: ")
	}
	require.Equal(t, before, spy.calls(), "nothing reached the driver")
	for _, err := range []error{
		cu.CopyToDeviceAsync(s, mem, host[:64]), cu.CopyAsync(s, other, mem, 64), cu.FillAsync(s, elements, uint32(1), 16),
		cu.FillAsync(s, fixed, uint16(1), 2048), cu.Fill2DAsync(s, mem, 16, uint32(1), 4, 4), cu.Fill2DAsync(s, mem, 16, uint32(1), 4, 0),
		cu.Copy2DAsync(s, cu.DeviceSide(mem, 16), cu.HostSide(host, 16), 16, 4), s.Synchronize(soon(t)), g.Close(),
	} {
		require.NoError(t, err)
	}
}

// Closed memory of any kind is refused before the driver hears of it. The null pointer is the
// driver's to refuse.
func TestClosedPointers(t *testing.T) {
	spy, _, _, ctx := spiedContext(t)
	s, live := ctx.NullStream(), alloc(t, ctx, 64)
	f := ok(load(t, ctx, various(t)).Function("count"))(t)
	mem, pinned := ok(ctx.Alloc(64))(t), ok(ctx.AllocHost(64, 0))(t)
	fixed := ok(ctx.RegisterHost(make([]byte, 64), 0))(t)
	pitched, owned := ok(ctx.AllocPitch(16, 4, 4))(t), ok(cu.Alloc[uint8](ctx, 64))(t)
	view := ok(cu.View[uint8](mem, 64))(t)
	ps := []cu.Pointer{mem, pinned, fixed, pitched, owned, view}
	for _, p := range ps {
		require.NoError(t, cu.FillAsync(s, p, uint8(0), 64), "%T", p)
		require.NoError(t, f.Launch(s, one, p), "%T", p)
	}
	require.NoError(t, s.Synchronize(soon(t)))
	words := ok(cu.HostSlice[uint32](pinned))(t)
	require.Positive(t, words[0], "the kernel has counted there")
	require.NoError(t, errors.Join(mem.Close(), pinned.Close(), fixed.Close(), pitched.Close(), owned.Close()))
	ps = append(ps, (*cu.Memory)(nil), (*cu.HostMemory)(nil), (*cu.PitchedMemory)(nil), cu.Slice[uint8]{}, nil)
	before := spy.calls()
	for _, p := range ps {
		for name, err := range map[string]error{
			"to the host":   cu.CopyToHostAsync(s, make([]byte, 1), p),
			"to the device": cu.CopyToDeviceAsync(s, p, []byte{1}),
			"source":        cu.CopyAsync(s, live, p, 1),
			"destination":   cu.CopyAsync(s, p, live, 1),
			"fill":          cu.FillAsync(s, p, uint8(1), 1),
			"rows":          cu.Fill2DAsync(s, p, 16, uint8(1), 1, 1),
			"side":          cu.Copy2DAsync(s, cu.DeviceSide(p, 1), cu.DeviceSide(live, 1), 1, 1),
			"view":          errOf(cu.View[uint8](p, 1)),
		} {
			require.ErrorIs(t, err, cu.ErrClosed, "%T: %s", p, name)
		}
	}
	require.Equal(t, before, spy.calls(), "nothing reached the driver")
	require.ErrorIs(t, cu.FillAsync(s, cu.DevicePtr(0), uint8(1), 1), cu.ErrInvalidValue)
}

// Memory among the arguments is known by its Ptr, and a struct of numbers is one, though it embeds
// an address.
func TestStructWithAnAddressIsNoMemory(t *testing.T) {
	ctx := cutest.Context(t, cutest.Device(t))
	out := zeroed(t, ctx, 64)
	args := stored(out)
	args[len(args)-1] = struct {
		cu.DevicePtr
		N uint64
	}{7, 8}
	f := function(t, ctx, "store")
	require.NoError(t, f.Launch(ctx.NullStream(), one, args...))
	require.NoError(t, ctx.Synchronize(soon(t)))
	require.Equal(t, wasStored(), readBack[byte](t, ctx, out.Ptr(), 64))
	l := ok(f.Prepare(one, args...))(t)
	require.ErrorContains(t, l.Set(0, out), "*cu.Memory is memory: pass its Ptr()")
}
