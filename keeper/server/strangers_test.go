package server

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/internal/testenv/fusetest"
	"github.com/gpufd/gpufd/keeper/internal/protocol"
	"github.com/gpufd/gpufd/sock"
)

// The keeper decides without a file's owner whether the file is memory.
func TestIsMemoryAsksNobody(t *testing.T) {
	f, m := fusetest.Open(t)
	m.Silence(fusetest.Getattr)
	said := make(chan error, 2)
	go func() {
		for _, k := range []cu.Kind{cu.CUDA, cu.Soft} {
			said <- isMemory(f, k)
		}
	}()
	for range 2 {
		select {
		case err := <-said:
			require.ErrorContains(t, err, "no memory of the")
		case <-time.After(30 * time.Second):
			t.Fatal("it waits for the owner of the file")
		}
	}
}

// Nobody sends descriptors to the control socket without a ticket, named by the policy or not.
func TestControlTakesNoFilesWithoutATicket(t *testing.T) {
	s, _, _ := kept(t)
	c := ok(sock.Dial(soon(t), s.opts.Socket+protocol.ControlSuffix))(t)
	defer c.Close()
	f := ok(os.Open("/dev/null"))(t)
	defer f.Close()
	err := c.Send(soon(t), []byte("\x01{}"), f)
	if fd, serr := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0); serr == nil {
		refuses := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PASSRIGHTS, 0) == nil
		require.NoError(t, unix.Close(fd))
		if refuses {
			require.ErrorIs(t, err, unix.EPERM)
			return
		}
	}
	require.Error(t, errOf(c.Receive(soon(t))), "the keeper ends the connection")
}

// A start that fails half way leaves no socket, no lock and no store: here after the readers'
// socket.
func TestFailedStartLeavesNothing(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "d", "k")
	require.NoError(t, os.Mkdir(filepath.Dir(socket), 0o700))
	lock := socket + protocol.ControlSuffix + ".lock"
	require.NoError(t, os.Mkdir(lock, 0o700))
	require.ErrorIs(t, errOf(Open(soon(t), options(socket))), sock.ErrNotSocket)
	left := ok(filepath.Glob(socket + "*"))(t)
	require.Equal(t, []string{lock}, left)
}
