package main

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/gpufd/gpufd/bench/internal/rival"
	"github.com/gpufd/gpufd/share"
)

// A handover records what happens on the way of one buffer to the consumer.
type handover struct {
	name    string
	settled chan error // whether the consumer has the memory; the first counts

	mu    sync.Mutex
	start int64        // when the buffer was ready
	took  int64        // from then until the consumer had mapped it; 0 is not yet
	steps []rival.Step // At is absolute
}

// newHandover has room for all steps, so that to note them costs little.
func newHandover(name string) *handover {
	return &handover{name: name, settled: make(chan error, 1), steps: make([]rival.Step, 0, 16)}
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
		h.took = now - h.start
		h.settle(nil)
	case share.Ended, share.PeerRefused:
		if h.took == 0 {
			h.settle(errors.Join(errors.New("the consumer was lost before it had the memory"), e.Err))
		}
	}
}

func (h *handover) settle(err error) {
	select {
	case h.settled <- err:
	default:
	}
}

// wait returns when the consumer has the memory, or will not have it.
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

// reply is the way of the consumer's acknowledgement, which it sends when access is
// set. A consumer that had access before the buffer was ready answers the offer, at
// a time that it does not see.
func (h *handover) reply() {
	for _, s := range h.steps {
		if s.Side == "consumer" && s.Name == "access" && s.At+s.NS >= h.start {
			h.steps = append(h.steps, interval("producer", "reply", s.At+s.NS, h.start+h.took))
			return
		}
	}
}

// answer is what the handover took until the consumer had the memory.
func (h *handover) answer() rival.Answer {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.reply()
	a := rival.Answer{NS: h.took}
	for _, s := range h.steps {
		s = h.clip(s)
		s.At -= h.start
		a.Steps = append(a.Steps, s)
	}
	return a
}
