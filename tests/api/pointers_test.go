package api

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/cutest"
	"github.com/gpufd/gpufd/share"
	"github.com/gpufd/gpufd/vmm"
)

// Memory of every package is an argument of copies and fills, which refuse what is nil, closed or
// too short for them.
func TestMemoryOfEveryPackageIsAPointer(t *testing.T) {
	for _, p := range []cu.Pointer{
		(*cu.Memory)(nil), (*cu.PitchedMemory)(nil), (*cu.StreamMemory)(nil), (*cu.IPCMemory)(nil), (*cu.HostMemory)(nil),
		(*cu.HostRegistration)(nil), (*cu.ExternalBuffer)(nil), cu.Slice[byte]{}, (*vmm.Buffer)(nil), (*vmm.Mapping)(nil), (*vmm.View)(nil),
		(*vmm.Reservation)(nil), (*share.Attachment)(nil), (*share.Legacy)(nil),
	} {
		require.ErrorIs(t, cu.FillAsync(nil, p, uint8(1), 1), cu.ErrClosed, "%T", p)
		require.ErrorContains(t, cu.FillAsync(nil, p, uint8(1), 1), "Fill: the destination", "%T", p)
	}
	dev := cutest.Device(t)
	ctx := cutest.Context(t, dev)
	buf, err := vmm.New(dev, 64)
	require.NoError(t, err)
	srv, err := share.Listen(filepath.Join(socketDir(t), "socket"), nil)
	require.NoError(t, err)
	offer, err := srv.Offer("bytes", buf, nil)
	require.NoError(t, err)
	att, err := share.Attach(t.Context(), srv.Path(), "bytes", dev, nil)
	require.NoError(t, err)
	require.NoError(t, cu.Fill(ctx, buf, uint8(7), 64))
	bytes, err := cu.View[byte](att, 64)
	require.NoError(t, err)
	got := make([]byte, 64)
	require.NoError(t, bytes.CopyTo(ctx, got))
	require.Equal(t, byte(7), got[63])
	for _, p := range []cu.Pointer{buf, att, bytes} {
		require.ErrorIs(t, cu.CopyToHost(ctx, make([]byte, 65), p), cu.ErrTooShort, "%T", p)
	}
	require.NoError(t, att.Close())
	require.NoError(t, offer.Close())
	require.NoError(t, srv.Close())
	require.NoError(t, buf.Close())
	for _, p := range []cu.Pointer{buf, att, bytes} {
		require.ErrorIs(t, cu.CopyToHost(ctx, got, p), cu.ErrClosed, "%T", p)
	}
}
