package soft

import (
	"cmp"
	"runtime/debug"

	"github.com/gpufd/gpufd/cu/sys"
)

// Asynchronous copies from pageable memory copy the bytes out before they
// return, as CUDA documents, so that the caller's memory is never touched
// afterwards: nothing keeps it alive. Beyond these limits, for one copy and
// for all that wait, they are synchronous, which is allowed too.
const (
	stageLimit = 16 << 20
	stageTotal = 256 << 20
)

// pieceSize is how much is copied at once: the garbage collector cannot
// interrupt a copy.
const pieceSize = 4 << 20

// badHostMemory is the result of work that could not touch the caller's host
// memory; the real driver would have crashed. It poisons nothing.
const badHostMemory = sys.CUDA_ERROR_INVALID_VALUE

// lowest is the lowest address where memory may be. A pointer to a lower one must
// not be on a Go stack.
const lowest = 4096

// A transfer is a copy, or a set if there is a pattern.
type transfer struct {
	dst, src side
	pattern  []byte
	extent
	stream sys.CUstream
	wait   bool  // return when it is done
	after  []*op // what must be done before, besides what the stream has

	n        uintptr // bytes in all
	to, from operand
	staging  bool
}

// transfer checks, orders and, if need be, waits for a transfer.
func (m *machine) transfer(t transfer) sys.CUresult {
	if r := m.plan(&t); r != sys.CUDA_SUCCESS || t.empty() {
		return r
	}
	if t.staging && !t.stage() {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.endTransfer(&t)
		return badHostMemory
	}
	return m.submit(&t)
}

// plan finds out what the two sides are and decides how to go about it.
func (m *machine) plan(t *transfer) sys.CUresult {
	return with(m, m.findStream, t.stream, func(s *stream) sys.CUresult {
		if t.empty() {
			return sys.CUDA_SUCCESS
		}
		if r := m.locate(t, s.ctx); r != sys.CUDA_SUCCESS {
			return r
		}
		m.begin(t, s.captured.in != nil)
		return sys.CUDA_SUCCESS
	})
}

// locate finds out what the two sides are to a context.
func (m *machine) locate(t *transfer, ctx *context) sys.CUresult {
	dev := m.number(ctx.dev)
	t.n = t.width * t.height * t.depth
	var ok bool
	if t.to, ok = m.operand(t.dst, t.extent, dev, true); !ok {
		return sys.CUDA_ERROR_INVALID_VALUE // D5
	}
	if t.pattern != nil && !m.reaches(ctx, t.to.addr) {
		return sys.CUDA_ERROR_INVALID_VALUE
	}
	if t.pattern == nil {
		if t.from, ok = m.operand(t.src, t.extent, dev, false); !ok {
			return sys.CUDA_ERROR_INVALID_VALUE
		}
	}
	return sys.CUDA_SUCCESS
}

// begin pins, and makes the transfer a synchronous one where it must not touch
// the caller's memory later. A captured one does at every launch.
func (m *machine) begin(t *transfer, captured bool) {
	t.to.pin()
	t.from.pin()
	if t.to.place == placePageable {
		t.wait = true
	}
	if t.from.place != placePageable || t.wait {
		return
	}
	if captured || t.n > stageLimit || m.staged+uint64(t.n) > stageTotal {
		t.wait = true
		return
	}
	t.staging = true
	m.staged += uint64(t.n)
}

// endTransfer undoes begin. The machine is locked.
func (m *machine) endTransfer(t *transfer) {
	t.to.unpin()
	t.from.unpin()
	if t.staging {
		m.staged -= uint64(t.n)
	}
}

// stage copies the bytes of pageable memory out; it fails if they cannot be
// read.
func (t *transfer) stage() bool {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	staged := make([]byte, 0, t.n)
	_, faulted := touch(func() {
		for addr := range t.from.rows {
			staged = append(staged, bytesAt(addr, t.from.width)...)
		}
	})
	if faulted {
		return false
	}
	t.from.staged = staged
	return true
}

