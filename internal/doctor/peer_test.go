package doctor

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gpufd/gpufd/cu/cutest"
	"github.com/gpufd/gpufd/internal/cli"
	"github.com/gpufd/gpufd/sock"
)

// offering starts a process that offers memory to doctors, behind front.
func offering(t *testing.T, cmd *exec.Cmd, path string) {
	t.Helper()
	in := ok(cmd.StdinPipe())(t)
	out := ok(cmd.StdoutPipe())(t)
	cmd.Stderr = os.Stderr
	cmd.Env = append(cmd.Env, socketEnv+"="+path)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		require.NoError(t, in.Close())
		_, _ = io.Copy(io.Discard, out)
		require.NoError(t, cmd.Wait())
	})
	line := ok(bufio.NewReader(out).ReadString('\n'))(t)
	require.Equal(t, "ready\n", line)
}

// offer is a process to be behind front.
func offer(t *testing.T, front []string, env ...string) *exec.Cmd {
	cmd := cutest.Child(context.Background(), "offer", env...)
	if front != nil {
		cutest.Front(t, cmd, front)
	}
	return cmd
}

// With another process that offers memory, in the same place and in others.
func TestWithAPeer(t *testing.T) {
	t.Run("the same place", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "s")
		offering(t, offer(t, nil), path)
		rows := With(t.Context(), config(t), path)
		named(t, rows)
		for _, r := range rows {
			require.Equal(t, OK, r.Status, "%v", r)
		}
		require.Contains(t, find(t, rows, "memory-with").Seen, "2097152 bytes were attached to and verified")
	})
	t.Run("in the place of another process", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "s")
		cmd := offer(t, nil)
		offering(t, cmd, path)
		c := config(t)
		c.As = fmt.Sprint(cmd.Process.Pid)
		rows := With(t.Context(), c, path)
		require.Equal(t, "own-handle", find(t, rows, "pid-equal").Cause)
		require.Equal(t, OK, find(t, rows, "legacy-memory").Status)
	})
	t.Run("one process", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "s")
		ctx, cancel := context.WithCancel(t.Context())
		ready, over := make(chan struct{}), make(chan error)
		go func() {
			over <- Offer(ctx, cutest.Driver(t), path, Config{}, func() { close(ready) })
		}()
		<-ready
		rows := With(t.Context(), config(t), path)
		cancel()
		require.NoError(t, <-over)
		named(t, rows, "own-handle") // a process opens its own handle
		require.Equal(t, "own-handle", find(t, rows, "legacy-memory").Cause)
	})
	t.Run("two processes number 1", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "s")
		in := cutest.Namespaced(t)
		offering(t, offer(t, in), path)
		rows := runDoctor(t, "with", in, socketEnv+"="+path)
		named(t, rows, "pid-equal") // two PID namespaces, in which both are process 1
		for _, id := range []string{"pid-equal", "legacy-memory"} {
			require.Equal(t, "pid-equal", find(t, rows, id).Cause, "%v", rows)
		}
		require.Equal(t, OK, find(t, rows, "memory-with").Status, "descriptors work")
	})
	t.Run("two /dev/shm", func(t *testing.T) {
		needSoft(t)
		path := filepath.Join(t.TempDir(), "s")
		offering(t, offer(t, namespaced(t, ownShm), "HOLD="+t.TempDir(), "RO="), path)
		rows := With(t.Context(), config(t), path)
		named(t, rows, "shm-common") // two /dev/shm
		for _, id := range []string{"shm-common", "legacy-event"} {
			require.Equal(t, "shm-common", find(t, rows, id).Cause)
		}
		require.Equal(t, OK, find(t, rows, "memory-with").Status)
	})
}

