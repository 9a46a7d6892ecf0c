package main

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/gpufd/gpufd/bench/internal/rival"
	"github.com/gpufd/gpufd/share"
)

// A handover notes what happens on the way of one buffer to n consumers.
type handover struct {
	name    string
	n       int
	settled chan error // whether all consumers have the memory; the first counts

	mu    sync.Mutex
	start int64 // when the buffer was ready
	each  []int64
	steps []rival.Step // At is absolute
}

// newHandover has room for what n consumers do, so that to note it costs little.
func newHandover(name string, n int) *handover {
	return &handover{name: name, n: n, settled: make(chan error, 1), each: make([]int64, 0, n), steps: make([]rival.Step, 0, 8+8*n)}
}

// ready says that the buffer is.
func (h *handover) ready() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.start = rival.Now()
}

func (h *handover) note(name string, from, to int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.steps = with(h.steps, interval("producer", name, from, to))
}

// with adds s to steps. Another call for the next chunk is the same step.
func with(steps []rival.Step, s rival.Step) []rival.Step {
	if last := len(steps) - 1; last >= 0 && steps[last].Side == s.Side && steps[last].Name == s.Name {
		steps[last].NS += s.NS
		return steps
	}
	return append(steps, s)
}

func (h *handover) add(steps []rival.Step) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.steps = append(h.steps, steps...)
}

func (h *handover) step(step string, took time.Duration) {
	now := rival.Now()
	h.note(step, now-took.Nanoseconds(), now)
}

func (h *handover) observe(e share.Event) {
	now := rival.Now()
	h.mu.Lock()
	defer h.mu.Unlock()
	switch e.Kind {
	case share.Offered:
		h.steps = append(h.steps, interval("producer", "offer", h.start, now))
	case share.Connected:
		h.steps = append(h.steps, interval("producer", "admit", now-e.Since.Nanoseconds(), now))
	case share.Sent:
		h.steps = append(h.steps, interval("producer", "send", now-e.Since.Nanoseconds(), now))
	case share.Mapped:
		if h.each = append(h.each, now-h.start); len(h.each) == h.n {
			h.settle(nil)
		}
	case share.Ended, share.PeerRefused:
		if len(h.each) < h.n {
			h.settle(errors.Join(errors.New("a consumer was lost before all had the memory"), e.Err))
		}
	}
}

func (h *handover) settle(err error) {
	select {
	case h.settled <- err:
	default:
	}
}

// wait returns when all consumers have the memory, or one will not.
func (h *handover) wait(ctx context.Context) error {
	select {
	case err := <-h.settled:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// clip has attaching begin when the buffer was ready, if the consumer had its
// descriptors before.
func (h *handover) clip(s rival.Step) rival.Step {
	if early := h.start - s.At; s.Name == "attach" && early > 0 {
		s.At, s.NS = h.start, s.NS-early
	}
	return s
}

// reply is the way of the one consumer's acknowledgement, which it sends when
// access is set. Of several it is not known whose is whose, and one that had
// access before the buffer was ready answers the offer, at a time that it does
// not see.
func (h *handover) reply() {
	if len(h.each) != 1 {
		return
	}
	for _, s := range h.steps {
		if s.Side == "consumer" && s.Name == "access" && s.At+s.NS >= h.start {
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
		s = h.clip(s)
		s.At -= h.start
		a.Steps = append(a.Steps, s)
	}
	return a
}
