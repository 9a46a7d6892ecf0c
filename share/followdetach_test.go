package share

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/internal/serve"
	"github.com/gpufd/gpufd/internal/wire"
	"github.com/gpufd/gpufd/sock"
)

// An attachment of Follow that is detached goes on with the producer's successor: it takes a lease there and says that it
// is detached. Reattached, it is still Follow's.
func TestFollowGoesOnWhileDetached(t *testing.T) {
	dev, ctx := leavesNothing(t)
	b := follows(t, dev, ctx)
	at := b.att.Ptr()
	detach(t, b.att, time.Hour)
	b.loses(t)
	require.False(t, ok(b.att.Detach(soon(t), 0))(t), "there is no lease now")
	v2 := b.successor(t)
	s := serveAs(t, v2, "data", b.from.Buffer(), cu.ReadOnly)
	s.await(t, Detached, 1)
	require.True(t, leasesAs(v2, "data")[0].Detached())
	require.True(t, b.att.Detached())
	require.NoError(t, b.att.Context().Err())

	next := ok(b.att.Reattach(soon(t), Same))(t)
	require.Equal(t, at, next.Ptr())
	requireNoise(t, ctx, next.Buffer(), 1)
	require.ErrorIs(t, awaitCause(t, b.att.Context()), ErrClosed)
	require.NoError(t, next.Context().Err())
	s.await(t, Ended, 1)
	b.nobodyFollows(t)

	replace(t, v2, filled(t, ctx, 7))
	require.ErrorIs(t, awaitCause(t, next.Context()), ErrSuperseded)
	awaitSeen(t, b.found, 7)
	require.NoError(t, s.end(t))
	require.ErrorIs(t, b.cancel(), context.Canceled)
	require.NoError(t, b.from.Close())
}

// A lease of memory that was superseded while it is detached is taken up at a producer's successor, too, if that has the
// memory.
func TestFollowGoesOnWithWhatWasSuperseded(t *testing.T) {
	_, ctx := leavesNothing(t)
	path := socketPath(t)
	first, second := filled(t, ctx, 1), filled(t, ctx, 2)
	srv := ok(Listen(path, nil))(t)
	put(t, srv, first)
	found, cancel := followed(t, ctx, path)
	att := awaitSeen(t, found, 1)
	detach(t, att, 0)
	replace(t, srv, second)
	<-att.Superseded()
	require.NoError(t, srv.Shutdown(soon(t)))

	memory, files, err := first.Export()
	require.NoError(t, err)
	srv = ok(Listen(path, nil))(t)
	beside := ok(offerResumed(srv, "data", memory, files, cu.ReadOnly))(t) // before another has the name
	put(t, srv, second)
	require.Eventually(t, func() bool { all := beside.Leases(); return len(all) == 1 && all[0].Detached() }, 30*time.Second, time.Millisecond)
	next := ok(att.Reattach(soon(t), Same))(t)
	require.Equal(t, memory, next.Offer().Descriptor)
	require.ErrorIs(t, awaitCause(t, next.Context()), ErrSuperseded)
	awaitSeen(t, found, 2)
	require.ErrorIs(t, cancel(), context.Canceled)
	require.NoError(t, srv.Close())
}

// A successor that is older than this does not keep memory for what is detached, and is not asked to.
func TestFollowLeavesAnOlderSuccessorWhileDetached(t *testing.T) {
	dev, ctx := leavesNothing(t)
	b := follows(t, dev, ctx)
	detach(t, b.att, 0)
	b.loses(t)
	l := ok(sock.Listen(b.path))(t)
	conn := ok(l.Accept(soon(t)))(t)
	talk := hearer(conn)
	want, _, err := talk.Receive(soon(t), false)
	require.NoError(t, err)
	offer := wire.Offer{Memory: b.from.Buffer().Describe(), Access: cu.ReadOnly, Name: "data", Resume: want.(wire.Attach).Resume, Process: wire.Process{Told: true}}
	require.NoError(t, talk.Send(soon(t), offer))
	m, _, err := talk.Receive(soon(t), false)
	require.NoError(t, err)
	require.IsType(t, wire.Mapped{}, m)
	_, _, err = talk.Receive(soon(t), false)
	require.ErrorIs(t, err, sock.ErrPeerLost)
	require.True(t, talk.Left, "it says farewell, and nothing else")
	require.ErrorIs(t, awaitDone(t, b.att), sock.ErrPeerLost)
	require.True(t, b.att.Detached())
	require.NoError(t, conn.Close())
	require.NoError(t, l.Close())
	require.ErrorIs(t, b.cancel(), context.Canceled)
	require.NoError(t, b.from.Close())
}

