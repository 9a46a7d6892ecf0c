package main

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/gpufd/gpufd/bench/internal/rival"
	"github.com/gpufd/gpufd/share"
)

// A handover records when a buffer is ready and when the consumer has it.
type handover struct {
	name    string
	settled chan error // whether the consumer has the memory; the first counts

	mu    sync.Mutex
	start time.Time     // when the buffer was ready
	took  time.Duration // from then until the consumer had mapped it; 0 is not yet
}

func newHandover(name string) *handover {
	return &handover{name: name, settled: make(chan error, 1)}
}

// ready says that the buffer is.
func (h *handover) ready() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.start = time.Now()
}

func (h *handover) observe(e share.Event) {
	now := time.Now()
	h.mu.Lock()
	defer h.mu.Unlock()
	switch e.Kind {
	case share.Mapped:
		h.took = now.Sub(h.start)
		h.settle(nil)
	case share.Ended:
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

// answer is what the handover took until the consumer had the memory.
func (h *handover) answer() rival.Answer {
	h.mu.Lock()
	defer h.mu.Unlock()
	return rival.Answer{NS: h.took.Nanoseconds()}
}
