package examples

import (
	"bufio"
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

	"github.com/gpufd/gpufd/cu/cutest"
)

// weights is a process of the example.
type weights struct {
	t   *testing.T
	cmd *exec.Cmd
	in  io.WriteCloser
	out chan string // a line each; closed at the end of whoever writes there
	at  string      // where it uses the weights, with a comma
}

func startWeights(t *testing.T, program string, args ...string) *weights {
	t.Helper()
	w := &weights{t: t, cmd: exec.Command(program, args...), out: make(chan string, 100)}
	w.cmd.Env = append(os.Environ(), "GPUFD_DRIVER="+cutest.Kind().String())
	in, stdin, err := os.Pipe() // not StdinPipe: that ends with the process, and not with its successors
	require.NoError(t, err)
	w.in, w.cmd.Stdin = stdin, in
	r, out, err := os.Pipe()
	require.NoError(t, err)
	w.cmd.Stdout, w.cmd.Stderr = out, out
	require.NoError(t, w.cmd.Start())
	require.NoError(t, out.Close())
	require.NoError(t, in.Close())
	go func() {
		defer close(w.out)
		defer r.Close()
		for in := bufio.NewScanner(r); in.Scan(); {
			if !strings.HasPrefix(in.Text(), "lesson: on the") {
				w.out <- in.Text()
			}
		}
	}()
	t.Cleanup(w.end)
	return w
}

// end kills the process, if it has not ended, and has its successors end.
func (w *weights) end() {
	_ = w.in.Close()
	_ = w.cmd.Process.Kill()
	_ = w.cmd.Wait()
	for range w.out {
	}
}

func (w *weights) line() string {
	w.t.Helper()
	select {
	case line, more := <-w.out:
		require.True(w.t, more, "it has ended")
		return line
	case <-time.After(time.Minute):
		require.FailNow(w.t, "it says nothing")
		return ""
	}
}

// uses waits for that text, and returns its generation and who offers it.
func (w *weights) uses(text string) (generation uint64, pid int) {
	w.t.Helper()
	line := w.line()
	_, err := fmt.Sscanf(line, text+" of generation %d, at %v from %d", &generation, &w.at, &pid)
	require.NoError(w.t, err, line)
	return generation, pid
}

// notices waits for a notice of that text, and returns who has the lease by then. The memory
// is where it was.
func (w *weights) notices(text string) (pid int) {
	w.t.Helper()
	line, at := w.line(), ""
	_, err := fmt.Sscanf(line, "notice: "+text+", at %v from %d", &at, &pid)
	require.NoError(w.t, err, line)
	require.Equal(w.t, w.at, at)
	return pid
}

// Two processes use what a daemon offers while that is given other weights, is killed and
// started again, and replaced by another version of it, which has the same memory: of that they
// hear by a notice alone.
func TestWeights(t *testing.T) {
	program := filepath.Join(build(t, "./weights"), "weights")
	dir, err := os.MkdirTemp("", "weights")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	socket := filepath.Join(dir, "socket")
	users := []*weights{startWeights(t, program, "use", socket), startWeights(t, program, "use", socket)}
	all := func(text string, pid int) (generation uint64, from int) {
		t.Helper()
		for _, u := range users {
			generation, from = u.uses(text)
			require.True(t, pid == 0 || pid == from, "from %d, not %d", from, pid)
		}
		return generation, from
	}
	over := func(why string) {
		t.Helper()
		for _, u := range users {
			require.Contains(t, u.line(), "over: "+why)
		}
	}
	d := startWeights(t, program, "serve", socket)
	says := func(line string) { _, err := fmt.Fprintln(d.in, line); require.NoError(t, err) }

	says("one")
	all("one", d.cmd.Process.Pid)
	says("two") // a swap
	over("share: the producer offers newer memory")
	all("two", d.cmd.Process.Pid)

	require.NoError(t, d.cmd.Process.Kill()) // a crash
	d.end()
	d = startWeights(t, program, "serve", socket)
	says("three") // until then they go on with two
	over("share: the producer offers newer memory")
	_, old := all("three", d.cmd.Process.Pid)

	says("upgrade") // of which they hear by a notice, and go on with the same memory
	successor := 0
	for _, u := range users {
		successor = u.notices("upgraded")
		require.NotEqual(t, old, successor)
	}
	require.NoError(t, d.cmd.Wait())
	require.ErrorIs(t, syscall.Kill(old, 0), syscall.ESRCH)
	require.NoError(t, syscall.Kill(successor, 0))
	says("four") // the next that they hear is this
	over("share: the producer offers newer memory")
	all("four", successor)

	require.NoError(t, d.in.Close()) // the end
	_, more := <-d.out
	require.False(t, more)
	over("share: withdrawn by the producer")
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Empty(t, left)
}