// While an attachment is detached Follow maps nothing, whatever the producer offers or however the lease ends: it waits
// until the memory is wanted again.
func TestFollowSleeps(t *testing.T) {
	_, ctx := leavesNothing(t)
	for name, c := range map[string]struct {
		overlap bool
		happens func(*testing.T, *Server, *Attachment)
		wakes   func(*testing.T, *Attachment) *Attachment // or nil: it is closed
		sees    uint32                                    // then, or 0: what it has woken up with goes on
	}{
		"superseded, and the same": {false, nil, func(t *testing.T, a *Attachment) *Attachment { return ok(a.Reattach(soon(t), Same))(t) }, 2},
		"superseded, and newest":   {false, nil, func(t *testing.T, a *Attachment) *Attachment { return ok(a.Reattach(soon(t), Newest))(t) }, 0},
		"superseded, and closed":   {false, nil, func(t *testing.T, a *Attachment) *Attachment { require.NoError(t, a.Close()); return nil }, 2},
		"one beside the other":     {true, nil, func(t *testing.T, a *Attachment) *Attachment { return ok(a.Reattach(soon(t), Same))(t) }, 2},
		"revoked": {false, func(t *testing.T, srv *Server, a *Attachment) {
			leasesAs(srv, "data")[0].Revoke("")
			require.ErrorIs(t, awaitCause(t, a.Context()), ErrRevoked)
		}, func(t *testing.T, a *Attachment) *Attachment { return ok(a.Reattach(soon(t), Newest))(t) }, 0},
		"and never wakes": {false, nil, nil, 0},
	} {
		t.Run(name, func(t *testing.T) {
			srv := listen(t)
			first := put(t, srv, filled(t, ctx, 1))
			found, cancel := followed(t, ctx, srv.Path(), AttachOptions{Overlap: c.overlap})
			att := awaitSeen(t, found, 1)
			detach(t, att, 0)
			second := first
			if c.happens != nil {
				c.happens(t, srv, att)
			} else {
				second = replace(t, srv, filled(t, ctx, 2))
				<-att.Superseded()
			}
			select {
			case <-found:
				require.FailNow(t, "the body is called while the memory is detached")
			case <-time.After(20 * time.Millisecond):
			}
			if second != first {
				require.NoError(t, att.Context().Err())
				require.Empty(t, second.of(Connected))
			}
			require.True(t, att.Detached())
			var woken *Attachment
			if c.wakes != nil {
				woken = c.wakes(t, att)
			}
			if c.sees != 0 {
				awaitSeen(t, found, c.sees)
			} else if woken != nil {
				require.NoError(t, woken.Context().Err())
				require.False(t, serve.IsClosed(woken.Superseded()))
			}
			require.ErrorIs(t, cancel(), context.Canceled)
			if woken != nil {
				require.ErrorIs(t, errOf(woken.Detach(soon(t), 0)), ErrClosed, "Follow has closed it")
				require.Error(t, woken.Context().Err())
				if c.sees != 0 && !c.overlap {
					require.ErrorIs(t, context.Cause(woken.Context()), ErrSuperseded)
				}
			}
			require.ErrorIs(t, errOf(att.Reattach(soon(t), Same)), ErrClosed)
			first.stop(t)
			second.stop(t)
			require.NoError(t, srv.Close())
		})
	}
}
