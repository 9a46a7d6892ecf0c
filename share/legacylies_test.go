package share

import (
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/gpumem"
	"github.com/gpufd/gpufd/internal/serve"
	"github.com/gpufd/gpufd/internal/wire"
	"github.com/gpufd/gpufd/sock"
	"github.com/gpufd/gpufd/vmm"
)

// legacyTruth is what an honest producer would say of a child's memory.
func legacyTruth(t testing.TB, dev *cu.Device) (wire.Offer, *child) {
	t.Helper()
	c := start(t, "legacy owner", "", "")
	require.True(t, c.out.Scan())
	var h cu.IPCHandle
	require.NoError(t, h.UnmarshalText(c.out.Bytes()))
	return wire.Offer{
		Memory: vmm.Descriptor{Kind: dev.Driver().Kind(), Device: dev.UUID(), Size: 1 << 20, Chunks: 1, ChunkSize: legacyUnit, Generation: 77},
		Access: cu.ReadWrite, Name: "data", Legacy: &gpumem.LegacyHandle{Handle: h},
	}, c
}

// FAULTS 13: what opens is not enough. Without a producer that confirms the memory after it was
// opened, nobody is attached to it. A consumer that gives up closes the memory before it says so,
// because the producer may free it then.
func TestFault13_LegacyMemoryThatNobodyConfirms(t *testing.T) {
	spy, dev, ctx := spied(t)
	tr, owner := legacyTruth(t, dev)
	pending := tr
	pending.Pending = true
	yes, publish := wire.Confirm{Generation: 77}, wire.Publish{Generation: 77}
	attach := func(t *testing.T, offer wire.Message, more []wire.Message, opts ...AttachOptions) (*Attachment, error) {
		done := make(chan struct{})
		att, err := attachAny(soon(t), impostor(t, func(conn *sock.Conn) {
			defer close(done)
			_ = conn.Send(soon(t), wire.Encode(offer))
			if o, ok := offer.(wire.Offer); ok && !o.Pending {
				if _, failed := heard(t, conn).(wire.Verdict); failed {
					return
				}
			}
			for _, m := range more {
				_ = conn.Send(soon(t), wire.Encode(m))
			}
			rec, err := conn.Receive(soon(t))
			if err == nil && len(rec.Data) > 0 {
				require.Contains(t, spy.owed(), "0 opened")
			}
			_ = rec.Close()
		}), "data", dev, opts...)
		if err != nil {
			<-done
		}
		return att, err
	}
	for name, c := range map[string]struct {
		offer wire.Message
		more  []wire.Message
		want  error
	}{
		"it revokes":                    {tr, []wire.Message{wire.Revoke{Text: "freed"}}, ErrRevoked},
		"it refuses":                    {tr, []wire.Message{wire.Refuse{Code: wire.RefusedBusy, Text: "x"}}, ErrRefused},
		"another generation":            {tr, []wire.Message{wire.Confirm{Generation: 78}}, serve.ErrUnexpected},
		"it publishes":                  {tr, []wire.Message{publish}, serve.ErrUnexpected},
		"progress, and then it goes":    {tr, []wire.Message{wire.Progress{Done: 1, Total: 2}, wire.Revoke{}}, ErrRevoked},
		"confirmed before it was asked": {yes, nil, serve.ErrUnexpected},
		"confirmed before it is there":  {pending, []wire.Message{yes}, serve.ErrUnexpected},
		"another one is there":          {pending, []wire.Message{wire.Publish{Generation: 78}}, serve.ErrUnexpected},
	} {
		t.Run(name, func(t *testing.T) {
			require.ErrorIs(t, errOf(attach(t, c.offer, c.more)), c.want)
		})
	}
	require.ErrorIs(t, errOf(attach(t, tr, nil, AttachOptions{Timeout: 100 * time.Millisecond})), ErrTimeout)
	t.Run("honest", func(t *testing.T) {
		att := ok(attach(t, tr, []wire.Message{yes}))(t)
		requireNoiseAt(t, ctx, att.Ptr(), 1<<20, 1)
		require.NoError(t, att.Close())
	})

	// The old handle, when its owner has other memory at the address.
	require.NoError(t, errOf(owner.in.(io.Writer).Write([]byte("again\n"))))
	require.True(t, owner.out.Scan())
	t.Logf("the handle was %s and is %s", tr.Legacy.Handle, owner.out.Text())
	err := errOf(attach(t, tr, []wire.Message{wire.Revoke{Text: "freed"}}))
	if !errors.Is(err, cu.ErrInvalidValue) { // it opens nothing, or what the producer then takes back
		require.ErrorIs(t, err, ErrRevoked)
	}
}

