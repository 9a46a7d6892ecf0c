package soft

import (
	"slices"

	"github.com/gpufd/gpufd/cu/sys"
)

// A capture is a graph in the making: work for the streams in it becomes nodes
// and does not run.
type capture struct {
	id      uint64
	graph   *graph
	streams []*stream // those in it, the one it began on first
	mode    sys.CUstreamCaptureMode
	thread  int
	invalid bool
	ended   bool
}

// A captured is a place in a capture: the next work there follows it. Captured
// streams have one, and so have events that were recorded in a capture.
type captured struct {
	in    *capture // nil for none
	after []*node
}

// join makes a stream part of the capture.
func (c *capture) join(s *stream, after []*node) {
	c.streams = append(c.streams, s)
	s.captured = captured{c, after}
}

// endCapture takes all streams out of the capture. Its graph is the caller's.
func (m *machine) endCapture(c *capture) {
	delete(m.captures, c)
	c.ended = true
	for _, s := range c.streams {
		s.captured = captured{}
	}
}

// record makes work for a captured stream a node. The op never runs.
func (m *machine) record(s *stream, o *op) *op {
	o.ctx = s.ctx
	w := &work{traits: o.traits, run: o.run, release: o.release}
	s.captured.after = []*node{m.addNode(s.captured.in.graph, w, s.captured.after)}
	return o
}

// spoil invalidates the capture that a stream is in and returns why.
func (s *stream) spoil(why sys.CUresult) sys.CUresult {
	s.captured.in.invalid = true
	return why
}

// capturedState returns why a stream takes no work and cannot be queried. The
// legacy default stream takes none while a stream that it waits for is captured.
func (m *machine) capturedState(s *stream) sys.CUresult {
	if len(m.captures) == 0 {
		return sys.CUDA_SUCCESS
	}
	if c := s.captured.in; c != nil && c.invalid {
		return sys.CUDA_ERROR_STREAM_CAPTURE_INVALIDATED
	}
	if b := s.implied(); b != nil {
		return b.spoil(sys.CUDA_ERROR_STREAM_CAPTURE_IMPLICIT)
	}
	return sys.CUDA_SUCCESS
}

// implied returns a captured stream that work on s, the legacy default stream,
// would wait for.
func (s *stream) implied() *stream {
	if s != s.ctx.legacy {
		return nil
	}
	for b := range s.ctx.streams {
		if b.captured.in != nil && b.blocking() {
			return b
		}
	}
	return nil
}

// refuse returns why a call that cannot be captured is not made: one that waits
// for the stream, queries it, or launches a graph. It spoils the capture.
func (s *stream) refuse() sys.CUresult {
	if s.captured.in == nil {
		return sys.CUDA_SUCCESS
	}
	return s.spoil(sys.CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED)
}

// refuse returns the error of a wait for a context, if one of its streams is captured.
func (ctx *context) refuse() sys.CUresult {
	r := sys.CUDA_SUCCESS
	for s := range ctx.streams {
		r = firstError(r, s.refuse())
	}
	return r
}

// refuseEvent returns why nobody may wait for an event that was recorded in a
// capture: it never happens.
func (p *captured) refuseEvent() sys.CUresult {
	switch {
	case p.in == nil:
		return sys.CUDA_SUCCESS
	case p.in.ended:
		return sys.CUDA_ERROR_INVALID_VALUE
	}
	p.in.invalid = true
	return sys.CUDA_ERROR_CAPTURED_EVENT
}

// refuseUnsafe returns why the calling thread may not make an unsafe call during
// a capture of its own, or one of any other thread in the global mode. It spoils
// those captures.
func (m *machine) refuseUnsafe() sys.CUresult {
	r, mode := sys.CUDA_SUCCESS, m.thread().captureMode
	for c := range m.captures {
		own := c.thread == threadID() && c.mode != sys.CU_STREAM_CAPTURE_MODE_RELAXED
		others := c.mode == sys.CU_STREAM_CAPTURE_MODE_GLOBAL && mode == sys.CU_STREAM_CAPTURE_MODE_GLOBAL
		if (own || others) && mode != sys.CU_STREAM_CAPTURE_MODE_RELAXED {
			c.invalid = true
			r = sys.CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED
		}
	}
	return r
}

