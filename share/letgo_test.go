package share

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/gpufd/gpufd/internal/wire"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/sock"
)

// requireInUse checks that the memory stays, and whose it is.
func requireInUse(t *testing.T, m *Legacy, c *child) {
	t.Helper()
	err := m.Close()
	require.ErrorIs(t, err, ErrInUse)
	require.ErrorContains(t, err, fmt.Sprintf("pid %d", c.cmd.Process.Pid))
}

// FAULTS 9: a consumer whose lease is revoked, or whose offer ends, has the memory until
// it closes it: only then the lease is over, and only then its owner can free it.
func TestFault9_RevokedLegacyMemoryIsClosedFirst(t *testing.T) {
	for name, end := range map[string]func(*served, *Lease){
		"the lease is revoked": func(_ *served, l *Lease) { l.Revoke() },
		"the offer ends":       func(s *served, _ *Lease) { s.cancel() },
	} {
		t.Run(name, func(t *testing.T) {
			_, ctx := leavesNothing(t)
			m := newLegacy(t, ctx, 1<<20)
			srv := listen(t)
			onLease, begun := leases()
			s := serveLegacy(t, srv, m, onLease)
			c := start(t, "consumer", srv.Path(), "stop when revoked")
			l := next(t, begun)
			c.says(t, "mapped")
			end(s, l)
			c.says(t, "revoked")
			requireInUse(t, m, c)
			require.NoError(t, l.Err(), "it has it open")
			c.end(t)
			<-l.Done()
			require.ErrorIs(t, l.Err(), ErrRevoked)
			require.NotErrorIs(t, l.Err(), ErrStillOpen)
			s.stop(t)
			require.NoError(t, m.Close())
		})
	}
}

// FAULTS 5, 6: killed at any step after its lease was revoked, a consumer is not waited for.
func TestFault9_RevokedLegacyConsumerKilled(t *testing.T) {
	for do, lines := range map[string][]string{
		"stop when received": {"received"}, "stop when opened": {"opened"}, "stop when mapped": {"mapped"},
		"stop when revoked": {"mapped", "revoked"},
	} {
		t.Run(lines[len(lines)-1], func(t *testing.T) {
			_, ctx := leavesNothing(t)
			m := newLegacy(t, ctx, 1<<20)
			srv := listen(t)
			onLease, begun := leases()
			s := serveLegacy(t, srv, m, onLease)
			c := start(t, "consumer", srv.Path(), do)
			l := next(t, begun)
			c.says(t, lines[0])
			s.cancel()
			for _, line := range lines[1:] {
				c.says(t, line)
			}
			requireInUse(t, m, c)
			c.kill()
			<-l.Done()
			require.ErrorIs(t, l.Err(), ErrRevoked)
			require.NotErrorIs(t, l.Err(), ErrStillOpen)
			require.NoError(t, s.end(t))
			require.NoError(t, m.Close())
		})
	}
}

