package share

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/internal/serve"
	"github.com/gpufd/gpufd/internal/wire"
	"github.com/gpufd/gpufd/sock"
	"github.com/gpufd/gpufd/vmm"
)

// An older producer hears nothing that it does not know.
func TestDetachFromAnOlderProducer(t *testing.T) {
	dev, ctx := leavesNothing(t)
	tr := truthOf(t, ctx)
	heardLast := make(chan []wire.Message, 2)
	older := func(say lie) func(*sock.Conn) {
		return func(conn *sock.Conn) {
			require.NoError(t, conn.Send(soon(t), say.record, say.files...))
			var all []wire.Message
			for {
				rec, err := conn.Receive(soon(t))
				if err != nil {
					heardLast <- all
					return
				}
				m := ok(wire.Decode(rec.Data))(t)
				all = append(all, m)
				if _, fails := m.(wire.Verdict); fails {
					heardLast <- all
					return
				}
			}
		}
	}
	told := func(o *wire.Offer) { o.Process.Told = true }
	att := ok(Attach(soon(t), impostor(t, older(tr.say(told, tr.files...))), "data", dev, nil))(t)
	at := att.Ptr()
	require.False(t, ok(att.Detach(soon(t), time.Second))(t))
	require.Equal(t, []wire.Message{wire.Mapped{Generation: tr.Memory.Generation}, wire.Farewell{}}, <-heardLast)

	for name, c := range map[string]struct {
		change func(*wire.Offer)
		want   error
	}{
		"other memory":        {func(o *wire.Offer) { o.Memory.Generation++ }, ErrStale},
		"the same, otherwise": {func(o *wire.Offer) { o.Memory.Size-- }, serve.ErrUnexpected},
	} {
		att.path = impostor(t, older(tr.say(c.change, tr.files...)))
		require.ErrorIs(t, errOf(att.Reattach(soon(t), Same)), c.want, name)
		require.IsType(t, wire.Verdict{}, (<-heardLast)[0], name)
		require.True(t, att.Detached())
	}
	asks := make(chan wire.Message, 1)
	att.path = impostorHearing(t, asks, older(tr.say(told, tr.files...)))
	next := ok(att.Reattach(soon(t), Same))(t)
	require.Zero(t, (<-asks).(wire.Attach).Reattach)
	require.Equal(t, at, next.Ptr())
	require.NoError(t, next.Close())
	<-heardLast
}

// impostorHearing is an impostor that passes on the wish to attach.
func impostorHearing(t *testing.T, asks chan wire.Message, script func(*sock.Conn)) (path string) {
	t.Helper()
	path = socketPath(t)
	l := ok(sock.Listen(path))(t)
	done := make(chan struct{})
	go func() {
		defer close(done)
		conn, err := l.Accept(soon(t))
		if err != nil {
			return
		}
		defer conn.Close()
		if rec, err := conn.Receive(soon(t)); err == nil {
			m, _ := wire.Decode(rec.Data)
			asks <- m
			script(conn)
		}
	}()
	t.Cleanup(func() { require.NoError(t, l.Close()); <-done })
	return path
}

// Same finds memory that was replaced as long as its lease is kept. Newest maps what has its name, if there is room.
func TestReattachWhenThereIsNewer(t *testing.T) {
	dev, ctx, srv := listening(t)
	g := granularity(t, dev)
	first, second, third := newBuffer(t, ctx, g), filled(t, ctx, 7), newBuffer(t, ctx, 2*g)
	old := put(t, srv, first)
	att, bystander := attached(t, srv, "data", dev), attached(t, srv, "data", dev)
	at := att.Ptr()
	detach(t, att, 0)
	mid := replace(t, srv, second)
	<-att.Superseded()

	same := reattach(t, att, Same)
	require.Equal(t, first.Describe(), same.Offer().Descriptor)
	requireNoise(t, ctx, same.Buffer(), 1)
	detach(t, same, 0) // before it may have heard that there is newer
	require.NoError(t, bystander.Close())
	newest := reattach(t, same, Newest)
	require.Equal(t, second.Describe(), newest.Offer().Descriptor)
	require.Equal(t, at, newest.Ptr())
	require.NoError(t, old.end(t), "its last lease has ended")

	detach(t, newest, 0)
	last := replace(t, srv, third)
	<-newest.Superseded()
	require.ErrorIs(t, errOf(newest.Reattach(soon(t), Newest)), vmm.ErrCapacity)
	require.True(t, newest.Detached())
	require.Equal(t, at, newest.Ptr())
	again := reattach(t, newest, Same)
	require.Equal(t, second.Describe(), again.Offer().Descriptor)
	require.NoError(t, again.Close())
	require.NoError(t, mid.end(t))

	lost := attached(t, srv, "data", dev)
	detach(t, lost, 0)
	leasesAs(srv, "data")[0].Revoke("")
	awaitDone(t, lost)
	replace(t, srv, first)
	require.NoError(t, last.end(t))
	require.ErrorIs(t, errOf(lost.Reattach(soon(t), Same)), ErrStale)
	next := reattach(t, lost, Newest)
	require.Equal(t, first.Describe(), next.Offer().Descriptor, "smaller memory fits")
}

