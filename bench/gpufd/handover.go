package main

import (
	"sync"

	"github.com/gpufd/gpufd/bench/internal/rival"
	"github.com/gpufd/gpufd/share"
	"github.com/gpufd/gpufd/vmm"
)

// A handover notes what happens on the way of one buffer.
type handover struct {
	name  string
	start int64 // when the buffer was ready

	mu    sync.Mutex
	each  []int64
	steps []rival.Step // At is absolute
}

// newHandover has room for what n consumers do, so that to note it costs little.
func newHandover(name string, n int) *handover {
	return &handover{name: name, each: make([]int64, 0, n), steps: make([]rival.Step, 0, 8+8*n)}
}

func (h *handover) note(name string, from, to int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.steps = append(h.steps, interval("producer", name, from, to))
}

func (h *handover) add(steps []rival.Step) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.steps = append(h.steps, steps...)
}

func (h *handover) step(s vmm.Step) {
	now := rival.Now()
	h.note(s.Op, now-s.Took.Nanoseconds(), now)
}

func (h *handover) observe(e share.Event) {
	now := rival.Now()
	switch e.Kind {
	case share.Offered:
		h.note("offer", h.start, now)
	case share.Sent:
		h.note("send", now-e.Since.Nanoseconds(), now)
	case share.Mapped:
		h.mu.Lock()
		h.each = append(h.each, now-h.start)
		h.mu.Unlock()
	}
}

// reply is the way of the one consumer's acknowledgement, which it sends when
// access is set. Of several it is not known whose is whose.
func (h *handover) reply() {
	if len(h.each) != 1 {
		return
	}
	for _, s := range h.steps {
		if s.Side == "consumer" && s.Name == "access" {
			h.steps = append(h.steps, interval("producer", "reply", s.At+s.NS, h.start+h.each[0]))
			return
		}
	}
}

// answer is what the handover took until the last consumer had the memory.
func (h *handover) answer() rival.Answer {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.reply()
	a := rival.Answer{Each: h.each}
	for _, ns := range h.each {
		a.NS = max(a.NS, ns)
	}
	for _, s := range h.steps {
		s.At -= h.start
		a.Steps = append(a.Steps, s)
	}
	return a
}