// A consumer that does not let go costs the owner the time of a step. Then the owner is told
// which consumer it was, and can free the memory.
func TestFault9_LegacyMemoryThatStaysOpen(t *testing.T) {
	type caseOf struct {
		do    string
		opts  []OfferOption
		lines []string
		end   func(*served, *Lease)
		time  time.Duration // of a step, once it has mapped the memory
		want  error
	}
	_, ctx := leavesNothing(t)
	sideBySide(t, map[string]caseOf{
		"revoked":               {"stop when revoked", nil, []string{"mapped"}, func(_ *served, l *Lease) { l.Revoke() }, DefaultTimeout, ErrRevoked},
		"revoked when opened":   {"stop when opened", nil, []string{"opened"}, func(_ *served, l *Lease) { l.Revoke() }, DefaultTimeout, ErrRevoked},
		"silent with verdict":   {"stop when mapped", []OfferOption{WithVerdict()}, []string{"mapped"}, func(*served, *Lease) {}, brief, ErrTimeout},
		"the offer ends":        {"stop when mapped", nil, []string{"mapped"}, func(s *served, _ *Lease) { s.cancel() }, DefaultTimeout, ErrRevoked},
		"the offer is given up": {"stop when opened", nil, []string{"opened"}, nil, DefaultTimeout, ErrRevoked},
	}, func(t *testing.T, _ string, c caseOf) {
		m := newLegacy(t, ctx, 1<<20)
		srv := listen(t)
		onLease, begun := leases()
		opts := append([]OfferOption{onLease, timeoutFrom(Mapped, 1, c.time), letGoIn(1, brief)}, c.opts...)
		var s *served
		var p *Prepared
		if c.end == nil {
			p = ok(srv.PrepareLegacy("data", m, opts...))(t)
		} else {
			s = serveLegacy(t, srv, m, opts...)
		}
		child := start(t, "consumer", srv.Path(), c.do)
		l := next(t, begun)
		for _, line := range c.lines {
			child.says(t, line)
		}
		who := fmt.Sprintf("pid %d", child.cmd.Process.Pid)
		var err error
		if p != nil {
			err = p.Close()
		} else {
			c.end(s, l)
			<-l.Done()
			s.cancel()
			err = s.end(t)
		}
		require.ErrorIs(t, err, ErrStillOpen)
		require.ErrorContains(t, err, who)
		<-l.Done()
		require.ErrorContains(t, l.Err(), "within "+brief.String())
		require.ErrorIs(t, l.Err(), c.want)
		require.ErrorIs(t, l.Err(), ErrStillOpen)
		require.NoError(t, m.Close(), "an owner that was told may go on")
		child.kill()
	})
}

// rawLegacy is a consumer by hand that has been confirmed legacy memory, without opening it.
func rawLegacy(t *testing.T, srv *Server, m *Legacy, dev *cu.Device) *sock.Conn {
	t.Helper()
	conn := dialed(t, srv)
	require.NoError(t, conn.Send(soon(t), wire.Encode(wire.Attach{Driver: dev.Driver().Kind(), Access: ReadWrite, Name: "data", Capabilities: wire.TakesLegacy})))
	require.NotNil(t, heard(t, conn).(wire.Offer).Legacy)
	require.NoError(t, conn.Send(soon(t), wire.Encode(wire.Mapped{Generation: m.Generation()})))
	require.Equal(t, wire.Confirm{Generation: m.Generation()}, heard(t, conn))
	return conn
}

