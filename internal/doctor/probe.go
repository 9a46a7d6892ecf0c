package doctor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"time"

	"github.com/gpufd/gpufd/sock"
)

// A probe is a child process, on this side. The caller of start owns it.
type probe struct {
	name string
	cmd  *exec.Cmd // nil for here
	conn *sock.Conn
	over chan struct{} // closed when it has ended
	says answer        // of "open"
	err  *fault        // why no driver is open, or nil
	dead *fault        // why it is not asked any more, or nil
}

// here returns a probe in this process itself, because the pid that opens a legacy handle
// matters. If it hangs, it is abandoned.
func (c Config) here(ctx context.Context) *probe {
	p := &probe{name: "importing process"}
	mine, theirs, err := sock.NewPair()
	if err != nil {
		p.dead = newFault(err)
		p.err = p.dead
		return p
	}
	p.conn, p.over = mine, make(chan struct{})
	go func() {
		defer close(p.over)
		_ = serve(theirs, c.Open) // what failed was answered
	}()
	p.open(ctx)
	return p
}

// start starts a child. If that fails, every request to the probe fails with the reason.
func (c Config) start(name string) *probe {
	p := &probe{name: name}
	if err := p.run(c.Child()); err != nil {
		p.dead = &fault{Text: "starting a process: " + err.Error(), Mark: markOf(err)}
		p.err = p.dead
	}
	return p
}

// open makes it open its driver, no longer than ctx.
func (p *probe) open(ctx context.Context) {
	p.says, _, p.err = p.ask(ctx, request{Do: "open"})
}

func (p *probe) run(cmd *exec.Cmd) error {
	mine, theirs, err := sock.NewPair()
	if err != nil {
		return err
	}
	defer theirs.Close()
	file, err := theirs.File()
	if err != nil {
		return errors.Join(err, mine.Close())
	}
	defer file.Close()
	cmd.ExtraFiles = []*os.File{file} // childFD
	if err := cmd.Start(); err != nil {
		return errors.Join(err, mine.Close())
	}
	p.cmd, p.conn, p.over = cmd, mine, make(chan struct{})
	go func() {
		defer close(p.over)
		_ = cmd.Wait() // how it ended is in ProcessState
	}()
	return nil
}

// ask sends the child a request. The caller keeps files, and owns those that come back. A
// child that does not answer in time is killed.
func (p *probe) ask(ctx context.Context, r request, files ...*os.File) (answer, []*os.File, *fault) {
	if p.dead != nil {
		return answer{}, nil, p.dead
	}
	text, err := json.Marshal(r)
	if err == nil {
		err = p.conn.Send(ctx, text, files...)
	}
	var rec sock.Record
	if err == nil {
		rec, err = p.conn.Receive(ctx)
	}
	var a answer
	if err == nil {
		err = json.Unmarshal(rec.Data, &a)
	}
	if err != nil {
		return a, nil, p.lost(ctx, r.Do, err)
	}
	return a, rec.Files, a.Fault
}

// lost ends a child that did not answer.
func (p *probe) lost(ctx context.Context, what string, err error) *fault {
	f := newFault(err)
	over := p.kill()
	switch {
	case ctx.Err() != nil && p.cmd == nil:
		f = &fault{Text: fmt.Sprintf("the %s did not finish %q in time", p.name, what), Mark: "timeout"}
	case ctx.Err() != nil:
		f = &fault{Text: fmt.Sprintf("the %s did not answer in time to %q, and was killed", p.name, what), Mark: "timeout"}
	case errors.Is(err, sock.ErrPeerLost) && p.cmd != nil && over:
		f.Text = fmt.Sprintf("the %s died of %q: %v", p.name, what, p.cmd.ProcessState)
	}
	p.dead = f
	return f
}

// giveUp kills a child that cannot be used any more, for the reason f.
func (p *probe) giveUp(f *fault) {
	if p.dead == nil {
		p.kill()
		p.dead = f
	}
}

// ending is how long a child may take to end. One that hangs in the kernel is abandoned.
const ending = 5 * time.Second

// kill ends the child at once, and reports whether it has ended.
func (p *probe) kill() bool {
	if p.cmd == nil {
		_ = p.conn.Close()
		return false
	}
	_ = p.cmd.Process.Kill()
	return p.wait()
}

// wait waits until it has ended, no longer than ending, and reports whether it has.
func (p *probe) wait() bool {
	select {
	case <-p.over:
		return true
	case <-time.After(ending):
		return false
	}
}

// close ends the child, and waits for that.
func (p *probe) close() {
	_ = p.conn.Close()
	if p.over != nil && !p.wait() && p.cmd != nil {
		p.kill()
	}
}
