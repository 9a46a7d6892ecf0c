package gpumem

import (
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Generations differ even if the clock has not moved, and each is larger than
// those before.
func TestGenerationsAreNotGivenTwice(t *testing.T) {
	defer lastGeneration.Store(lastGeneration.Load())
	ahead := sinceBoot() + uint64(time.Hour)
	lastGeneration.Store(ahead)
	const goroutines, each = 8, 500
	var mu sync.Mutex
	seen := map[uint64]bool{}
	var wg sync.WaitGroup
	for range goroutines {
		wg.Go(func() {
			last := uint64(0)
			for range each {
				next := NewGeneration()
				if next <= last {
					t.Errorf("%d after %d", next, last)
				}
				last = next
				mu.Lock()
				seen[next] = true
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	require.Len(t, seen, goroutines*each)
	require.Equal(t, ahead+goroutines*each+1, NewGeneration())
}
