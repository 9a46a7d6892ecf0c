package ring

import (
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/gpufd/gpufd/internal/cli"
	"github.com/gpufd/gpufd/internal/commands/app"
)

// lost returns the failure of a member that has gone without a word. The others are told
// before it is known how its process ended.
func (p *parent) lost(m *member) error {
	p.app.Say("lost", app.Fields{"process": m.id, "pid": m.pid()}, "Lost process %d (pid %d)", m.id, m.pid())
	return &failure{id: m.id, err: peerLost(m.id), gone: true}
}

func (m *member) pid() int { return m.cmd.Process.Pid }

// exit says how a process ended that has exited.
func (m *member) exit() string {
	state := m.cmd.ProcessState
	if status, ok := state.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		return fmt.Sprintf("was killed (signal %d, %s)", int(status.Signal()), status.Signal())
	}
	return fmt.Sprintf("ended with exit code %d", state.ExitCode())
}

// end waits until all members have ended. If err is not nil, it tells those that are still
// there, and kills those that take too long.
func (p *parent) end(err error) error {
	limit := p.app.Timeout
	if err != nil {
		p.dismiss(err)
		limit = grace
	}
	late := time.AfterFunc(limit, p.kill)
	defer late.Stop()
	for _, m := range p.members {
		for !m.closed {
			p.farewell(<-p.events)
		}
	}
	errs := []error{err}
	for _, m := range p.members {
		<-m.exited
		errs = append(errs, m.conn.Close())
		var f *failure
		switch code := m.cmd.ProcessState.ExitCode(); {
		case errors.As(err, &f) && f.gone && f.id == m.id:
			errs[0] = fmt.Errorf("%w: its process, pid %d, %s", err, m.pid(), m.exit())
		case err == nil && code != cli.ExitOK:
			errs = append(errs, fmt.Errorf("process %d reported that it was done, but then it %s", m.id, m.exit()))
		}
	}
	return errors.Join(append(p.wrong(err), errs...)...)
}

// wrong returns the errors of members whose chunks are wrong. They decide the exit code
// even if err, which ends the ring, is that a member is lost.
func (p *parent) wrong(err error) (errs []error) {
	if err == nil || cli.ExitCode(err) == cli.ExitFailed {
		return nil // the verdict has it
	}
	for _, m := range p.members {
		if m.last != nil && m.last.Wrong != nil {
			errs = append(errs, m.failed())
		}
	}
	return errs
}

// dismiss tells the remaining members why the ring ends.
func (p *parent) dismiss(err error) {
	word := message{Kind: stop}
	var f *failure
	if errors.As(err, &f) {
		word = message{Kind: lost, Peer: f.id}
	}
	for _, m := range p.members {
		switch {
		case m.closed || m.last != nil:
		case f != nil && m.id == f.id: // it had its time
			_ = m.cmd.Process.Kill()
		default:
			_ = m.conn.TrySend(encode(word)) // a member that cannot take it is killed in the end
		}
	}
}

// farewell handles an event of a member that is about to end.
func (p *parent) farewell(e event) {
	switch {
	case e.err != nil:
		e.from.closed = true
	case e.Kind == ended && e.End != nil:
		e.from.last = e.End
		p.sayEnd(e.from)
	}
}

// kill kills the members that have not ended.
func (p *parent) kill() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, m := range p.members {
		_ = m.cmd.Process.Kill()
	}
}