// Invariant 2: whatever a producer says of legacy memory, the consumer gets an error
// and keeps nothing.
func TestLegacyLies(t *testing.T) {
	dev, _ := leavesNothing(t)
	tr, _ := legacyTruth(t, dev)
	attach := func(t *testing.T, record []byte, opts ...AttachOptions) error {
		return errOf(attachAny(soon(t), impostor(t, tell(t, lie{record, nil})), "data", dev, opts...))
	}
	change := func(f func(o *wire.Offer)) []byte {
		o := tr
		handle := *tr.Legacy
		o.Legacy = &handle
		f(&o)
		return wire.Encode(o)
	}
	for name, c := range map[string]struct {
		lie  []byte
		want error
	}{
		"handle of zeros":          {change(func(o *wire.Offer) { o.Legacy.Handle = cu.IPCHandle{} }), cu.ErrInvalidValue},
		"fault 35: size 0":         {change(func(o *wire.Offer) { o.Memory.Size = 0 }), wire.ErrMalformed},
		"fault 36: larger":         {change(func(o *wire.Offer) { o.Memory.Size = legacyUnit + 1 }), wire.ErrMalformed},
		"fault 36: allocation":     {change(func(o *wire.Offer) { o.Memory.ChunkSize = 1 << 30; o.Memory.Size = 1 << 30 }), vmm.ErrDescriptor},
		"fault 38: offset":         {change(func(o *wire.Offer) { o.Legacy.Offset = legacyUnit }), wire.ErrMalformed},
		"fault 38: overflow":       {change(func(o *wire.Offer) { o.Legacy.Offset = math.MaxUint64 - 1<<20 + 1 }), wire.ErrMalformed},
		"fault 39: unknown device": {change(func(o *wire.Offer) { o.Memory.Device[3] ^= 1 }), vmm.ErrDevice},
		"other kind of driver":     {change(func(o *wire.Offer) { o.Memory.Kind = cu.CUDA + cu.Soft - o.Memory.Kind }), vmm.ErrKind},
		"fault 40: unknown handle": {flaw(tr, 18, 3), ErrUnsupported},
		"another offer than asked": {change(func(o *wire.Offer) { o.Name = "other" }), serve.ErrUnexpected},
	} {
		t.Run(name, func(t *testing.T) {
			err := attach(t, c.lie)
			require.ErrorIs(t, err, c.want)
			require.NotErrorIs(t, err, sock.ErrPeerLost)
		})
	}
	err := attach(t, change(func(o *wire.Offer) { o.Memory.Device[3] ^= 1; o.Legacy.Handle = cu.IPCHandle{} }), AttachOptions{AnyDevice: true})
	require.ErrorIs(t, err, cu.ErrInvalidValue)
	require.ErrorContains(t, err, "not visible to this process")
	require.ErrorIs(t, attach(t, wire.Encode(tr), AttachOptions{MaxSize: 1}), ErrTooLarge)
	require.ErrorIs(t, errOf(Attach(soon(t), impostor(t, tell(t, lie{wire.Encode(tr), nil})), "data", dev, nil)), ErrHandle)
}

// FAULTS 2, 3, of legacy memory: before the memory is confirmed nobody is attached to
// it; after that it stays, and its end is noticed.
//
//fault:rows 2
func TestLegacyProducerKilled(t *testing.T) {
	for _, when := range []string{"received", "opened", "attached"} {
		t.Run(when, func(t *testing.T) {
			spy, dev, ctx := spied(t)
			path := socketPath(t)
			c := start(t, "legacy producer", path, "3145728")
			c.says(t, "listening")
			kill := func(step string) {
				if step == when {
					c.kill()
				}
			}
			spy.at("open", func() { kill("opened") })
			att, err := attachAny(soon(t), path, "data", dev,
				AttachOptions{OnReceived: func(OfferInfo, []*os.File) { kill("received") }})
			switch when {
			case "received", "opened":
				require.ErrorIs(t, err, sock.ErrPeerLost)
			default:
				require.NoError(t, err)
				c.kill()
				require.ErrorIs(t, awaitDone(t, att), sock.ErrPeerLost)
				requireNoiseAt(t, ctx, att.Ptr(), att.Size(), 1)
				require.ErrorIs(t, att.Report(soon(t), nil), sock.ErrPeerLost)
				require.NoError(t, att.Close())
			}
			srv, err := Listen(path, nil) // what it left on disk is reclaimed
			require.NoError(t, err)
			require.NoError(t, srv.Close())
		})
	}
}