// submit puts the transfer on its stream, which may have gone since.
func (m *machine) submit(t *transfer) sys.CUresult {
	m.mu.Lock()
	s, r := m.findStream(t.stream)
	if r != sys.CUDA_SUCCESS {
		defer m.mu.Unlock()
		m.endTransfer(t)
		return r
	}
	o := &op{
		traits:  t.traits(m.number(s.ctx.dev)),
		run:     func() sys.CUresult { return m.perform(t) },
		release: func() { m.endTransfer(t) },
		deps:    t.after,
	}
	if !t.wait || s.captured.in != nil {
		defer m.mu.Unlock()
		m.enqueue(s, o)
		return r
	}
	m.push(s, o)
	mine := !s.running
	s.running = true
	m.mu.Unlock()
	return m.finish(s, o, mine)
}

// perform does the work. It fails for device memory that is no longer accessible,
// or was unmapped meanwhile, and for memory whose file somebody cut short.
func (m *machine) perform(t *transfer) sys.CUresult {
	m.mu.Lock()
	to, ok := m.view(&t.to, true)
	var from []segment
	if ok && t.pattern == nil {
		from, ok = m.view(&t.from, false)
	}
	m.mu.Unlock()
	r := t.unmapped()
	if ok {
		r = t.move(to, from)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if r != sys.CUDA_SUCCESS && r != badHostMemory {
		r = m.die(r, t.fault(m, cmp.Or(lost(to), lost(from))))
	}
	m.dropView(to)
	m.dropView(from)
	return r
}

// move copies or sets the bytes.
func (t *transfer) move(to, from []segment) sys.CUresult {
	_, faulted := touch(func() {
		if t.pattern != nil {
			fill(to, t.pattern)
		} else {
			copySegments(to, from)
		}
	})
	switch {
	case lost(to) != nil, lost(from) != nil:
		return t.unmapped()
	case !faulted:
		return sys.CUDA_SUCCESS
	}
	for _, s := range append(to[:len(to):len(to)], from...) {
		if s.at != nil && s.cut() {
			return sys.CUDA_ERROR_ILLEGAL_ADDRESS
		}
	}
	return badHostMemory
}

// unmapped returns how the transfer fails if its device memory is no longer
// accessible: with a host side otherwise than without (C40).
func (t *transfer) unmapped() sys.CUresult {
	if t.pattern == nil && (t.to.place != placeDevice || t.from.place != placeDevice) {
		return sys.CUDA_ERROR_LAUNCH_FAILED
	}
	return sys.CUDA_ERROR_ILLEGAL_ADDRESS
}

// cut reports whether somebody cut short the file of the memory. Its end goes
// first. The address of the fault would tell too, but qemu-user gets it wrong.
func (s segment) cut() bool {
	var last [1]byte
	_, faulted := touch(func() { copy(last[:], s.bytes[len(s.bytes)-1:]) })
	return faulted
}

// touch calls f and reports a fault of its memory accesses. The address is 0
// if it is not known.
func touch(f func()) (addr uintptr, faulted bool) {
	defer func() {
		switch p := recover().(type) {
		case nil:
		case interface{ Addr() uintptr }:
			addr, faulted = p.Addr(), true
		default:
			if p != nowhere {
				panic(p)
			}
			faulted = true
		}
	}()
	f()
	return 0, false
}

// nowhere is the panic of a fault whose address is not known, or close to 0.
var nowhere = func() (p any) {
	defer func() { p = recover() }()
	var none *byte
	*none = 0
	return nil
}()

// copySegments copies between two views of the same length, until some of the
// memory is gone.
func copySegments(to, from []segment) {
	var d, s segment
	for len(d.bytes) > 0 || len(to) > 0 {
		if len(d.bytes) == 0 {
			d, to = to[0], to[1:]
		}
		if len(s.bytes) == 0 {
			s, from = from[0], from[1:]
		}
		if d.gone() || s.gone() {
			return
		}
		n := copy(d.bytes[:min(len(d.bytes), pieceSize)], s.bytes)
		d.bytes, s.bytes = d.bytes[n:], s.bytes[n:]
	}
}

// fill repeats a pattern over a view, whose borders are multiples of its length,
// until some of the memory is gone.
func fill(to []segment, pattern []byte) {
	for _, seg := range to {
		if seg.gone() {
			return
		}
		first := seg.bytes[:min(len(seg.bytes), pieceSize)]
		for n := copy(first, pattern); n < len(first); n *= 2 {
			copy(first[n:], first[:n])
		}
		for rest := seg.bytes[len(first):]; len(rest) > 0 && !seg.gone(); {
			rest = rest[copy(rest, first):]
		}
	}
}
