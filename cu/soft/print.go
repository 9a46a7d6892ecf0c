package soft

import (
	"io"
	"os"
	"sync"
)

// printed buffers what the kernels of a context print. As
// on a GPU it appears when the host waits for the context's work: when it
// synchronises, copies and waits, unloads a module or ends the context. Beyond
// CU_LIMIT_PRINTF_FIFO_SIZE bytes the oldest is lost.
type printed struct {
	mu    sync.Mutex
	most  int
	size  int
	texts [][]byte // of a printf each
}

// leastPrinted is what a text counts in addition to its bytes.
const leastPrinted = 32

// limit sets how many bytes are kept.
func (p *printed) limit(most int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.most = most
}

// Write keeps a copy of what a thread has printed.
func (p *printed) Write(text []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(text) == 0 {
		return 0, nil
	}
	p.texts = append(p.texts, append([]byte(nil), text...))
	for p.size += max(leastPrinted, len(text)); p.size > p.most; p.texts = p.texts[1:] {
		p.size -= max(leastPrinted, len(p.texts[0]))
	}
	return len(text), nil
}

// flush writes it to the process' output.
func (p *printed) flush() { p.flushTo(os.Stdout) }

func (p *printed) flushTo(w io.Writer) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, text := range p.texts {
		_, _ = w.Write(text)
	}
	p.texts, p.size = nil, 0
}
