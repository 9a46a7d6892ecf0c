package tests

import (
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A process is a program that a test started. It is killed when the test ends,
// and that is a failure: a test sees its processes out.
type process struct {
	t    testing.TB
	name string
	cmd  *exec.Cmd
	in   io.WriteCloser // standard input
	out  transcript     // standard output
	err  transcript     // standard error
	done chan struct{}
}

// start runs the file with args and env, which is added to this process'.
func start(t testing.TB, name, file string, env []string, args ...string) *process {
	t.Helper()
	return startCommand(t, name, exec.Command(file, args...), env)
}

// startCommand is start for a command that is more than a file and args. Its output
// goes where the command says, if that says so.
func startCommand(t testing.TB, name string, cmd *exec.Cmd, env []string) *process {
	t.Helper()
	p := &process{t: t, name: name, cmd: cmd, done: make(chan struct{})}
	if p.cmd.Env == nil {
		p.cmd.Env = programEnv()
	}
	p.cmd.Env = append(p.cmd.Env, env...)
	if p.cmd.Stdout == nil {
		p.cmd.Stdout = &p.out
	}
	p.cmd.Stderr = &p.err
	p.cmd.WaitDelay = patience / 2 // for its children, who may have these
	var err error
	p.in, err = p.cmd.StdinPipe()
	require.NoError(t, err)
	require.NoError(t, p.cmd.Start())
	go func() {
		defer close(p.done)
		_ = p.cmd.Wait() // its ProcessState says it all
		p.out.end()
		p.err.end()
	}()
	t.Cleanup(p.cleanUp)
	return p
}

// programEnv is this process' environment without what would change a
// program's output.
func programEnv() []string {
	return slices.DeleteFunc(os.Environ(), func(v string) bool {
		return strings.HasPrefix(v, "GPUFD_TRACE=") || strings.HasPrefix(v, "GPUFD_DRIVER=")
	})
}

func (p *process) cleanUp() {
	ended := p.ended()
	if !ended {
		p.kill()
	}
	if p.t.Failed() {
		p.t.Logf("%s, still running: %t\n%s", p.name, !ended, p.dump())
	} else if !ended {
		p.t.Errorf("%s was still running when the test ended\n%s", p.name, p.dump())
	}
}

func (p *process) ended() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

func (p *process) pid() int { return p.cmd.Process.Pid }

func (p *process) signal(s syscall.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(s); !errors.Is(err, os.ErrProcessDone) {
		require.NoError(p.t, err)
	}
}

// kill ends the process with SIGKILL and waits until it is gone.
func (p *process) kill() {
	p.t.Helper()
	p.signal(syscall.SIGKILL)
	<-p.done
}

// stop halts the process with SIGSTOP and waits until it does; kill and
// SIGCONT work on it.
func (p *process) stop() {
	p.t.Helper()
	require.True(p.t, p.stopped(), "%s has ended\n%s", p.name, p.dump())
}

// stopped is stop, or says that the process has ended before.
func (p *process) stopped() bool {
	p.t.Helper()
	p.signal(syscall.SIGSTOP)
	eventually(p.t, func() bool { return p.ended() || state(p.pid()) == 'T' }, "%s does not stop", p.name)
	return !p.ended()
}

// waitLine waits for a line of standard output that begins so.
func (p *process) waitLine(prefix string) string { return p.waitLines(prefix, 1)[0] }

// waitLines waits for n of them.
func (p *process) waitLines(prefix string, n int) []string {
	p.t.Helper()
	deadline := time.After(patience)
	for {
		found, changed := p.out.find(prefix)
		if len(found) >= n {
			return found
		}
		select {
		case <-changed:
		case <-p.done:
			if found, _ = p.out.find(prefix); len(found) >= n {
				return found
			}
			p.t.Fatalf("%s ended and %d of %d lines %q were there\n%s", p.name, len(found), n, prefix, p.dump())
		case <-deadline:
			p.t.Fatalf("%s: %d of %d lines %q within %s\n%s", p.name, len(found), n, prefix, patience, p.dump())
		}
	}
}

// wait waits for the end and returns the exit code, -1 for a signal's.
func (p *process) wait() int {
	p.t.Helper()
	select {
	case <-p.done:
	case <-time.After(patience):
		p.signal(syscall.SIGQUIT) // prints where its goroutines are
		<-p.done
		p.t.Fatalf("%s did not end within %s\n%s", p.name, patience, p.dump())
	}
	return p.cmd.ProcessState.ExitCode()
}

// succeeds waits for exit code 0 and silence on standard error.
func (p *process) succeeds() {
	p.t.Helper()
	require.Equal(p.t, 0, p.wait(), p.dump())
	require.Empty(p.t, p.err.all(), p.dump())
}

// fails waits for that exit code and for one clear error on standard error that holds
// all of words: a line, and if a context was lost some more, which are indented. It
// returns the error.
func (p *process) fails(code int, words ...string) string {
	p.t.Helper()
	require.Equal(p.t, code, p.wait(), p.dump())
	line, more, _ := strings.Cut(strings.Join(p.err.all(), "\n"), "\n")
	for below := range strings.Lines(more) {
		require.True(p.t, strings.HasPrefix(below, "  ") && strings.Contains(p.err.String(), "the context is lost"), p.dump())
		line += "\n" + strings.TrimSuffix(below, "\n")
	}
	require.True(p.t, strings.HasPrefix(line, p.name+": "), line)
	for _, trace := range []string{"goroutine", "panic", "SIGSEGV", "%!", ".go:"} {
		require.NotContains(p.t, line, trace)
		require.NotContains(p.t, p.out.String(), trace)
	}
	for _, w := range words {
		require.Contains(p.t, line, w)
	}
	return line
}

// dump is all that the process said.
func (p *process) dump() string {
	return p.name + " said:\n" + p.out.String() + "and on standard error:\n" + p.err.String()
}

// result is the last line of a program that ran with -json, and all of them.
func (p *process) result() (last map[string]any, all []map[string]any) {
	p.t.Helper()
	for _, line := range p.out.all() {
		var object map[string]any
		require.NoError(p.t, json.Unmarshal([]byte(line), &object), line)
		require.NotEmpty(p.t, object["event"], line)
		all = append(all, object)
	}
	require.NotEmpty(p.t, all, p.dump())
	last = all[len(all)-1]
	require.Equal(p.t, "result", last["event"], p.dump())
	return last, all
}

// pidText is the pid as the programs print it.
func pidText(p *process) string { return strconv.Itoa(p.pid()) }

// find returns the lines of standard output that begin so.
func find(p *process, prefix string) []string {
	found, _ := p.out.find(prefix)
	return found
}

// resume undoes stop.
func resume(p *process) error { return p.cmd.Process.Signal(syscall.SIGCONT) }

// A transcript collects lines while a process writes them.
type transcript struct {
	mu      sync.Mutex
	lines   []string
	rest    string // without newline so far
	changed chan struct{}
}

// Write is what os/exec calls.
func (w *transcript) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	lines := strings.Split(w.rest+string(b), "\n")
	w.rest = lines[len(lines)-1]
	w.lines = append(w.lines, lines[:len(lines)-1]...)
	if w.changed != nil {
		close(w.changed)
		w.changed = nil
	}
	return len(b), nil
}

