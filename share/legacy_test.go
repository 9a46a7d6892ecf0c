package share

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/internal/mapped"
	"github.com/gpufd/gpufd/internal/serve"
	"github.com/gpufd/gpufd/internal/wire"
	"github.com/gpufd/gpufd/sock"
	"github.com/gpufd/gpufd/vmm"
)

// Nobody opens memory of the own process by a handle: of each pair, one is a child.

// attachAny is Attach of memory that is opened by whatever handle.
func attachAny(ctx context.Context, path, name string, dev *cu.Device, opts ...AttachOptions) (*Attachment, error) {
	o := first(opts)
	o.Legacy = true
	return Attach(ctx, path, name, dev, o)
}

// newLegacy is memory full of noise, closed when t ends.
func newLegacy(t testing.TB, ctx *cu.Context, size uint64) *Legacy {
	t.Helper()
	m := ok(NewLegacy(ctx, size))(t)
	t.Cleanup(func() { require.NoError(t, m.Close()) })
	require.NoError(t, cu.CopyToDevice(ctx, m.Ptr(), noise(size, 1)))
	return m
}

// serveLegacy offers m as "data" until t ends or cancel is called.
func serveLegacy(t testing.TB, srv *Server, m *Legacy, opts ...OfferOptions) *served {
	t.Helper()
	s := newServed(srv)
	s.start(t, "data", func(ctx context.Context) error {
		return offerLegacyFor(ctx, srv, "data", m, s.watching(opts))
	})
	return s
}

func requireNoiseAt(t testing.TB, ctx *cu.Context, p cu.DevicePtr, size uint64, seed int) {
	t.Helper()
	got := make([]byte, size)
	require.NoError(t, cu.CopyToHost(ctx, got, p))
	require.True(t, string(noise(size, seed)) == string(got))
}

// childLegacyProducer offers legacy memory until its input ends.
func childLegacyProducer() error {
	_, ctx, err := childDevice()
	if err != nil {
		return err
	}
	size, err := strconv.ParseUint(os.Getenv(doEnv), 10, 64)
	if err != nil {
		return err
	}
	m, err := NewLegacy(ctx, size)
	if err != nil {
		return err
	}
	if err := cu.CopyToDevice(ctx, m.Ptr(), noise(size, 1)); err != nil {
		return err
	}
	offer := func(served context.Context, srv *Server) error { return offerLegacyFor(served, srv, "data", m) }
	return errors.Join(serveUntilInputEnds(offer), m.Close(), ctx.Close())
}

// childLegacyOwner has memory, and prints its handle. For every line that it is sent
// it frees that and has other memory.
func childLegacyOwner() error {
	_, ctx, err := childDevice()
	if err != nil {
		return err
	}
	in := bufio.NewScanner(os.Stdin)
	for seed := 1; ; seed++ {
		mem, err := ctx.Alloc(legacyUnit)
		if err != nil {
			return err
		}
		h, herr := mem.IPCHandle()
		if err := errors.Join(herr, cu.CopyToDevice(ctx, mem.Ptr(), noise(legacyUnit, seed))); err != nil {
			return err
		}
		fmt.Println(h)
		more := in.Scan()
		if err := mem.Close(); err != nil || !more {
			return errors.Join(err, ctx.Close())
		}
	}
}

// Consumers open the memory while the data is in the making, and are attached when it is there.
func TestLegacyHandoff(t *testing.T) {
	for _, size := range []uint64{1, 4096, legacyUnit, legacyUnit + 1, 3*legacyUnit - 5} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			_, ctx := leavesNothing(t)
			m := ok(NewLegacy(ctx, size))(t)
			require.Zero(t, m.Allocation()%legacyUnit)
			require.EqualValues(t, size, m.Size())
			srv := listen(t)
			s := newServed(srv)
			p := ok(prepareLegacy(srv, "data", m, OfferOptions{OnEvent: s.see, Verdict: true, MaxConsumers: 1, Data: []byte("its own")}))(t)
			require.ErrorIs(t, m.Close(), ErrInUse)
			c := start(t, "consumer", srv.Path(), "")
			s.await(t, Sent, 1)
			require.NoError(t, cu.CopyToDevice(ctx, m.Ptr(), noise(size, 1)))
			require.NoError(t, p.offer(soon(t)))
			c.end(t)
			require.NoError(t, s.await(t, Ended, 1).Err)
			require.EqualValues(t, c.cmd.Process.Pid, s.await(t, Mapped, 1).Peer.PID)
			requireNoiseAt(t, ctx, m.Ptr(), size, 2)
			require.NoError(t, m.Close())
		})
	}
}

