package counter

import (
	"cmp"
	"slices"
	"sync"
	"time"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/vmm"
)

// A poller polls the counters of one buffer that the host waits for. Its goroutine runs
// while there are waits.
type poller struct {
	buf   *vmm.Buffer
	words []uint64      // room for what is copied; the goroutine's alone
	came  chan struct{} // a wait has come: polling begins again with short pauses

	mu       sync.Mutex
	counters []*Counter // that are awaited, in the order of their slots
}

// pollers are all pollers of the process.
var pollers = struct {
	sync.Mutex
	of map[*vmm.Buffer]*poller
}{of: map[*vmm.Buffer]*poller{}}

// An await is a wait for a number. The counter's are under the mu of its poller.
type await struct {
	counter *Counter
	n       uint64
	result  chan error // has room for it
}

// pollFor makes a poller tell when the number is n or more.
func pollFor(c *Counter, n uint64) (*await, *poller) {
	pollers.Lock()
	defer pollers.Unlock()
	l := pollers.of[c.buf]
	if l == nil {
		l = &poller{buf: c.buf, came: make(chan struct{}, 1)}
		pollers.of[c.buf] = l
		defer func() { go l.run() }()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	a := &await{c, n, make(chan error, 1)}
	if len(c.awaits) == 0 {
		i, _ := slices.BinarySearchFunc(l.counters, c.slot, func(o *Counter, slot int) int { return cmp.Compare(o.slot, slot) })
		l.counters = slices.Insert(l.counters, i, c)
	}
	c.awaits = append(c.awaits, a)
	select {
	case l.came <- struct{}{}:
	default:
	}
	return a, l
}

// drop ends a wait that was given up.
func (l *poller) drop(a *await) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.remove(a.counter, func(o *await) bool { return o == a })
}

// remove ends waits for a counter. It runs with mu held.
func (l *poller) remove(c *Counter, ends func(*await) bool) {
	if c.awaits = slices.DeleteFunc(c.awaits, ends); len(c.awaits) == 0 {
		l.counters = slices.DeleteFunc(l.counters, func(o *Counter) bool { return o == c })
	}
}

// The pauses between two looks double from readPause to maxReadPause, or beyond if there
// are many waits or buffers, so that all pollers together take little of a CPU.
const (
	readPause    = 20 * time.Microsecond
	maxReadPause = 2 * time.Millisecond
	fewWaits     = 128
	fewPollers   = 8
)

// run looks until nobody waits.
func (l *poller) run() {
	for pause := readPause; ; {
		if l.sleep(pause) {
			pause = readPause
		}
		counters, waits, others := l.awaited()
		if counters == nil {
			return
		}
		longest := maxReadPause * time.Duration(1+waits/fewWaits+others/fewPollers)
		if pause = min(2*pause, longest); l.look(counters) {
			pause = readPause
		}
	}
}

// sleep returns early if one more waits, and reports whether.
func (l *poller) sleep(d time.Duration) (more bool) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return false
	case <-l.came:
		return true
	}
}

// awaited returns the counters to look at, the number of waits for them, and how many other
// pollers there are. If there are no counters, the poller is over.
func (l *poller) awaited() (counters []*Counter, waits, others int) {
	pollers.Lock()
	defer pollers.Unlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.counters) == 0 {
		delete(pollers.of, l.buf)
		return nil, 0, 0
	}
	for _, c := range l.counters {
		waits += len(c.awaits)
	}
	return slices.Clone(l.counters), waits, len(pollers.of) - 1
}

// maxSpan is how many slots are copied at once.
const maxSpan = 512

// look ends the waits whose numbers have come, and reports whether there are any.
func (l *poller) look(counters []*Counter) (served bool) {
	for len(counters) > 0 {
		many := 1
		for many < len(counters) && counters[many].slot < counters[0].slot+maxSpan {
			many++
		}
		served = l.lookAt(counters[:many]) || served
		counters = counters[many:]
	}
	return served
}

// lookAt copies the slots of the counters, in the stream of the first counter that can. It
// then reads the numbers that may have been reached again, one by one: a copy of many words
// may hold half of a number.
func (l *poller) lookAt(counters []*Counter) (served bool) {
	for len(counters) > 1 && l.copySlots(counters) != nil {
		served = l.serve(counters[0]) || served // it says why
		counters = counters[1:]
	}
	if len(counters) == 1 {
		return l.serve(counters[0]) || served
	}
	for _, c := range counters {
		slot := l.words[(c.slot-counters[0].slot)*wordsPerSlot:]
		if c.state() != nil || slot[spoiledAt/8] != 0 || l.mayEnd(c, slot[0]) {
			served = l.serve(c) || served
		}
	}
	return served
}

const wordsPerSlot = Stride / 8

// copySlots copies the slots from the first counter to the last, in the first one's stream,
// which keeps the memory meanwhile.
func (l *poller) copySlots(counters []*Counter) error {
	first, last := counters[0], counters[len(counters)-1]
	l.words = slices.Grow(l.words[:0], maxSpan*wordsPerSlot)[:(last.slot-first.slot)*wordsPerSlot+2]
	if err := first.state(); err != nil {
		return err
	}
	return first.usage.give(first.rescue, func() error { return cu.CopyToHostAsync(first.rescue, l.words, first.word) })
}

// mayEnd reports whether somebody waits for no more than the number.
func (l *poller) mayEnd(c *Counter, number uint64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.ContainsFunc(c.awaits, func(a *await) bool { return a.n <= number })
}

// serve reads a number, and ends the waits for it, or all waits if that fails. It reports
// whether there were any.
func (l *poller) serve(c *Counter) bool {
	number, err := c.Value()
	l.mu.Lock()
	defer l.mu.Unlock()
	before := len(c.awaits)
	l.remove(c, func(a *await) bool {
		if err == nil && number < a.n {
			return false
		}
		a.result <- err
		return true
	})
	return len(c.awaits) < before
}
