package vmm_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/vmm"
)

// D2 of docs/driver-facts.md: the same memory at several addresses.
func TestViewsShareTheirBytes(t *testing.T) {
	_, dev, ctx, g := tidy(t)
	buf := newBuffer(t, dev, 2*g, vmm.WithChunkSize(g))
	ro := ok(buf.NewView(cu.ReadOnly))(t)
	rw := ok(buf.NewView(cu.ReadWrite))(t)
	require.NotEqual(t, buf.Ptr(), ro.Ptr())
	require.NotEqual(t, rw.Ptr(), ro.Ptr())
	require.Equal(t, 2*g, ro.Mapped())
	require.Equal(t, cu.ReadOnly, ro.Access())
	require.Equal(t, cu.ReadWrite, rw.Access())

	for i, writer := range []cu.DevicePtr{buf.Ptr(), rw.Ptr()} {
		want := noise(2*g, i)
		write(t, ctx, writer, want)
		for _, reader := range []cu.DevicePtr{buf.Ptr(), ro.Ptr(), rw.Ptr()} {
			require.True(t, string(want) == string(read(t, ctx, reader, 2*g)))
		}
	}
	require.NoError(t, rw.Close())
	require.NoError(t, ro.Close())
	require.NoError(t, ro.Close())
}

// D5, invariant 7: read-only is enforced, and costs the context nothing.
func TestReadOnlyViewCannotBeCopiedTo(t *testing.T) {
	_, dev, ctx, g := tidy(t)
	buf := newBuffer(t, dev, g)
	want := noise(g, 9)
	write(t, ctx, buf.Ptr(), want)
	ro := ok(buf.NewView(cu.ReadOnly))(t)
	require.ErrorIs(t, cu.CopyToDevice(ctx, ro.Ptr(), make([]byte, 64)), cu.ErrInvalidValue)
	none := ok(buf.NewView(cu.NoAccess))(t)
	require.ErrorIs(t, cu.CopyToDevice(ctx, none.Ptr(), make([]byte, 64)), cu.ErrInvalidValue)
	require.ErrorIs(t, cu.CopyToHost(ctx, make([]byte, 64), none.Ptr()), cu.ErrInvalidValue)
	require.True(t, string(want) == string(read(t, ctx, ro.Ptr(), g)))
	require.NoError(t, ctx.Synchronize(t.Context()))
	require.NoError(t, none.Close())
	require.NoError(t, ro.Close())
}

func TestReadOnlyBuffer(t *testing.T) {
	_, dev, ctx, g := tidy(t)
	buf := newBuffer(t, dev, g, vmm.WithAccess(cu.ReadOnly))
	require.ErrorIs(t, cu.CopyToDevice(ctx, buf.Ptr(), make([]byte, 64)), cu.ErrInvalidValue)
	require.Equal(t, make([]byte, 64), read(t, ctx, buf.Ptr(), 64))
}

// FAULTS 12: a view holds the memory also after the buffer's Close.
//
//fault:rows 9
func TestFault12_ViewOutlivesItsBuffer(t *testing.T) {
	_, dev, ctx, g := tidy(t)
	free := freeMemory(t, ctx)
	buf := ok(vmm.New(dev, g))(t)
	want := noise(g, 4)
	write(t, ctx, buf.Ptr(), want)
	view := ok(buf.NewView(cu.ReadOnly))(t)
	require.NoError(t, buf.Close())
	require.Less(t, freeMemory(t, ctx), free)
	require.True(t, string(want) == string(read(t, ctx, view.Ptr(), g)))
	require.NoError(t, view.Close())
	require.Equal(t, free, freeMemory(t, ctx))
}

func TestViewIsOfTheBufferAsItWas(t *testing.T) {
	_, dev, _, g := tidy(t)
	buf := newBuffer(t, dev, g, vmm.WithChunkSize(g), vmm.WithCapacity(2*g))
	old := ok(buf.NewView(cu.ReadOnly))(t)
	require.NoError(t, buf.Grow(2*g))
	grown := ok(buf.NewView(cu.ReadOnly))(t)
	require.Equal(t, g, old.Mapped())
	require.Equal(t, 2*g, grown.Mapped())
	require.NoError(t, grown.Close())
	require.NoError(t, old.Close())
}

// FAULTS 12: mappings go after the context (D13).
func TestFault12_BufferIsClosedAfterItsContext(t *testing.T) {
	_, dev, _, _ := tidy(t)
	ctx := ok(dev.PrimaryContext())(t)
	buf := newBuffer(t, dev, granularity(t, dev))
	write(t, ctx, buf.Ptr(), noise(64, 1))
	require.NoError(t, ctx.Close())
}
