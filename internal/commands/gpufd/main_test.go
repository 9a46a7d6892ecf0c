package gpufd

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu/cutest"
)

// gpufd is the program, built once.
var gpufd string

func TestMain(m *testing.M) { os.Exit(runTests(m)) }

func runTests(m *testing.M) int {
	dir, err := os.MkdirTemp("", "gpufd-bin-")
	if err == nil {
		defer os.RemoveAll(dir)
		gpufd, err = build(dir)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "cmd/gpufd:", err)
		return 1
	}
	return cutest.Run(m)
}

// build finds the program in GPUFD_BIN, or builds it into dir.
func build(dir string) (string, error) {
	if bin := os.Getenv("GPUFD_BIN"); bin != "" {
		return filepath.Abs(filepath.Join(bin, "gpufd"))
	}
	path := filepath.Join(dir, "gpufd")
	cmd := exec.Command("go", "build", "-o", path, "github.com/gpufd/gpufd/cmd/gpufd")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%w\n%s", err, out)
	}
	return path, nil
}

// A user runs gpufd in a directory of its own.
type user struct {
	t   *testing.T
	dir string
	env []string
}

// newUser has no keeper yet. env is of the software driver.
func newUser(t *testing.T, env ...string) *user {
	dir := ok(os.MkdirTemp("", "gpufd-"))(t)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	soft := []string{"GPUFD_DRIVER=soft", "GPUFD_SOCKET=" + dir + "/s", "XDG_RUNTIME_DIR=" + dir}
	return &user{t: t, dir: dir, env: append(append(os.Environ(), soft...), env...)}
}

// newKept is a user with a keeper.
func newKept(t *testing.T, env ...string) *user {
	u := newUser(t, env...)
	u.keeper()
	return u
}

// A running is one run of gpufd.
type running struct {
	*exec.Cmd
	user  *user
	lines *bufio.Reader
	err   said
}

// said is what a program has written so far.
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

// start runs gpufd beside the test, which waits for it.
func (u *user) start(args ...string) *running {
	u.t.Helper()
	r := &running{Cmd: command(u, args...), user: u}
	r.Stderr = &r.err
	out, err := r.StdoutPipe()
	require.NoError(u.t, err)
	r.lines = bufio.NewReader(out)
	require.NoError(u.t, r.Start())
	late := time.AfterFunc(time.Minute, func() { _ = r.Process.Kill() })
	u.t.Cleanup(func() {
		late.Stop()
		_ = r.Process.Kill()
		_ = r.Wait()
	})
	return r
}

func command(u *user, args ...string) *exec.Cmd {
	cmd := exec.Command(gpufd, args...)
	cmd.Dir, cmd.Env = u.dir, u.env
	return cmd
}

// object reads the next line of --json.
func (r *running) object() (o map[string]any) {
	r.user.t.Helper()
	line, err := r.lines.ReadBytes('\n')
	require.NoError(r.user.t, err, r.err.String())
	require.NoError(r.user.t, json.Unmarshal(line, &o), "%s", line)
	return o
}

// end waits for the program, and returns its exit code and what else it printed.
func (r *running) end() (code int, out string) {
	r.user.t.Helper()
	rest, err := io.ReadAll(r.lines)
	require.NoError(r.user.t, err)
	if err = r.Wait(); err != nil {
		var exit *exec.ExitError
		require.ErrorAs(r.user.t, err, &exit)
	}
	return r.ProcessState.ExitCode(), string(rest)
}

// stop sends the signal and waits for the end.
func (r *running) stop(s syscall.Signal) (code int, out string) {
	r.user.t.Helper()
	require.NoError(r.user.t, r.Process.Signal(s))
	return r.end()
}

// keeper starts one. Its fd store ends with the test.
func (u *user) keeper(args ...string) *running {
	u.t.Helper()
	k := u.start(append([]string{"keeper", "--json"}, args...)...)
	store := int(k.object()["store_pid"].(float64))
	u.t.Cleanup(func() {
		_ = k.Process.Kill() // first: it would start another store
		_ = k.Wait()
		if err := syscall.Kill(store, syscall.SIGKILL); !errors.Is(err, syscall.ESRCH) {
			require.NoError(u.t, err)
		}
	})
	return k
}

// run runs gpufd to its end.
func (u *user) run(args ...string) (code int, out, errs string) {
	u.t.Helper()
	r := u.start(args...)
	code, out = r.end()
	require.NotContains(u.t, r.err.String(), "panic:")
	return code, out, r.err.String()
}

// briefly is a --timeout of commands that are to wait in vain, once they have heard from the keeper.
var briefly = map[bool]string{false: "1s", true: "5s"}[cutest.Emulated()] // emulated, or beside much else, an answer may take half a second

// does runs gpufd, which has to do what it is told.
func (u *user) does(args ...string) (out string) {
	u.t.Helper()
	code, out, errs := u.run(args...)
	require.Zero(u.t, code, "gpufd %s: %s", strings.Join(args, " "), errs)
	require.Empty(u.t, errs)
	return out
}

// fails runs gpufd, which has to end with the code and one line that says why.
func (u *user) fails(want int, why string, args ...string) {
	u.t.Helper()
	code, _, errs := u.run(args...)
	require.Equal(u.t, want, code, "gpufd %s: %s", strings.Join(args, " "), errs)
	require.Contains(u.t, errs, why)
	require.Equal(u.t, 1, strings.Count(errs, "\n"), errs)
	require.True(u.t, strings.HasPrefix(errs, "gpufd"), errs)
}

// says runs gpufd with --json, and returns the one object that it prints.
func (u *user) says(want int, args ...string) (o map[string]any) {
	u.t.Helper()
	code, out, errs := u.run(append(args, "--json")...)
	require.Equal(u.t, want, code, "gpufd %s: %s", strings.Join(args, " "), errs)
	require.Equal(u.t, 1, strings.Count(out, "\n"), out)
	require.NoError(u.t, json.Unmarshal([]byte(out), &o), out)
	return o
}

// stat is stat --json.
func (u *user) stat(name string) map[string]any {
	u.t.Helper()
	return u.says(0, "stat", name)
}

// holds is a process that has a name mapped, as the keeper knows.
func (u *user) holds(name string) *running {
	u.t.Helper()
	h := u.start("get", name, "--hold", "1m", "--json")
	h.object()
	u.until(func() bool { return len(u.stat(name)["holders"].([]any)) == 1 })
	return h
}

// write makes a file of the user.
func (u *user) write(name string, content []byte) string {
	u.t.Helper()
	path := filepath.Join(u.dir, name)
	require.NoError(u.t, os.MkdirAll(filepath.Dir(path), 0o700))
	require.NoError(u.t, os.WriteFile(path, content, 0o600))
	return path
}

func (u *user) read(name string) []byte {
	u.t.Helper()
	b, err := os.ReadFile(filepath.Join(u.dir, name))
	require.NoError(u.t, err)
	return b
}

// until waits until f is true.
func (u *user) until(f func() bool) {
	u.t.Helper()
	require.Eventually(u.t, f, 20*time.Second, 10*time.Millisecond)
}

// data is what tests keep.
func data(n, from int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i*7 + i>>8 + from)
	}
	return b
}