// capturedWait makes a stream wait for an event if one of the two is captured: so
// a stream joins the event's capture. It reports whether one is.
func (m *machine) capturedWait(s *stream, e *event) (mine bool, r sys.CUresult) {
	c, in := e.captured.in, s.captured.in
	switch {
	case in == nil && c == nil:
		return false, sys.CUDA_SUCCESS
	case c == nil:
		return true, s.spoil(sys.CUDA_ERROR_STREAM_CAPTURE_ISOLATION)
	case c.ended && in != nil:
		return true, s.spoil(sys.CUDA_ERROR_INVALID_VALUE)
	case c.ended || c.invalid:
		return true, sys.CUDA_ERROR_INVALID_VALUE
	case s == s.ctx.legacy:
		c.invalid = true
		return true, sys.CUDA_ERROR_STREAM_CAPTURE_IMPLICIT
	case in == nil:
		c.join(s, slices.Clone(e.captured.after))
	case in != c:
		c.invalid = true
		return true, s.spoil(sys.CUDA_ERROR_STREAM_CAPTURE_MERGE)
	default:
		s.captured.follow(e.captured.after)
	}
	return true, sys.CUDA_SUCCESS
}

// follow adds to the nodes that the next work follows.
func (p *captured) follow(nodes []*node) {
	for _, n := range nodes {
		if !slices.Contains(p.after, n) {
			p.after = append(p.after, n)
		}
	}
}

// joined reports whether all captured work comes before the next work of the
// first stream.
func (c *capture) joined() bool {
	before, _ := ordered(c.streams[0].captured.after)
	return len(before) == len(c.graph.nodes)
}

func (m *machine) cuStreamBeginCapture(h sys.CUstream) sys.CUresult {
	return m.cuStreamBeginCapture_v2(h, sys.CU_STREAM_CAPTURE_MODE_GLOBAL)
}

func (m *machine) cuStreamBeginCapture_v2(h sys.CUstream, mode sys.CUstreamCaptureMode) sys.CUresult {
	return with(m, m.anyStream, h, func(s *stream) sys.CUresult {
		switch {
		case mode > sys.CU_STREAM_CAPTURE_MODE_RELAXED:
			return sys.CUDA_ERROR_INVALID_VALUE
		case s == s.ctx.legacy:
			return sys.CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED
		case s.captured.in != nil:
			return sys.CUDA_ERROR_ILLEGAL_STATE
		}
		c := &capture{id: uint64(m.serial) + 1, graph: m.newGraph(), mode: mode, thread: threadID()}
		m.captures[c] = true
		c.join(s, nil)
		return sys.CUDA_SUCCESS
	})
}

// cuStreamEndCapture ends the capture even if it fails, unless the capture began
// on another stream. Without a place for the graph it drops that.
func (m *machine) cuStreamEndCapture(h sys.CUstream, out *sys.CUgraph) sys.CUresult {
	return with(m, m.anyStream, h, func(s *stream) sys.CUresult {
		setOptional(out, 0)
		c, r := s.captured.in, sys.CUDA_SUCCESS
		switch {
		case c == nil:
			return sys.CUDA_ERROR_ILLEGAL_STATE
		case c.streams[0] != s:
			return s.spoil(sys.CUDA_ERROR_STREAM_CAPTURE_UNMATCHED)
		case c.invalid:
			r = sys.CUDA_ERROR_STREAM_CAPTURE_INVALIDATED
		case c.mode != sys.CU_STREAM_CAPTURE_MODE_RELAXED && c.thread != threadID():
			r = sys.CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD
		case !c.joined():
			r = sys.CUDA_ERROR_STREAM_CAPTURE_UNJOINED
		}
		m.endCapture(c)
		if r != sys.CUDA_SUCCESS || out == nil {
			m.dropGraph(c.graph)
			return r
		}
		*out = c.graph.handle
		return r
	})
}

