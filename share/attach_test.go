package share

import (
	"context"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/cutest"
	"github.com/gpufd/gpufd/internal/serve"
	"github.com/gpufd/gpufd/sock"
	"github.com/gpufd/gpufd/vmm"
)

const (
	reserves = "cuMemAddressReserve"
	frees    = "cuMemAddressFree"
)

// An attachment that is lost was made by whoever called Attach, which calls attach.
func TestAttachNotesItsCaller(t *testing.T) {
	dev, ctx, srv := listening(t)
	put(t, srv, newBuffer(t, ctx, 1))
	o := ok(newAttachOptions(nil))(t)
	a := &attaching{opts: o, path: srv.Path(), dev: dev}
	att := ok(a.attach(soon(t)))(t)
	require.NoError(t, att.Close())
	caller, _, _ := strings.Cut(a.made.String(), "\n")
	require.Contains(t, caller, t.Name())
}

// FAULTS 39, 41: the UUID decides, not the ordinal. Room is reserved on the memory's device.
func TestFault39and41_AttachOnTheWrongDevice(t *testing.T) {
	spy, dev, ctx := spied(t)
	_, other := cutest.TwoDevices(t, dev.Driver())
	srv := listen(t)
	s := put(t, srv, newBuffer(t, ctx, 1))
	_, err := Attach(soon(t), srv.Path(), "", other)
	require.ErrorIs(t, err, vmm.ErrDevice)
	require.ErrorContains(t, err, dev.UUID().String())
	told := s.await(t, Ended, 1).Err
	require.ErrorIs(t, told, ErrVerdict, "the producer is told why")
	require.ErrorContains(t, told, "attaching failed: ")

	before := spy.count(reserves)
	att := attached(t, srv, "", other, WithAnyDevice())
	require.Same(t, dev, att.Buffer().Device())
	require.Equal(t, 1, spy.count(reserves)-before)
}

// A RefusalError is the producer's no, with a code and words.
func TestAttachIsRefused(t *testing.T) {
	dev, ctx, srv := listening(t)
	buf := newBuffer(t, ctx, 1)
	serveAs(t, srv, "ro", buf, ReadOnly)
	busy := serveAs(t, srv, "busy", buf, ReadOnly, WithLeases(1))
	held := attached(t, srv, "busy", dev)
	for i, c := range []struct {
		name string
		opt  AttachOption
		code RefusalCode
		text string
	}{
		{"no", nil, RefusedName, `there is no offer "no" here`},
		{"", nil, RefusedName, `there is not exactly one offer here; ask for one by its name: "busy", "ro"`},
		{"ro", WithAccess(ReadWrite), RefusedAccess, `"ro" is offered read-only, and read-write was asked for`},
		{"busy", nil, RefusedBusy, `"busy" has all it waits for: 1 consumer`},
	} {
		_, err := Attach(soon(t), srv.Path(), c.name, dev, c.opt)
		require.ErrorIs(t, err, ErrRefused)
		var no *RefusalError
		require.ErrorAs(t, err, &no)
		require.Equal(t, c.code, no.Code)
		require.Equal(t, c.text, no.Text)
		require.EqualError(t, busy.await(t, PeerRefused, i+1).Err, c.code.String()+": "+c.text, "every offer's observer hears of it")
	}
	require.Equal(t, ReadOnly, held.Access())
	require.NoError(t, held.Close())
	require.NoError(t, busy.end(t))
	require.ErrorIs(t, errOf(attachAny(soon(t), srv.Path(), "ro", dev, WithHandle(HandleLegacy))), ErrHandle)
}

func TestAttachWithoutAProducer(t *testing.T) {
	dev, _ := leavesNothing(t)
	dir := t.TempDir()
	for path, want := range map[string]error{
		filepath.Join(dir, "none"):      sock.ErrNoListener,
		filepath.Join(dir, "no", "dir"): sock.ErrNoListener,
		"":                              sock.ErrPath,
		dir + strings.Repeat("x", 200):  sock.ErrPath,
	} {
		require.ErrorIs(t, errOf(Attach(soon(t), path, "", dev)), want, path)
	}
}

// Close waits until the descriptors that came with the offer are closed, but no longer than for a
// peer's goodbye: a liar's may never be.
func TestCloseWaitsForDescriptors(t *testing.T) {
	dev, ctx, srv := listening(t)
	put(t, srv, newBuffer(t, ctx, 1))
	att := attached(t, srv, "data", dev)
	<-att.closing
	att.closing = make(chan struct{})
	start := time.Now()
	require.NoError(t, att.Close())
	require.GreaterOrEqual(t, time.Since(start), serve.Goodbye)
}