// With a producer that is no doctor, whose memory nobody attaches to unasked: what the kernel tells of
// it is compared, and the devices that its memory is on.
func TestWithAProducer(t *testing.T) {
	needSoft(t)
	producing := func(front []string) string {
		path := filepath.Join(t.TempDir(), "s")
		offering(t, offer(t, front, nameEnv+"=weights"), path)
		return path
	}
	path := producing(nil)
	rows := With(t.Context(), config(t), path)
	named(t, rows)
	require.Equal(t, Unknown, find(t, rows, "memory-with").Status)
	for _, id := range []string{"peer", "pid-equal", "uid-common", "shm-common", "net-common", "devices-common"} {
		require.Equal(t, OK, find(t, rows, id).Status, id)
	}
	c := config(t)
	c.Attach = "weights"
	require.Equal(t, OK, find(t, With(t.Context(), c, path), "memory-with").Status)

	rows = runDoctor(t, "with", nil, socketEnv+"="+path, "CUDA_VISIBLE_DEVICES=1")
	named(t, rows, "gpu-hidden") // CUDA_VISIBLE_DEVICES=1, and a producer on device 0
	require.Equal(t, Fail, find(t, rows, "devices-common").Status)

	rows = runDoctor(t, "with", cutest.Namespaced(t), socketEnv+"="+path)
	require.Contains(t, find(t, rows, "pid-equal").Seen, "has no number in this PID namespace")
	require.Equal(t, Unknown, find(t, rows, "pid-equal").Status)
}

// A process that has ended is not compared with: another one may have its number.
func TestPeerThatHasEnded(t *testing.T) {
	fd := ok(unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0))(t)
	listener := os.NewFile(uintptr(fd), "listener")
	defer listener.Close()
	path := filepath.Join(t.TempDir(), "s")
	cmd := cutest.Child(t.Context(), "listen", socketEnv+"="+path)
	cmd.ExtraFiles = []*os.File{listener}
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	conn := ok(sock.Dial(t.Context(), path))(t)
	defer conn.Close()
	require.Equal(t, int32(cmd.Process.Pid), conn.Peer().PID)
	_, err = identityOfPeer(conn)
	require.ErrorContains(t, err, "which made the socket, has ended")
	rows := (&run{}).compareWith(identity{}, err)
	require.Len(t, rows, 1)
	require.Equal(t, Unknown, find(t, rows, "pid-equal").Status)
}

// An event of another user, whose memory comes as a descriptor all the same.
func TestWithAnotherUser(t *testing.T) {
	needSoft(t)
	if os.Geteuid() != 0 {
		t.Skip("needs root, to start a process of another user")
	}
	const other = 12345
	cutest.Device(t) // makes the identity
	identity := ok(os.ReadFile(filepath.Join(os.Getenv("GPUFD_SOFT_DIR"), "machine")))(t)
	dir := ok(os.MkdirTemp("", "gpufd-doctor-"))(t)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	require.NoError(t, os.WriteFile(dir+"/machine", identity, 0o600))
	require.NoError(t, os.Mkdir(dir+"/s", 0o711))
	for _, path := range []string{dir + "/machine", dir + "/s", dir} {
		require.NoError(t, os.Chown(path, other, other))
	}
	binary := ok(os.Open("/proc/self/exe"))(t)
	defer binary.Close()
	start := func(env ...string) *exec.Cmd {
		cmd := offer(t, nil, append(env, "GPUFD_SOFT_DIR="+dir, uidsEnv+"=0")...)
		cmd.Path, cmd.ExtraFiles, cmd.Dir = "/proc/self/fd/3", []*os.File{binary}, "/"
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: other, Gid: other}}
		return cmd
	}
	path := dir + "/s/socket"
	offering(t, start(), path)

	rows := With(t.Context(), config(t), path)
	named(t, rows, "uid-common") // a user that nobody admits
	c := config(t)
	c.UIDs = []uint32{other}
	rows = With(t.Context(), c, path)
	require.Equal(t, "event-owner", find(t, rows, "legacy-event").Cause, "%v", rows)
	require.Equal(t, "uid-common", find(t, rows, "legacy-memory").Cause, "not so on a GPU (D16)")
	require.Equal(t, OK, find(t, rows, "memory-with").Status, "%v", rows)
	named(t, rows, "event-owner", "uid-common")

	path = dir + "/s/event" // without legacy memory, which the software driver keeps from other users
	offering(t, start(roleEnv+"=owner", faultsEnv+"=owner cuIpcGetMemHandle 801"), path)
	rows = With(t.Context(), c, path)
	named(t, rows, "event-owner") // an event of another user
	require.Equal(t, Unknown, find(t, rows, "legacy-memory").Status)
}

