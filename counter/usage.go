package counter

import (
	"errors"
	"fmt"
	"sync"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/vmm"
)

// A usage knows which streams may still have queued work that uses some memory. If the
// memory is unmapped before that work is done, the process loses every context.
type usage struct {
	mu    sync.Mutex
	marks []*mark // one for each stream
	many  int     // the number of marks at which finished ones are dropped
	ended bool
}

// fewMarks is how many streams are remembered even if they are done.
const fewMarks = 8

// A mark is the end of the work that one stream was given. It retains the stream's context,
// so that it can be queried even after the stream's own reference is closed.
type mark struct {
	stream   *cu.Stream
	ctx      *cu.Context
	reached  *cu.Event  // of ctx, recorded behind the latest work
	order    sync.Mutex // held while work is queued, so that the latest record is behind all work
	kept     bool       // tidy keeps it even if its stream is done
	giving   int        // calls under way that give it more
	given    int        // pieces of work since it was last seen to have done all
	unmarked error      // why the latest work has no event behind it
	unknown  error      // why the driver did not say whether the event was reached
}

// give queues work in s by calling queue, and marks its end. With an error, nothing was
// queued.
func (u *usage) give(s *cu.Stream, queue func() error) error {
	m, err := u.begin(s)
	if err != nil {
		return err
	}
	m.order.Lock()
	defer m.order.Unlock()
	var unmarked error
	if err = queue(); err == nil {
		unmarked = m.reached.Record(s) // fails if s was closed meanwhile
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	m.giving--
	if err == nil {
		m.given++
		m.unmarked = unmarked
	}
	return err
}

// keep makes the mark of s now, so that s can be given work when no event can be made.
func (u *usage) keep(s *cu.Stream) error {
	m, err := u.begin(s)
	if err != nil {
		return err
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	m.giving, m.kept = 0, true
	return nil
}

// begin returns the mark of s, for a call that gives s work.
func (u *usage) begin(s *cu.Stream) (*mark, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.ended {
		return nil, errClosed
	}
	for _, m := range u.marks {
		if m.stream == s {
			m.giving++
			return m, nil
		}
	}
	if len(u.marks) >= u.many {
		u.tidy()
		u.many = max(fewMarks, 2*len(u.marks))
	}
	m, err := newMark(s)
	if err != nil {
		return nil, err
	}
	m.giving = 1
	u.marks = append(u.marks, m)
	return m, nil
}

func newMark(s *cu.Stream) (*mark, error) {
	ctx, err := s.Context().Retain()
	if err != nil {
		return nil, err
	}
	e, err := ctx.NewEvent(cu.EventDisableTiming)
	if err != nil {
		return nil, errors.Join(err, ctx.Close())
	}
	return &mark{stream: s, ctx: ctx, reached: e}, nil
}

// tidy drops the marks of streams that are done, except those that are kept, and returns
// how many streams are not done. It runs with mu held.
func (u *usage) tidy() (busy int) {
	var left []*mark
	for _, m := range u.marks {
		switch {
		case m.busy():
			busy++
		case !m.kept:
			_ = m.ctx.Close()
			continue
		}
		left = append(left, m)
	}
	u.marks = left
	return busy
}

// busy reports whether the stream may still have some of the work to do. In a lost context
// it does no work, and the end of a context, as by [cu.Device.ResetPrimary], waits for it.
// A mark that failed is recorded again. It is then behind all work, because no more is
// queued.
func (m *mark) busy() bool {
	if m.giving > 0 || m.given == 0 {
		return m.giving > 0
	}
	if m.unmarked != nil && m.stream.NotCaptured() == nil && m.reached.Record(m.stream) == nil {
		m.unmarked = nil
	}
	done, err := m.reached.Query()
	if errors.Is(err, cu.ErrClosed) || errors.Is(err, cu.ErrContextLost) {
		return false
	}
	if m.unknown = err; done && m.unmarked == nil {
		m.given = 0
	}
	return m.given > 0
}

// end ends the usage. If streams may still have work to do, it fails with [vmm.ErrInUse] and
// changes nothing.
func (u *usage) end() error {
	u.mu.Lock()
	defer u.mu.Unlock()
	if n := u.tidy(); n > 0 {
		return u.inUse(n)
	}
	for _, m := range u.marks {
		_ = m.ctx.Close()
	}
	u.ended, u.marks = true, nil
	return nil
}

// inUse returns an error that says how much work is left in that many streams. It runs with
// mu held.
func (u *usage) inUse(streams int) error {
	given := 0
	var doubts error
	for _, m := range u.marks {
		given += m.giving + m.given
		doubts = errors.Join(doubts, m.unmarked, m.unknown)
	}
	in := "a stream"
	if streams > 1 {
		in = fmt.Sprintf("%d streams", streams)
	}
	what := fmt.Sprintf("up to %d signals and waits are", given)
	if given == 1 {
		what = "a signal or wait is"
	}
	err := fmt.Errorf("%w: %s still queued in %s", vmm.ErrInUse, what, in)
	if doubts != nil {
		err = fmt.Errorf("%w, and the driver does not say whether they are done: %w", err, doubts)
	}
	return err
}