// Whatever keeps it from being reattached, an attachment stays detached, with its lease, its address and nothing else.
func TestReattachThatFails(t *testing.T) {
	spy, dev, ctx := spied(t)
	g := granularity(t, dev)
	var no atomic.Bool
	srv := listen(t, ListenOptions{Authorize: func(sock.Peer, OfferInfo) error {
		if no.Load() {
			return errors.New("not now")
		}
		return nil
	}})
	buf := newBuffer(t, ctx, 2*g, vmm.WithChunkSize(g))
	s := put(t, srv, buf, OfferOptions{MaxConsumers: 1})
	att := attached(t, srv, "data", dev)
	at := att.Ptr()
	detach(t, att, 0)
	owed := spy.owed()
	for _, function := range []string{"cuMemImportFromShareableHandle", "cuMemMap", "cuMemSetAccess"} {
		err := spy.during(function, func() error { return errOf(att.Reattach(soon(t), Same)) })
		require.ErrorIs(t, err, cu.ErrOutOfMemory, function)
		require.Equal(t, owed, spy.owed(), function)
	}
	no.Store(true)
	require.ErrorIs(t, errOf(att.Reattach(soon(t), Same)), ErrDenied)
	no.Store(false)
	over, cancel := context.WithCancel(soon(t))
	cancel()
	require.ErrorIs(t, errOf(att.Reattach(over, Same)), context.Canceled)
	require.True(t, att.Detached())
	require.NoError(t, att.Err())
	require.Equal(t, at, att.Ptr())
	att = reattach(t, att, Same)
	requireNoise(t, ctx, att.Buffer(), 1)
	require.NoError(t, att.Close())
	require.NoError(t, s.end(t), "the one consumer has gone")
}

// A consumer keeps its one place over any number of rounds, and others do not get it.
func TestDetachedConsumerKeepsItsPlace(t *testing.T) {
	dev, ctx, srv := listening(t)
	s := put(t, srv, newBuffer(t, ctx, 1), OfferOptions{MaxConsumers: 1})
	att := attached(t, srv, "data", dev)
	for range 5 {
		detach(t, att, 0)
		require.ErrorIs(t, errOf(Attach(soon(t), srv.Path(), "data", dev, nil)), ErrBusy)
		att = reattach(t, att, Newest)
	}
	require.NoError(t, att.Close())
	require.NoError(t, s.end(t))
}

// An attachment that was reattached, and then lost, is resumed: the address space goes along, and is freed in the end.
func TestResumeAfterReattach(t *testing.T) {
	spy, dev, ctx := spied(t)
	buf := newBuffer(t, ctx, 1)
	owed := spy.owed()
	srv := ok(Listen(socketPath(t), nil))(t)
	put(t, srv, buf)
	att := attached(t, srv, "data", dev)
	detach(t, att, 0)
	att = reattach(t, att, Same)
	require.NoError(t, srv.Close())
	require.ErrorIs(t, awaitDone(t, att), ErrWithdrawn)
	srv = again(t, att)
	put(t, srv, buf)
	next := ok(att.Resume(soon(t)))(t)
	detach(t, next, 0)
	last := ok(next.Reattach(soon(t), Same))(t)
	requireNoise(t, ctx, last.Buffer(), 1)
	require.NoError(t, last.Close())
	require.Equal(t, owed, spy.owed())
}