// After REVOKE a consumer's verdict says that the memory is closed. Anything else renews nothing
// and ends nothing, even if it is more than is taken, or no record.
func TestLegacyConsumerAfterRevoke(t *testing.T) {
	good, bad := wire.Encode(wire.Verdict{OK: true}), wire.Encode(wire.Verdict{Text: "x"})
	type caseOf struct {
		says  [][]byte
		times int
		open  bool
	}
	dev, ctx := leavesNothing(t)
	sideBySide(t, map[string]caseOf{
		"a verdict":             {[][]byte{good}, 1, false},
		"a bad one":             {[][]byte{wire.Encode(wire.Progress{Done: 1, Total: 2}), bad}, 1, false},
		"much and then verdict": {[][]byte{wire.Encode(wire.Progress{Done: 1, Total: 2}), {1, 2, 3}}, 600, false},
		"progress alone":        {[][]byte{wire.Encode(wire.Progress{Done: 1, Total: 2})}, 100, true},
		"too much":              {[][]byte{wire.Encode(wire.Progress{Done: 1, Total: 2})}, 1100, true},
		"ignored, then verdict": {[][]byte{invented(ignorable)}, 1100, false},
		"too much is ignored":   {[][]byte{invented(ignorable)}, 1100, true},
		"garbage":               {[][]byte{{1, 2, 3}}, 1, true},
	}, func(t *testing.T, name string, c caseOf) {
		m := newLegacy(t, ctx, 1)
		timeout := brief
		if !c.open {
			timeout = time.Minute // which the test does not have
		}
		srv := listen(t)
		onLease, begun := leases()
		s := serveLegacy(t, srv, m, onLease, letGoIn(1, timeout))
		conn := rawLegacy(t, srv, m, dev)
		l := next(t, begun)
		began := time.Now()
		s.cancel()
		require.Equal(t, wire.Revoke{Text: "the producer has ended the offer"}, heard(t, conn))
		if !c.open { // if it is, its time may be over by now
			require.ErrorIs(t, m.Close(), ErrInUse)
		}
		for range c.times {
			for _, record := range c.says {
				_ = conn.Send(soon(t), record)
			}
		}
		if strings.Contains(name, "then verdict") {
			require.NoError(t, conn.Send(soon(t), good))
		}
		<-l.Done()
		err := s.end(t)
		if !c.open {
			require.NoError(t, err)
			return
		}
		require.ErrorIs(t, err, ErrStillOpen)
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
	for name, c := range map[string]struct {
		last wire.Message
		want error
		says wire.Message // to the producer, if anything
		end  func(*testing.T, *Attachment)
	}{
		"revoked":                {wire.Revoke{Text: "freed"}, ErrRevoked, nil, func(t *testing.T, a *Attachment) { require.NoError(t, a.Close()) }},
		"refused":                {wire.Refuse{Code: RefusedTimeout, Text: "x"}, ErrRefused, nil, func(t *testing.T, a *Attachment) { require.NoError(t, a.Close()) }},
		"it publishes":           {wire.Publish{Generation: 77}, ErrProtocol, wire.Refuse{}, func(t *testing.T, a *Attachment) { require.NoError(t, a.Close()) }},
		"revoked, and a verdict": {wire.Revoke{Text: "freed"}, ErrRevoked, wire.Verdict{OK: true}, func(t *testing.T, a *Attachment) { require.ErrorIs(t, a.Report(soon(t), nil), ErrRevoked) }},
	} {
		t.Run(name, func(t *testing.T) {
			spy, dev, _ := spied(t)
			tr, _ := legacyTruth(t, dev)
			ended := make(chan string, 1)
			att := ok(attachAny(soon(t), impostor(t, func(conn *sock.Conn) {
				_ = conn.Send(soon(t), wire.Encode(tr))
				require.Equal(t, wire.Mapped{Generation: 77}, heard(t, conn))
				_ = conn.Send(soon(t), wire.Encode(wire.Confirm{Generation: 77}))
				_ = conn.Send(soon(t), wire.Encode(c.last))
				if c.says != nil {
					require.IsType(t, c.says, heard(t, conn))
				}
				if _, reported := c.says.(wire.Verdict); !reported {
					_ = conn.WaitClose(soon(t))
				}
				ended <- spy.owed()
			}), "data", dev))(t)
			require.ErrorIs(t, awaitDone(t, att), c.want)
			require.ErrorIs(t, att.Progress(soon(t), 1, 2), c.want)
			time.Sleep(20 * time.Millisecond) // for a connection that ends too early to be seen
			require.Contains(t, spy.owed(), "1 opened")
			require.Empty(t, ended)
			c.end(t, att)
			require.Contains(t, <-ended, "0 opened")
			require.NoError(t, att.Close())
		})
	}
}

// The server waits for it, too, when it is closed.
func TestServerClosedWithLegacyMemoryOpen(t *testing.T) {
	_, ctx := leavesNothing(t)
	m := newLegacy(t, ctx, 1<<20)
	srv := listen(t)
	s := serveLegacy(t, srv, m)
	c := start(t, "consumer", srv.Path(), "stop when revoked")
	c.says(t, "mapped")
	closed := make(chan error, 1)
	go func() { closed <- srv.Close() }()
	c.says(t, "revoked")
	requireInUse(t, m, c)
	require.Empty(t, closed)
	c.end(t)
	require.NoError(t, <-closed)
	require.ErrorIs(t, s.end(t), ErrClosed)
	require.NotErrorIs(t, s.end(t), ErrStillOpen)
	require.NoError(t, m.Close())
}
