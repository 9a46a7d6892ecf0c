package sock

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/internal/testenv"
	"github.com/gpufd/gpufd/internal/testenv/leak"
)

// childEnv makes the test binary run one of children instead of the tests.
const childEnv = testenv.Prefix + "CHILD"

// children are the programs that tests start as processes of their own. What
// they return is their complaint; nil is exit code 0.
var children = map[string]func(args []string) error{}

// TestMain fails when the tests leave a descriptor open or a goroutine running
// (invariant 3).
func TestMain(m *testing.M) {
	if err := withoutPreemption(); err != nil {
		fmt.Fprintf(os.Stderr, "starting again: %v\n", err)
		os.Exit(2)
	}
	run := m.Run
	if name := os.Getenv(childEnv); name != "" {
		run = func() int { return childMain(name, os.Args[1:]) }
	}
	os.Exit(leak.Check(run))
}

// withoutPreemption starts this program again with a runtime that sends no signals to
// its threads: a signal ends the wait of a close(2) that is to hang.
func withoutPreemption() error {
	const off = "asyncpreemptoff=1"
	settings := os.Getenv("GODEBUG")
	if strings.Contains(settings, off) {
		return nil
	}
	if err := os.Setenv("GODEBUG", strings.TrimPrefix(settings+","+off, ",")); err != nil {
		return err
	}
	return syscall.Exec("/proc/self/exe", os.Args, os.Environ())
}

// requireNoLeak fails t when it ends with more descriptors than now. What is dropped
// may take a moment.
func requireNoLeak(t *testing.T) {
	t.Helper()
	before := leak.OpenFDs()
	t.Cleanup(func() {
		var left []string
		require.Eventually(t, func() bool { left = leak.OpenFDs().Since(before); return len(left) == 0 },
			10*time.Second, time.Millisecond, "leaked file descriptors: %v", &left)
	})
}

func childMain(name string, args []string) int {
	child, ok := children[name]
	if !ok {
		fmt.Fprintf(os.Stderr, "no child %q\n", name)
		return 2
	}
	if err := testenv.Complaint(func() error { return child(args) }); err != nil {
		fmt.Fprintf(os.Stderr, "child %s: %v\n", name, err)
		return 1
	}
	return 0
}

// childCommand prepares the child of that name.
func childCommand(t *testing.T, name string, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe", args...)
	cmd.Env = append(os.Environ(), childEnv+"="+name, "GOTRACEBACK=all",
		"GORACE=atexit_sleep_ms=0") // else each exits a second late
	cmd.Dir = "/"
	return cmd
}

// started starts a child and returns its standard input and output.
func started(t testing.TB, cmd *exec.Cmd) (in io.WriteCloser, out io.Reader) {
	t.Helper()
	in = ok(cmd.StdinPipe())(t)
	out = ok(cmd.StdoutPipe())(t)
	cmd.Stderr = os.Stderr
	require.NoError(t, cmd.Start())
	return in, out
}

// runChild runs the child to its end and fails t with its complaint.
func runChild(t *testing.T, name string, args ...string) {
	t.Helper()
	requireRuns(t, childCommand(t, name, args...))
}

func requireRuns(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
}

// asUser makes the child run as uid and gid; that takes root. It runs the
// binary by a descriptor, because another user may not reach it by its path,
// which under qemu-user is what /proc/self/exe stands for.
func asUser(t *testing.T, cmd *exec.Cmd, uid, gid uint32) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root, to start a process of another user")
	}
	self := ok(os.Open("/proc/self/exe"))(t)
	t.Cleanup(func() { require.NoError(t, self.Close()) })
	cmd.Path = fmt.Sprintf("/proc/self/fd/%d", 3+len(cmd.ExtraFiles))
	cmd.ExtraFiles = append(cmd.ExtraFiles, self)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: gid}}
}

// limitFDs leaves this process room for exactly spare more descriptors. It is
// for children: the limit stays.
func limitFDs(spare int) error {
	if err := setFDLimit(1000); err != nil { // OpenFDs needs one itself
		return err
	}
	open := leak.OpenFDs()
	limit := 0
	for free := 0; free < spare || open[limit] != ""; limit++ {
		if open[limit] == "" {
			free++
		}
	}
	return setFDLimit(uint64(limit))
}

func setFDLimit(n uint64) error {
	var lim syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &lim); err != nil {
		return err
	}
	lim.Cur = n
	return syscall.Setrlimit(syscall.RLIMIT_NOFILE, &lim)
}
