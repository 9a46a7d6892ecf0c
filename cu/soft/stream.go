package soft

import (
	"runtime/debug"
	"slices"
	"time"

	"github.com/gpufd/gpufd/cu/sys"
)

// An op is one piece of work on a stream.
type op struct {
	ctx     *context
	run     func() sys.CUresult // nil for a mere point in the stream
	always  bool                // run it though the context is lost
	release func()              // called with the machine locked, run or not
	deps    []*op               // what else must be done first
	done    chan struct{}
	result  sys.CUresult // once done
	at      time.Time    // when it was done

	traits // as a node; captured work is run at every launch, and released with the graph
}

// finished reports whether the work is done.
func (o *op) finished() bool {
	select {
	case <-o.done:
		return true
	default:
		return false
	}
}

// Traits are what a graph knows of work besides how to do it.
type traits struct {
	kind     sys.CUgraphNodeType
	shape    any  // what an update of an executable graph may not change
	pageable bool // it touches the caller's memory, so that a launch waits for it
}

// A stream is a queue of work. While there is some, a goroutine works it off;
// an idle stream costs nothing. The queue has no bound: what it holds of the
// caller's bytes has (see stageLimit).
type stream struct {
	ctx       *context
	handle    sys.CUstream
	flags     uint32
	priority  int32
	destroyed bool
	queue     []*op
	running   bool
	tail      *op // the last work given to it
	captured  captured
	listed    []sys.CUgraphNode // what cuStreamGetCaptureInfo gave out
	edges     []sys.CUgraphEdgeData

	attributes map[sys.CUstreamAttrID]sys.CUstreamAttrValue // those that were set
}

// newStream makes a stream of the context, without a name in the machine.
func (ctx *context) newStream(h sys.CUstream) *stream {
	s := &stream{ctx: ctx, handle: h}
	ctx.streams[s] = true
	return s
}

// busy reports whether the stream has work that is not done.
func (s *stream) busy() bool { return s.tail != nil && !s.tail.finished() }

// blocking reports whether the stream and the legacy default stream wait for
// each other.
func (s *stream) blocking() bool {
	return s.flags&uint32(sys.CU_STREAM_NON_BLOCKING) == 0
}

// enqueue gives the stream work, which waits for o.deps besides what is before
// it. If the stream is captured the work becomes a node of a graph instead. The
// machine is locked.
func (m *machine) enqueue(s *stream, o *op) *op {
	if s.captured.in != nil {
		return m.record(s, o)
	}
	m.push(s, o)
	if !s.running {
		s.running = true
		go m.work(s)
	}
	return o
}

// push is enqueue without anyone to do the work.
func (m *machine) push(s *stream, o *op) {
	o.ctx, o.done = s.ctx, make(chan struct{})
	o.deps = slices.DeleteFunc(append(o.deps, s.barrier()...), func(d *op) bool {
		return d == nil || d.finished()
	})
	s.tail = o
	s.queue = append(s.queue, o)
}

// finish waits for the stream's latest work. For an idle stream it does that work
// right here, which saves two changes of thread; mine says that the caller has
// marked the stream as running for that.
func (m *machine) finish(s *stream, o *op, mine bool) sys.CUresult {
	if mine {
		m.workOff(s, o)
	}
	<-o.done
	s.ctx.prints.flush()
	return o.result
}

// workOff does o, the oldest work of the stream, and leaves the rest to a
// worker.
func (m *machine) workOff(s *stream, o *op) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	m.next(s)
	m.do(o)
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(s.queue) == 0 {
		s.running = false
		return
	}
	go m.work(s)
}

// barrier returns the work of other streams that new work of s waits for: the
// legacy default stream runs after everything that the context's blocking streams
// have, and they after it. Work waits only for older work, so there is no cycle.
func (s *stream) barrier() []*op {
	legacy := s.ctx.legacy
	switch {
	case s == legacy:
		return s.ctx.tails(func(o *stream) bool { return o != s && o.blocking() })
	case s.blocking():
		return []*op{legacy.tail}
	}
	return nil
}

// work does a stream's work until there is none.
func (m *machine) work(s *stream) {
	// A fault in memory that a peer has truncated becomes a panic that copying
	// recovers from. The setting is the goroutine's own.
	debug.SetPanicOnFault(true)
	for o := m.next(s); o != nil; o = m.next(s) {
		m.do(o)
	}
}

// do waits for what work depends on and does it.
func (m *machine) do(o *op) {
	for _, d := range o.deps {
		<-d.done
	}
	m.execute(o)
}

// next takes the oldest work off the queue; without any the worker ends.
func (m *machine) next(s *stream) *op {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(s.queue) == 0 {
		s.running, s.queue = false, nil
		return nil
	}
	o := s.queue[0]
	s.queue[0] = nil
	s.queue = s.queue[1:]
	return o
}

// execute does one piece of work, unless its context is poisoned, which its
// failure makes it. It releases what the work referred to.
func (m *machine) execute(o *op) {
	r := firstError(m.stickyOf(o.ctx), o.lostDep())
	if o.run != nil && (o.always || r == sys.CUDA_SUCCESS) {
		r = firstError(r, o.run())
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if r != sys.CUDA_SUCCESS && r != badHostMemory {
		o.ctx.fail(r)
	}
	if o.release != nil {
		o.release()
	}
	o.result, o.at = r, time.Now()
	o.run, o.release, o.deps = nil, nil, nil
	close(o.done)
}

// lostDep returns why the context of something that the work waited for is lost,
// if one is. The waiting context is lost with it, as on hardware.
func (o *op) lostDep() sys.CUresult {
	for _, d := range o.deps {
		if d.result != badHostMemory && d.result != sys.CUDA_SUCCESS {
			return d.result
		}
	}
	return sys.CUDA_SUCCESS
}

// stickyOf returns the context's sticky error.
func (m *machine) stickyOf(ctx *context) sys.CUresult {
	m.mu.Lock()
	defer m.mu.Unlock()
	return ctx.sticky
}
