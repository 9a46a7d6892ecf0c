package doctor

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu/cutest"
)

// runDoctor is a run of doctor in another process, behind front.
func runDoctor(t *testing.T, child string, front []string, env ...string) []Row {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := cutest.Child(ctx, child, env...)
	if front != nil {
		cutest.Front(t, cmd, front)
	}
	cmd.Stderr = os.Stderr
	out := ok(cmd.Output())(t)
	var rows []Row
	require.NoError(t, json.Unmarshal(out, &rows))
	return rows
}

// Limits of the kernel are seen in a process of its own.
func TestKernel(t *testing.T) {
	needSoft(t)
	t.Setenv("GPUFD_SOFT_DEVICES", "1")
	socket := socketEnv + "=" + t.TempDir()
	t.Run("too few descriptors", func(t *testing.T) {
		named(t, runDoctor(t, "run", nil, socket, limitEnv+"=60"), "fd-limit") // RLIMIT_NOFILE of 60: MSG_CTRUNC
	})
	t.Run("pidfd_getfd is denied", func(t *testing.T) {
		if cutest.Emulated() {
			t.Skip("qemu-user has no seccomp, which denies the call here; the same runs without qemu")
		}
		rows := runDoctor(t, "run", nil, socket, filterEnv+"=1")
		named(t, rows, "pidfd-getfd") // a seccomp filter
		require.Contains(t, find(t, rows, "pidfd-getfd").Seen, "operation not permitted; this kernel has no Yama")
	})
}

// ownShm is a program in front of another that gives it a /dev/shm of its own, and the
// software driver's directory as it was. $1 is a directory to keep hold of that by.
const ownShm = `mount --bind "$GPUFD_SOFT_DIR" "$HOLD" && mount -t tmpfs $RO none /dev/shm && { mkdir -p "$GPUFD_SOFT_DIR" &&
	mount --bind "$HOLD" "$GPUFD_SOFT_DIR"; } && exec "$0" "$@"`

// namespaced is how to start a program behind a shell script in namespaces of its own.
func namespaced(t *testing.T, script string) []string {
	return append(cutest.Namespaced(t), "sh", "-c", script)
}

// Things that a container lacks are seen from within one.
func TestNamespaces(t *testing.T) {
	needSoft(t)
	t.Setenv("GPUFD_SOFT_DEVICES", "1")
	socket := socketEnv + "=" + t.TempDir()
	t.Run("process 1", func(t *testing.T) {
		named(t, runDoctor(t, "run", cutest.Namespaced(t), socket), "pid-namespace") // a PID namespace
	})
	t.Run("no /dev/shm", func(t *testing.T) {
		readOnly := strings.Replace(ownShm, `exec "$0"`, `mount -o remount,ro /dev/shm && "$0"`, 1)
		rows := runDoctor(t, "run", namespaced(t, readOnly), socket, "HOLD="+t.TempDir(), "RO=")
		named(t, rows, "shm") // a /dev/shm that is read-only
		require.Equal(t, Fail, find(t, rows, "shm").Status)
	})
	t.Run("no number", func(t *testing.T) {
		cutest.Namespaced(t)
		rows := runDoctor(t, "run", []string{"unshare", "--user"}, socket)
		require.Equal(t, Fail, find(t, rows, "uid-map").Status)
		named(t, rows, "uid-map") // a user namespace without a map
	})
	t.Run("abstract sockets are out of reach", func(t *testing.T) {
		if os.Geteuid() != 0 {
			t.Skip("needs root, to have a network namespace without a user namespace")
		}
		in := []string{"unshare", "--net"}
		cutest.Namespaced(t)
		c := config(t)
		start := c.Child
		c.Child = func() *exec.Cmd {
			cmd := start()
			cutest.Front(t, cmd, in)
			return cmd
		}
		rows := Run(t.Context(), c)
		named(t, rows, "abstract-socket") // a network namespace
		require.Contains(t, find(t, rows, "abstract-socket").Seen, "connection refused")
	})
}
