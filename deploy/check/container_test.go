package check

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// said is what a container has written.
type said struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (s *said) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.Write(b)
}

func (s *said) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.String()
}

// A container is one run of a program.
type container struct {
	m        *machine
	id       string
	cmd      *exec.Cmd
	out, err said
	over     chan struct{} // closed when it has ended
}

// begin runs a container beside the test, which ends it. input is its standard input, or nil.
func (m *machine) begin(name string, spec *specs.Spec, input io.Reader) *container {
	m.t.Helper()
	m.names++
	c := &container{m: m, id: fmt.Sprintf("%s-%s-%d", filepath.Base(m.dir), name, m.names), over: make(chan struct{})}
	bundle := filepath.Join(m.dir, c.id)
	require.NoError(m.t, os.Mkdir(bundle, 0o755))
	text, err := json.Marshal(spec)
	require.NoError(m.t, err)
	require.NoError(m.t, os.WriteFile(filepath.Join(bundle, "config.json"), text, 0o644))
	c.cmd = exec.Command("runc", "--root", m.state, "run", "--bundle", bundle, c.id)
	c.cmd.Stdin, c.cmd.Stdout, c.cmd.Stderr = input, &c.out, &c.err
	require.NoError(m.t, c.cmd.Start())
	go func() {
		_ = c.cmd.Wait()
		close(c.over)
	}()
	m.t.Cleanup(c.end)
	return c
}

// end kills the container if it runs, and forgets it.
func (c *container) end() {
	_, _ = c.m.runc("delete", "--force", c.id)
	select {
	case <-c.over:
	case <-time.After(long):
		c.m.t.Errorf("%s does not end: %s", c.id, c.said())
		_ = c.cmd.Process.Kill()
	}
}

func (c *container) said() string { return c.out.String() + c.err.String() }

// wait waits until the container has ended, and returns its exit code.
func (c *container) wait() int {
	c.m.t.Helper()
	select {
	case <-c.over:
	case <-time.After(long):
		c.m.t.Fatalf("%s goes on: %s", c.id, c.said())
	}
	return c.cmd.ProcessState.ExitCode()
}

// kill ends the container as kill -9 does.
func (c *container) kill() {
	c.m.t.Helper()
	out, err := c.m.runc("kill", c.id, "KILL")
	require.NoError(c.m.t, err, "%s%s", out, c.said())
	require.Equal(c.m.t, 128+9, c.wait(), c.said())
}

// errEnded says that a container has ended that should not have.
var errEnded = errors.New("it has ended")

// await waits for a word on standard output or standard error.
func (c *container) await(word string) {
	c.m.t.Helper()
	c.m.until(c.said, func() (bool, error) {
		select {
		case <-c.over:
			return strings.Contains(c.said(), word), errEnded
		default:
			return strings.Contains(c.said(), word), nil
		}
	})
}

// until waits until f is true, or fails with what it says.
func (m *machine) until(says func() string, f func() (bool, error)) {
	m.t.Helper()
	for end := time.Now().Add(long); ; time.Sleep(10 * time.Millisecond) {
		ok, err := f()
		if ok {
			return
		}
		require.NoError(m.t, err, says())
		require.True(m.t, time.Now().Before(end), says())
	}
}

// pid is that of the container's first process, outside.
func (c *container) pid() int {
	c.m.t.Helper()
	out, err := c.m.runc("state", c.id)
	require.NoError(c.m.t, err, out)
	var state specs.State
	require.NoError(c.m.t, json.Unmarshal([]byte(out), &state))
	return state.Pid
}

// status is a line of its /proc/PID/status.
func (c *container) status(name string) string {
	c.m.t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", c.pid()))
	require.NoError(c.m.t, err)
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, name+":"); ok {
			return strings.Join(strings.Fields(rest), " ")
		}
	}
	c.m.t.Fatalf("no %s in %s", name, text)
	return ""
}

// metricsPort is where a keeper of the manifests answers.
const metricsPort = 9400

// page is what the keeper answers over HTTP, asked for in the container's network.
func (c *container) page(path string) string {
	c.m.t.Helper()
	type answer struct {
		text string
		err  error
	}
	answers, network := make(chan answer, 1), fmt.Sprintf("/proc/%d/ns/net", c.pid())
	go func() {
		runtime.LockOSThread() // for good: the thread ends with this goroutine
		text, err := pageIn(network, path)
		answers <- answer{text, err}
	}()
	a := <-answers
	require.NoError(c.m.t, a.err)
	return a.text
}

// pageIn moves this thread to a network.
func pageIn(network, path string) (text string, err error) {
	ns, err := os.Open(network)
	if err != nil {
		return "", err
	}
	defer ns.Close()
	if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
		return "", os.NewSyscallError("setns", err)
	}
	conn, err := net.DialTimeout("tcp", fmt.Sprintf("127.0.0.1:%d", metricsPort), long)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(long)); err != nil {
		return "", err
	}
	fmt.Fprintf(conn, "GET %s HTTP/1.0\r\n\r\n", path)
	r, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return "", err
	}
	defer r.Body.Close()
	body, err := io.ReadAll(r.Body)
	if err == nil && r.StatusCode != http.StatusOK {
		err = errors.New(r.Status)
	}
	return string(body), err
}

// namespace is the one of a kind that it is in.
func (c *container) namespace(kind string) string {
	c.m.t.Helper()
	link, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/%s", c.pid(), kind))
	require.NoError(c.m.t, err)
	return link
}
