package server

import (
	"context"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gpufd/gpufd/keeper"
	"github.com/gpufd/gpufd/keeper/internal/fdstore"
	"github.com/gpufd/gpufd/keeper/internal/protocol"
	"github.com/gpufd/gpufd/keeper/internal/state"
	"github.com/gpufd/gpufd/sock"
)

// A volume of a pod may be written by others, its group at least. The keeper makes a directory
// of its own in there, and leaves alone what others have made.
func TestSocketDirectory(t *testing.T) {
	before := unix.Umask(0) // so that the mode is what the keeper asks for, and not what the umask leaves of it
	t.Cleanup(func() { unix.Umask(before) })
	for _, v := range []struct {
		name string
		mode uint32
		made os.FileMode // of the directory within
	}{{"emptyDir", 0o777, 0o750}, {"fsGroup", 0o2775, 0o750 | os.ModeSetgid}} {
		t.Run(v.name, func(t *testing.T) {
			volume := filepath.Dir(newSocket(t))
			require.NoError(t, unix.Chmod(volume, v.mode))
			require.ErrorContains(t, errOf(Open(soon(t), options(filepath.Join(volume, "socket")))), sock.ErrInsecure.Error(), "the volume itself")

			opts := options(filepath.Join(volume, "keeper", "socket"))
			s := opened(t, opts)
			info := ok(os.Stat(filepath.Dir(opts.Socket)))(t)
			require.Equal(t, os.ModeDir|v.made, info.Mode())
			dialled(t, opts.Socket)
			require.NoError(t, s.Close())
			store := ok(fdstore.Dial(soon(t), opts.Socket+storeSuffix))(t)
			exitStore(t, store)

			require.NoError(t, os.Chmod(filepath.Dir(opts.Socket), 0o770))
			require.ErrorContains(t, errOf(Open(soon(t), opts)), sock.ErrInsecure.Error(), "one that others may write to")
		})
	}
	volume := filepath.Dir(newSocket(t))
	require.ErrorContains(t, errOf(Open(soon(t), options(filepath.Join(volume, "a", "b", "socket")))), sock.ErrNoDirectory.Error())
	require.NoDirExists(t, filepath.Join(volume, "a"), "one directory is made, not two")
}

// storeAt starts an fd store that is not the keeper's child.
func storeAt(t *testing.T, path string) *exec.Cmd {
	t.Helper()
	argv := storeCommand()
	cmd := exec.Command(argv[0], append(argv[1:], path)...)
	cmd.Stderr = os.Stderr
	require.NoError(t, cmd.Start())
	t.Cleanup(func() { endStore(cmd) })
	return cmd
}

func endStore(cmd *exec.Cmd) {
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
}

// A keeper without a command for an fd store waits for one, when it starts and when the one
// that it had has died. Meanwhile it answers.
func TestStoreOfAnother(t *testing.T) {
	_, _, dev := kept(t)
	opts, said := options(newSocket(t)), newDiary()
	opts.Store, opts.Log = nil, said.log
	short, cancel := context.WithTimeout(soon(t), 50*time.Millisecond)
	defer cancel()
	_, err := Open(short, opts)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.ErrorContains(t, err, "start one there: gpufd fd-store "+opts.Socket+storeSuffix)

	serving := make(chan *Server)
	go func() {
		s, err := Open(soon(t), opts)
		if err != nil {
			t.Error(err)
		}
		serving <- s
	}()
	first := storeAt(t, opts.Socket+storeSuffix)
	s := <-serving
	require.NotNil(t, s)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	c := dialled(t, opts.Socket)
	put(t, c, dev, "x", 1)

	endStore(first)
	said.await(t, "the fd store has died")
	requireBytes(t, attach(t, c, dev, "x")[0], 1)
	storeAt(t, opts.Socket+storeSuffix)
	said.await(t, "holds everything")
	require.NoError(t, s.Close())
	s = opened(t, opts)
	requireBytes(t, attach(t, dialled(t, opts.Socket), dev, "x")[0], 1)
}