// FAULTS 14 in small: a hundred handoffs leave nothing.
func TestFault14_HandoffsLeaveNothing(t *testing.T) {
	dev, ctx, srv := listening(t)
	s := put(t, srv, newBuffer(t, ctx, 1))
	for range 100 {
		att := ok(Attach(soon(t), srv.Path(), "", dev, WithTimeout(time.Minute)))(t)
		require.NoError(t, att.Close())
	}
	require.NoError(t, s.await(t, Ended, 100).Err)
}

func TestErrorsSayWhoSaysSo(t *testing.T) {
	require.Equal(t, `refused by the peer (busy): come\x1b again`, (&RefusalError{Code: RefusedBusy, Text: "come\x1b again"}).Error())
	require.Equal(t, "refused by the peer (code 99): ", (&RefusalError{Code: 99, Text: ""}).Error())
	require.Equal(t, "the consumer reports: very; bad", (&VerdictError{Text: "very\nbad"}).Error())
	require.NotErrorIs(t, &RefusalError{}, ErrVerdict)
	require.NotErrorIs(t, &VerdictError{}, ErrRefused)
}

// Invariant 2, of the caller: what is nil or zero is an error that says so, or does
// nothing. It neither panics nor waits.
func TestNilArgumentsAreErrors(t *testing.T) {
	dev, ctx, srv := listening(t)
	buf := newBuffer(t, ctx, 1)
	for name, call := range map[string]func() error{
		"Attach":          func() error { return attachError(srv.Path(), nil) },
		"Offer":           func() error { return offerFor(soon(t), srv, "x", nil, ReadOnly) },
		"Offer, closed":   func() error { return offerFor(soon(t), srv, "x", &vmm.Buffer{}, ReadOnly) },
		"Prepare":         func() error { _, err := prepare(srv, "x", (*vmm.Buffer)(nil), ReadOnly); return err },
		"OfferLegacy":     func() error { return offerLegacyFor(soon(t), srv, "x", nil) },
		"Replace":         func() error { return replaceFor(soon(t), srv, "x", nil, ReadOnly) },
		"ReplaceLegacy":   func() error { return replaceLegacyFor(soon(t), srv, "x", nil) },
		"PrepareLegacy":   func() error { _, err := prepareLegacy(srv, "x", &Legacy{}); return err },
		"NewLegacy":       func() error { _, err := NewLegacy(nil, 1); return err },
		"LegacyAt":        func() error { _, err := LegacyAt(nil, buf.Ptr(), 1); return err },
		"NewCounter":      func() error { _, err := NewCounter(nil, buf, 0); return err },
		"NewCounter, nil": func() error { _, err := NewCounter(ctx, nil, 0); return err },
	} {
		require.Error(t, call(), name)
	}
	require.ErrorContains(t, offerFor(soon(t), srv, "x", buf, ReadOnly, OnEvent(nil)), "OnEvent")
	for name, opt := range map[string]AttachOption{
		"OnReceived": OnReceived(nil), "OnConnected": OnConnected(nil), "WithHandle without": WithHandle(),
		"WithHandle(": WithHandle(7), "WithTimeout": WithTimeout(0), "WithMaxAbsence": WithMaxAbsence(-1), "access": WithAccess(2),
	} {
		require.ErrorContains(t, attachError(srv.Path(), dev, opt), name)
	}
	for name, opt := range map[string]ListenOption{
		"WithConnections(0)": WithConnections(0), "WithConnectionsPerPeer(-1)": WithConnectionsPerPeer(-1), "WithTimeout": WithTimeout(-1), "WithAuthorize": WithAuthorize(nil),
	} {
		require.ErrorContains(t, errOf(Listen(socketPath(t), opt)), name)
	}
	for name, opt := range map[string]OfferOption{
		"WithLeases": WithLeases(-1), "WithIdleTimeout": WithIdleTimeout(-1), "WithGrace": WithGrace(-1), "application data": WithData(make([]byte, MaxData+1)),
	} {
		require.ErrorContains(t, offerFor(soon(t), srv, "x", buf, ReadOnly, opt), name)
	}
	require.ErrorIs(t, errOf(TakeOver(soon(t), nil, srv.Path())), sock.ErrClosed)
	require.ErrorIs(t, srv.HandOver(soon(t), nil), sock.ErrClosed)
	expect(srv, "")
	require.ErrorIs(t, errOf(Attach(soon(t), srv.Path(), "", dev)), ErrRefused, "no offer has that name, so nobody waits for it")
	s := serveAs(t, srv, "data", buf, ReadOnly, nil, WithLeases(1))
	require.NoError(t, attached(t, srv, "data", dev, nil, PeerOption(nil)).Close(), "options that are nil do nothing")
	require.NoError(t, s.end(t))
}

func attachError(path string, dev *cu.Device, opts ...AttachOption) error {
	_, err := Attach(context.Background(), path, "x", dev, opts...)
	return err
}