// Detach, Reattach and Close at once: each succeeds or says why not, and nothing is left.
func TestDetachReattachAndCloseAtOnce(t *testing.T) {
	spy, dev, ctx := spied(t)
	srv := listen(t)
	put(t, srv, newBuffer(t, ctx, 1))
	owed := spy.owed()
	for range 100 {
		att := ok(Attach(soon(t), srv.Path(), "data", dev, nil))(t)
		var all sync.WaitGroup
		next := make(chan *Attachment, 2)
		for _, f := range []func() error{
			func() error { return errOf(att.Detach(soon(t), 0)) },
			func() error { return errOf(att.Detach(soon(t), time.Hour)) },
			func() error { a, err := att.Reattach(soon(t), Same); next <- a; return err },
			func() error { a, err := att.Reattach(soon(t), Newest); next <- a; return err },
			att.Close,
			func() error { _, _, _ = att.Ptr(), att.Buffer(), att.Detached(); return nil },
		} {
			all.Go(func() {
				if err := f(); err != nil && !errors.Is(err, ErrClosed) && !errors.Is(err, ErrInUse) && !strings.Contains(err.Error(), "not detached") {
					t.Error(err)
				}
			})
		}
		all.Wait()
		for range 2 {
			require.NoError(t, (<-next).Close())
		}
		require.NoError(t, att.Close())
		require.Equal(t, owed, spy.owed())
	}
}

// A lease that is kept while its memory is detached is taken up with the producer's successor, and nothing is mapped. Then it
// is reattached at the same address.
func TestResumeWhileDetached(t *testing.T) {
	spy, dev, ctx := spied(t)
	buf := newBuffer(t, ctx, 1)
	srv := ok(Listen(socketPath(t), nil))(t)
	put(t, srv, buf)
	att := attached(t, srv, "data", dev)
	at := att.Ptr()
	detach(t, att, time.Hour)
	require.NoError(t, srv.Close())
	awaitDone(t, att)
	maps := spy.count("cuMemMap")

	s := put(t, again(t, att), buf)
	next := ok(att.Resume(soon(t)))(t)
	s.await(t, Detached, 1)
	require.Equal(t, maps, spy.count("cuMemMap"))
	require.True(t, next.Detached())
	require.False(t, att.Detached())
	require.Nil(t, next.Buffer())
	require.Equal(t, []cu.DevicePtr{at, at}, []cu.DevicePtr{next.Ptr(), att.Ptr()})
	require.ErrorIs(t, errOf(att.Resume(soon(t))), ErrClosed)
	require.NoError(t, att.Close())

	last := reattach(t, next, Same)
	require.Equal(t, at, last.Ptr())
	require.NoError(t, last.Close())
	s.await(t, Ended, 2)
}

// An attachment stays as it is, detached, if its lease cannot be resumed: with a producer that would take the memory for
// mapped, and for memory that it may write.
func TestResumeWhileDetachedThatFails(t *testing.T) {
	dev, ctx := leavesNothing(t)
	for _, access := range []cu.Access{cu.ReadOnly, cu.ReadWrite} {
		buf := newBuffer(t, ctx, 1)
		srv := ok(Listen(socketPath(t), nil))(t)
		put(t, srv, buf)
		att := attached(t, srv, "data", dev, AttachOptions{Access: access})
		_, err := att.Detach(soon(t), 0)
		require.NoError(t, err)
		require.NoError(t, srv.Close())
		awaitDone(t, att)
		l := ok(sock.Listen(att.path))(t)
		answered := make(chan error, 1)
		go func() { answered <- resumesAsOlder(t, l, buf.Describe()) }()
		_, err = att.Resume(soon(t))
		require.NoError(t, l.Close())
		answer := <-answered
		if access == cu.ReadOnly {
			require.ErrorIs(t, err, ErrUnsupported)
			require.NoError(t, answer)
		} else {
			require.ErrorContains(t, err, "nobody keeps a lease that may write")
			require.ErrorIs(t, answer, sock.ErrClosed)
		}
		require.True(t, att.Detached())
		require.NoError(t, att.Close())
	}
}

// resumesAsOlder answers one consumer that resumes as a producer does that does not know of memory that is detached.
func resumesAsOlder(t *testing.T, l *sock.Listener, is vmm.Descriptor) error {
	conn, err := l.Accept(soon(t))
	if err != nil {
		return err
	}
	defer conn.Close()
	if _, err := conn.Receive(soon(t)); err != nil {
		return err
	}
	return conn.Send(soon(t), wire.Encode(wire.Offer{Name: "data", Memory: is, Access: cu.ReadOnly, Resume: is.Generation}))
}