// status returns how the stream is captured.
func (s *stream) status() sys.CUstreamCaptureStatus {
	switch c := s.captured.in; {
	case c == nil:
		return sys.CU_STREAM_CAPTURE_STATUS_NONE
	case c.invalid:
		return sys.CU_STREAM_CAPTURE_STATUS_INVALIDATED
	}
	return sys.CU_STREAM_CAPTURE_STATUS_ACTIVE
}

func (m *machine) cuStreamIsCapturing(h sys.CUstream, out *sys.CUstreamCaptureStatus) sys.CUresult {
	return value(m, m.unimpliedStream, h, out, (*stream).status)
}

// unimpliedStream is anyStream for calls that ask for the stream's capture.
func (m *machine) unimpliedStream(h sys.CUstream) (*stream, sys.CUresult) {
	s, r := m.anyStream(h)
	if r == sys.CUDA_SUCCESS && s.implied() != nil {
		r = sys.CUDA_ERROR_STREAM_CAPTURE_IMPLICIT
	}
	return s, r
}

func (m *machine) cuStreamGetCaptureInfo(h sys.CUstream, status *sys.CUstreamCaptureStatus, id *uint64) sys.CUresult {
	return m.cuStreamGetCaptureInfo_v3(h, status, id, nil, nil, nil, nil)
}

func (m *machine) cuStreamGetCaptureInfo_v2(h sys.CUstream, status *sys.CUstreamCaptureStatus, id *uint64, g *sys.CUgraph, after **sys.CUgraphNode, count *uintptr) sys.CUresult {
	return m.cuStreamGetCaptureInfo_v3(h, status, id, g, after, nil, count)
}

// cuStreamGetCaptureInfo_v3 stores all but the status only where there is a
// capture. The list of nodes is good until the stream's next call.
func (m *machine) cuStreamGetCaptureInfo_v3(h sys.CUstream, status *sys.CUstreamCaptureStatus, id *uint64, g *sys.CUgraph, after **sys.CUgraphNode, data **sys.CUgraphEdgeData, count *uintptr) sys.CUresult {
	return with(m, m.unimpliedStream, h, func(s *stream) sys.CUresult {
		if status == nil {
			return sys.CUDA_ERROR_INVALID_VALUE
		}
		if *status = s.status(); *status != sys.CU_STREAM_CAPTURE_STATUS_ACTIVE {
			return sys.CUDA_SUCCESS
		}
		s.list()
		setOptional(id, s.captured.in.id)
		setOptional(g, s.captured.in.graph.handle)
		setOptional(count, uintptr(len(s.listed)))
		setOptional(after, first(s.listed))
		setOptional(data, first(s.edges))
		return sys.CUDA_SUCCESS
	})
}

// list keeps the handles of the nodes that the next captured work follows, and
// the data of those edges, alive for the caller.
func (s *stream) list() {
	s.listed = make([]sys.CUgraphNode, len(s.captured.after))
	s.edges = make([]sys.CUgraphEdgeData, len(s.listed))
	for i, n := range s.captured.after {
		s.listed[i] = n.handle
	}
}

// first returns the address of a list's first element, or nil.
func first[T any](list []T) *T {
	if len(list) == 0 {
		return nil
	}
	return &list[0]
}

// cuThreadExchangeStreamCaptureMode takes any mode, like the real one, which
// crashes without.
func (m *machine) cuThreadExchangeStreamCaptureMode(mode *sys.CUstreamCaptureMode) sys.CUresult {
	return m.locked(func() sys.CUresult {
		if mode == nil {
			return m.misuse(sys.CUDA_ERROR_INVALID_VALUE, "cuThreadExchangeStreamCaptureMode(NULL)")
		}
		t := m.thread()
		t.captureMode, *mode = *mode, t.captureMode
		return sys.CUDA_SUCCESS
	})
}

// leaveCapture takes a destroyed stream out of its capture, which is over if it
// began there.
func (m *machine) leaveCapture(s *stream) {
	switch c := s.captured.in; {
	case c == nil:
	case c.streams[0] == s:
		m.endCapture(c)
		m.dropGraph(c.graph)
	default:
		c.streams = slices.DeleteFunc(c.streams, func(o *stream) bool { return o == s })
		s.captured = captured{}
	}
}
