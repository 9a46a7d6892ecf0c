package share

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/internal/wire"
	"github.com/gpufd/gpufd/sock"
	"github.com/gpufd/gpufd/vmm"
)

func TestErrorsSayWhoSaysSo(t *testing.T) {
	require.Equal(t, `refused by the peer (busy): come\x1b again`, (&RefusalError{Code: RefusedBusy, Text: "come\x1b again"}).Error())
	require.Equal(t, "refused by the peer (code 99): ", (&RefusalError{Code: 99, Text: ""}).Error())
	require.Equal(t, "the consumer reports: very; bad", (&VerdictError{Text: "very\nbad"}).Error())
	require.NotErrorIs(t, &RefusalError{}, ErrVerdict)
	require.NotErrorIs(t, &VerdictError{}, ErrRefused)
}

// Constants that documentation shows with their values are those of the wire.
func TestConstantsAreThoseOfTheWire(t *testing.T) {
	require.Equal(t, wire.Version, Version)
	for here, there := range map[HandleType]HandleType{HandleFD: wire.HandleFD, HandleLegacy: wire.HandleLegacy} {
		require.Equal(t, there, here)
	}
	for here, there := range map[RefusalCode]RefusalCode{
		RefusedName:        wire.RefusedName,
		RefusedAccess:      wire.RefusedAccess,
		RefusedKind:        wire.RefusedKind,
		RefusedBusy:        wire.RefusedBusy,
		RefusedVersion:     wire.RefusedVersion,
		RefusedRecord:      wire.RefusedRecord,
		RefusedTimeout:     wire.RefusedTimeout,
		RefusedPolicy:      wire.RefusedPolicy,
		RefusedRate:        wire.RefusedRate,
		RefusedUnsupported: wire.RefusedUnsupported,
		RefusedStale:       wire.RefusedStale,
		RefusedParts:       wire.RefusedParts,
	} {
		require.Equal(t, there, here)
	}
}

// Invariant 2, of the caller: what is nil or zero is an error that says so, or does
// nothing. It neither panics nor waits.
func TestNilArgumentsAreErrors(t *testing.T) {
	dev, ctx, srv := listening(t)
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
		require.ErrorContains(t, errOf(Listen(socketPath(t), opt)), name)
	}
	for name, opt := range map[string]OfferOption{
		"WithLeases": WithLeases(-1), "WithIdleTimeout": WithIdleTimeout(-1), "WithGrace": WithGrace(-1), "application data": WithData(make([]byte, MaxData+1)),
	} {
		require.ErrorContains(t, srv.Offer(soon(t), "x", buf, ReadOnly, opt), name)
	}
	require.ErrorIs(t, errOf(TakeOver(soon(t), nil, srv.Path())), sock.ErrClosed)
	require.ErrorIs(t, srv.HandOver(soon(t), nil), sock.ErrClosed)
	srv.Expect("")
	require.ErrorIs(t, errOf(Attach(soon(t), srv.Path(), "", dev)), ErrRefused, "no offer has that name, so nobody waits for it")
	s := serveAs(t, srv, "data", buf, ReadOnly, nil, WithLeases(1))
	require.NoError(t, attached(t, srv, "data", dev, nil, PeerOption(nil)).Close(), "options that are nil do nothing")
	require.NoError(t, s.end(t))
}

func attachError(path string, dev *cu.Device, opts ...AttachOption) error {
	_, err := Attach(context.Background(), path, "x", dev, opts...)
	return err
}
