package pattern

import (
	"encoding/binary"
	"fmt"
	"runtime"
	"sync"
)

// Size is the size of one integer in bytes.
const Size = 4

// At returns the integer at index i.
func At(i uint64, salt uint32) uint32 { return (uint32(i)*2 + 1337) ^ 0xDEADBEEF ^ salt }

// Count returns how many integers size bytes hold, including a partial last one.
func Count(size uint64) uint64 { return size/Size + (size%Size+Size-1)/Size }

// Fill writes the pattern to b, which begins with the integer at index first.
func Fill(b []byte, first uint64, salt uint32) {
	inParallel(b, first, func(b []byte, first uint64) {
		i := first
		for ; len(b) >= Size; b, i = b[Size:], i+1 {
			binary.LittleEndian.PutUint32(b, At(i, salt))
		}
		tail := binary.LittleEndian.AppendUint32(nil, At(i, salt))
		copy(b, tail)
	})
}

// A Mismatch says what is wrong in some data. The zero Mismatch means that all is
// right.
type Mismatch struct {
	Wrong     uint64 // how many integers
	Index     uint64 // the first of them
	Want, Got uint32 // at that index; of a partial integer only its bytes
}

// Error names the first wrong index, both values and how many are wrong.
func (m *Mismatch) Error() string {
	all := fmt.Sprintf("%d integers are wrong", m.Wrong)
	if m.Wrong == 1 {
		all = "1 integer is wrong"
	}
	return fmt.Sprintf("data differs: first at index %d, want 0x%08x, got 0x%08x; %s", m.Index, m.Want, m.Got, all)
}

// Add merges the mismatch of another part of the data.
func (m *Mismatch) Add(o Mismatch) {
	switch {
	case o.Wrong == 0:
	case m.Wrong == 0 || o.Index < m.Index:
		o.Wrong += m.Wrong
		*m = o
	default:
		m.Wrong += o.Wrong
	}
}

// Check compares b, which begins with the integer at index first, with the
// pattern.
func Check(b []byte, first uint64, salt uint32) Mismatch {
	var mu sync.Mutex
	var all Mismatch
	inParallel(b, first, func(b []byte, first uint64) {
		m := check(b, first, salt)
		mu.Lock()
		defer mu.Unlock()
		all.Add(m)
	})
	return all
}

func check(b []byte, first uint64, salt uint32) (m Mismatch) {
	i := first
	for ; len(b) >= Size; b, i = b[Size:], i+1 {
		if got, want := binary.LittleEndian.Uint32(b), At(i, salt); got != want {
			m.Add(Mismatch{1, i, want, got})
		}
	}
	if len(b) > 0 {
		var tail [Size]byte
		copy(tail[:], b)
		mask := uint32(1)<<(8*len(b)) - 1
		if got, want := binary.LittleEndian.Uint32(tail[:]), At(i, salt)&mask; got != want {
			m.Add(Mismatch{1, i, want, got})
		}
	}
	return m
}

// share is how many bytes one core takes at a time.
const share = 1 << 20

// inParallel runs f over the parts of b on all cores.
func inParallel(b []byte, first uint64, f func([]byte, uint64)) {
	if len(b) <= share {
		f(b, first)
		return
	}
	type part struct {
		b     []byte
		first uint64
	}
	parts := make(chan part)
	var wg sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			for p := range parts {
				f(p.b, p.first)
			}
		})
	}
	for len(b) > 0 {
		n := min(share, len(b))
		parts <- part{b[:n], first}
		b, first = b[n:], first+share/Size
	}
	close(parts)
	wg.Wait()
}
