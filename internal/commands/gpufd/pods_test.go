package gpufd

import (
	"io"
	"os/exec"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu/cutest"
)

// A keeper in another PID namespace, as in a pod, sees the pid 0 of all its readers. Each that lives counts by
// itself, also when it has lost its lease with a keeper that was killed, and drain waits for the last.
func TestHoldersOfOtherPIDNamespaces(t *testing.T) {
	if cutest.Emulated() {
		t.Skip("qemu-user makes no PID namespaces")
	}
	t.Parallel()
	in := cutest.Namespaced(t)
	u := newUser(t)
	// The first process of the namespace is the shell: with it all others end.
	const script = `"$0" keeper & k=$!; read x; kill -9 $k; wait $k; "$0" keeper & read x`
	pod := exec.Command(in[0], append(append(in[1:len(in):len(in)], "sh", "-c", script), gpufd)...)
	pod.Dir, pod.Env = u.dir, u.env
	input := ok(pod.StdinPipe())(t)
	require.NoError(t, pod.Start())
	t.Cleanup(func() {
		_ = pod.Process.Kill()
		_ = pod.Wait()
	})
	u.write("w", data(1000, 1))
	u.does("put", "w", "w")

	count := func(n int) func() bool {
		return func() bool { return len(u.stat("w")["holders"].([]any)) == n }
	}
	var readers []*running
	for n := range 3 {
		h := u.start("get", "w", "--hold", "1m", "--json")
		h.object()
		readers = append(readers, h)
		u.until(count(n + 1))
	}
	for _, h := range u.stat("w")["holders"].([]any) {
		require.Equal(t, 0.0, h.(map[string]any)["pid"])
		require.Positive(t, h.(map[string]any)["process"])
	}
	for _, h := range readers { // they do not come back, and live
		require.NoError(t, h.Process.Signal(syscall.SIGSTOP))
	}
	require.NoError(t, errOf(io.WriteString(input, "\n")))
	u.until(func() bool { return u.stat("w")["holders"].([]any)[0].(map[string]any)["lost"] == true })
	for left := 3; left > 0; left-- {
		u.until(count(left))
		words := map[int]string{3: "by 3 processes in other PID namespaces", 2: "by 2 processes in other PID namespaces", 1: "by a process in another PID namespace"}[left]
		u.fails(4, "w is still held "+words, "drain", "w", "--timeout", "500ms")
		require.Contains(t, u.does("stat", "w"), "a process in another PID namespace")
		_, _ = readers[left-1].stop(syscall.SIGKILL)
	}
	require.Contains(t, u.does("drain", "w"), "w is drained")
}
