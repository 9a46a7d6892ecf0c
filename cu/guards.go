package cu

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/gpufd/gpufd/internal/wait"
)

// guards are the waits of one stream that can be given up, and are not over yet. The
// zero value has none.
type guards struct {
	order sync.Mutex // held while a wait is queued, so that added has them as the stream does

	mu       sync.Mutex
	held     *Context // a reference of their own, while there are users
	users    int      // waits that are not over, and calls that queue one
	added    []*StreamWait
	watching bool  // a goroutine looks after them
	givenUp  int   // how many waits have ended so
	why      error // the latest of them has
}

// enter returns a reference to c that stays open until leave, and how many waits have
// ended given up before the caller queues its own.
func (g *guards) enter(c *Context) (held *Context, before int, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.users == 0 {
		if g.held, err = c.Retain(); err != nil {
			return nil, 0, err
		}
	}
	g.users++
	return g.held, g.givenUp, nil
}

func (g *guards) leave() error {
	g.mu.Lock()
	g.users--
	var last *Context
	if g.users == 0 {
		last, g.held = g.held, nil
	}
	g.mu.Unlock()
	return last.Close()
}

// add has w looked after. If a wait that was given up ended while w was queued, w may
// have been behind it.
func (g *guards) add(w *StreamWait, before int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.givenUp > before {
		w.givenUp, w.behind = g.why, true
	}
	g.added = append(g.added, w)
	if !g.watching {
		g.watching = true
		go (&watch{guards: g, drv: g.held.inner.dev.drv}).run()
	}
}

// A watch looks after the waits of a stream until all are over.
type watch struct {
	*guards
	drv   *Driver
	waits []*StreamWait // in the stream's order
	pause time.Duration
}

func (w *watch) run() {
	w.drv.watches.Add(1)
	defer w.drv.watches.Add(-1)
	for looks := 0; w.take(); looks++ {
		if w.finish() || w.giveUp() {
			w.pause = 0
		}
		if looks < pollSpins {
			runtime.Gosched()
			continue
		}
		w.sleep()
	}
}

// take has the watch look after what was added, and is false if there is nothing to look
// after: then the watch is over.
func (w *watch) take() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.waits, w.added = append(w.waits, w.added...), nil
	w.watching = len(w.waits) > 0
	return w.watching
}

// finish ends the waits that the stream has got past, and reports whether there are any.
// None is over before the first: so the driver is asked about that alone.
func (w *watch) finish() (some bool) {
	for ; len(w.waits) > 0; some = true {
		reached, err := w.waits[0].mark.Query()
		if !reached && err == nil {
			break
		}
		w.end(0, err)
	}
	return some
}

// end ends wait i, to which the stream has got, or else err says what kept it.
func (w *watch) end(i int, err error) {
	s := w.waits[i]
	w.waits = slices.Delete(w.waits, i, i+1)
	if s.givenUp != nil {
		w.spoil(w.waits[i:], s.givenUp)
	}
	s.err = s.result(err)
	_ = s.mark.Close()                  // its context's end does it, too
	if s.givenUp != nil && err != nil { // to end the context takes as long as the stream waits
		close(s.done)
		_ = w.leave()
		return
	}
	_ = w.leave()
	close(s.done)
}

// spoil gives up the waits that were queued behind one that ends so: the stream goes on
// without what it waited for.
func (w *watch) spoil(behind []*StreamWait, why error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.givenUp, w.why = w.givenUp+1, why
	for _, s := range slices.Concat(behind, w.added) {
		if s.givenUp == nil {
			s.givenUp, s.behind = why, true
		}
	}
}

// result is that of a wait to which the stream has got, or else err says what kept it.
func (s *StreamWait) result(err error) error {
	switch {
	case s.givenUp == nil && err == nil:
		return s.met()
	case s.givenUp == nil:
		return err
	case err != nil:
		return fmt.Errorf("%w; the stream waits still: %w", s.givenUp, err)
	case s.behind:
		return fmt.Errorf("a wait before this one, on the same stream: %w", s.givenUp)
	}
	return s.givenUp
}

// giveUp gives up the waits whose context has ended, helps the stream on, and reports
// whether it did.
func (w *watch) giveUp() (some bool) {
	for i := 0; i < len(w.waits); {
		s := w.waits[i]
		if err := wait.Err(s.ctx); err != nil && s.freeing.IsZero() {
			s.freeing, some = time.Now(), true
			if s.givenUp == nil {
				s.givenUp = fmt.Errorf("%w: %w", ErrGivenUp, err)
			}
		}
		if err := s.help(); err != nil {
			w.end(i, err)
			continue
		}
		i++
	}
	return some
}

// help frees the stream of a wait that is given up, if it is time. The error says why
// that is at an end.
func (s *StreamWait) help() error {
	if s.freeing.IsZero() {
		return nil
	}
	switch now := time.Now(); {
	case now.Sub(s.freed) < freeAgain:
		return nil
	case now.Sub(s.freeing) > freeLimit:
		return context.DeadlineExceeded
	default:
		s.freed = now
		return s.free()
	}
}

// sleep waits a moment, longer from one time to the next, or until the context of the
// first wait ends. Many watches sleep longer, so that all of them take little time.
func (w *watch) sleep() {
	if len(w.waits) == 0 {
		return
	}
	longest := pollMax * time.Duration(1+w.drv.watches.Load()/fewWatches)
	w.pause = min(max(pollMin, 2*w.pause), longest)
	var ended <-chan struct{}
	if s := w.waits[0]; s.freeing.IsZero() {
		ended = s.ctx.Done()
	}
	timer := time.NewTimer(w.pause)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ended:
	}
}

// fewWatches look at their streams as often as a single one.
const fewWatches = 32
