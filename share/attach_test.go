package share

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/cutest"
	"github.com/gpufd/gpufd/fence"
	"github.com/gpufd/gpufd/internal/serve"
	"github.com/gpufd/gpufd/internal/wire"
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
	_, err := Attach(soon(t), srv.Path(), "", other, nil)
	require.ErrorIs(t, err, vmm.ErrDevice)
	require.ErrorContains(t, err, dev.UUID().String())
	told := s.await(t, Ended, 1).Err
	require.ErrorIs(t, told, ErrVerdict, "the producer is told why")
	require.ErrorContains(t, told, "attaching failed: ")

	before := spy.count(reserves)
	att := attached(t, srv, "", other, AttachOptions{AnyDevice: true})
	require.Same(t, dev, att.Buffer().Device())
	require.Equal(t, 1, spy.count(reserves)-before)
}

// A serve.RefusalError is the producer's no, with a code and words.
func TestAttachIsRefused(t *testing.T) {
	dev, ctx, srv := listening(t)
	buf := newBuffer(t, ctx, 1)
	serveAs(t, srv, "ro", buf, cu.ReadOnly)
	busy := serveAs(t, srv, "busy", buf, cu.ReadOnly, OfferOptions{MaxConsumers: 1})
	held := attached(t, srv, "busy", dev)
	for i, c := range []struct {
		name   string
		access cu.Access
		code   wire.RefusalCode
		text   string
	}{
		{"no", 0, wire.RefusedName, `there is no offer "no" here`},
		{"", 0, wire.RefusedName, `there is not exactly one offer here; ask for one by its name: "busy", "ro"`},
		{"ro", cu.ReadWrite, wire.RefusedAccess, `"ro" is offered read-only, and read-write was asked for`},
		{"busy", 0, wire.RefusedBusy, `"busy" has all it waits for: 1 consumer`},
	} {
		_, err := Attach(soon(t), srv.Path(), c.name, dev, &AttachOptions{Access: c.access})
		require.ErrorIs(t, err, ErrRefused)
		var no *serve.RefusalError
		require.ErrorAs(t, err, &no)
		require.Equal(t, c.code, no.Code)
		require.Equal(t, c.text, no.Text)
		require.EqualError(t, busy.await(t, PeerRefused, i+1).Err, c.code.String()+": "+c.text, "every offer's observer hears of it")
	}
	require.Equal(t, cu.ReadOnly, held.Access())
	require.NoError(t, held.Close())
	require.NoError(t, busy.end(t))
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
		require.ErrorIs(t, errOf(Attach(soon(t), path, "", dev, nil)), want, path)
	}
}

// Close waits until the descriptors that came with the offer are closed, but no longer than for a
// peer's goodbye: a liar's may never be.
func TestCloseWaitsForDescriptors(t *testing.T) {
	dev, ctx, srv := listening(t)
	put(t, srv, newBuffer(t, ctx, 1))
	att := attached(t, srv, "data", dev)
	<-att.filesClosed
	att.filesClosed = make(chan struct{})
	start := time.Now()
	require.NoError(t, att.Close())
	require.GreaterOrEqual(t, time.Since(start), serve.Goodbye)
}

// FAULTS 14 in small: a hundred handoffs leave nothing.
func TestFault14_HandoffsLeaveNothing(t *testing.T) {
	dev, ctx, srv := listening(t)
	s := put(t, srv, newBuffer(t, ctx, 1))
	for range 100 {
		att := ok(Attach(soon(t), srv.Path(), "", dev, &AttachOptions{Timeout: time.Minute}))(t)
		require.NoError(t, att.Close())
	}
	require.NoError(t, s.await(t, Ended, 100).Err)
}

func TestErrorsSayWhoSaysSo(t *testing.T) {
	require.Equal(t, `refused by the peer (busy): come\x1b again`, (&serve.RefusalError{Code: wire.RefusedBusy, Text: "come\x1b again"}).Error())
	require.Equal(t, "refused by the peer (code 99): ", (&serve.RefusalError{Code: 99, Text: ""}).Error())
	require.Equal(t, "the consumer reports: very; bad", (&serve.VerdictError{Text: "very\nbad"}).Error())
	require.NotErrorIs(t, &serve.RefusalError{}, ErrVerdict)
	require.NotErrorIs(t, &serve.VerdictError{}, ErrRefused)
}

