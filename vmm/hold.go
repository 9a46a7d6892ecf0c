package vmm

import (
	"fmt"
	"slices"
	"strings"

	"github.com/gpufd/gpufd/internal/plain"
)

// A Hold keeps a buffer open for work that uses its memory: a stream that reaches
// memory which is gone loses every context of the process. Its owner ends it with
// Close; until then the buffer cannot be closed ([ErrInUse]).
type Hold struct {
	buf *Buffer // nil in a Hold that nobody has made
	by  string
}

// Hold keeps the buffer from being closed. by names the holder in the error of
// the buffer's Close, such as "graph 1".
func (b *Buffer) Hold(by string) (*Hold, error) {
	h := &Hold{b, by}
	err := b.whileOpen(func() error { b.holds = append(b.holds, h); return nil })
	if err != nil {
		return nil, err
	}
	return h, nil
}

// Close ends the hold. Call it when the work is done. It may be called again and
// on nil, and does not fail.
func (h *Hold) Close() error {
	if h == nil || h.buf == nil {
		return nil
	}
	h.buf.mu.Lock()
	defer h.buf.mu.Unlock()
	if i := slices.Index(h.buf.holds, h); i >= 0 {
		h.buf.holds = slices.Delete(h.buf.holds, i, i+1)
	}
	return nil
}

// users says what keeps the buffer open and how to end that, or returns "". It
// runs with mu held.
func (b *Buffer) users() string {
	var users []string
	if b.loans > 0 {
		users = append(users, plain.Count(b.loans, "loan")+" open; first end what it was lent for")
	}
	if len(b.holds) > 0 {
		more := ""
		if n := len(b.holds) - 1; n > 0 {
			more = fmt.Sprintf(" and %d more", n)
		}
		users = append(users, fmt.Sprintf("%s%s open; close it first", b.holds[0].by, more))
	}
	return strings.Join(users, ", and with ")
}
