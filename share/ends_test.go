package share

import (
	"context"
	"errors"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/internal/serve"
	"github.com/gpufd/gpufd/internal/wire"
	"github.com/gpufd/gpufd/sock"
)

// Each end of a lease has a reason that both sides know, and the reason's words go to the consumer.
func TestEndsHaveReasons(t *testing.T) {
	for name, c := range map[string]struct {
		end  func(t *testing.T, ctx *cu.Context, s *served, l *Lease)
		want error
		says string
	}{
		"withdrawn":  {func(_ *testing.T, _ *cu.Context, s *served, _ *Lease) { s.cancel() }, ErrWithdrawn, "withdrawn"},
		"revoked":    {func(_ *testing.T, _ *cu.Context, _ *served, l *Lease) { l.Revoke("too\x1bslow") }, ErrRevoked, `too\x1bslow`},
		"restarting": {func(t *testing.T, _ *cu.Context, s *served, _ *Lease) { require.NoError(t, s.Shutdown(soon(t))) }, ErrRestarting, "restarting"},
		"superseded": {func(t *testing.T, ctx *cu.Context, s *served, _ *Lease) {
			replace(t, s.Server, newBuffer(t, ctx, 1))
			s.cancel()
		}, ErrSuperseded, "newer"},
	} {
		t.Run(name, func(t *testing.T) {
			dev, ctx, srv := listening(t)
			onLease, begun := leases()
			s := put(t, srv, newBuffer(t, ctx, 1), OfferOptions{OnLease: onLease})
			att := attached(t, srv, "data", dev)
			s.await(t, Mapped, 1)
			l := next(t, begun)
			require.False(t, l.Released())
			c.end(t, ctx, s, l)
			require.ErrorIs(t, awaitDone(t, att), c.want)
			require.ErrorContains(t, att.Err(), c.says)
			<-l.Done()
			require.ErrorIs(t, l.Err(), c.want)
			require.True(t, Retryable(att.Err()))
			require.False(t, l.Released(), "it has it mapped")
		})
	}
}

// FAULTS 79: while memory is held, as by a counter, Close of its attachment changes nothing, also if the offer was
// taken back: the lease goes on, and the memory stays mapped.
func TestFault79_AttachmentIsClosedAfterItsHold(t *testing.T) {
	for name, revoke := range map[string]bool{"attached": false, "revoked": true} {
		t.Run(name, func(t *testing.T) {
			dev, ctx, srv := listening(t)
			served := put(t, srv, newBuffer(t, ctx, 1))
			att := attached(t, srv, "data", dev)
			h := ok(att.Buffer().Hold("counter 0"))(t)
			if revoke {
				served.cancel()
				require.ErrorIs(t, awaitDone(t, att), ErrWithdrawn)
			}
			for _, end := range []func() error{att.Close, att.CloseNow, func() error { return att.Release(soon(t)) }} {
				require.ErrorIs(t, end(), ErrInUse)
			}
			require.Equal(t, revoke, serve.IsClosed(att.Done()))
			requireNoise(t, ctx, att.Buffer(), 1)
			require.NoError(t, errors.Join(h.Close(), att.Close()))
			require.Zero(t, att.Ptr())
		})
	}
}

// A reason that this version does not know, or none, is a revocation with the peer's words.
func TestReasonsOfOtherVersions(t *testing.T) {
	for reason, want := range map[wire.EndReason]error{0: ErrRevoked, 1: ErrWithdrawn, 2: ErrSuperseded, 3: ErrRevoked, 4: ErrRestarting, 5: ErrRevoked, 1 << 63: ErrRevoked} {
		err := serve.RevokedError(wire.Revoke{Text: "words", Reason: reason})
		require.ErrorIs(t, err, want)
		require.Equal(t, want == ErrRevoked, err.Error() == "share: revoked by the producer: words")
	}
}

// Peers that come while a server shuts down wait in a socket of which somebody has copies, for the
// successor. A follower goes on with its memory all the time.
func TestShutdownForASuccessor(t *testing.T) {
	dev, ctx := leavesNothing(t)
	path := socketPath(t)
	buf := filled(t, ctx, 7)
	first := ok(Listen(path, nil))(t)
	put(t, first, buf)
	found, cancel := followed(t, ctx, path)
	att := awaitSeen(t, found, 7)
	at := att.Ptr()
	files := ok(first.Files())(t)
	defer func() { require.NoError(t, sock.CloseFiles(files)) }()
	require.NoError(t, first.Shutdown(soon(t)))
	require.NoError(t, first.Shutdown(soon(t)))
	require.NoError(t, att.Context().Err(), "it is without a lease")

	late := make(chan error, 1)
	go func() {
		att, err := Attach(soon(t), path, "data", dev, nil)
		if err == nil {
			err = att.Close()
		}
		late <- err
	}()
	<-briefly(t).Done()
	require.Empty(t, late, "it waits")
	second := ok(Listen(path, &ListenOptions{Inherited: files}))(t)
	defer func() { require.NoError(t, second.Close()); _, _ = os.Remove(path), os.Remove(path+".lock") }()
	expect(second, "data")
	s := put(t, second, buf)
	require.NoError(t, <-late)
	s.await(t, Mapped, 2)
	require.NoError(t, att.Context().Err())
	require.Equal(t, at, att.Ptr())
	require.ErrorIs(t, cancel(), context.Canceled)
	require.ErrorIs(t, (*Server)(nil).Shutdown(soon(t)), ErrClosed)
}
