package share

import (
	"errors"
	"fmt"
	"sync"

	"github.com/gpufd/gpufd/cu"
)

// A usage knows which streams may still have to do what they were given to do with
// some memory. Memory that is unmapped before that loses every context of the process.
type usage struct {
	mu    sync.Mutex
	marks []*mark // one for each stream
	many  int     // so many marks are looked through before there are more
	ended bool
}

// fewMarks is how many streams are remembered though they are done.
const fewMarks = 8

// A mark is the end of what one stream was given. It has a reference to the stream's
// context, so that it can be asked for though the one that the stream was made in is closed.
type mark struct {
	stream   *cu.Stream
	ctx      *cu.Context
	reached  *cu.Event  // of ctx, recorded behind the latest work
	order    sync.Mutex // held while work is queued, so that the latest record is behind all
	kept     bool       // also while its stream is done
	giving   int        // calls under way that give it more
	given    int        // pieces of work since it was last seen to have done all
	unmarked error      // why the latest work has no event behind it
	unknown  error      // why the driver did not say whether the event was reached
}

// give has s do the work that queue queues, and marks its end. An error means that
// nothing was queued.
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

// keep makes the mark of a stream that may be given work when nothing more can be made.
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
		return nil, ErrClosed
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

// tidy drops the marks of streams that are done, but for those that are kept, and
// returns how many streams are not done. It runs with mu held.
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

// busy reports whether the stream may still have some of the work to do. One of a lost
// context does none, and the end of a context, as by [cu.Device.ResetPrimary], waits for it.
// A mark that failed is made again: it is behind all, since nobody gives the stream more.
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

// end ends the usage, unless streams may still have work to do: then it is [ErrInUse],
// and changes nothing.
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

// inUse says how much work that many streams have not done. It runs with mu held.
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
	err := fmt.Errorf("%w: %s still queued in %s", ErrInUse, what, in)
	if doubts != nil {
		err = fmt.Errorf("%w, and the driver does not say whether they are done: %w", err, doubts)
	}
	return err
}
