package cutest

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
)

// isolated is how unshare(1) starts a program in namespaces of its own for
// processes, IPC, mounts and the network, with its own /proc. What it kills with
// it cannot outlive the test.
var isolated = []string{"unshare", "--fork", "--kill-child", "--pid", "--mount-proc", "--ipc", "--net", "--mount"}

// AsRoot adds a user namespace in which this user is root, and nobody else has a
// number. Everybody may make one, where the kernel lets them.
var AsRoot = []string{"--user", "--map-root-user"}

// namespacesEnv is set where namespaces are said to work: then a skip fails.
const namespacesEnv = "GPUFD_REQUIRE_NAMESPACES"

// Namespaced returns how to start a program in namespaces of its own, as containers
// have them, which takes a user namespace for who is not root, or skips t. more are
// further flags of unshare(1).
func Namespaced(t testing.TB, more ...string) []string {
	t.Helper()
	var why []string
	for _, user := range [][]string{nil, AsRoot} {
		wrap := append(append(isolated[:len(isolated):len(isolated)], user...), more...)
		out, err := exec.Command(wrap[0], append(wrap[1:len(wrap):len(wrap)], "true")...).CombinedOutput()
		if err == nil {
			return wrap
		}
		why = append(why, fmt.Sprintf("%s: %v: %s", strings.Join(wrap, " "), err, out))
	}
	if os.Getenv(namespacesEnv) == "1" {
		t.Fatalf("%s=1, but: %q", namespacesEnv, why)
	}
	t.Skipf("this kernel lets us have no namespaces: %q", why)
	return nil
}

// Front has cmd, of [Child], started by another program: that with its arguments and
// this process' executable behind them. more are arguments behind that.
func Front(t testing.TB, cmd *exec.Cmd, front []string, more ...string) {
	t.Helper()
	self, err := os.Executable()
	if err == nil {
		cmd.Path, err = exec.LookPath(front[0])
	}
	if err != nil {
		t.Fatal(err)
	}
	cmd.Args = append(append(front[:len(front):len(front)], self), more...)
}
