package cu

import (
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
)

// The second Close does not wait, so that a call may close its own handle.
func TestGateSecondCloseDoesNotWait(t *testing.T) {
	var g gate
	require.True(t, g.enter())
	first := make(chan bool)
	go func() { first <- g.close() }()
	for !g.isClosed() {
		runtime.Gosched()
	}
	require.False(t, g.close())
	require.False(t, g.enter())
	g.leave()
	require.True(t, <-first)
}

// Invariant 5 under the race detector: no call begins or goes on once the one
// Close is back.
func TestGateUnderARace(t *testing.T) {
	for range 200 {
		var g gate
		var inside, closers atomic.Int32
		var shut atomic.Bool
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				for g.enter() {
					inside.Add(1)
					if shut.Load() {
						t.Error("a call in a closed gate")
					}
					inside.Add(-1)
					g.leave()
				}
			})
		}
		for range 2 {
			wg.Go(func() {
				if !g.close() {
					return
				}
				closers.Add(1)
				if inside.Load() != 0 {
					t.Error("closed with a call inside")
				}
				shut.Store(true)
			})
		}
		wg.Wait()
		require.EqualValues(t, 1, closers.Load())
	}
}
