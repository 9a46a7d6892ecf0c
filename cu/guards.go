package cu

import (
	"context"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/gpufd/gpufd/internal/plain"
)

// guards are the unfinished waits of one stream that can be given up. The zero
// value has none.
type guards struct {
	order sync.Mutex // held while a wait is queued, so that added has the stream's order

	mu       sync.Mutex
	held     *Context // a reference of their own, while there are users
	users    int      // waits that are not over, and calls that queue one
	added    []*StreamWait
	last     *StreamWait // the one added last, unless it is over
	losing   error       // why a wait is being given up, the latest of them
	watching bool        // a goroutine watches them
	givenUp  int         // how many waits ended given up
	why      error       // why the latest of them did
	round    int         // how many of them were not behind another
	unseen   error       // why, if no result of the latest round was asked for
}

// enter returns a reference to c that stays open until leave, and how many waits of the stream had ended given up by
// now. It leaves out the latest one while nobody has asked for its result.
func (g *guards) enter(c *Context) (held *Context, before int, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.users == 0 {
		if g.held, err = c.Retain(); err != nil {
			return nil, 0, err
		}
	}
	g.users++
	if g.unseen != nil {
		return g.held, g.givenUp - 1, nil
	}
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

// add hands w to the watch. If a wait that was given up ended while w was queued,
// w may have been behind it.
func (g *guards) add(w *StreamWait, before int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.givenUp > before {
		w.givenUp, w.behind = g.why, true
	}
	if g.last != nil {
		w.lost, g.last.next = g.last.lost, w
	}
	if w.behind {
		w.lost, g.losing = true, g.why
	}
	g.last = w
	g.added = append(g.added, w)
	if !g.watching {
		g.watching = true
		go (&watch{guards: g, drv: g.held.inner.dev.drv}).run()
	}
}

// A watch watches the waits of a stream until all are over.
type watch struct {
	*guards
	drv   *Driver
	waits []*StreamWait // in the stream's order
	pause time.Duration
	asked time.Time // when all contexts were asked whether they have ended
}

func (w *watch) run() {
	w.drv.watches.Add(1)
	defer w.drv.watches.Add(-1)
	for looks := 0; w.take(); looks++ {
		if w.finish() || w.giveUp() {
			w.pause = 0
		}
		if looks < pollSpins && w.drv.watches.Load() <= fewWatches {
			runtime.Gosched()
			continue
		}
		w.sleep()
	}
}

// take moves what was added to the watch. It is false if there is nothing to
// watch: then the watch is over.
func (w *watch) take() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.waits, w.added = append(w.waits, w.added...), nil
	w.watching = len(w.waits) > 0
	return w.watching
}

// finish ends the waits that the stream has passed, and reports whether there are
// any. They end in order, so it asks the driver only about the first.
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

// end ends wait i, which the stream has reached; if not, err says what kept it.
func (w *watch) end(i int, err error) {
	s := w.waits[i]
	w.waits = slices.Delete(w.waits, i, i+1)
	s.err = s.result(err)
	why := s.givenUp
	if why == nil && err == nil && s.err != nil { // another has freed the stream
		why = fmt.Errorf("%w: %w", ErrGivenUp, s.err)
	}
	if why != nil {
		w.lose(s, why)
		w.spoil(s, w.waits[i:], why)
	}
	w.unlink(s)
	_ = s.mark.Close()                  // its context's end does it, too
	if s.givenUp != nil && err != nil { // to end the context takes as long as the stream waits
		close(s.done)
		_ = w.leave()
		return
	}
	_ = w.leave()
	close(s.done)
}

// spoil gives up the waits queued behind one that was given up: the stream goes
// on without what it waited for.
func (w *watch) spoil(one *StreamWait, behind []*StreamWait, why error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.givenUp, w.why, w.unseen = w.givenUp+1, why, why
	if !one.behind {
		w.round++
	}
	one.round = w.round
	for _, s := range slices.Concat(behind, w.added) {
		if s.givenUp == nil {
			s.givenUp, s.behind = why, true
		}
	}
}

// see notes that a result of a round was asked for.
func (g *guards) see(round int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if round == g.round {
		g.unseen = nil
	}
}

// unlink removes a finished wait from the stream's, so that it keeps no other
// alive.
func (g *guards) unlink(s *StreamWait) {
	g.mu.Lock()
	defer g.mu.Unlock()
	s.next, s.spoils = nil, nil
	if g.last == s {
		g.last = nil
	}
}

// result returns the result of a wait. err is nil if the stream has passed it, or else says why that is unknown.
func (s *StreamWait) result(err error) error {
	switch {
	case s.givenUp == nil && err == nil:
		return s.met()
	case s.givenUp == nil:
		return err
	case err != nil:
		return fmt.Errorf("%w; the stream still waits: %w", s.givenUp, err)
	case s.behind:
		return fmt.Errorf("cu: a wait before this one, on the same stream: %w", s.givenUp)
	}
	return s.givenUp
}

// giveUp gives up the waits whose context has ended, helps the stream on, and
// reports whether it gave any up.
func (w *watch) giveUp() (some bool) {
	for i, n := 0, w.due(); i < min(n, len(w.waits)); {
		s := w.waits[i]
		if err := plain.ContextErr(s.ctx); err != nil && s.freeing.IsZero() {
			s.freeing, some = time.Now(), true
			if s.givenUp == nil {
				s.givenUp = fmt.Errorf("%w: %w", ErrGivenUp, err)
			}
			w.lose(s, s.givenUp)
		}
		if err := s.help(); err != nil {
			w.end(i, err)
			continue
		}
		i++
	}
	return some
}

// due returns how many waits, from the first on, to check for a context that has
// ended: of many not all at every look.
func (w *watch) due() int {
	if len(w.waits) <= fewWaits || time.Since(w.asked) >= askPause {
		w.asked = time.Now()
		return len(w.waits)
	}
	return 1
}

// lose tells the callers of IfGivenUp not to rely on what is queued behind first,
// a wait that is given up.
func (g *guards) lose(first *StreamWait, why error) {
	g.mu.Lock()
	g.losing = why
	tell := map[any]func(error){}
	for s := first; s != nil; s = s.next {
		maps.Copy(tell, s.spoils)
		s.lost, s.spoils = true, nil
	}
	g.mu.Unlock()
	for _, f := range tell {
		f(why)
	}
}

// help frees the stream of a wait that is given up, if it is time. The error says
// why it frees it no longer.
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
// first wait ends. Many watches sleep longer, so that all of them take little time, and wake up
// together: it costs far more to wake an idle CPU than to look.
func (w *watch) sleep() {
	if len(w.waits) == 0 {
		return
	}
	longest := pollMax * time.Duration(1+max(0, w.drv.watches.Load()-fewWatches)/watchesPerPause)
	w.pause = min(max(pollMin, 2*w.pause), longest)
	var ended <-chan struct{}
	if s := w.waits[0]; s.freeing.IsZero() {
		ended = s.ctx.Done()
	}
	pause := w.pause
	if longest > pollMax && pause == longest {
		pause -= time.Duration(time.Now().UnixNano()) % longest
	}
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ended:
	}
}

// fewWatches look at their streams as often as a single one. Many pause for pollMax longer for
// each watchesPerPause of them: all together they look some 2,000 times a second.
const (
	fewWatches      = 16
	watchesPerPause = 4
)

// fewWaits of a stream are looked at every time, and more at these pauses.
const (
	fewWaits = 64
	askPause = 20 * time.Millisecond
)
