package share

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/sock"
	"github.com/gpufd/gpufd/vmm"
)

// Invariant 2, of the caller: what is nil or zero is an error that says so, or does
// nothing. It neither panics nor waits.
func TestNilArgumentsAreErrors(t *testing.T) {
	dev, ctx := leavesNothing(t)
	srv := listen(t)
	buf := newBuffer(t, ctx, 1)
	for name, call := range map[string]func() error{
		"Attach":          func() error { return attachError(srv.Path(), nil) },
		"Offer":           func() error { return srv.Offer(soon(t), "x", nil, ReadOnly) },
		"Offer, closed":   func() error { return srv.Offer(soon(t), "x", &vmm.Buffer{}, ReadOnly) },
		"Prepare":         func() error { _, err := srv.Prepare("x", nil, ReadOnly); return err },
		"OfferLegacy":     func() error { return srv.OfferLegacy(soon(t), "x", nil) },
		"Replace":         func() error { return srv.Replace(soon(t), "x", nil, ReadOnly) },
		"ReplaceLegacy":   func() error { return srv.ReplaceLegacy(soon(t), "x", nil) },
		"PrepareLegacy":   func() error { _, err := srv.PrepareLegacy("x", &Legacy{}); return err },
		"NewLegacy":       func() error { _, err := NewLegacy(nil, 1); return err },
		"LegacyAt":        func() error { _, err := LegacyAt(nil, buf.Ptr(), 1); return err },
		"NewCounter":      func() error { _, err := NewCounter(nil, buf, 0); return err },
		"NewCounter, nil": func() error { _, err := NewCounter(ctx, nil, 0); return err },
	} {
		require.Error(t, call(), name)
	}
	require.ErrorContains(t, srv.Offer(soon(t), "x", buf, ReadOnly, OnEvent(nil)), "OnEvent")
	for name, opt := range map[string]AttachOption{
		"OnReceived": OnReceived(nil), "OnConnected": OnConnected(nil), "WithHandle without": WithHandle(),
		"WithHandle(": WithHandle(7), "WithMaxChunks": WithMaxChunks(0), "WithMaxData(-1)": WithMaxData(-1), "WithMaxData(6": WithMaxData(MaxData + 1), "WithTimeout": WithTimeout(0), "WithRecordRate": WithRecordRate(-1), "WithoutLease": WithoutLease(-1), "access": WithAccess(2),
	} {
		require.ErrorContains(t, attachError(srv.Path(), dev, opt), name)
	}
	for name, opt := range map[string]ListenOption{
		"WithConnections(0)": WithConnections(0), "WithConnectionsPerPeer(-1)": WithConnectionsPerPeer(-1), "WithTimeout": WithTimeout(-1), "WithRecordRate": WithRecordRate(-1), "WithAuthorize": WithAuthorize(nil),
	} {
		_, err := Listen(socketPath(t), opt)
		require.ErrorContains(t, err, name)
	}
	for name, opt := range map[string]OfferOption{
		"WithLeases": WithLeases(-1), "WithIdleTimeout": WithIdleTimeout(-1), "WithGrace": WithGrace(-1), "application data": WithData(make([]byte, MaxData+1)),
	} {
		require.ErrorContains(t, srv.Offer(soon(t), "x", buf, ReadOnly, opt), name)
	}
	_, err := TakeOver(soon(t), nil, srv.Path())
	require.ErrorIs(t, err, sock.ErrClosed)
	require.ErrorIs(t, srv.HandOver(soon(t), nil), sock.ErrClosed)
	srv.Expect("")
	_, err = Attach(soon(t), srv.Path(), "", dev)
	require.ErrorIs(t, err, ErrRefused, "no offer has that name, so nobody waits for it")
	s := serveAs(t, srv, "data", buf, ReadOnly, nil, WithLeases(1))
	require.NoError(t, attached(t, srv, "data", dev, nil, PeerOption(nil)).Close(), "options that are nil do nothing")
	require.NoError(t, s.end(t))
}

func attachError(path string, dev *cu.Device, opts ...AttachOption) error {
	_, err := Attach(context.Background(), path, "x", dev, opts...)
	return err
}

func TestZeroValuesAreClosed(t *testing.T) {
	ctx := soon(t)
	for _, s := range []*Server{nil, {}} {
		s.Expect("x")
		s.Working("x", 1, 2)
		s.Remove()
		require.Empty(t, s.Path())
		require.ErrorIs(t, s.HandOver(ctx, nil), ErrClosed)
		require.Empty(t, s.Leases("x"))
		require.ErrorIs(t, s.Offer(ctx, "x", nil, ReadOnly), ErrClosed)
		require.ErrorIs(t, s.OfferLegacy(ctx, "x", nil), ErrClosed)
		require.ErrorIs(t, s.Replace(ctx, "x", nil, ReadOnly), ErrClosed)
		require.ErrorIs(t, s.ReplaceLegacy(ctx, "x", nil), ErrClosed)
		_, err := s.Prepare("x", nil, ReadOnly)
		require.ErrorIs(t, err, ErrClosed)
		require.NoError(t, s.Close())
	}
	for _, p := range []*Prepared{nil, {}} {
		require.ErrorIs(t, p.Offer(ctx), ErrClosed)
		require.NoError(t, p.Close())
	}
	for _, l := range []*Lease{nil, {}} {
		l.Revoke()
		<-l.Done()
		require.ErrorIs(t, l.Err(), ErrClosed)
		require.Zero(t, l.Number())
		require.Zero(t, l.Access())
		require.Equal(t, sock.Peer{}, l.Peer())
		<-l.Fenced()
		require.ErrorIs(t, l.AwaitFence(ctx, Fenced), ErrClosed)
	}
	for _, a := range []*Attachment{nil, {}} {
		<-a.Done()
		<-a.Superseded()
		require.ErrorIs(t, a.Err(), ErrClosed)
		require.ErrorIs(t, a.Progress(ctx, 1, 2), ErrClosed)
		require.ErrorIs(t, a.Report(ctx, nil), ErrClosed)
		require.Zero(t, a.Ptr())
		require.Zero(t, a.Size())
		require.Zero(t, a.Access())
		require.Nil(t, a.Device())
		require.Nil(t, a.Buffer())
		require.Equal(t, Offer{}, a.Offer())
		<-a.Fenced()
		require.ErrorIs(t, a.AwaitFence(ctx, Released), ErrClosed)
		require.ErrorIs(t, a.Release(ctx), ErrClosed)
		require.NoError(t, a.Close())
	}
	for _, m := range []*Legacy{nil, {}} {
		require.Zero(t, m.Ptr())
		require.Zero(t, m.Size())
		require.Zero(t, m.Allocation())
		require.Zero(t, m.Generation())
		require.Nil(t, m.Device())
		require.NoError(t, m.Close())
	}
	for _, c := range []*Counter{nil, {}} {
		require.ErrorIs(t, c.Signal(nil, 1), ErrClosed)
		_, err := c.Wait(ctx, nil, 1)
		require.ErrorIs(t, err, ErrClosed)
		_, err = c.Value()
		require.ErrorIs(t, err, ErrClosed)
		require.ErrorIs(t, c.Await(ctx, 1), ErrClosed)
		require.NoError(t, c.Close())
	}
}