// A consumer that does not let go costs the owner the time of a step. Then the owner is told
// which consumer it was, and can free the memory.
func TestFault9_LegacyMemoryThatStaysOpen(t *testing.T) {
	type caseOf struct {
		do, line string
		silent   bool
		end      func(*served, *Lease) // nil is that the prepared offer is given up
		want     error
	}
	nothing := func(*served, *Lease) {}
	revoke := func(_ *served, l *Lease) { l.Revoke("") }
	_, ctx := leavesNothing(t)
	sideBySide(t, map[string]caseOf{
		"revoked":               {"stop when revoked", "mapped", false, revoke, ErrRevoked},
		"revoked when opened":   {"stop when opened", "opened", false, revoke, ErrRevoked},
		"silent with verdict":   {"stop when mapped", "mapped", true, nothing, ErrTimeout},
		"the offer ends":        {"stop when mapped", "mapped", false, func(s *served, _ *Lease) { s.cancel() }, ErrWithdrawn},
		"the offer is given up": {"stop when opened", "opened", false, nil, ErrWithdrawn},
	}, func(t *testing.T, _ string, c caseOf) {
		m := newLegacy(t, ctx, 1<<20)
		srv := listen(t)
		s := newServed(srv)
		onLease, begun := leases()
		opts := OfferOptions{OnLease: onLease, Verdict: c.silent, terms: letGoIn(1, brief)}
		if c.silent {
			opts.terms = both(opts.terms, timeoutFrom(Mapped, 1, brief))
		}
		p := ok(prepareLegacy(srv, "data", m, opts))(t)
		if c.end != nil {
			s.start(t, "data", p.offer)
		}
		child := start(t, "consumer", srv.Path(), c.do)
		l := next(t, begun)
		child.says(t, c.line)
		var err error
		if c.end == nil {
			err = p.Close()
		} else {
			c.end(s, l)
			<-l.Done()
			s.cancel()
			err = s.end(t)
		}
		require.ErrorIs(t, err, ErrStillOpen)
		require.ErrorContains(t, err, fmt.Sprintf("pid %d", child.cmd.Process.Pid))
		<-l.Done()
		require.ErrorContains(t, l.Err(), "within "+brief.String())
		require.ErrorIs(t, l.Err(), c.want)
		require.ErrorIs(t, l.Err(), ErrStillOpen)
		require.NoError(t, m.Close(), "an owner that was told may go on")
		child.kill()
	})
}

// askedLegacy is a raw connection that has asked for legacy memory.
func askedLegacy(t *testing.T, srv *Server, dev *cu.Device) *sock.Conn {
	t.Helper()
	conn := dialed(t, srv)
	require.NoError(t, conn.Send(soon(t), wire.Encode(wire.Attach{Driver: dev.Driver().Kind(), Access: cu.ReadWrite, Name: "data", Capabilities: wire.TakesLegacy})))
	return conn
}

// rawLegacy is a consumer by hand that has been confirmed legacy memory, without opening it.
func rawLegacy(t *testing.T, srv *Server, m *Legacy, dev *cu.Device) *sock.Conn {
	t.Helper()
	conn := askedLegacy(t, srv, dev)
	require.NotNil(t, heard(t, conn).(wire.Offer).Legacy)
	require.NoError(t, conn.Send(soon(t), wire.Encode(wire.Mapped{Generation: m.Generation()})))
	require.Equal(t, wire.Confirm{Generation: m.Generation()}, heard(t, conn))
	return conn
}

// After REVOKE a consumer's verdict says that the memory is closed, and so after its own REFUSE.
// Anything else renews nothing and ends nothing, even if it is more than is taken, or no record.
func TestLegacyConsumerAfterRevoke(t *testing.T) {
	good, bad := wire.Encode(wire.Verdict{OK: true}), wire.Encode(wire.Verdict{Text: "x"})
	progress, ignored := wire.Encode(wire.Progress{Done: 1, Total: 2}), invented(ignorable)
	garbage := []byte{1, 2, 3}
	type caseOf struct {
		says    [][]byte
		last    []byte // the verdict, if one comes
		refuses bool   // it ends the lease itself
	}
	dev, ctx := leavesNothing(t)
	sideBySide(t, map[string]caseOf{
		"a verdict":              {nil, good, false},
		"a bad one":              {[][]byte{progress}, bad, false},
		"much and then verdict":  {slices.Repeat([][]byte{progress, garbage}, 600), good, false},
		"too much":               {slices.Repeat([][]byte{progress}, 1100), nil, false},
		"ignored, then verdict":  {slices.Repeat([][]byte{ignored}, 1100), good, false},
		"it refuses":             {nil, nil, true},
		"garbage and no verdict": {[][]byte{garbage}, nil, false},
	}, func(t *testing.T, name string, c caseOf) {
		m := newLegacy(t, ctx, 1)
		timeout := time.Minute // which the test does not have
		if c.last == nil {
			timeout = brief
		}
		srv := listen(t)
		onLease, begun := leases()
		s := serveLegacy(t, srv, m, OfferOptions{OnLease: onLease, terms: letGoIn(1, timeout)})
		conn := rawLegacy(t, srv, m, dev)
		l := next(t, begun)
		began := time.Now()
		if c.refuses {
			require.NoError(t, conn.Send(soon(t), wire.Encode(wire.Refuse{Code: wire.RefusedRecord, Text: "x"})))
			<-l.Done()
			require.ErrorIs(t, l.Err(), ErrRefused)
		}
		s.cancel()
		if !c.refuses {
			require.Equal(t, wire.Revoke{Text: "the producer has ended the offer", Reason: wire.EndWithdrawn}, heard(t, conn))
		}
		for _, record := range c.says {
			_ = conn.Send(soon(t), record)
		}
		if c.last != nil {
			require.ErrorIs(t, m.Close(), ErrInUse)
			require.NoError(t, conn.Send(soon(t), c.last))
			require.NoError(t, s.end(t))
			return
		}
		require.ErrorIs(t, s.end(t), ErrStillOpen)
		require.Equal(t, !c.refuses, errors.Is(l.Err(), ErrWithdrawn))
		require.GreaterOrEqual(t, time.Since(began), timeout, "it has all of its time")
	})
}
