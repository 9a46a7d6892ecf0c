package server

import (
	"maps"
	"strings"
	"sync"
	"time"

	"github.com/gpufd/gpufd/keeper/internal/state"
)

// A tally holds what a keeper counts, also across restarts: each manifest includes it. Times are
// in microseconds.
type tally struct {
	mu     sync.Mutex
	counts map[string]uint64 // by key, as in the state; series returns the shown name
	dirty  bool              // changed since into was called
}

// The keys. A count by reasons has the reason after its key.
const (
	countCommits    = "commits"
	countRefused    = "refused/" // and the socket, a slash, the reason
	countAttached   = "attached"
	countAttachTime = "attached us"
	countAttachLE   = "attached le "
	countFences     = "fences"
	countFenceTime  = "fences us"
)

// attachBounds are the upper bounds of the buckets of how long readers take to attach, in
// seconds; +Inf is all of them.
var attachBounds = []struct {
	le    string
	bound time.Duration
}{
	{"0.001", time.Millisecond}, {"0.0025", 2500 * time.Microsecond}, {"0.005", 5 * time.Millisecond}, {"0.01", 10 * time.Millisecond},
	{"0.025", 25 * time.Millisecond}, {"0.05", 50 * time.Millisecond}, {"0.1", 100 * time.Millisecond}, {"0.25", 250 * time.Millisecond},
	{"0.5", 500 * time.Millisecond}, {"1", time.Second}, {"2.5", 2500 * time.Millisecond}, {"5", 5 * time.Second}, {"10", 10 * time.Second},
}

func newTally(from map[string]uint64) *tally {
	t := &tally{counts: map[string]uint64{}}
	maps.Copy(t.counts, from)
	return t
}

// add adds to several counts at once.
func (t *tally) add(counts map[string]uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for key, n := range counts {
		t.counts[key] += n
	}
	t.dirty = true
}

// all returns what was counted so far.
func (t *tally) all() map[string]uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return maps.Clone(t.counts)
}

// into stores the counters in next, incremented by one for each key in counted. Call done with
// nil if a manifest has them, else with an error.
func (t *tally) into(next *state.State, counted []string) (done func(error)) {
	more := map[string]uint64{}
	for _, key := range counted {
		more[key]++
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	counts := maps.Clone(t.counts)
	for key, n := range more {
		counts[key] += n
	}
	next.SetCounts(counts)
	t.dirty = false
	return func(err error) {
		t.mu.Lock()
		defer t.mu.Unlock()
		if err != nil {
			t.dirty = true
			return
		}
		for key, n := range more {
			t.counts[key] += n
		}
	}
}

// changed reports whether something was counted that no manifest has.
func (t *tally) changed() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.dirty
}

// attached counts a reader that took that long to attach.
func (t *tally) attached(took time.Duration) {
	counts := map[string]uint64{countAttached: 1, countAttachTime: micros(took)}
	for _, b := range attachBounds {
		if took <= b.bound {
			counts[countAttachLE+b.le] = 1
		}
	}
	t.add(counts)
}

// fenced counts a process whose death was waited for.
func (t *tally) fenced(took time.Duration) {
	t.add(map[string]uint64{countFences: 1, countFenceTime: micros(took)})
}

func (t *tally) refused(socket, reason string) {
	t.add(map[string]uint64{countRefused + socket + "/" + reason: 1})
}

func micros(d time.Duration) uint64 { return uint64(max(d, 0).Microseconds()) }

// series returns the name of a count for Prometheus, and in how many parts a unit of it was
// counted. ok is false for the key of another version of gpufd, which is kept and not shown.
func series(key string) (name string, parts float64, ok bool) {
	switch key {
	case countCommits:
		return "gpufd_keeper_commits_total", 1, true
	case countAttached:
		return "gpufd_keeper_attach_seconds_count", 1, true
	case countAttachTime:
		return "gpufd_keeper_attach_seconds_sum", 1e6, true
	case countFences:
		return "gpufd_keeper_fence_waits_total", 1, true
	case countFenceTime:
		return "gpufd_keeper_fence_wait_seconds_total", 1e6, true
	}
	if le, is := strings.CutPrefix(key, countAttachLE); is {
		return bucket(le)
	}
	socket, reason, is := strings.Cut(strings.TrimPrefix(key, countRefused), "/")
	if !is || !strings.HasPrefix(key, countRefused) || strings.ContainsAny(key, `"\{}`) {
		return "", 0, false
	}
	return `gpufd_keeper_refusals_total{socket="` + socket + `",reason="` + reason + `"}`, 1, true
}

func bucket(le string) (name string, parts float64, ok bool) {
	for _, b := range attachBounds {
		if b.le == le {
			return `gpufd_keeper_attach_seconds_bucket{le="` + le + `"}`, 1, true
		}
	}
	return "", 0, false
}
