package ring

import "fmt"

// values returns the values that the processes fill with: all different, and none 0, which
// new memory holds; or those of the sample.
func values(procs int, salt uint32, compat bool) []byte {
	v := make([]byte, procs)
	for id := range v {
		v[id] = byte(id)
		if !compat {
			v[id] = byte(1 + (uint64(salt)+uint64(id))%255)
		}
	}
	return v
}

// chunkOf returns the chunk that process id fills in a step.
func chunkOf(id, step, procs int) int { return (step + id) % procs }

// fillerOf returns the process that fills a chunk in a step.
func fillerOf(chunk, step, procs int) int { return ((chunk-step)%procs + procs) % procs }

func times(n int) string {
	if n == 1 {
		return "once"
	}
	return fmt.Sprintf("%d times", n)
}
