package share

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/sock"
	"github.com/gpufd/gpufd/vmm"
)

// filled is a buffer of a unit whose first word is v, and which goes when t ends.
func filled(t testing.TB, ctx *cu.Context, v uint32) *vmm.Buffer {
	t.Helper()
	buf := newBuffer(t, ctx, granularity(t, ctx.Device()))
	require.NoError(t, cu.Fill(ctx, buf.Ptr(), v, 1))
	return buf
}

// seen is what a body of Follow found, and its attachment.
type seen struct {
	value uint32
	att   *Attachment
}

// followed follows "data" at path until t ends or cancel is called, and says on a channel
// what it sees. The result is the error of the last pair.
func followed(t testing.TB, ctx *cu.Context, path string, opts ...AttachOption) (found chan seen, cancel func() error) {
	t.Helper()
	life, stop := context.WithCancel(t.Context())
	found = make(chan seen)
	result := make(chan error, 1)
	go func() {
		for att, err := range Follow(life, path, "data", ctx.Device(), opts...) {
			if err != nil {
				result <- err
				return
			}
			word := make([]uint32, 1)
			if err := cu.CopyToHost(ctx, word, att.Ptr()); err != nil {
				t.Error(err)
			}
			found <- seen{word[0], att}
		}
	}()
	return found, func() error { stop(); return <-result }
}

func awaitSeen(t testing.TB, found chan seen, want uint32) *Attachment {
	t.Helper()
	select {
	case s := <-found:
		require.Equal(t, want, s.value)
		return s.att
	case <-soon(t).Done():
		require.FailNow(t, "nothing follows")
		return nil
	}
}

func awaitCause(t testing.TB, ctx context.Context) error {
	t.Helper()
	select {
	case <-ctx.Done():
	case <-soon(t).Done():
		require.FailNow(t, "the context does not end")
	}
	return context.Cause(ctx)
}

// A follower may come before the producer, gets each version at the same address, and goes on
// with the producer's successor. It ends with its context.
func TestFollow(t *testing.T) {
	dev, ctx := leavesNothing(t)
	room := ok(vmm.Reserve(dev.Driver(), granularity(t, dev)))(t)
	defer func() { require.NoError(t, room.Close()) }()
	path := socketPath(t)
	found, cancel := followed(t, ctx, path, WithReservation(room))

	time.Sleep(20 * time.Millisecond) // for some tries
	srv := ok(Listen(path))(t)
	srv.Expect("data")
	first := put(t, srv, filled(t, ctx, 1))
	a := awaitSeen(t, found, 1)
	require.Equal(t, room.Ptr(), a.Ptr())
	require.NoError(t, a.Context().Err())

	second := replace(t, srv, filled(t, ctx, 2))
	require.ErrorIs(t, awaitCause(t, a.Context()), ErrSuperseded)
	b := awaitSeen(t, found, 2)
	require.Equal(t, room.Ptr(), b.Ptr())
	require.NoError(t, first.end(t), "the first has let go")

	require.NoError(t, srv.Close())
	require.Error(t, awaitCause(t, b.Context()))
	require.ErrorIs(t, second.end(t), ErrClosed)
	srv = ok(Listen(path))(t)
	defer func() { require.NoError(t, srv.Close()) }()
	srv.Expect("data")
	put(t, srv, filled(t, ctx, 3))
	c := awaitSeen(t, found, 3)
	require.Equal(t, room.Ptr(), c.Ptr())

	require.ErrorIs(t, cancel(), context.Canceled)
	require.Zero(t, c.Ptr(), "it was closed")
}

// A body that lets go early is given what is newer, and nothing twice.
func TestFollowGivesNothingTwice(t *testing.T) {
	for name, letGo := range map[string]func(*Attachment) error{
		"closed":  (*Attachment).Close,
		"verdict": func(a *Attachment) error { return a.Report(context.Background(), nil) },
	} {
		t.Run(name, func(t *testing.T) {
			_, ctx, srv := listening(t)
			srv.Expect("data")
			put(t, srv, filled(t, ctx, 1))
			found, cancel := followed(t, ctx, srv.Path())
			require.NoError(t, letGo(awaitSeen(t, found, 1)))
			select {
			case <-found:
				require.FailNow(t, "the same again")
			case <-time.After(50 * time.Millisecond):
			}
			replace(t, srv, filled(t, ctx, 2))
			awaitSeen(t, found, 2)
			require.ErrorIs(t, cancel(), context.Canceled)
		})
	}
}

