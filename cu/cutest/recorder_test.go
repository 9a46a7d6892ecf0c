package cutest

import (
	"fmt"
	"runtime"
	"slices"
	"testing"
)

// A recorder is a test within a test: it notes what it is failed with.
type recorder struct {
	testing.TB
	failures []string
	skipped  bool
	cleanups []func()
}

// record runs f as a test to its end, with what it has to clean up.
func record(t testing.TB, f func(testing.TB)) *recorder {
	r := &recorder{TB: t}
	r.run(func() { f(r) })
	for _, clean := range slices.Backward(r.cleanups) {
		r.run(clean)
	}
	return r
}

// Record returns what a test is failed with, for examples.
func Record(test func(testing.TB)) []string { return record(nil, test).failures }

// run runs f on a goroutine of its own, which Fatal and Skip end.
func (r *recorder) run(f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	<-done
}

func (r *recorder) Helper()          {}
func (r *recorder) Cleanup(f func()) { r.cleanups = append(r.cleanups, f) }
func (r *recorder) Failed() bool     { return len(r.failures) > 0 }
func (r *recorder) Skipped() bool    { return r.skipped }

func (r *recorder) Error(args ...any)            { r.failures = append(r.failures, fmt.Sprint(args...)) }
func (r *recorder) Errorf(f string, args ...any) { r.Error(fmt.Sprintf(f, args...)) }
func (r *recorder) Fatalf(f string, args ...any) { r.Fatal(fmt.Sprintf(f, args...)) }
func (r *recorder) Fatal(args ...any)            { r.Error(args...); runtime.Goexit() }
func (r *recorder) Skipf(string, ...any)         { r.Skip() }
func (r *recorder) Skip(...any)                  { r.skipped = true; runtime.Goexit() }
