package sock

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// childEnv makes the test binary run one of children instead of the tests.
const childEnv = "GPUFD_SOCK_TEST_CHILD"

// children are the programs that tests start as processes of their own. What
// they return is their complaint; nil is exit code 0.
var children = map[string]func(args []string) error{}

// TestMain fails when the tests leave a file descriptor open (invariant 3).
func TestMain(m *testing.M) {
	if name := os.Getenv(childEnv); name != "" {
		os.Exit(childMain(name, os.Args[1:]))
	}
	warmUp()
	before := openFDs()
	code := m.Run()
	if leaked := leakedFDs(before, openFDs()); len(leaked) > 0 {
		fmt.Fprintf(os.Stderr, "FAIL: %d file descriptors leaked:\n  %s\n", len(leaked), strings.Join(leaked, "\n  "))
		code = 1
	}
	os.Exit(code)
}

// warmUp has the runtime open what it keeps: its poller.
func warmUp() {
	if r, w, err := os.Pipe(); err == nil {
		_ = r.SetDeadline(time.Now().Add(time.Hour))
		_ = CloseFiles([]*os.File{r, w})
	}
}

// openFDs returns what every open descriptor of this process points at.
func openFDs() map[string]string {
	const dir = "/proc/self/fd"
	entries, err := os.ReadDir(dir)
	if err != nil {
		panic(err)
	}
	fds := map[string]string{}
	for _, e := range entries {
		// The one that ReadDir used is gone by now.
		if target, err := os.Readlink(filepath.Join(dir, e.Name())); err == nil {
			fds[e.Name()] = target
		}
	}
	return fds
}

// leakedFDs lists what is in after and was not in before.
func leakedFDs(before, after map[string]string) []string {
	var leaked []string
	for _, fd := range slices.Sorted(maps.Keys(after)) {
		if before[fd] != after[fd] {
			leaked = append(leaked, fd+" -> "+after[fd])
		}
	}
	return leaked
}

// requireNoLeak fails t when it ends with more descriptors than now.
func requireNoLeak(t *testing.T) {
	t.Helper()
	before := openFDs()
	t.Cleanup(func() { require.Empty(t, leakedFDs(before, openFDs()), "leaked file descriptors") })
}

func TestLeakCheckerFindsPlantedLeak(t *testing.T) {
	before := openFDs()
	r, w, err := os.Pipe()
	require.NoError(t, err)
	leaked := leakedFDs(before, openFDs())
	require.Len(t, leaked, 2)
	require.Contains(t, leaked[0], "pipe:")
	require.NoError(t, CloseFiles([]*os.File{r, w}))
	require.Empty(t, leakedFDs(before, openFDs()))
}

func childMain(name string, args []string) int {
	child, ok := children[name]
	if !ok {
		fmt.Fprintf(os.Stderr, "no child %q\n", name)
		return 2
	}
	if err := child(args); err != nil {
		fmt.Fprintf(os.Stderr, "child %s: %v\n", name, err)
		return 1
	}
	return 0
}

// childCommand prepares the child of that name. It goes through /proc/self/exe
// because another user may not be able to reach the binary by its path.
func childCommand(t *testing.T, name string, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe", args...)
	cmd.Env = append(os.Environ(), childEnv+"="+name, "GOTRACEBACK=all",
		"GORACE=atexit_sleep_ms=0") // else each exits a second late
	cmd.Dir = "/"
	return cmd
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

// asUser makes the child run as uid and gid; that takes root.
func asUser(t *testing.T, cmd *exec.Cmd, uid, gid uint32) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root, to start a process of another user")
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: gid}}
}

// limitFDs leaves this process room for exactly spare more descriptors. It is
// for children: the limit stays.
func limitFDs(spare int) error {
	if err := setFDLimit(1000); err != nil { // openFDs needs one itself
		return err
	}
	open := openFDs()
	limit := 0
	for free := 0; free < spare || open[strconv.Itoa(limit)] != ""; limit++ {
		if open[strconv.Itoa(limit)] == "" {
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
