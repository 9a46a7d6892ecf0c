package cu_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/cutest"
)

// twoDevices are two that can access each other, or t is skipped.
func twoDevices(t testing.TB, drv *cu.Driver) (a, b *cu.Device) {
	t.Helper()
	a, b = cutest.TwoDevices(t, drv)
	can := ok(a.CanAccessPeer(b))(t)
	if !can {
		t.Skip("the devices cannot access each other")
	}
	return a, b
}

// A device is no peer of its own.
func TestDeviceIsNotItsPeer(t *testing.T) {
	dev := cutest.Device(t)
	require.False(t, ok(dev.CanAccessPeer(dev))(t))
	require.ErrorIs(t, errOf(dev.P2PAttribute(cu.P2PAccessSupported, dev)), cu.ErrInvalidDevice)
	require.Equal(t, "CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED", cu.P2PAccessSupported.String())

	ctx, apart := cutest.Context(t, dev), newContext(t, dev, cu.SchedAuto)
	for _, peer := range []*cu.Context{ctx, apart} {
		err := ctx.EnablePeerAccess(peer)
		require.ErrorIs(t, err, cu.ErrPeerAccessUnsupported)
		require.ErrorContains(t, err, "these are one device, or ")
		require.ErrorIs(t, ctx.DisablePeerAccess(peer), cu.ErrPeerAccessNotEnabled)
	}
}

func TestPeerAccess(t *testing.T) {
	a, b := twoDevices(t, cutest.Driver(t))
	require.Equal(t, 1, ok(a.P2PAttribute(cu.P2PAccessSupported, b))(t))
	require.ErrorIs(t, errOf(a.P2PAttribute(cu.P2PAttribute(99), b)), cu.ErrInvalidValue)

	ctx, peer := cutest.Context(t, a), cutest.Context(t, b)
	require.ErrorIs(t, ctx.DisablePeerAccess(peer), cu.ErrPeerAccessNotEnabled)
	require.NoError(t, ctx.EnablePeerAccess(peer))
	require.ErrorIs(t, ctx.EnablePeerAccess(peer), cu.ErrPeerAccessAlreadyEnabled)
	require.ErrorIs(t, peer.DisablePeerAccess(ctx), cu.ErrPeerAccessNotEnabled, "it is one way")
	require.NoError(t, ctx.DisablePeerAccess(peer))
	require.ErrorIs(t, ctx.DisablePeerAccess(peer), cu.ErrPeerAccessNotEnabled)
}

// Invariant 5: a peer that is closed, lost or not there never reaches the
// driver.
func TestPeerThatIsNotThere(t *testing.T) {
	s, _, dev, ctx := spiedContext(t)
	closed := ok(dev.PrimaryContext())(t)
	require.NoError(t, closed.Close())
	before := s.calls()
	for _, peer := range []*cu.Context{nil, closed} {
		require.ErrorIs(t, ctx.EnablePeerAccess(peer), cu.ErrClosed)
		require.ErrorIs(t, ctx.DisablePeerAccess(peer), cu.ErrClosed)
		if peer != nil {
			require.ErrorIs(t, peer.EnablePeerAccess(ctx), cu.ErrClosed)
		}
	}
	require.Equal(t, before, s.calls())
}

// Two devices that cannot reach each other's memory: each way to try it is an
// error that says so, and copies work all the same.
func TestFault44_NoPeerAccess(t *testing.T) {
	if cutest.Kind() != cu.Soft {
		t.Skip("takes two devices without a link")
	}
	cmd := cutest.Child(soon(t), "no peer access", "GPUFD_SOFT_PEERS=0")
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
}

func childNoPeerAccess() error {
	drv := get(cutest.Open())
	a, b := drv.Devices()[0], drv.Devices()[1]
	can, err1 := a.CanAccessPeer(b)
	attribute, err2 := a.P2PAttribute(cu.P2PAccessSupported, b)
	if err := errors.Join(err1, err2); err != nil || can || attribute != 0 {
		return fmt.Errorf("they can: %v, %v, %w", can, attribute, err)
	}
	ctx, peer := get(a.PrimaryContext()), get(b.PrimaryContext())
	if err := ctx.EnablePeerAccess(peer); !errors.Is(err, cu.ErrPeerAccessUnsupported) || !strings.Contains(err.Error(), "GPUFD_SOFT_PEERS=0") {
		return fmt.Errorf("enabling it: %w", err)
	}
	return errors.Join(mapForPeer(drv, a, b), copyToPeer(ctx, peer), ctx.Close(), peer.Close())
}

// mapForPeer tries to give b access to memory of a.
func mapForPeer(drv *cu.Driver, a, b *cu.Device) error {
	g, _, err := a.Granularity(cu.HandleFD)
	must(err)
	m, p := get(a.CreateMemory(g, cu.HandleFD)), get(drv.ReserveAddress(g, 0, 0))
	must(drv.Map(p, g, 0, m))
	err = drv.SetAccess(p, g, cu.ReadWrite, a, b)
	for _, words := range []string{"cuMemSetAccess: ", "device " + b.String() + " cannot reach memory of device " + a.String(), "GPUFD_SOFT_PEERS=0"} {
		if !errors.Is(err, cu.ErrPeerAccessUnsupported) || !strings.Contains(err.Error(), words) {
			return fmt.Errorf("not %q: %w", words, err)
		}
	}
	if rights, err := drv.AccessOf(p, a); err != nil || rights != cu.NoAccess {
		return fmt.Errorf("the other device has %v, %w", rights, err)
	}
	return errors.Join(drv.SetAccess(p, g, cu.ReadWrite, a), drv.Unmap(p, g), drv.FreeAddress(p, g), m.Close())
}

// copyToPeer copies between two contexts.
func copyToPeer(ctx, peer *cu.Context) error {
	from, to := get(ctx.Alloc(64)), get(peer.Alloc(64))
	got := make([]byte, 64)
	err := errors.Join(cu.Fill(ctx, from.Ptr(), uint8(7), 64), cu.Copy(ctx, to.Ptr(), from.Ptr(), 64),
		ctx.Synchronize(context.Background()), cu.CopyToHost(peer, got, to.Ptr()))
	if err == nil && (got[0] != 7 || got[63] != 7) {
		err = fmt.Errorf("copied %v", got)
	}
	return errors.Join(err, from.Close(), to.Close())
}
