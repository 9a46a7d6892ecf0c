package app

import (
	"bytes"
	"io"
	"math"
	"sync"
	"time"
)

// maxLines is how many lines wait for a slow reader of the output. Further ones are
// dropped and counted.
const maxLines = 1024

// A queue passes what is written to it on to a writer that may block. Write never
// blocks. A goroutine writes while there is something to write.
type queue struct {
	w      io.Writer
	notice func(dropped int) []byte // returns the line that says how many were dropped
	failed func(error)              // called with the first error, once

	mu      sync.Mutex
	waiting [][]byte
	most    int           // of waiting
	full    bool          // from when there was no room until half of it is free
	dropped int           // dropped lines that were not reported yet
	idle    chan struct{} // closed when all is written; nil while nothing is
	err     error
}

func newQueue(w io.Writer, notice func(int) []byte, failed func(error)) *queue {
	return &queue{w: w, notice: notice, failed: failed, most: maxLines}
}

// Write queues b, or drops it if there is no room. It never blocks and never fails.
func (q *queue) Write(b []byte) (int, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.full = len(q.waiting) >= q.most || q.full && len(q.waiting) > q.most/2
	if q.full {
		q.dropped += bytes.Count(b, []byte{'\n'})
		return len(b), nil
	}
	q.tell()
	q.push(bytes.Clone(b))
	return len(b), nil
}

// tell queues how many lines were dropped. It runs with mu held.
func (q *queue) tell() {
	if q.dropped > 0 {
		q.push(q.notice(q.dropped))
		q.dropped = 0
	}
}

// push queues b. It runs with mu held.
func (q *queue) push(b []byte) {
	q.waiting = append(q.waiting, b)
	if q.idle == nil {
		q.idle = make(chan struct{})
		go q.pass()
	}
}

// pass writes what waits until there is nothing more.
func (q *queue) pass() {
	for b := q.next(); b != nil; b = q.next() {
		if _, err := q.w.Write(b); err != nil {
			q.fail(err)
		}
	}
}

// next returns the oldest line, or nil if all are written.
func (q *queue) next() []byte {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.waiting) == 0 {
		q.tell()
	}
	if len(q.waiting) == 0 {
		close(q.idle)
		q.idle, q.waiting = nil, nil
		return nil
	}
	b := q.waiting[0]
	q.waiting[0] = nil
	q.waiting = q.waiting[1:]
	return b
}

// fail keeps the first error, which the program reports in the end.
func (q *queue) fail(err error) {
	q.mu.Lock()
	first := q.err == nil
	if first {
		q.err = err
	}
	q.mu.Unlock()
	if first && q.failed != nil {
		q.failed(err)
	}
}

// failure is the first error of the writer.
func (q *queue) failure() error {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.err
}

// unbound stops dropping lines: the few last ones are kept.
func (q *queue) unbound() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.most = math.MaxInt
}

// drain waits until all is written, for limit at most or until hurry is closed, and
// reports whether it is.
func (q *queue) drain(limit time.Duration, hurry <-chan struct{}) bool {
	q.mu.Lock()
	idle := q.idle
	q.mu.Unlock()
	if idle == nil {
		return true
	}
	late := time.NewTimer(limit)
	defer late.Stop()
	select {
	case <-idle:
		return true
	case <-late.C:
	case <-hurry:
	}
	return false
}