// FAULTS 10: attached twice, the memory is at one address until both are closed.
func TestFault10_LegacyAttachment(t *testing.T) {
	spy, dev, ctx := spied(t)
	counted, path := ok(mapped.Of(os.Getpid()))(t), socketPath(t)
	c := start(t, "legacy producer", path, "12345")
	c.says(t, "listening")
	att := ok(attachAny(soon(t), path, "data", dev,
		AttachOptions{OnReceived: func(o OfferInfo, files []*os.File) {
			require.NotNil(t, o.Legacy)
			require.Empty(t, files)
		}}))(t)
	require.Nil(t, att.Buffer())
	require.EqualValues(t, 12345, att.Size())
	require.Equal(t, cu.ReadWrite, att.Access(), "read-only was asked for and cannot be had")
	require.Same(t, dev, att.Device())
	require.EqualValues(t, legacyUnit, att.Offer().Descriptor.ChunkSize)

	again := ok(attachAny(soon(t), path, "", dev))(t)
	require.Equal(t, att.Ptr(), again.Ptr())
	require.Equal(t, counted+2, ok(mapped.Of(os.Getpid()))(t))
	require.NoError(t, att.Close())
	require.NoError(t, att.Close(), "which does not count twice")
	require.Equal(t, counted+1, ok(mapped.Of(os.Getpid()))(t))
	requireNoiseAt(t, ctx, again.Ptr(), again.Size(), 1)

	att = ok(attachAny(soon(t), path, "", dev, AttachOptions{Access: cu.ReadWrite, Legacy: true}))(t)
	require.NoError(t, att.Report(soon(t), nil))
	require.Contains(t, spy.owed(), "1 opened", "closed before it was reported")
	require.NoError(t, att.Close())

	require.NoError(t, c.in.Close())
	require.ErrorIs(t, awaitDone(t, again), ErrWithdrawn)
	requireNoiseAt(t, ctx, again.Ptr(), again.Size(), 1)
	require.NoError(t, again.Close())
	require.NoError(t, c.cmd.Wait())
	require.Contains(t, spy.owed(), "0 opened")
	require.Equal(t, counted, ok(mapped.Of(os.Getpid()))(t))
}

// A part of memory that somebody else has. Nothing else is legacy memory.
func TestLegacyAtAPart(t *testing.T) {
	_, ctx := leavesNothing(t)
	mem := ok(ctx.Alloc(1 << 20))(t)
	defer func() { require.NoError(t, mem.Close()) }()
	const offset, size = 12345, 6789
	require.NoError(t, cu.Fill(ctx, mem.Ptr(), uint8(0), 1<<20))
	require.NoError(t, cu.CopyToDevice(ctx, mem.Ptr().Add(offset), noise(size, 1)))
	m := ok(LegacyAt(ctx, mem.Ptr().Add(offset), size))(t)
	srv := listen(t)
	s := serveLegacy(t, srv, m, OfferOptions{Verdict: true, MaxConsumers: 1})
	start(t, "consumer", srv.Path(), "").end(t)
	require.NoError(t, s.end(t))
	require.NoError(t, m.Close())
	all := make([]byte, 1<<20)
	require.NoError(t, cu.CopyToHost(ctx, all, mem.Ptr()))
	require.Equal(t, string(noise(size, 2)), string(all[offset:offset+size]))
	require.Zero(t, all[offset-1])
	require.Zero(t, all[offset+size])

	for _, n := range []uint64{0, mem.Size(), math.MaxUint64} {
		require.ErrorIs(t, errOf(LegacyAt(ctx, mem.Ptr().Add(offset), n)), vmm.ErrSize)
	}
	require.ErrorIs(t, errOf(NewLegacy(ctx, 0)), vmm.ErrSize)
	require.ErrorIs(t, errOf(NewLegacy(ctx, math.MaxUint64)), vmm.ErrSize)
	err := errOf(LegacyAt(ctx, newBuffer(t, ctx, 1).Ptr(), 1))
	require.ErrorIs(t, err, cu.ErrInvalidValue)
	require.ErrorContains(t, err, "virtual memory")
}

// requireInUse checks that the memory stays, and which consumer has it.
func requireInUse(t *testing.T, m *Legacy, c *child) {
	t.Helper()
	err := m.Close()
	require.ErrorIs(t, err, ErrInUse)
	require.ErrorContains(t, err, fmt.Sprintf("pid %d", c.cmd.Process.Pid))
}

