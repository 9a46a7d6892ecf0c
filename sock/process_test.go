package sock

import (
	"context"
	"errors"
	"io"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gpufd/gpufd/internal/testenv"
)

func init() {
	children["connect and wait"] = func(args []string) error {
		c := testenv.Got(Dial(context.Background(), args[0]))
		defer c.Close()
		_, err := io.Copy(io.Discard, os.Stdin)
		return err
	}
}

// connectedChild is a connection of a process of its own, and what kills that.
func connectedChild(t *testing.T) (c *Conn, kill func()) {
	t.Helper()
	l := listenAt(t, safeDir(t)+"/s")
	cmd := childCommand(t, "connect and wait", l.Path())
	in, _ := started(t, cmd)
	kill = func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}
	t.Cleanup(func() { _ = in.Close(); kill() })
	c = accepted(t, l)
	return c, kill
}

func processOfPeer(t *testing.T, c *Conn) *Process {
	t.Helper()
	p := ok(c.Process())(t)
	t.Cleanup(func() { require.NoError(t, p.Close()) })
	return p
}

// withoutPeerPIDFD is a kernel that lacks SO_PEERPIDFD, or all descriptors of processes.
func withoutPeerPIDFD(t *testing.T, ofPID func(int) (int, error)) {
	t.Helper()
	before := kernel
	t.Cleanup(func() { kernel = before })
	kernel.ofPeer = func(int) (int, error) { return -1, unix.ENOPROTOOPT }
	if ofPID != nil {
		kernel.ofPID = ofPID
	}
}

// Wait ends with the process, and not before.
//
//fault:rows 82
func TestProcessIsWaitedFor(t *testing.T) {
	for name, old := range map[string]bool{"SO_PEERPIDFD": false, "pidfd_open": true} {
		t.Run(name, func(t *testing.T) {
			if old {
				withoutPeerPIDFD(t, nil)
			}
			c, kill := connectedChild(t)
			p, twin := processOfPeer(t, c), processOfPeer(t, c)
			require.NotEmpty(t, p.ID())
			require.Equal(t, p.ID(), twin.ID())
			require.False(t, p.Died())
			require.ErrorIs(t, p.Wait(briefly(t)), context.DeadlineExceeded)
			both := make(chan error, 2)
			for range cap(both) {
				go func() { both <- p.Wait(soon(t)) }()
			}
			kill()
			for range cap(both) {
				require.NoError(t, <-both)
			}
			require.True(t, p.Died())
			require.NoError(t, twin.Wait(soon(t)))
			late := processOfPeer(t, c) // it has died before it is asked for
			require.NoError(t, late.Wait(soon(t)))
			require.True(t, late.Died())
		})
	}
}

func TestProcessOfBothSides(t *testing.T) {
	_, server, client := connected(t)
	a, b := processOfPeer(t, server), processOfPeer(t, client)
	require.Equal(t, a.ID(), b.ID(), "one process connected to itself")
	require.False(t, a.Died())
	other, _ := connectedChild(t)
	require.NotEqual(t, a.ID(), processOfPeer(t, other).ID())
}

func TestNoProcess(t *testing.T) {
	a, _ := pair(t)
	t.Run("older kernel, other namespace", func(t *testing.T) {
		withoutPeerPIDFD(t, nil)
		peer := a.peer
		a.peer.PID = 0
		defer func() { a.peer = peer }()
		require.ErrorIs(t, errOf(a.Process()), ErrNoProcess)
	})
	t.Run("kernel without any", func(t *testing.T) {
		withoutPeerPIDFD(t, func(int) (int, error) { return -1, unix.ENOSYS })
		_, err := a.Process()
		require.ErrorIs(t, err, ErrNoProcess)
		require.ErrorIs(t, err, unix.ENOSYS)
	})
	t.Run("out of descriptors", func(t *testing.T) {
		withoutPeerPIDFD(t, func(int) (int, error) { return -1, unix.EMFILE })
		_, err := a.Process()
		require.NotErrorIs(t, err, ErrNoProcess, "there is one")
		require.ErrorIs(t, err, unix.EMFILE)
	})
}

func TestClosedProcess(t *testing.T) {
	a, _ := pair(t)
	p := ok(a.Process())(t)
	waiting := make(chan error, 1)
	go func() { waiting <- p.Wait(soon(t)) }()
	require.NoError(t, p.Close())
	require.NoError(t, p.Close())
	require.ErrorIs(t, <-waiting, ErrClosed)
	for _, p := range []*Process{nil, {}, p} {
		require.ErrorIs(t, p.Wait(soon(t)), ErrClosed)
		require.False(t, p.Died())
		require.NoError(t, p.Close())
	}
	require.ErrorIs(t, errOf((*Conn)(nil).Process()), ErrClosed)
	require.NoError(t, a.Close())
	_, err := a.Process()
	require.True(t, errors.Is(err, ErrClosed))
}