// Follow ends with an error that waiting does not mend, and the reservation is as before.
func TestFollowEnds(t *testing.T) {
	dev, ctx := leavesNothing(t)
	g := granularity(t, dev)
	room := ok(vmm.Reserve(dev.Driver(), g))(t)
	defer func() { require.NoError(t, room.Close()) }()
	refusing := listen(t, WithAuthorize(func(sock.Peer, Offer) error { return errors.New("not you") }))
	put(t, refusing, newBuffer(t, ctx, g))
	srv := listen(t)
	srv.Expect("data")
	serveAs(t, srv, "data", newBuffer(t, ctx, 2*g), ReadOnly)
	for name, c := range map[string]struct {
		path string
		opt  AttachOption
		want error
	}{
		"not admitted":         {refusing.Path(), nil, ErrRefused},
		"more access":          {srv.Path(), WithAccess(ReadWrite), ErrRefused},
		"larger than the room": {srv.Path(), WithReservation(room), vmm.ErrCapacity},
	} {
		t.Run(name, func(t *testing.T) {
			pairs := 0
			for att, err := range Follow(soon(t), c.path, "data", dev, c.opt) {
				pairs++
				require.Nil(t, att)
				require.ErrorIs(t, err, c.want)
				require.NotErrorIs(t, err, context.DeadlineExceeded)
			}
			require.Equal(t, 1, pairs)
			require.NotZero(t, room.Ptr())
		})
	}
	require.ErrorContains(t, errOf(Attach(soon(t), srv.Path(), "data", dev, WithReservation(room), WithRoom(g))), "WithRoom and WithReservation")
}

// A loop that is broken off leaves nothing.
func TestFollowIsBrokenOff(t *testing.T) {
	dev, ctx, srv := listening(t)
	srv.Expect("data")
	s := put(t, srv, filled(t, ctx, 1))
	var last *Attachment
	for att, err := range Follow(soon(t), srv.Path(), "data", dev) {
		require.NoError(t, err)
		last = att
		break
	}
	require.Zero(t, last.Ptr())
	require.ErrorIs(t, awaitCause(t, last.Context()), ErrClosed)
	s.stop(t)
}

// A graph that was captured once reads each version, because all are at one address.
func TestGraphReplaysOverSwaps(t *testing.T) {
	dev, ctx := leavesNothing(t)
	room := ok(vmm.Reserve(dev.Driver(), granularity(t, dev)))(t)
	defer func() { require.NoError(t, room.Close()) }()
	stream := ok(ctx.NewStream())(t)
	out := ok(ctx.Alloc(4))(t)
	defer func() { require.NoError(t, errors.Join(stream.Close(), out.Close())) }()
	srv := listen(t)
	srv.Expect("data")
	buffers := []*vmm.Buffer{filled(t, ctx, 0), filled(t, ctx, 0)}
	var exec *cu.GraphExec
	v, word := uint32(0), make([]uint32, 1)
	next := func() *served {
		v++
		buf := buffers[v%2]
		require.NoError(t, cu.Fill(ctx, buf.Ptr(), v, 1))
		return replace(t, srv, buf)
	}
	before, now := (*served)(nil), next()
	for att, err := range Follow(soon(t), srv.Path(), "data", dev, WithReservation(room)) {
		require.NoError(t, err)
		if before != nil {
			require.NoError(t, before.end(t)) // so its buffer may be written
		}
		if exec == nil {
			g, err := stream.Capture(func() error { return cu.CopyAsync(stream, out.Ptr(), att.Ptr(), 4) })
			require.NoError(t, err)
			exec, err = g.Instantiate(0)
			require.NoError(t, errors.Join(err, g.Close()))
		}
		require.NoError(t, errors.Join(exec.Launch(stream), cu.CopyToHostAsync(stream, word, out.Ptr()), stream.Synchronize(soon(t))))
		require.Equal(t, v, word[0])
		if v == 100 {
			break
		}
		before, now = now, next()
	}
	require.NoError(t, exec.Close())
	now.cancel()
}

// The end of Follow's context ends what the body was given, and says why; the memory stays until the
// body has returned.
func TestFollowsContextEndsTheAttachments(t *testing.T) {
	_, ctx := leavesNothing(t)
	srv := ok(Listen(socketPath(t)))(t)
	defer func() { require.NoError(t, srv.Close()) }()
	srv.Expect("data")
	put(t, srv, filled(t, ctx, 7))
	life, stop := context.WithCancelCause(t.Context())
	defer stop(nil)
	why := errors.New("why")
	seen := 0
	var last error
	for att, err := range Follow(life, srv.Path(), "data", ctx.Device()) {
		if last = err; err != nil {
			continue
		}
		seen++
		require.NoError(t, att.Context().Err())
		stop(why)
		<-att.Context().Done()
		require.ErrorIs(t, context.Cause(att.Context()), why)
		word := make([]uint32, 1)
		require.NoError(t, cu.CopyToHost(ctx, word, att.Ptr()))
		require.EqualValues(t, 7, word[0])
	}
	require.Equal(t, 1, seen)
	require.ErrorIs(t, last, why)
}
