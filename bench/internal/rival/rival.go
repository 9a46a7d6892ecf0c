// Package rival talks to the programs that the handoff benchmark compares. A
// rival owns a producer and a consumer process and answers each line on its
// standard input, "handoff SIZE" say, with a line of JSON. It does one
// thing at a time, when it is asked, so that rivals can be measured turn about
// on one machine. bench/README.md has the whole protocol.
package rival

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"
	"time"
)

// An Answer is one line of a rival's output.
type Answer struct {
	Ready bool   `json:"ready,omitempty"`
	Name  string `json:"name,omitempty"`
	Info  string `json:"info,omitempty"`
	Error string `json:"error,omitempty"`

	NS   int64   `json:"ns,omitempty"`   // what was asked for took
	Each []int64 `json:"each,omitempty"` // and of many, each
}

// A Rival is a running program. The caller owns it.
type Rival struct {
	Name string
	Info string

	cmd     *exec.Cmd
	in      io.WriteCloser
	answers chan line // closed when the program has ended
	exit    error     // what it ended with, once answers is closed
	dead    error     // why it cannot be asked any more
}

type line struct {
	answer Answer
	err    error
}

// Start runs the program argv and waits until it is ready. It is in a process
// group of its own, so that a signal from the terminal is the caller's alone.
func Start(ctx context.Context, name string, argv ...string) (*Rival, error) {
	return StartWith(ctx, name, nil, argv...)
}

// StartWith is Start for a program that inherits files, as descriptors from 3 on.
func StartWith(ctx context.Context, name string, files []*os.File, argv ...string) (*Rival, error) {
	r := &Rival{Name: name, cmd: exec.Command(argv[0], argv[1:]...), answers: make(chan line, 1)}
	r.cmd.Stderr, r.cmd.ExtraFiles = os.Stderr, files
	r.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	in, err := r.cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := r.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	r.in = in
	if err := r.cmd.Start(); err != nil {
		return nil, fmt.Errorf("rival %s: %w", name, err)
	}
	go r.read(out)
	a, err := r.Wait(ctx)
	if err == nil && !a.Ready {
		err = fmt.Errorf("rival %s: its first line does not say that it is ready", name)
	}
	if err != nil {
		_ = r.Close() // err says more
		return nil, err
	}
	r.Info = a.Info
	return r, nil
}

// read decodes lines, which are as long as the program likes: what several
// hundred consumers say is one.
func (r *Rival) read(out io.Reader) {
	defer close(r.answers)
	for b := bufio.NewReader(out); ; {
		text, err := b.ReadBytes('\n')
		if len(text) > 0 {
			var l line
			l.err = json.Unmarshal(text, &l.answer)
			r.answers <- l
		}
		if err != nil {
			break
		}
	}
	r.exit = r.cmd.Wait()
}

// Ask sends one line and waits for the answer. A rival that does not answer
// before ctx's deadline is killed.
func (r *Rival) Ask(ctx context.Context, format string, args ...any) (Answer, error) {
	r.Tell(format, args...)
	return r.Wait(ctx)
}

// Tell sends one line. Each takes a Wait.
func (r *Rival) Tell(format string, args ...any) {
	_, _ = fmt.Fprintf(r.in, format+"\n", args...) // one that has ended says how, or nothing
}

// Wait waits for the answer to a line.
func (r *Rival) Wait(ctx context.Context) (Answer, error) {
	if r.dead != nil {
		return Answer{}, r.dead
	}
	select {
	case l, ok := <-r.answers:
		switch {
		case !ok:
			r.dead = fmt.Errorf("rival %s: it ended: %s", r.Name, r.cmd.ProcessState)
			return Answer{}, r.dead
		case l.err != nil:
			return Answer{}, fmt.Errorf("rival %s: not an answer: %w", r.Name, l.err)
		case l.answer.Error != "":
			return l.answer, fmt.Errorf("rival %s: %s", r.Name, l.answer.Error)
		}
		return l.answer, nil
	case <-ctx.Done():
		if errors.Is(ctx.Err(), context.DeadlineExceeded) { // or else it can tidy up
			r.kill()
		}
		r.dead = fmt.Errorf("rival %s: no answer: %w", r.Name, context.Cause(ctx))
		return Answer{}, r.dead
	}
}

// Pid is the program's process.
func (r *Rival) Pid() int { return r.cmd.Process.Pid }

// kill ends the program and what it has started, which may hold its output.
func (r *Rival) kill() { _ = syscall.Kill(-r.cmd.Process.Pid, syscall.SIGKILL) }

// patience is how long a rival has to end by itself once its input has, with all
// the processes that it started.
const patience = 30 * time.Second

// Close ends the program and waits for it.
func (r *Rival) Close() error {
	_ = r.in.Close() // tells it to end; it may have done so
	timer := time.AfterFunc(patience, r.kill)
	defer timer.Stop()
	for range r.answers { // until it has ended
	}
	if r.exit != nil && r.dead == nil {
		return fmt.Errorf("rival %s: %w", r.Name, r.exit)
	}
	return nil
}
