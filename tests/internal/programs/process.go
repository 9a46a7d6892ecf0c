package programs

import (
	"encoding/json"
	"errors"
	"fmt"
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

// A Process is a program that a test started. It is killed when the test ends,
// and that is a failure: a test sees its processes out.
type Process struct {
	T    testing.TB
	Name string
	Cmd  *exec.Cmd
	In   io.WriteCloser // standard input
	Out  Transcript     // standard output
	Err  Transcript     // standard error
	Done chan struct{}
}

// Start runs the file with args and env, which is added to this process'.
func Start(t testing.TB, name, file string, env []string, args ...string) *Process {
	t.Helper()
	return StartCommand(t, name, exec.Command(file, args...), env)
}

// StartCommand is start for a command that is more than a file and args. Its output
// goes where the command says, if that says so.
func StartCommand(t testing.TB, name string, cmd *exec.Cmd, env []string) *Process {
	t.Helper()
	p := &Process{T: t, Name: name, Cmd: cmd, Done: make(chan struct{})}
	if p.Cmd.Env == nil {
		p.Cmd.Env = ProgramEnv()
	}
	p.Cmd.Env = append(p.Cmd.Env, env...)
	if p.Cmd.Stdout == nil {
		p.Cmd.Stdout = &p.Out
	}
	p.Cmd.Stderr = &p.Err
	p.Cmd.WaitDelay = Patience / 2 // for its children, who may have these
	var err error
	p.In, err = p.Cmd.StdinPipe()
	require.NoError(t, err)
	require.NoError(t, p.Cmd.Start())
	go func() {
		defer close(p.Done)
		_ = p.Cmd.Wait() // its ProcessState says it all
		p.Out.end()
		p.Err.end()
	}()
	t.Cleanup(p.cleanUp)
	return p
}

// ProgramEnv is this process' environment without what would change a
// program's output.
func ProgramEnv() []string {
	return slices.DeleteFunc(os.Environ(), func(v string) bool {
		return strings.HasPrefix(v, "GPUFD_TRACE=") || strings.HasPrefix(v, "GPUFD_DRIVER=")
	})
}

func (p *Process) cleanUp() {
	ended := p.Ended()
	if !ended {
		p.Kill()
	}
	if p.T.Failed() {
		p.T.Logf("%s, still running: %t\n%s", p.Name, !ended, p.Dump())
	} else if !ended {
		p.T.Errorf("%s was still running when the test ended\n%s", p.Name, p.Dump())
	}
}

func (p *Process) Ended() bool {
	select {
	case <-p.Done:
		return true
	default:
		return false
	}
}

func (p *Process) PID() int { return p.Cmd.Process.Pid }

func (p *Process) Signal(s syscall.Signal) {
	p.T.Helper()
	if err := p.Cmd.Process.Signal(s); !errors.Is(err, os.ErrProcessDone) {
		require.NoError(p.T, err)
	}
}

// Kill ends the process with SIGKILL and waits until it is gone.
func (p *Process) Kill() {
	p.T.Helper()
	p.Signal(syscall.SIGKILL)
	<-p.Done
}

// Stop halts the process with SIGSTOP and waits until it does; kill and
// SIGCONT work on it.
func (p *Process) Stop() {
	p.T.Helper()
	require.True(p.T, p.Stopped(), "%s has ended\n%s", p.Name, p.Dump())
}

// Stopped is stop, or says that the process has ended before.
func (p *Process) Stopped() bool {
	p.T.Helper()
	p.Signal(syscall.SIGSTOP)
	Eventually(p.T, func() bool { return p.Ended() || halted(p.PID()) }, "%s does not stop", p.Name)
	return !p.Ended()
}

// halted reports whether no thread of a process runs any more: one that does goes on with its work.
func halted(pid int) bool {
	threads, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	for _, thread := range threads {
		id, _ := strconv.Atoi(thread.Name())
		if s := State(id); s != 'T' && s != 0 { // 0: it has ended
			return false
		}
	}
	return err == nil
}

// WaitLine waits for a line of standard output that begins so.
func (p *Process) WaitLine(prefix string) string { return p.WaitLines(prefix, 1)[0] }

// WaitLines waits for n of them.
func (p *Process) WaitLines(prefix string, n int) []string {
	p.T.Helper()
	deadline := time.After(Patience)
	for {
		found, changed := p.Out.Find(prefix)
		if len(found) >= n {
			return found
		}
		select {
		case <-changed:
		case <-p.Done:
			if found, _ = p.Out.Find(prefix); len(found) >= n {
				return found
			}
			p.T.Fatalf("%s ended and %d of %d lines %q were there\n%s", p.Name, len(found), n, prefix, p.Dump())
		case <-deadline:
			p.T.Fatalf("%s: %d of %d lines %q within %s\n%s", p.Name, len(found), n, prefix, Patience, p.Dump())
		}
	}
}

// Wait waits for the end and returns the exit code, -1 for a signal's.
func (p *Process) Wait() int {
	p.T.Helper()
	select {
	case <-p.Done:
	case <-time.After(Patience):
		p.Signal(syscall.SIGQUIT) // prints where its goroutines are
		<-p.Done
		p.T.Fatalf("%s did not end within %s\n%s", p.Name, Patience, p.Dump())
	}
	return p.Cmd.ProcessState.ExitCode()
}

// Succeeds waits for exit code 0 and silence on standard error.
func (p *Process) Succeeds() {
	p.T.Helper()
	require.Equal(p.T, 0, p.Wait(), p.Dump())
	require.Empty(p.T, p.Err.All(), p.Dump())
}

// Fails waits for that exit code and for one clear error on standard error that holds
// all of words: a line, and if a context was lost some more, which are indented. It
// returns the error.
func (p *Process) Fails(code int, words ...string) string {
	p.T.Helper()
	require.Equal(p.T, code, p.Wait(), p.Dump())
	line, more, _ := strings.Cut(strings.Join(p.Err.All(), "\n"), "\n")
	for below := range strings.Lines(more) {
		require.True(p.T, strings.HasPrefix(below, "  ") && strings.Contains(p.Err.String(), "the context is lost"), p.Dump())
		line += "\n" + strings.TrimSuffix(below, "\n")
	}
	require.True(p.T, strings.HasPrefix(line, p.Name+": "), line)
	for _, trace := range []string{"goroutine", "panic", "SIGSEGV", "%!", ".go:"} {
		require.NotContains(p.T, line, trace)
		require.NotContains(p.T, p.Out.String(), trace)
	}
	for _, w := range words {
		require.Contains(p.T, line, w)
	}
	return line
}

// Dump is all that the process said.
func (p *Process) Dump() string {
	return p.Name + " said:\n" + p.Out.String() + "and on standard error:\n" + p.Err.String()
}

// Result is the last line of a program that ran with -json, and all of them.
func (p *Process) Result() (last map[string]any, all []map[string]any) {
	p.T.Helper()
	for _, line := range p.Out.All() {
		var object map[string]any
		require.NoError(p.T, json.Unmarshal([]byte(line), &object), line)
		require.NotEmpty(p.T, object["event"], line)
		all = append(all, object)
	}
	require.NotEmpty(p.T, all, p.Dump())
	last = all[len(all)-1]
	require.Equal(p.T, "result", last["event"], p.Dump())
	return last, all
}

// PIDText is the pid as the programs print it.
func PIDText(p *Process) string { return strconv.Itoa(p.PID()) }

// Find returns the lines of standard output that begin so.
func Find(p *Process, prefix string) []string {
	found, _ := p.Out.Find(prefix)
	return found
}

// Resume undoes stop.
func Resume(p *Process) error { return p.Cmd.Process.Signal(syscall.SIGCONT) }

// A Transcript collects lines while a process writes them.
type Transcript struct {
	mu      sync.Mutex
	lines   []string
	rest    string // without newline so far
	changed chan struct{}
}

// Write is what os/exec calls.
func (w *Transcript) Write(b []byte) (int, error) {
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
func (w *Transcript) end() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.rest != "" {
		w.lines, w.rest = append(w.lines, w.rest), ""
	}
}

// Forget drops the lines so far.
func (w *Transcript) Forget() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.lines = nil
}