// With a process that is only there, what the kernel says of it and the devices it sees
// are compared.
func TestWithAProcess(t *testing.T) {
	needSoft(t)
	// /proc says nothing of a process's environment until the process is what it will be.
	begun := func(pid string) bool {
		comm, _ := os.ReadFile("/proc/" + pid + "/comm")
		env, _ := os.ReadFile("/proc/" + pid + "/environ")
		return string(comm) == "sleep\n" && len(env) > 0
	}
	sleeper := func(front []string, env ...string) string {
		cmd := exec.CommandContext(t.Context(), "sleep", "300")
		if front != nil {
			cmd = exec.CommandContext(t.Context(), front[0], append(front[1:], "sleep", "300")...)
		}
		cmd.Env = append(os.Environ(), env...)
		require.NoError(t, cmd.Start())
		t.Cleanup(func() {
			require.NoError(t, cmd.Process.Kill())
			require.Error(t, cmd.Wait())
		})
		pid := fmt.Sprint(cmd.Process.Pid)
		if front == nil {
			require.Eventually(t, func() bool { return begun(pid) }, 30*time.Second, time.Millisecond)
		}
		return pid
	}
	t.Run("like this one", func(t *testing.T) {
		rows := With(t.Context(), config(t), sleeper(nil))
		named(t, rows)
		require.Equal(t, OK, find(t, rows, "devices-common").Status)
	})
	t.Run("this one", func(t *testing.T) {
		named(t, With(t.Context(), config(t), fmt.Sprint(os.Getpid())), "own-handle") // --with: this very process
	})
	t.Run("different GPUs", func(t *testing.T) {
		c := config(t)
		c.As = sleeper(nil, "CUDA_VISIBLE_DEVICES=0")
		pid := sleeper(nil, "CUDA_VISIBLE_DEVICES=1")
		named(t, With(t.Context(), c, pid), "devices-common") // CUDA_VISIBLE_DEVICES=0 on one side, 1 on the other
		require.Equal(t, cli.ExitFailed, ExitCode(With(t.Context(), c, pid)))
		c.As = ""
		require.Equal(t, Warn, find(t, With(t.Context(), c, pid), "devices-common").Status)
	})
	t.Run("nobody", func(t *testing.T) {
		rows := With(t.Context(), config(t), "4194304") // above the kernel's most
		named(t, rows, "peer")                          // --with: a number that no process has
	})
	t.Run("another user namespace", func(t *testing.T) {
		cutest.Namespaced(t)
		pid := sleeper([]string{"unshare", "--user", "--map-root-user"})
		require.Eventually(t, func() bool { return begun(pid) }, 30*time.Second, time.Millisecond)
		rows := With(t.Context(), config(t), pid)
		named(t, rows, "uid-common") // a user namespace with another map
		require.Contains(t, find(t, rows, "uid-common").Seen, "map users differently")
	})
	t.Run("another container's", func(t *testing.T) {
		pid := sleeper(cutest.Namespaced(t))
		var inner string
		require.Eventually(t, func() bool {
			b, _ := os.ReadFile("/proc/" + pid + "/task/" + pid + "/children")
			inner = strings.TrimSpace(string(b))
			return inner != "" && begun(inner)
		}, 30*time.Second, time.Millisecond)
		c := config(t)
		rows := With(t.Context(), c, inner)
		require.Contains(t, find(t, rows, "pid-equal").Seen, "and 1, each in a PID namespace of its own")
		named(t, rows)
	})
}
