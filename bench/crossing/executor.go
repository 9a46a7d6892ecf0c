//go:build cgo

package main

// #include "bench.h"
import "C"

import "runtime"

// A request is a call that the executor goroutine is to make. The caller uses
// one again and again, so that no call allocates.
type request struct {
	form   form
	words  [11]uintptr
	out    *C.uintptr_t
	result C.int
	done   chan struct{}
}

// An executorGoroutine owns a thread, on which it sets the context once, and
// makes the calls that come by channel.
type executorGoroutine chan *request

func startExecutor() executorGoroutine {
	e, ready := make(executorGoroutine), make(chan struct{})
	go e.serve(ready)
	<-ready
	return e
}

func (e executorGoroutine) serve(ready chan<- struct{}) {
	runtime.LockOSThread()
	C.bench_set_current(boundContext)
	close(ready)
	for q := range e {
		q.call()
		q.done <- struct{}{}
	}
}

func (q *request) call() {
	w := &q.words
	switch q.form {
	case none:
		q.result = C.bench_f0()
	case four:
		q.result = C.bench_f4(C.uintptr_t(w[0]), C.uint64_t(w[1]), C.uint64_t(w[2]), C.uint(w[3]))
	case eleven:
		q.result = C.bench_f11(C.uintptr_t(w[0]), C.uint(w[1]), C.uint(w[2]), C.uint(w[3]), C.uint(w[4]),
			C.uint(w[5]), C.uint(w[6]), C.uint(w[7]), C.uintptr_t(w[8]), C.uintptr_t(w[9]), C.uintptr_t(w[10]))
	default:
		q.result = C.bench_out(q.out)
	}
}

// do has the executor make the call and waits for it.
func (e executorGoroutine) do(q *request) {
	e <- q
	<-q.done
}

func cgoExecutor() way {
	e := startExecutor()
	loop := func(f form, each func(q *request)) func(int) uint64 {
		return func(n int) uint64 {
			q := &request{form: f, out: new(C.uintptr_t), done: make(chan struct{})}
			for range n {
				each(q)
				e.do(q)
			}
			if f >= out {
				return uint64(*q.out)
			}
			return uint64(q.result)
		}
	}
	words := func(q *request) { q.words = [11]uintptr{1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 0} }
	return way{executor, [numForms]func(int) uint64{
		none:   loop(none, func(*request) {}),
		four:   loop(four, words),
		eleven: loop(eleven, words),
		out:    loop(out, func(*request) {}),
		newOut: loop(newOut, func(q *request) { q.out = new(C.uintptr_t) }),
	}}
}
