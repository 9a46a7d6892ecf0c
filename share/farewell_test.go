package share

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/cutest"
	"github.com/gpufd/gpufd/fence"
	"github.com/gpufd/gpufd/internal/serve"
	"github.com/gpufd/gpufd/internal/wire"
	"github.com/gpufd/gpufd/sock"
	"github.com/gpufd/gpufd/vmm"
)

// childLeaver attaches, to write, says so, and then leaves in the way that it is told, or
// waits to be killed. It lives until its input ends.
func childLeaver() error {
	dev, ctx, err := childDevice()
	if err != nil {
		return err
	}
	att, err := Attach(context.Background(), os.Getenv(pathEnv), "data", dev, &AttachOptions{Access: cu.ReadWrite})
	if err != nil {
		return errors.Join(err, ctx.Close())
	}
	switch os.Getenv(doEnv) {
	case "close":
		err = att.Close()
	case "hang up":
		err = att.now.Load().transport.Conn.Close()
	case "fork":
		err = lendConnection(att)
	case "close when revoked":
		fmt.Println("mapped")
		<-att.Done()
		err = att.Close()
		untilInputEnds("closed")
		return errors.Join(err, ctx.Close())
	}
	untilInputEnds("attached")
	return errors.Join(err, att.Close(), ctx.Close())
}

// lendConnection starts a process that holds the connection, too, and says which.
func lendConnection(att *Attachment) error {
	f, err := att.now.Load().transport.Conn.File()
	if err != nil {
		return err
	}
	defer f.Close()
	cmd := exec.Command("sleep", "60")
	cmd.ExtraFiles = []*os.File{f}
	if err := cmd.Start(); err != nil {
		return err
	}
	fmt.Println(cmd.Process.Pid)
	return nil
}

// leaver is a child that has attached and done that.
func leaver(t *testing.T, srv *Server, do string) *child {
	t.Helper()
	c := start(t, "leaver", srv.Path(), do)
	c.says(t, "attached")
	return c
}

// FAULTS 83: a consumer that dies, or just hangs up, is not one that has left.
func TestFault83_ConsumerThatDiesIsNotOneThatLeft(t *testing.T) {
	_, ctx, srv := listening(t)
	s := put(t, srv, newBuffer(t, ctx, 1))
	leaver(t, srv, "close")
	require.NoError(t, s.await(t, Ended, 1).Err)
	for i, do := range []string{"hang up", ""} {
		c, died := leaver(t, srv, do), do == ""
		if died {
			c.kill()
		}
		err := s.await(t, Ended, i+2).Err
		require.ErrorIs(t, err, sock.ErrPeerLost)
		lost := requireLost(t, err)
		require.Equal(t, died, lost.Died())
		require.EqualValues(t, c.cmd.Process.Pid, lost.Peer.PID)
		require.Equal(t, died, strings.HasSuffix(err.Error(), "its process has died"), err)
	}
}

func requireLost(t *testing.T, err error) *sock.LostError {
	t.Helper()
	var lost *sock.LostError
	require.ErrorAs(t, err, &lost)
	return lost
}

// An older consumer says nothing of its process, nor whether it runs under MPS. It is not called
// lost when it goes, and nothing tells when it is fenced.
//
//fault:rows 83
func TestOlderConsumerIsNotLost(t *testing.T) {
	dev, ctx, srv := listening(t)
	buf := newBuffer(t, ctx, 1)
	onLease, begun := leases()
	s := put(t, srv, buf, OfferOptions{OnLease: onLease})
	for i, says := range []wire.Process{{}, {Told: true}} {
		want := wants(dev)
		want.Process = says
		conn := asked(t, srv, want)
		require.True(t, heard(t, conn).(wire.Offer).Process.Told)
		require.NoError(t, conn.Send(soon(t), wire.Encode(isMapped(buf))))
		s.await(t, Mapped, i+1)
		require.NoError(t, conn.Close())
		err, l := s.await(t, Ended, i+1).Err, next(t, begun)
		if says.Told {
			requireLost(t, err)
		} else {
			require.NoError(t, err)
			requireNoFence(t, l.Fenced(), l.AwaitFence)
			require.ErrorContains(t, l.AwaitFence(soon(t), fence.Fenced), "older")
		}
	}
}

