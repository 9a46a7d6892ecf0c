package share

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/gpufd/gpufd/internal/wire"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/sock"
)

// A consumer that does not let go costs the owner the time of a step. Then the owner is told
// which consumer it was, and can free the memory.
func TestFault9_LegacyMemoryThatStaysOpen(t *testing.T) {
	type caseOf struct {
		do, line string
		opts     []OfferOption
		end      func(*served, *Lease) // nil is that the prepared offer is given up
		want     error
	}
	nothing := func(*served, *Lease) {}
	revoke := func(_ *served, l *Lease) { l.Revoke() }
	silence := []OfferOption{WithVerdict(), timeoutFrom(Mapped, 1, brief)}
	_, ctx := leavesNothing(t)
	sideBySide(t, map[string]caseOf{
		"revoked":               {"stop when revoked", "mapped", nil, revoke, ErrRevoked},
		"revoked when opened":   {"stop when opened", "opened", nil, revoke, ErrRevoked},
		"silent with verdict":   {"stop when mapped", "mapped", silence, nothing, ErrTimeout},
		"the offer ends":        {"stop when mapped", "mapped", nil, func(s *served, _ *Lease) { s.cancel() }, ErrRevoked},
		"the offer is given up": {"stop when opened", "opened", nil, nil, ErrRevoked},
	}, func(t *testing.T, _ string, c caseOf) {
		m := newLegacy(t, ctx, 1<<20)
		srv := listen(t)
		s := newServed(srv)
		onLease, begun := leases()
		opts := append([]OfferOption{onLease}, c.opts...)
		p := ok(srv.PrepareLegacy("data", m, append(opts, letGoIn(1, brief))...))(t)
		if c.end != nil {
			s.start(t, "data", p.Offer)
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
	require.NoError(t, conn.Send(soon(t), wire.Encode(wire.Attach{Driver: dev.Driver().Kind(), Access: ReadWrite, Name: "data", Capabilities: wire.TakesLegacy})))
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

// After REVOKE a consumer's verdict says that the memory is closed. Anything else renews nothing
// and ends nothing, even if it is more than is taken, or no record.
func TestLegacyConsumerAfterRevoke(t *testing.T) {
	good, bad := wire.Encode(wire.Verdict{OK: true}), wire.Encode(wire.Verdict{Text: "x"})
	progress, ignored := wire.Encode(wire.Progress{Done: 1, Total: 2}), invented(ignorable)
	garbage := []byte{1, 2, 3}
	type caseOf struct {
		says [][]byte
		last []byte // the verdict, if one comes
	}
	dev, ctx := leavesNothing(t)
	sideBySide(t, map[string]caseOf{
		"a verdict":              {nil, good},
		"a bad one":              {[][]byte{progress}, bad},
		"much and then verdict":  {slices.Repeat([][]byte{progress, garbage}, 600), good},
		"too much":               {slices.Repeat([][]byte{progress}, 1100), nil},
		"ignored, then verdict":  {slices.Repeat([][]byte{ignored}, 1100), good},
		"garbage and no verdict": {[][]byte{garbage}, nil},
	}, func(t *testing.T, name string, c caseOf) {
		m := newLegacy(t, ctx, 1)
		timeout := time.Minute // which the test does not have
		if c.last == nil {
			timeout = brief
		}
		srv := listen(t)
		onLease, begun := leases()
		s := serveLegacy(t, srv, m, onLease, letGoIn(1, timeout))
		conn := rawLegacy(t, srv, m, dev)
		l := next(t, begun)
		began := time.Now()
		s.cancel()
		require.Equal(t, wire.Revoke{Text: "the producer has ended the offer"}, heard(t, conn))
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
		require.ErrorIs(t, l.Err(), ErrRevoked)
		require.GreaterOrEqual(t, time.Since(began), timeout, "it has all of its time")
	})
}

// A consumer that refuses its producer keeps the connection too, until it has closed the
// memory; so does one that was refused.
func TestLegacyConsumerAfterRefuse(t *testing.T) {
	dev, ctx := leavesNothing(t)
	m := newLegacy(t, ctx, 1)
	srv := listen(t)
	onLease, begun := leases()
	s := serveLegacy(t, srv, m, onLease)
	for _, record := range []wire.Message{wire.Refuse{Code: RefusedRecord, Text: "x"}, wire.Mapped{Generation: m.Generation()}} {
		conn := rawLegacy(t, srv, m, dev)
		l := next(t, begun)
		require.NoError(t, conn.Send(soon(t), wire.Encode(record)))
		if _, said := record.(wire.Mapped); said { // a second time
			require.IsType(t, wire.Refuse{}, heard(t, conn))
		}
		require.Never(t, func() bool { return l.Err() != nil }, 50*time.Millisecond, 10*time.Millisecond)
		require.NoError(t, conn.Close())
		<-l.Done()
		require.NotErrorIs(t, l.Err(), ErrStillOpen)
	}
	s.stop(t)
}

// On the consumer's side: whatever ends the lease, the connection ends after the memory
// was closed.
func TestLegacyConnectionOutlivesTheMemory(t *testing.T) {
	spy, dev, _ := spied(t)
	tr, _ := legacyTruth(t, dev)
	for name, c := range map[string]struct {
		last wire.Message
		want error
		says wire.Message // to the producer, if anything
	}{
		"revoked":                {wire.Revoke{Text: "freed"}, ErrRevoked, nil},
		"refused":                {wire.Refuse{Code: RefusedTimeout, Text: "x"}, ErrRefused, nil},
		"it publishes":           {wire.Publish{Generation: 77}, ErrProtocol, wire.Refuse{}},
		"revoked, and a verdict": {wire.Revoke{Text: "freed"}, ErrRevoked, wire.Verdict{OK: true}},
	} {
		t.Run(name, func(t *testing.T) {
			_, reports := c.says.(wire.Verdict)
			ended := make(chan string, 1)
			att := ok(attachAny(soon(t), impostor(t, func(conn *sock.Conn) {
				_ = conn.Send(soon(t), wire.Encode(tr))
				require.Equal(t, wire.Mapped{Generation: 77}, heard(t, conn))
				_ = conn.Send(soon(t), wire.Encode(wire.Confirm{Generation: 77}))
				_ = conn.Send(soon(t), wire.Encode(c.last))
				if c.says != nil {
					require.IsType(t, c.says, heard(t, conn))
				}
				if !reports {
					_ = conn.WaitClose(soon(t))
				}
				ended <- spy.owed()
			}), "data", dev))(t)
			require.ErrorIs(t, awaitDone(t, att), c.want)
			time.Sleep(20 * time.Millisecond) // for a connection that ends too early to be seen
			require.Contains(t, spy.owed(), "1 opened")
			require.Empty(t, ended)
			if reports {
				require.ErrorIs(t, att.Report(soon(t), nil), ErrRevoked)
			}
			require.NoError(t, att.Close())
			require.Contains(t, <-ended, "0 opened")
		})
	}
}