// Find returns the lines that begin with prefix, and a channel that is closed
// when there are more lines.
func (w *Transcript) Find(prefix string) (found []string, changed <-chan struct{}) {
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

func (w *Transcript) All() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.lines)
}

// String indents the lines.
func (w *Transcript) String() string {
	var b strings.Builder
	for _, l := range w.All() {
		b.WriteString("  | " + l + "\n")
	}
	return b.String()
}

// A WrongCase is a program that is started wrongly: it has to say so in one
// line, exit with that code and leave nothing behind.
type WrongCase struct {
	Name  string
	Args  []string
	Env   []string
	Code  int
	Words []string // of the line on standard error
}

func Args(a ...string) []string { return a }

func (c WrongCase) Run(t *testing.T, program string) {
	t.Helper()
	t.Run(program+" "+c.Name, func(t *testing.T) {
		NewScene(t).Start(program, c.Env, c.Args...).Fails(c.Code, c.Words...)
	})
}

var traceLine = regexp.MustCompile(`^(cu[A-Z]\w*)\((.*)\) = (CUDA_[A-Z_]+|symbol missing) <\d[\d.]*(µs|ms|s)>$`)

// Calls checks the form of every line on standard error.
func Calls(t *testing.T, p *Process) (names []string) {
	t.Helper()
	for _, line := range p.Err.All() {
		parts := traceLine.FindStringSubmatch(line)
		require.NotNil(t, parts, line)
		names = append(names, parts[1])
	}
	return names
}