// Probes are answered at the address of the metrics, also while there is no fd store: ending
// the keeper then would lose what is kept.
func TestProbe(t *testing.T) {
	opts, said := options(newSocket(t)), newDiary()
	opts.Store, opts.Log = nil, said.log
	l := ok(net.Listen("tcp", "127.0.0.1:0"))(t)
	opts.Metrics = l.Addr().String()
	require.NoError(t, l.Close())
	store := storeAt(t, opts.Socket+storeSuffix)
	opened(t, opts)
	require.Equal(t, "serving\n", page(t, opts.Metrics, "/healthz"))
	require.Contains(t, page(t, opts.Metrics, "/metrics"), "gpufd_keeper_names 0")
	endStore(store)
	said.await(t, "the fd store has died")
	require.Equal(t, "serving, without an fd store\n", page(t, opts.Metrics, "/healthz"))
}

func page(t *testing.T, address, path string) string {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	r := ok(client.Get("http://" + address + path))(t)
	defer r.Body.Close()
	require.Equal(t, http.StatusOK, r.StatusCode)
	text := ok(io.ReadAll(r.Body))(t)
	return string(text)
}

// A user without a rule in the policy is told so, at once: it does not wait for a keeper that
// would answer.
func TestNotAdmitted(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can be two users")
	}
	s, _, _ := kept(t)
	c := limited(t, s, state.Rule{UID: number(uint32(12345)), Allow: []state.Right{state.Read}})
	require.NoError(t, errOf(c.Status(soon(t))))
	require.NoError(t, os.Chmod(filepath.Dir(s.opts.Socket), 0o711))
	stranger := dialledBy(t, 12346, s.opts.Socket)
	_, err := stranger.Status(soon(t))
	requireCode(t, "denied", err)
}

// dialledBy returns a client of another user, which ends with the test. Its connection is that
// user's; a new one would not be.
func dialledBy(t *testing.T, uid uintptr, socket string) *client {
	t.Helper()
	runtime.LockOSThread() // and end the thread with this test, whatever user it is then
	_, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, ^uintptr(0), uid, ^uintptr(0))
	require.Zero(t, errno)
	c, err := dial(soon(t), socket)
	_ = c.conn()
	_, _, errno = unix.RawSyscall(unix.SYS_SETRESUID, ^uintptr(0), 0, ^uintptr(0))
	require.Zero(t, errno)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	return c
}

// A ticket is good for the user that has booked. Another user that may write and knows the
// ticket can neither deliver nor cancel with it, nor learn its outcome.
func TestTicketOfAnotherUser(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can be two users")
	}
	s, _, dev := kept(t)
	all := []state.Right{state.Read, state.Write, state.Remove}
	c := limited(t, s, state.Rule{UID: number(uint32(12345)), Allow: all})
	require.NoError(t, os.Chmod(filepath.Dir(s.opts.Socket), 0o711))
	other := dialledBy(t, 12345, s.opts.Socket)
	require.NoError(t, errOf(other.Status(soon(t))))
	b := ok(c.book(soon(t), keeper.Put{Name: "x", Parts: 1}, part(0, dev, 1), "tx"))(t)
	d, files := exported(t, dev)
	stolen := protocol.Booking{Client: other.conn(), Ticket: b.Ticket}
	refused := func() {
		t.Helper()
		for _, op := range []string{protocol.OpFiles, protocol.OpDeliver, protocol.OpCancel} {
			_, err := other.conn().Ask(soon(t), protocol.Request{Op: op, Ticket: b.Ticket})
			requireCode(t, "not-found", err)
		}
		require.Nil(t, stolen.Came)
	}
	refused()
	requireCode(t, "denied", stolen.Renew(soon(t)))
	refused()
	require.Equal(t, uint64(small), stat(t, c, "x").ReservedBytes)
	a := ok(b.Deliver(soon(t), protocol.Delivery{Memory: protocol.Describe(d), Files: files, Digest: "gpufd-d1:" + strings.Repeat("0", 32)}))(t)
	require.Equal(t, uint64(1), a.Version)
	refused()
	requireCode(t, "not-found", stolen.Renew(soon(t)))
	require.NoError(t, b.Renew(soon(t)))
	require.Equal(t, uint64(1), b.Came.Version, "who has booked hears it")
}
