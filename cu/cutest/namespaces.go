package cutest

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/gpufd/gpufd/internal/testenv"
)

// isolated starts a program with unshare(1) in its own namespaces for processes,
// IPC, mounts and the network, with its own /proc. Killing it kills all in it, so
// nothing outlives the test.
var isolated = []string{"unshare", "--fork", "--kill-child", "--pid", "--mount-proc", "--ipc", "--net", "--mount"}

// AsRoot adds a user namespace in which this user is root, and nobody else has a
// number. Anybody may make one, if the kernel allows it.
var AsRoot = []string{"--user", "--map-root-user"}

// Namespaced returns the command that starts a program in its own namespaces,
// like a container, or skips t. Users other than root need a user namespace for
// that. more are further flags of unshare(1).
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
	testenv.Need(t, testenv.Namespaces, false, fmt.Sprintf("this kernel lets us have no namespaces: %q", why))
	return nil
}

// Front makes another program start cmd, of [Child]: front, then this process's
// executable, then more.
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
