package channel

import (
	"context"
	"runtime"
	"time"

	"github.com/gpufd/gpufd/internal/plain"
)

// A waiting is a wait of the host for what the other side, or its streams, will write.
type waiting struct {
	words words
	bell  int            // that the other side rings
	polls int            // the word that says that its streams write, or 0
	until time.Time      // when it is over in any case, or zero
	was   *time.Duration // how long the wait before was, which this one sets; or nil
	often bool           // others who ring another bell may end the wait
}

// await waits until ready, which reads words, reports true or an error; or until ctx or the
// time ends: then ready has said false. It allocates nothing.
//
// It looks for aloneFor and keeps its processor; then it yields to other goroutines between
// looks, one of which may be the other side. To yield wakes an idle thread, which may take this
// goroutine to another core: that takes longer than a frame between two that spin.
func (w waiting) await(ctx context.Context, ready func() (bool, error)) (ok bool, err error) {
	var start, now time.Time
	spin := w.spin()
	pause := pollMin
	for looks := 1; ; looks++ {
		if ok, err = ready(); ok || err != nil {
			w.note(now.Sub(start))
			return ok, err
		}
		if looks%looksAtOnce != 0 {
			continue
		}
		now = time.Now()
		if ended := plain.ContextErr(ctx); ended != nil || !w.until.IsZero() && now.After(w.until) {
			return false, ended
		}
		if start.IsZero() {
			start = now
		}
		switch spun := now.Sub(start); {
		case spun < aloneFor:
		case spun < spin:
			runtime.Gosched()
		default:
			w.rest(&pause, ready)
			now, looks = time.Now(), 0
		}
	}
}

// looksAtOnce is how often a wait looks at its word before it looks at the clock: a microsecond
// or less.
const looksAtOnce = 32

// spin is how long to look before the first sleep.
func (w waiting) spin() time.Duration {
	if w.was == nil || *w.was >= spinMost {
		return spinFor
	}
	return spinMost
}

// note keeps how long the wait was when it looked at the clock last, which it did a moment ago: to
// look once more would keep the caller from its frame.
func (w waiting) note(d time.Duration) {
	if w.was != nil {
		*w.was = d
	}
}

// rest sleeps a moment: longer from one time to the next.
func (w waiting) rest(pause *time.Duration, ready func() (bool, error)) {
	longest := sleepMax
	if w.often || w.polls != 0 && w.words.load(w.polls) != 0 {
		longest = pollMax
	}
	if !w.until.IsZero() {
		longest = max(pollMin, min(longest, time.Until(w.until)))
	}
	*pause = min(*pause, longest)
	w.words.sleep(w.bell, *pause, func() bool {
		ok, err := ready()
		return ok || err != nil
	})
	*pause = min(2**pause, longest)
}