// end makes a line of what has no newline.
func (w *transcript) end() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.rest != "" {
		w.lines, w.rest = append(w.lines, w.rest), ""
	}
}

// forget drops the lines so far.
func (w *transcript) forget() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.lines = nil
}

// find returns the lines that begin with prefix, and a channel that is closed
// when there are more lines.
func (w *transcript) find(prefix string) (found []string, changed <-chan struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, l := range w.lines {
		if strings.HasPrefix(l, prefix) {
			found = append(found, l)
		}
	}
	if w.changed == nil {
		w.changed = make(chan struct{})
	}
	return found, w.changed
}

func (w *transcript) all() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.lines)
}

// String indents the lines.
func (w *transcript) String() string {
	var b strings.Builder
	for _, l := range w.all() {
		b.WriteString("  | " + l + "\n")
	}
	return b.String()
}

// A wrongCase is a program that is started wrongly: it has to say so in one
// line, exit with that code and leave nothing behind.
type wrongCase struct {
	name  string
	args  []string
	env   []string
	code  int
	words []string // of the line on standard error
}

func args(a ...string) []string { return a }

func (c wrongCase) run(t *testing.T, program string) {
	t.Helper()
	t.Run(program+" "+c.name, func(t *testing.T) {
		newScene(t).start(program, c.env, c.args...).fails(c.code, c.words...)
	})
}

var traceLine = regexp.MustCompile(`^(cu[A-Z]\w*)\((.*)\) = (CUDA_[A-Z_]+|symbol missing) <\d[\d.]*(µs|ms|s)>$`)

// calls checks the form of every line on standard error.
func calls(t *testing.T, p *process) (names []string) {
	t.Helper()
	for _, line := range p.err.all() {
		parts := traceLine.FindStringSubmatch(line)
		require.NotNil(t, parts, line)
		names = append(names, parts[1])
	}
	return names
}