// Invariant 2, of the caller: what is nil or zero is an error that says so, or does
// nothing. It neither panics nor waits.
func TestNilArgumentsAreErrors(t *testing.T) {
	dev, ctx, srv := listening(t)
	buf := newBuffer(t, ctx, 1)
	for name, call := range map[string]func() error{
		"Attach":        func() error { return attachError(srv.Path(), nil, AttachOptions{}) },
		"Offer":         func() error { return offerFor(soon(t), srv, "x", nil, cu.ReadOnly) },
		"Offer, closed": func() error { return offerFor(soon(t), srv, "x", &vmm.Buffer{}, cu.ReadOnly) },
		"Prepare":       func() error { _, err := prepare(srv, "x", (*vmm.Buffer)(nil), cu.ReadOnly); return err },
		"OfferLegacy":   func() error { return offerLegacyFor(soon(t), srv, "x", nil) },
		"Replace":       func() error { return replaceFor(soon(t), srv, "x", nil, cu.ReadOnly) },
		"ReplaceLegacy": func() error { return replaceLegacyFor(soon(t), srv, "x", nil) },
		"PrepareLegacy": func() error { _, err := prepareLegacy(srv, "x", &Legacy{}); return err },
		"NewLegacy":     func() error { _, err := NewLegacy(nil, 1); return err },
		"LegacyAt":      func() error { _, err := LegacyAt(nil, buf.Ptr(), 1); return err },
	} {
		require.Error(t, call(), name)
	}
	room := ok(vmm.Reserve(dev.Driver(), granularity(t, dev)))(t)
	for name, opts := range map[string]AttachOptions{
		"timeout": {Timeout: -1}, "MaxAbsence": {MaxAbsence: -1}, "access": {Access: 2}, "Follow": {Overlap: true}, "OnWait": {OnWait: func(error) {}}, "Legacy": {Legacy: true, Reoffer: true},
		"Reservation": {Overlap: true, Reservation: room},
	} {
		require.ErrorContains(t, attachError(srv.Path(), dev, opts), name)
	}
	require.NoError(t, room.Close())
	for name, opts := range map[string]ListenOptions{"connections": {MaxConnections: -1}, "of a process": {MaxConnectionsPerPeer: -1}, "timeout": {Timeout: -1}} {
		require.ErrorContains(t, errOf(Listen(socketPath(t), &opts)), name)
	}
	require.ErrorContains(t, errOf(List(soon(t), srv.Path(), &ListOptions{Timeout: -1})), "timeout")
	noCursors := func(*Lease, *os.File) error { return nil }
	for name, opts := range map[string]OfferOptions{
		"MaxConsumers": {MaxConsumers: -1}, "IdleTimeout": {IdleTimeout: -1}, "Grace": {Grace: -1}, "application data": {Data: make([]byte, MaxData+1)},
		"both or neither": {Fence: fence.Released}, "FenceTimeout": {FenceTimeout: 1}, "no fence": {Fence: 3, FenceTimeout: 1},
		"-1 Slots": {Slots: -1}, "4294967296 Slots": {Slots: 1 << 32}, "OnCursors": {CursorSize: 8}, "CursorSize": {OnCursors: noCursors}, "at most": {CursorSize: maxCursors + 1, OnCursors: noCursors},
	} {
		require.ErrorContains(t, offerFor(soon(t), srv, "x", buf, opts.Access, opts), name)
	}
	require.ErrorIs(t, errOf(TakeOver(soon(t), nil, srv.Path(), nil)), sock.ErrClosed)
	require.ErrorIs(t, srv.HandOver(soon(t), nil), sock.ErrClosed)
	expect(srv, "")
	require.ErrorIs(t, errOf(Attach(soon(t), srv.Path(), "", dev, nil)), ErrRefused, "no offer has that name, so nobody waits for it")
}

func attachError(path string, dev *cu.Device, opts AttachOptions) error {
	_, err := Attach(context.Background(), path, "x", dev, &opts)
	return err
}
