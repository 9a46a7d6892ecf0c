package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/internal/cli"
	"github.com/gpufd/gpufd/sock"
)

// grace is how long a member may take to end when it was told to, and to be seen
// to have ended when its connection has.
const grace = 10 * time.Second

// A crew is the members, as the parent sees them. One goroutine uses it; each
// member's messages come from another by way of events.
type crew struct {
	app     *cli.App
	verbose bool
	mu      sync.Mutex // for who kills them while they are started
	members []*member
	events  chan event
}

// A member is a process of the ring.
type member struct {
	id     int
	cmd    *exec.Cmd
	conn   *sock.Conn
	exited chan struct{} // closed when it has; cmd.ProcessState says how
	closed bool          // its connection is
	last   *end          // its last word
	heard  time.Time
}

// An event is what came of a member: a message, or the end of its connection.
type event struct {
	from *member
	message
	err error
}

// A failure is what one member has done to all.
type failure struct {
	id   int
	err  error
	gone bool // without a word: err is to be completed when its process has ended
}

// Error is the member's error.
func (f *failure) Error() string { return f.err.Error() }

// Unwrap returns it.
func (f *failure) Unwrap() error { return f.err }

// start starts a member. It inherits its end of a socket pair, which nobody else
// can have, and no other descriptor.
func (c *crew) start(id int, dev *cu.Device) (*member, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	near, far, err := sock.NewPair()
	if err != nil {
		return nil, err
	}
	inherited, err := far.File()
	if err := errors.Join(err, far.Close()); err != nil {
		return nil, errors.Join(err, near.Close())
	}
	m := &member{id: id, conn: near, exited: make(chan struct{}), heard: time.Now()}
	m.cmd = exec.Command(self, memberArg, "--id", strconv.Itoa(id), "--driver", c.app.Driver.Kind().String())
	m.cmd.Stderr, m.cmd.ExtraFiles = os.Stderr, []*os.File{inherited}
	err = m.cmd.Start()
	_ = inherited.Close()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("starting process %d: %w", id, err), near.Close())
	}
	c.mu.Lock()
	c.members = append(c.members, m)
	c.mu.Unlock()
	go func() {
		defer close(m.exited)
		_ = m.cmd.Wait() // its ProcessState says it all
	}()
	go c.listen(m)
	c.app.Say("started", cli.Fields{"process": id, "pid": m.cmd.Process.Pid, "device": dev.Ordinal()},
		"Started process %d (pid %d) on device %d", id, m.cmd.Process.Pid, dev.Ordinal())
	return m, nil
}

// listen passes on what a member says, until it says no more.
func (c *crew) listen(m *member) {
	for {
		msg, files, err := receive(context.Background(), m.conn)
		_ = sock.CloseFiles(files)
		c.events <- event{m, msg, err}
		if err != nil {
			return
		}
	}
}

// tell sends a member a message.
func (c *crew) tell(ctx context.Context, m *member, msg message, files ...*os.File) error {
	ctx, cancel := context.WithTimeout(ctx, c.app.Timeout)
	defer cancel()
	err := m.conn.Send(ctx, encode(msg), files...)
	if errors.Is(err, sock.ErrPeerLost) {
		return nil // as listen finds out, with its last word
	}
	return err
}

// all gives everybody an order and waits until all have answered with what.
func (c *crew) all(ctx context.Context, order message, what kind) error {
	for _, m := range c.members {
		if err := c.tell(ctx, m, order); err != nil {
			return err
		}
	}
	return c.await(ctx, order, what)
}

// await waits until every member has answered an order. It blocks, and ends with
// the first member that fails, is lost, or is silent for too long.
func (c *crew) await(ctx context.Context, order message, what kind) error {
	waiting := map[*member]bool{}
	for _, m := range c.members {
		waiting[m], m.heard = true, time.Now()
	}
	for len(waiting) > 0 {
		slowest := oldest(waiting)
		timer := time.NewTimer(time.Until(slowest.heard.Add(c.app.Timeout)))
		select {
		case e := <-c.events:
			e.from.heard = time.Now()
			if err := c.take(e, order, what, waiting); err != nil {
				timer.Stop()
				return err
			}
		case <-timer.C:
			return &failure{id: slowest.id, err: cli.Codef(cli.ExitPeer, "process %d (pid %d) was silent for %s, at %s; wait longer with --timeout",
				slowest.id, slowest.pid(), c.app.Timeout, order)}
		case <-ctx.Done():
			timer.Stop()
			return context.Cause(ctx)
		}
		timer.Stop()
	}
	return c.verdict()
}

// oldest is the member that was not heard of for longest.
func oldest(members map[*member]bool) (m *member) {
	for other := range members {
		if m == nil || other.heard.Before(m.heard) {
			m = other
		}
	}
	return m
}

// take makes what has to be made of an event while members are awaited.
func (c *crew) take(e event, order message, what kind, waiting map[*member]bool) error {
	m := e.from
	switch {
	case e.err != nil:
		m.closed = true
		if m.last == nil {
			return c.lost(m)
		}
	case e.Kind == ended && e.End != nil:
		m.last = e.End
		delete(waiting, m)
		c.sayEnd(m)
		if what != ended {
			return &failure{id: m.id, err: m.failed()}
		}
	case e.Kind == what && e.Step == order.Step:
		delete(waiting, m)
		c.sayFilled(m, order)
	case e.Kind != working:
		return &failure{id: m.id, err: fmt.Errorf("process %d says %q in answer to %s", m.id, e.Kind, order)}
	}
	return nil
}

