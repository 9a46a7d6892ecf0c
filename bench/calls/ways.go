//go:build cgo

package main

import (
	"fmt"
	"time"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/sys"
)

// A call is one call of the driver, or what belongs together, and the ways to
// make it.
type call struct {
	name    string
	plot    plot     // that it is in
	label   string   // its name there
	symbols []string // the driver's functions that it calls, each once
	batch   int      // how often before the stream is drained
	ways    []way
}

// A plot is calls whose ratios are of the same kind.
type plot struct{ name, title string }

var (
	asking    = plot{"asking", "Calls that queue nothing"}
	queueing  = plot{"queueing", "Calls that queue work"}
	launching = plot{"launching", "Launches and waits"}
)

// The names of the ways.
const (
	byC        = "C"
	byRaw      = "ours, raw"
	byTyped    = "ours, typed"
	byCgo      = "cgo"
	byCgoBound = "cgo, any goroutine"
)

// wayNames are the ways in the order in which tables have them.
var wayNames = []string{byC, byRaw, byTyped, byCgo, byCgoBound}

// A way makes a call n times and says how long that took.
type way struct {
	name string
	run  func(n int) (time.Duration, error)
}

// rawWay is the way of a method of sys.Caller; after ends the batch, nil for
// nothing.
func rawWay(f, after func() sys.CUresult) way {
	return way{byRaw, func(n int) (time.Duration, error) {
		begin := time.Now()
		for range n {
			if r := f(); r != sys.CUDA_SUCCESS {
				return 0, cu.Result(r)
			}
		}
		if after != nil {
			if r := after(); r != sys.CUDA_SUCCESS {
				return 0, cu.Result(r)
			}
		}
		return time.Since(begin), nil
	}}
}

// typedWay is the way of package cu; after ends the batch.
func typedWay(f func() error, after ...func() error) way {
	return way{byTyped, func(n int) (time.Duration, error) {
		begin := time.Now()
		for range n {
			if err := f(); err != nil {
				return 0, err
			}
		}
		for _, f := range after {
			if err := f(); err != nil {
				return 0, err
			}
		}
		return time.Since(begin), nil
	}}
}

// failed says what failed.
func (c call) failed(w way, err error) error { return fmt.Errorf("%s by %s: %w", c.name, w.name, err) }