// A second farewell, or a record that may be ignored, changes nothing behind a farewell. After
// any other record the farewell counts for nothing.
//
//fault:rows 83
func TestBehindAFarewell(t *testing.T) {
	dev, ctx, srv := listening(t)
	buf := newBuffer(t, ctx, 1)
	onLease, begun := leases()
	s := put(t, srv, buf, OfferOptions{OnLease: onLease})
	for i, c := range []struct {
		says     wire.Message
		released bool
	}{
		{wire.Farewell{}, true},
		{wire.Notice{Data: []byte("bye")}, true},
		{wire.Progress{Done: 1, Total: 2}, false},
		{wire.Verdict{OK: true}, false},
	} {
		want := wants(dev)
		want.Process.Told = true
		conn := asked(t, srv, want)
		heard(t, conn)
		for _, m := range []wire.Message{isMapped(buf), wire.Farewell{}, c.says} {
			require.NoError(t, conn.Send(soon(t), wire.Encode(m)))
		}
		if !c.released {
			requireRefusal(t, conn, wire.RefusedRecord, "behind a farewell")
		}
		require.NoError(t, conn.Close())
		err, l := s.await(t, Ended, i+1).Err, next(t, begun)
		if c.released {
			require.NoError(t, err)
			require.NoError(t, l.AwaitFence(soon(t), fence.Released))
		} else {
			require.ErrorIs(t, err, serve.ErrUnexpected)
			require.ErrorIs(t, l.AwaitFence(briefly(t), fence.Released), context.DeadlineExceeded)
		}
	}
}

// A consumer that gives up and goes just before it is sent the offer has said that it has nothing.
//
//fault:rows 83
func TestConsumerGoesBeforeTheOffer(t *testing.T) {
	dev, ctx := leavesNothing(t)
	decide := make(chan error)
	srv := listen(t, ListenOptions{Authorize: func(sock.Peer, OfferInfo) error { return <-decide }})
	onLease, begun := leases()
	s := put(t, srv, newBuffer(t, ctx, 1), OfferOptions{OnLease: onLease})
	want := wants(dev)
	want.Process.Told = true
	conn := asked(t, srv, want)
	require.NoError(t, conn.Send(soon(t), wire.Encode(wire.Verdict{Text: "attaching failed: no more time"})))
	require.NoError(t, conn.Close())
	decide <- nil
	l := next(t, begun)
	require.ErrorContains(t, s.await(t, Ended, 1).Err, "no more time")
	require.NoError(t, l.AwaitFence(soon(t), fence.Released))
}

// A process that has the connection, too, keeps the lease when the one that attached has
// died: the peer is fenced when both have ended.
//
//fault:rows 82
func TestForkedProcessKeepsTheLease(t *testing.T) {
	_, ctx, srv := listening(t)
	onLease, begun := leases()
	put(t, srv, newBuffer(t, ctx, 1), OfferOptions{OnLease: onLease})
	c := start(t, "leaver", srv.Path(), "fork")
	require.True(t, c.out.Scan())
	holder := ok(strconv.Atoi(c.out.Text()))(t)
	end := func() { _ = syscall.Kill(holder, syscall.SIGKILL) }
	t.Cleanup(end)
	c.says(t, "attached")
	l := next(t, begun)
	process := ok(l.Process())(t)
	defer process.Close()
	c.kill()
	require.NoError(t, process.Wait(soon(t)))
	require.False(t, serve.IsClosed(l.Done()))
	require.ErrorIs(t, l.AwaitFence(briefly(t), fence.Fenced), context.DeadlineExceeded)
	end()
	<-l.Fenced()
	require.True(t, requireLost(t, l.Err()).Died())
	require.NoError(t, l.AwaitFence(soon(t), fence.Fenced))
}

// A producer that was killed is told from one that has ended.
//
//fault:rows 83
func TestProducerThatDiesIsNotOneThatEnded(t *testing.T) {
	dev, _ := leavesNothing(t)
	for _, killed := range []bool{true, false} {
		path := socketPath(t)
		c := start(t, "producer", path, "5")
		c.says(t, "listening")
		att := ok(Attach(soon(t), path, "", dev, nil))(t)
		if killed {
			c.kill()
			require.True(t, requireLost(t, awaitDone(t, att)).Died())
			require.ErrorIs(t, att.Err(), sock.ErrPeerLost)
			require.NoError(t, ok(Listen(path, nil))(t).Close())
		} else {
			c.end(t)
			require.ErrorIs(t, awaitDone(t, att), ErrWithdrawn)
			require.NoError(t, att.AwaitFence(soon(t), fence.Released))
		}
		<-att.Fenced()
		require.NoError(t, att.Close())
		require.NoError(t, att.AwaitFence(soon(t), fence.Fenced), "it stays so")
	}
}

