package share

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/internal/serve"
	"github.com/gpufd/gpufd/internal/wire"
	"github.com/gpufd/gpufd/sock"
)

// childLeaver attaches, to write, says so, and then leaves in the way that it is told, or
// waits to be killed. It lives until its input ends.
func childLeaver() error {
	dev, ctx, err := childDevice()
	if err != nil {
		return err
	}
	att, err := Attach(context.Background(), os.Getenv(pathEnv), "data", dev, WithAccess(ReadWrite))
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
	for name, do := range map[string]struct {
		child      string
		lost, died bool
	}{
		"closes":  {"close", false, false},
		"killed":  {"", true, true},
		"hung up": {"hang up", true, false},
	} {
		t.Run(name, func(t *testing.T) {
			_, ctx, srv := listening(t)
			s := put(t, srv, newBuffer(t, ctx, 1))
			c := leaver(t, srv, do.child)
			if do.died {
				c.kill()
			}
			err := s.await(t, Ended, 1).Err
			if !do.lost {
				require.NoError(t, err)
				return
			}
			require.ErrorIs(t, err, sock.ErrPeerLost)
			lost := requireLost(t, err)
			require.Equal(t, do.died, lost.Died())
			require.EqualValues(t, c.cmd.Process.Pid, lost.Peer.PID)
			require.Equal(t, do.died, strings.HasSuffix(err.Error(), "its process has died"), err)
		})
	}
}

func requireLost(t *testing.T, err error) *LostError {
	t.Helper()
	var lost *LostError
	require.ErrorAs(t, err, &lost)
	return lost
}

// An older consumer says nothing of its process, and is not called lost when it goes.
//
//fault:rows 83
func TestOlderConsumerIsNotLost(t *testing.T) {
	dev, ctx, srv := listening(t)
	buf := newBuffer(t, ctx, 1)
	s := put(t, srv, buf)
	for i, says := range []wire.Process{{}, {Told: true}} {
		want := wants(dev)
		want.Process = says
		conn := asked(t, srv, want)
		heard(t, conn)
		require.NoError(t, conn.Send(soon(t), wire.Encode(isMapped(buf))))
		s.await(t, Mapped, i+1)
		require.NoError(t, conn.Close())
		err := s.await(t, Ended, i+1).Err
		if says.Told {
			requireLost(t, err)
		} else {
			require.NoError(t, err)
		}
	}
}

// A second farewell, or a record that may be ignored, changes nothing behind a farewell. After
// any other record the farewell counts for nothing.
//
//fault:rows 83
func TestBehindAFarewell(t *testing.T) {
	for name, c := range map[string]struct {
		says     []wire.Message
		released bool
	}{
		"nothing":   {nil, true},
		"the same":  {[]wire.Message{wire.Farewell{}, wire.Farewell{}}, true},
		"a notice":  {[]wire.Message{wire.Notice{Data: []byte("bye")}}, true},
		"progress":  {[]wire.Message{wire.Progress{Done: 1, Total: 2}}, false},
		"a verdict": {[]wire.Message{wire.Verdict{OK: true}}, false},
	} {
		t.Run(name, func(t *testing.T) {
			dev, ctx, srv := listening(t)
			buf := newBuffer(t, ctx, 1)
			leases := make(chan *Lease, 1)
			s := put(t, srv, buf, OnLease(func(l *Lease) { leases <- l }))
			want := wants(dev)
			want.Process.Told = true
			conn := asked(t, srv, want)
			heard(t, conn)
			for _, m := range append([]wire.Message{isMapped(buf), wire.Farewell{}}, c.says...) {
				require.NoError(t, conn.Send(soon(t), wire.Encode(m)))
			}
			if c.released {
				require.NoError(t, conn.Close())
				require.NoError(t, s.await(t, Ended, 1).Err)
				require.NoError(t, (<-leases).AwaitFence(soon(t), Released))
				return
			}
			requireRefusal(t, conn, RefusedRecord, "behind a farewell")
			require.NoError(t, conn.Close())
			require.ErrorIs(t, s.await(t, Ended, 1).Err, ErrProtocol)
			require.ErrorIs(t, (<-leases).AwaitFence(briefly(t), Released), context.DeadlineExceeded)
		})
	}
}

