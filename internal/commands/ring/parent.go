package ring

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/internal/commands/app"
	"github.com/gpufd/gpufd/sock"
)

// grace is how long a member may take to end when it was told to, or after its connection
// has ended.
const grace = 10 * time.Second

// A parent starts the members, gives them orders and waits for their answers. One goroutine uses it;
// for each member, another goroutine passes on its messages in events.
type parent struct {
	app     *app.App
	verbose bool
	steps   int
	mu      sync.Mutex // so that members can be killed while others are started
	members []*member
	events  chan event
}

// A member is a process of the ring.
type member struct {
	id     int
	cmd    *exec.Cmd
	conn   *sock.Conn
	exited chan struct{} // closed when it has exited; cmd.ProcessState says how
	closed bool          // its connection has ended
	last   *end          // its last word
	heard  time.Time     // when it last said anything
	moved  time.Time     // when it last had done something
}

// An event is what came from a member: a message, or the end of its connection.
type event struct {
	from *member
	message
	err error
}

// A failure is the failure of one member, which ends the ring.
type failure struct {
	id   int
	err  error
	gone bool // it has gone without a word: end adds to err how its process ended
}

// Error returns the text of the member's error.
func (f *failure) Error() string { return f.err.Error() }

// Unwrap returns the member's error.
func (f *failure) Unwrap() error { return f.err }

// start starts a member. It inherits its end of a socket pair, which no other process has,
// and no other descriptor.
func (p *parent) start(id int, dev *cu.Device) (*member, error) {
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
	m.cmd = exec.Command(self, MemberArg, "--id", strconv.Itoa(id), "--driver", p.app.Driver.Kind().String(), "--timeout", p.app.Timeout.String())
	m.cmd.Stderr, m.cmd.ExtraFiles = os.Stderr, []*os.File{inherited}
	err = m.cmd.Start()
	_ = inherited.Close()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("starting process %d: %w", id, err), near.Close())
	}
	p.mu.Lock()
	p.members = append(p.members, m)
	p.mu.Unlock()
	go func() {
		defer close(m.exited)
		_ = m.cmd.Wait() // its ProcessState says it all
	}()
	go p.listen(m)
	p.app.Say("started", app.Fields{"process": id, "pid": m.cmd.Process.Pid, "device": dev.Ordinal()},
		"Started process %d (pid %d) on device %d", id, m.cmd.Process.Pid, dev.Ordinal())
	return m, nil
}

// listen passes on what a member says, until its connection ends.
func (p *parent) listen(m *member) {
	for {
		msg, files, err := receive(context.Background(), m.conn)
		_ = sock.CloseFiles(files)
		p.events <- event{m, msg, err}
		if err != nil {
			return
		}
	}
}

// tell sends a member a message.
func (p *parent) tell(ctx context.Context, m *member, msg message, files ...*os.File) error {
	ctx, cancel := context.WithTimeout(ctx, p.app.Timeout)
	defer cancel()
	err := m.conn.Send(ctx, encode(msg), files...)
	if errors.Is(err, sock.ErrPeerLost) {
		return nil // listen finds out, and gets its last word
	}
	return err
}

// all gives all members an order and waits until all have answered with what.
func (p *parent) all(ctx context.Context, order message, what kind) error {
	for _, m := range p.members {
		if err := p.tell(ctx, m, order); err != nil {
			return err
		}
	}
	return p.await(ctx, order, what)
}

// await waits until every member has answered an order. It fails as soon as a member
// fails, is lost, or is silent for too long, or when no member has done anything for as
// long. Progress of any member counts: on a busy machine one may wait long for its turn.
func (p *parent) await(ctx context.Context, order message, what kind) error {
	waiting := map[*member]bool{}
	for _, m := range p.members {
		waiting[m], m.heard, m.moved = true, time.Now(), time.Now()
	}
	var done atomic.Int64
	defer p.app.Busy(func() string { return p.busy(order, int(done.Load())) })()
	for len(waiting) > 0 {
		timer := time.NewTimer(time.Until(p.stallTime(waiting)))
		select {
		case e := <-p.events:
			e.from.hear(e.Kind)
			if err := p.take(e, order, what, waiting); err != nil {
				timer.Stop()
				return err
			}
			done.Store(int64(len(p.members) - len(waiting)))
		case <-timer.C:
			return p.stalled(waiting, order)
		case <-ctx.Done():
			timer.Stop()
			return context.Cause(ctx)
		}
		timer.Stop()
	}
	return p.verdict()
}

// take handles an event while the members in waiting have still to answer.
func (p *parent) take(e event, order message, what kind, waiting map[*member]bool) error {
	m := e.from
	switch {
	case e.err != nil:
		m.closed = true
		if m.last == nil {
			return p.lost(m)
		}
	case e.Kind == ended && e.End != nil:
		m.last = e.End
		delete(waiting, m)
		p.sayEnd(m)
		if what != ended {
			return &failure{id: m.id, err: m.failed()}
		}
	case e.Kind == what && e.Step == order.Step:
		delete(waiting, m)
		p.sayFilled(m, order)
	case e.Kind != working && e.Kind != living:
		return &failure{id: m.id, err: fmt.Errorf("process %d says %q in answer to %s", m.id, e.Kind, order)}
	}
	return nil
}