// String names the message for people.
func (m message) String() string {
	switch m.Kind {
	case begin:
		return "mapping the chunks"
	case fillStep:
		return fmt.Sprintf("step %d", m.Step)
	case checkChunk:
		return "checking its chunk"
	}
	return string(m.Kind)
}

func (c *crew) sayFilled(m *member, order message) {
	if !c.verbose || order.Kind != fillStep {
		return
	}
	chunk := chunkOf(m.id, order.Step, len(c.members))
	c.app.Say("step", cli.Fields{"step": order.Step, "process": m.id, "chunk": chunk}, "Step %d: process %d has filled chunk %d", order.Step, m.id, chunk)
}

// sayEnd says what a member's last word is. One that goes by what another did is
// heard of in the end.
func (c *crew) sayEnd(m *member) {
	fields := cli.Fields{"process": m.id, "exit": m.last.Code}
	if m.last.Wrong != nil {
		fields["offset"], fields["want"], fields["got"], fields["wrong"] = m.last.Wrong.Offset, m.last.Wrong.Want, m.last.Wrong.Got, m.last.Wrong.Bytes
	}
	if m.last.Error != "" {
		fields["error"] = m.last.Error
		c.app.Say("ended", fields, "Process %d failed: %s (exit code %d)", m.id, m.last.Error, m.last.Code)
		return
	}
	c.app.Say("ended", fields, "Process %d has found its chunk right", m.id)
}

// failed is the error that the member's last word stands for.
func (m *member) failed() error {
	return cli.Codef(m.last.Code, "process %d: %s", m.id, m.last.Error)
}

// verdict is what those say that have ended.
func (c *crew) verdict() (worst error) {
	n := 0
	for _, m := range c.members {
		if m.last == nil || m.last.Code == cli.ExitOK {
			continue
		}
		if n++; worst == nil || m.last.Code < cli.ExitCode(worst) {
			worst = m.failed()
		}
	}
	if n > 1 {
		return fmt.Errorf("%d processes failed, among them %w", n, worst)
	}
	return worst
}

// lost is the failure of a member that has gone without a word. The others are
// told before it is known how.
func (c *crew) lost(m *member) error {
	c.app.Say("lost", cli.Fields{"process": m.id, "pid": m.pid()}, "Lost process %d (pid %d)", m.id, m.pid())
	return &failure{id: m.id, err: peerLost(m.id), gone: true}
}

func (m *member) pid() int { return m.cmd.Process.Pid }

// exit says how a process that has exited did.
func (m *member) exit() string {
	state := m.cmd.ProcessState
	if status, ok := state.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		return fmt.Sprintf("was killed (signal %d, %s)", int(status.Signal()), status.Signal())
	}
	return fmt.Sprintf("ended with exit code %d", state.ExitCode())
}

// end sees all members out. If something went wrong, err, those that are still
// there are told why, and killed if they take too long over it.
func (c *crew) end(err error) error {
	patience := c.app.Timeout
	if err != nil {
		c.dismiss(err)
		patience = grace
	}
	late := time.AfterFunc(patience, c.kill)
	defer late.Stop()
	for _, m := range c.members {
		for !m.closed {
			c.farewell(<-c.events)
		}
	}
	errs := []error{err}
	for _, m := range c.members {
		<-m.exited
		errs = append(errs, m.conn.Close())
		var f *failure
		switch code := m.cmd.ProcessState.ExitCode(); {
		case errors.As(err, &f) && f.gone && f.id == m.id:
			errs[0] = fmt.Errorf("%w: its process, pid %d, %s", err, m.pid(), m.exit())
		case err == nil && code != cli.ExitOK:
			errs = append(errs, fmt.Errorf("process %d was done, and then it %s", m.id, m.exit()))
		}
	}
	return errors.Join(append(c.wrong(err), errs...)...)
}

// wrong is what members have found wrong with their chunks, which decides the exit
// code also if err, for which it is over, is that somebody is lost.
func (c *crew) wrong(err error) (errs []error) {
	if err == nil || cli.ExitCode(err) == cli.ExitFailed {
		return nil // the verdict has it
	}
	for _, m := range c.members {
		if m.last != nil && m.last.Wrong != nil {
			errs = append(errs, m.failed())
		}
	}
	return errs
}

// dismiss tells those that are still there why it is over.
func (c *crew) dismiss(err error) {
	word := message{Kind: stop}
	var f *failure
	if errors.As(err, &f) {
		word = message{Kind: lost, Peer: f.id}
	}
	for _, m := range c.members {
		switch {
		case m.closed || m.last != nil:
		case f != nil && m.id == f.id: // it had its time
			_ = m.cmd.Process.Kill()
		default:
			_ = m.conn.TrySend(encode(word)) // who cannot take it is killed in the end
		}
	}
}

// farewell takes an event of a member that is about to end.
func (c *crew) farewell(e event) {
	switch {
	case e.err != nil:
		e.from.closed = true
	case e.Kind == ended && e.End != nil:
		e.from.last = e.End
		c.sayEnd(e.from)
	}
}

// kill ends those that have not ended.
func (c *crew) kill() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, m := range c.members {
		_ = m.cmd.Process.Kill()
	}
}
