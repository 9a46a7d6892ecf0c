package cu

import (
	"runtime"
	"unsafe"
)

// An Unclosed is something that was made in a context and not closed.
type Unclosed struct {
	Kind   string  // "device memory", "stream" …
	Handle uintptr // the driver's handle, or the address of memory
	Bytes  uint64  // of allocated, pinned or mapped memory; else 0
}

// Unclosed lists, in no order, what was made in c and not closed: what Close
// would end, or has ended.
func (c *Context) Unclosed() []Unclosed {
	if c == nil {
		return nil
	}
	defer runtime.KeepAlive(c)
	return c.inner.unclosed()
}

func (h *contextHandle) unclosed() []Unclosed {
	h.mu.Lock()
	defer h.mu.Unlock()
	return append(h.unclosedChildren(), h.ended...)
}

// unclosedChildren runs with mu held.
func (h *contextHandle) unclosedChildren() (all []Unclosed) {
	for c := range h.children {
		all = append(all, c.unclosed())
	}
	return all
}

func (m *memoryHandle) unclosed() Unclosed {
	return Unclosed{"device memory", uintptr(m.ptr), m.size}
}

func (m *streamMemoryHandle) unclosed() Unclosed {
	return Unclosed{"device memory", uintptr(m.ptr), m.size}
}

func (m *ipcMemoryHandle) unclosed() Unclosed {
	return Unclosed{"memory of another process", uintptr(m.ptr), m.size}
}

func (m *externalHandle) unclosed() Unclosed {
	return Unclosed{"external memory", uintptr(m.memory), 0}
}

func (b *externalBufferHandle) unclosed() Unclosed {
	return Unclosed{"buffer of external memory", uintptr(b.ptr), b.size}
}

func (h *hostHandle) unclosed() Unclosed {
	kind := "pinned memory"
	if h.registered {
		kind = "registered memory"
	}
	return Unclosed{kind, uintptr(unsafe.Pointer(unsafe.SliceData(h.bytes))), uint64(len(h.bytes))}
}

func (s *streamHandle) unclosed() Unclosed { return Unclosed{"stream", uintptr(s.stream), 0} }
func (e *eventHandle) unclosed() Unclosed  { return Unclosed{"event", uintptr(e.event), 0} }
func (m *moduleHandle) unclosed() Unclosed { return Unclosed{"module", uintptr(m.module), 0} }
func (g *graphHandle) unclosed() Unclosed  { return Unclosed{"graph", uintptr(g.graph), 0} }
func (e *graphExecHandle) unclosed() Unclosed {
	return Unclosed{"executable graph", uintptr(e.exec), 0}
}