// Release waits for the work, and changes nothing if that does not end.
func TestReleaseWaitsForTheWork(t *testing.T) {
	dev, ctx, srv := listening(t)
	onLease, begun := leases()
	put(t, srv, newBuffer(t, ctx, 64), OfferOptions{OnLease: onLease})
	att := attached(t, srv, "", dev, AttachOptions{Access: cu.ReadWrite})
	word := ok(ctx.Alloc(8))(t)
	require.NoError(t, cu.Fill(ctx, word.Ptr(), uint32(0), 2))
	busy := ok(ctx.NewStream())(t)
	free := ok(ctx.NewStream())(t)
	require.NoError(t, busy.WaitValue64(word.Ptr(), 1, cu.WaitGEQ))
	require.ErrorIs(t, att.Release(briefly(t)), context.DeadlineExceeded)
	require.NoError(t, att.Err())
	require.NotZero(t, att.Ptr())
	l := next(t, begun)
	require.False(t, serve.IsClosed(l.Done()))
	require.NoError(t, free.WriteValue64(word.Ptr(), 1, cu.WriteDefault))
	require.NoError(t, att.Release(soon(t)))
	require.NoError(t, att.Release(soon(t)))
	require.NoError(t, l.AwaitFence(soon(t), fence.Released))
	require.NoError(t, l.Err())
	require.NoError(t, errors.Join(busy.Close(), free.Close(), word.Close()))
}

// childFreer offers a buffer. When its input ends it tries to free it under its offer.
func childFreer() error {
	dev, ctx, err := childDevice()
	if err != nil {
		return err
	}
	buf, err := childBuffer(dev, ctx, 1<<20)
	if err != nil {
		return err
	}
	return serveUntilInputEnds(func(ended context.Context, srv *Server) error {
		go func() {
			<-ended.Done()
			if errors.Is(buf.Close(), vmm.ErrInUse) && ctx.Close() == nil {
				fmt.Println("kept")
			}
		}()
		return offerFor(context.Background(), srv, "data", buf, cu.ReadWrite) // for ever
	})
}

// The producer cannot free the memory under its offer, and dies or ends in good order while a
// consumer is at any step of mapping it, or has mapped it. That just works, and the memory is free
// when the consumer lets go.
func TestFault9_ProducerFreesWhileAConsumerMaps(t *testing.T) {
	for _, when := range []string{"received", "import", "reserve", "map", "access", "attached", "ended"} {
		t.Run(when, func(t *testing.T) {
			spy, dev, ctx := spied(t)
			path := socketPath(t)
			producer, want := "freer", sock.ErrPeerLost
			if when == "ended" {
				producer, want = "producer", ErrWithdrawn
			}
			c := start(t, producer, path, "1048576")
			c.says(t, "listening")
			frees := func(now string) {
				switch {
				case when == "ended" && now == "received":
					c.end(t)
				case now == when:
					require.NoError(t, c.in.Close())
					c.says(t, "kept")
					c.kill()
				}
			}
			spy.onStep(frees)
			att := ok(Attach(soon(t), path, "data", dev,
				&AttachOptions{OnReceived: func(OfferInfo, []*os.File) { frees("received") }}))(t)
			frees("attached")
			require.ErrorIs(t, awaitDone(t, att), want)
			requireNoise(t, ctx, att.Buffer(), 1)
			require.NoError(t, att.Close())
			srv := ok(Listen(path, nil))(t)
			require.NoError(t, srv.Close())
		})
	}
}

// Whatever is closed first, nothing is left, and nothing fails but to close a buffer
// that is offered.
//
//fault:rows 78
func TestFault12_CloseInAnyOrder(t *testing.T) {
	for n := range 24 {
		order := permutation([]string{"attachment", "buffer", "server", "context"}, n)
		dev, _ := leavesNothing(t)
		ctx := ok(dev.PrimaryContext())(t)
		buf := ok(vmm.New(dev, 1<<20))(t)
		require.NoError(t, cu.CopyToDevice(ctx, buf.Ptr(), noise(1<<20, 1)))
		srv := ok(Listen(socketPath(t), nil))(t)
		s := put(t, srv, buf)
		att := ok(Attach(soon(t), srv.Path(), "data", dev, nil))(t)
		s.await(t, Mapped, 1)
		closes := map[string]func() error{"attachment": att.Close, "buffer": buf.Close, "server": srv.Close, "context": ctx.Close}
		for i, what := range order {
			left := order[i+1:]
			if err := closes[what](); what == "buffer" && slices.Contains(left, "server") {
				require.ErrorIs(t, err, vmm.ErrInUse)
			} else {
				require.NoError(t, err, "%s of %v", what, order)
			}
			if slices.Contains(left, "attachment") {
				requireNoise(t, cutest.Context(t, dev), att.Buffer(), 1)
			}
		}
		require.ErrorIs(t, s.end(t), ErrClosed)
		for _, what := range order {
			require.NoError(t, closes[what](), "%s again, of %v", what, order)
		}
	}
}

// permutation returns the nth order of list.
func permutation(list []string, n int) (order []string) {
	for len(list) > 0 {
		i := n % len(list)
		n /= len(list)
		order = append(order, list[i])
		list = slices.Delete(list, i, i+1)
	}
	return order
}