// A process that has the connection, too, keeps the lease when the one that attached has
// died: the peer is fenced when both have ended.
//
//fault:rows 82
func TestForkedProcessKeepsTheLease(t *testing.T) {
	_, ctx, srv := listening(t)
	leases := make(chan *Lease, 1)
	put(t, srv, newBuffer(t, ctx, 1), OnLease(func(l *Lease) { leases <- l }))
	c := start(t, "leaver", srv.Path(), "fork")
	require.True(t, c.out.Scan())
	holder := ok(strconv.Atoi(c.out.Text()))(t)
	end := func() { _ = syscall.Kill(holder, syscall.SIGKILL) }
	t.Cleanup(end)
	c.says(t, "attached")
	l := <-leases
	fenced := l.Fenced()
	process := ok(l.Process())(t)
	defer process.Close()
	c.kill()
	require.NoError(t, process.Wait(soon(t)))
	require.False(t, serve.IsClosed(l.Done()))
	require.False(t, serve.IsClosed(fenced))
	require.ErrorIs(t, l.AwaitFence(briefly(t), Fenced), context.DeadlineExceeded)
	end()
	<-l.Done()
	<-fenced
	require.True(t, requireLost(t, l.Err()).Died())
	require.NoError(t, l.AwaitFence(soon(t), Fenced))
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
		att := ok(Attach(soon(t), path, "", dev))(t)
		fenced := att.Fenced()
		if killed {
			c.kill()
			require.True(t, requireLost(t, awaitDone(t, att)).Died())
			require.ErrorIs(t, att.Err(), sock.ErrPeerLost)
			srv := ok(Listen(path))(t)
			require.NoError(t, srv.Close())
		} else {
			c.end(t)
			require.ErrorIs(t, awaitDone(t, att), ErrRevoked)
			require.NoError(t, att.AwaitFence(soon(t), Released))
		}
		<-fenced
		require.NoError(t, att.AwaitFence(soon(t), Fenced))
		require.NoError(t, att.Close())
		require.NoError(t, att.AwaitFence(soon(t), Fenced), "it stays so")
	}
}

// Behind a verdict both part in order.
func TestVerdictIsAFarewell(t *testing.T) {
	dev, ctx, srv := listening(t)
	s := put(t, srv, newBuffer(t, ctx, 1))
	att := attached(t, srv, "", dev)
	require.NoError(t, att.Report(soon(t), nil))
	var lost *LostError
	require.False(t, errors.As(att.Err(), &lost), "%v", att.Err())
	require.NoError(t, att.AwaitFence(soon(t), Released))
	require.NoError(t, s.await(t, Ended, 1).Err)
}

// Release waits for the work, and changes nothing if that does not end.
func TestReleaseWaitsForTheWork(t *testing.T) {
	dev, ctx, srv := listening(t)
	leases := make(chan *Lease, 1)
	put(t, srv, newBuffer(t, ctx, 64), OnLease(func(l *Lease) { leases <- l }))
	att := attached(t, srv, "", dev, WithAccess(ReadWrite))
	word := ok(ctx.Alloc(8))(t)
	require.NoError(t, cu.Fill(ctx, word.Ptr(), uint32(0), 2))
	busy := ok(ctx.NewStream())(t)
	free := ok(ctx.NewStream())(t)
	require.NoError(t, busy.WaitValue64(word.Ptr(), 1, cu.WaitGEQ))
	require.ErrorIs(t, att.Release(briefly(t)), context.DeadlineExceeded)
	require.NoError(t, att.Err())
	require.NotZero(t, att.Ptr())
	l := <-leases
	require.False(t, serve.IsClosed(l.Done()))
	require.NoError(t, free.WriteValue64(word.Ptr(), 1, cu.WriteDefault))
	require.NoError(t, att.Release(soon(t)))
	require.NoError(t, att.Release(soon(t)))
	require.NoError(t, l.AwaitFence(soon(t), Released))
	require.NoError(t, l.Err())
	require.NoError(t, errors.Join(busy.Close(), free.Close(), word.Close()))
}