// FAULTS 5, 6, 9: the memory stays as long as it is offered, and a consumer whose lease ends has it
// until it closes it or dies. Only then the lease is over, and only then its owner can free it.
//
//fault:rows 5
func TestFault9_RevokedLegacyMemoryIsClosedFirst(t *testing.T) {
	revoke := func(_ *served, l *Lease) { l.Revoke("") }
	cancel := func(s *served, _ *Lease) { s.cancel() }
	closeServer := func(s *served, _ *Lease) { go s.Close() }
	for name, c := range map[string]struct {
		do    string
		end   func(*served, *Lease)
		lines []string // of the child; the lease ends behind the first
		kill  bool
		offer error
	}{
		"revoked, closed":       {"stop when revoked", revoke, []string{"mapped", "revoked"}, false, nil},
		"offer ends, closed":    {"stop when revoked", cancel, []string{"mapped", "revoked"}, false, nil},
		"server closed, closed": {"stop when revoked", closeServer, []string{"mapped", "revoked"}, false, ErrClosed},
		"received, killed":      {"stop when received", cancel, []string{"received"}, true, nil},
		"opened, killed":        {"stop when opened", cancel, []string{"opened"}, true, nil},
		"mapped, killed":        {"stop when mapped", cancel, []string{"mapped"}, true, nil},
		"revoked, killed":       {"stop when revoked", cancel, []string{"mapped", "revoked"}, true, nil},
		"no end but death":      {"stop when opened", nil, []string{"opened"}, true, nil},
	} {
		t.Run(name, func(t *testing.T) {
			_, ctx, srv := listening(t)
			m := newLegacy(t, ctx, 1<<20)
			onLease, begun := leases()
			s := serveLegacy(t, srv, m, OfferOptions{OnLease: onLease, Verdict: true})
			require.ErrorContains(t, m.Close(), "end the offer")
			child := start(t, "consumer", srv.Path(), c.do)
			l := next(t, begun)
			child.says(t, c.lines[0])
			if c.end != nil {
				c.end(s, l)
			}
			for _, line := range c.lines[1:] {
				child.says(t, line)
			}
			if c.end != nil && c.kill { // the end is known before the death
				require.Eventually(t, func() bool { return !offered(srv, "data") }, 30*time.Second, 100*time.Microsecond)
			}
			requireInUse(t, m, child)
			require.NoError(t, l.Err(), "it has it open")
			require.Empty(t, s.result)
			if c.kill {
				child.kill()
			} else {
				child.end(t)
			}
			<-l.Done()
			require.NotErrorIs(t, l.Err(), ErrStillOpen)
			if c.end == nil {
				require.ErrorIs(t, l.Err(), ErrNoVerdict)
				require.ErrorIs(t, l.Err(), sock.ErrPeerLost)
				require.ErrorIs(t, m.Close(), ErrInUse, "others may come")
				start(t, "consumer", srv.Path(), "").end(t)
			} else {
				require.True(t, serve.IsEnded(l.Err()), "%v", l.Err())
			}
			s.cancel()
			require.ErrorIs(t, s.end(t), c.offer)
			require.NoError(t, m.Close())
			require.ErrorIs(t, offerLegacyFor(soon(t), srv, "data", m), ErrClosed)
		})
	}
}

// FAULTS 13: nobody gets memory that its owner freed without knowing of the offer, even with
// other memory in its place.
func TestFault13_LegacyMemoryIsFreed(t *testing.T) {
	dev, ctx, srv := listening(t)
	mem := ok(ctx.Alloc(legacyUnit))(t)
	m := ok(LegacyAt(ctx, mem.Ptr(), legacyUnit))(t)
	s := serveLegacy(t, srv, m)
	early := askedLegacy(t, srv, dev)
	require.NotNil(t, heard(t, early).(wire.Offer).Legacy)
	require.NoError(t, mem.Close())
	require.ErrorIs(t, legacySource{m: m}.Vouch(), ErrMemoryGone, "nothing is there")
	mem = ok(ctx.Alloc(legacyUnit))(t)
	defer func() { require.NoError(t, mem.Close()) }()
	t.Logf("was at %s, is at %s", m.Ptr(), mem.Ptr())
	require.NoError(t, early.Send(soon(t), wire.Encode(wire.Mapped{Generation: m.Generation()})))
	for i, conn := range []*sock.Conn{early, askedLegacy(t, srv, dev)} {
		require.Equal(t, wire.Revoke{Text: "the memory is not there any more", Reason: wire.EndWithdrawn}, heard(t, conn), "nobody is given the handle")
		require.NoError(t, conn.Close())
		require.ErrorIs(t, s.await(t, Ended, i+1).Err, ErrMemoryGone)
	}
	c := start(t, "consumer", srv.Path(), "")
	require.Error(t, c.cmd.Wait(), "it does not attach")
	s.await(t, Ended, 3)
	s.stop(t)
	require.ErrorIs(t, offerLegacyFor(soon(t), srv, "again", m), ErrMemoryGone)
	require.NoError(t, m.Close())
}
