package ptx

import (
	"math/bits"
	"sync"
)

// A Heap is the memory for the malloc of kernels. Its owner, which is to be a
// context, keeps it between launches: one kernel may free what another has taken.
// It is safe for concurrent use.
type Heap struct {
	mu     sync.Mutex
	limit  uint64
	used   uint64
	arenas []arena
	next   uint64                // address of the next arena
	spare  [heapClasses][]uint64 // given back, by size
	live   map[uint64]int        // what has been given out, with its class
}

// An arena is a piece of a heap, filled from its beginning on.
type arena struct {
	begin  uint64
	memory []byte
	filled uint64
}

// Sizes are powers of two, 16 bytes at least.
const (
	heapWindow  = uint64(1) << 59
	heapSmall   = 4
	heapClasses = 40
	arenaSize   = 1 << 20
)

// NewHeap makes a heap with at most limit bytes, which takes memory only as
// kernels do.
func NewHeap(limit uint64) *Heap {
	return &Heap{limit: limit, next: heapWindow, live: map[uint64]int{}}
}

// alloc returns the address of memory for a kernel, or 0 if the limit is reached.
func (h *Heap) alloc(size uint64) uint64 {
	class := max(heapSmall, bits.Len64(size-1))
	h.mu.Lock()
	defer h.mu.Unlock()
	if class >= heapClasses || size > h.limit || h.used+1<<class > h.limit {
		return 0
	}
	at := h.take(class)
	h.used += 1 << class
	h.live[at] = class
	return at
}

// take finds memory that was given back, or takes new memory.
func (h *Heap) take(class int) uint64 {
	if s := h.spare[class]; len(s) > 0 {
		h.spare[class] = s[:len(s)-1]
		return s[len(s)-1]
	}
	size := uint64(1) << class
	n := len(h.arenas)
	if n == 0 || h.arenas[n-1].filled+size > uint64(len(h.arenas[n-1].memory)) {
		a := arena{begin: h.next, memory: make([]byte, max(arenaSize, size))}
		h.next += 2 * uint64(len(a.memory)) // nothing lies behind an arena
		h.arenas = append(h.arenas, a)
		n++
	}
	a := &h.arenas[n-1]
	a.filled += size
	return a.begin + a.filled - size
}

// free takes memory back, and reports whether it was given out.
func (h *Heap) free(address uint64) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	class, ok := h.live[address]
	if ok {
		delete(h.live, address)
		h.spare[class] = append(h.spare[class], address)
		h.used -= 1 << class
	}
	return ok
}

// piece returns the arena that an address is in.
func (h *Heap) piece(address uint64) ([]byte, uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, a := range h.arenas {
		if address-a.begin < uint64(len(a.memory)) {
			return a.memory, a.begin
		}
	}
	return nil, 0
}
