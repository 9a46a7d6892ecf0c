package soft

import (
	"slices"

	"github.com/gpufd/gpufd/cu/sys"
)

// A graphExec is a graph ready to launch. It shares the work of its graph, which
// may be gone.
type graphExec struct {
	handle sys.CUgraphExec
	flags  uint64
	nodes  []*node // in the graph's order, to compare with
	steps  []*node // the same in an order to do them in
	last   *op     // of the latest launch
}

// instantiateFlags are those that there are. They make no difference here.
const instantiateFlags = uint64(sys.CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH |
	sys.CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD | sys.CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH |
	sys.CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY)

// findExec returns an executable graph by its handle.
func (m *machine) findExec(h sys.CUgraphExec) (*graphExec, sys.CUresult) {
	return find(m, m.execs, h, kindExec, "executable graph", sys.CUDA_ERROR_INVALID_VALUE)
}

func (m *machine) cuGraphInstantiate(out *sys.CUgraphExec, h sys.CUgraph, bad *sys.CUgraphNode, log *byte, size uintptr) sys.CUresult {
	if log != nil && size > 0 {
		sliceOf(log, size)[0] = 0
	}
	setOptional(bad, 0)
	return m.cuGraphInstantiateWithFlags(out, h, 0)
}

// cuGraphInstantiateWithFlags has no stream to upload on.
func (m *machine) cuGraphInstantiateWithFlags(out *sys.CUgraphExec, h sys.CUgraph, flags uint64) sys.CUresult {
	if flags&uint64(sys.CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD) != 0 {
		return m.locked(func() sys.CUresult { return sys.CUDA_ERROR_INVALID_VALUE })
	}
	return m.cuGraphInstantiateWithParams(out, h, &sys.CUDA_GRAPH_INSTANTIATE_PARAMS{Flags: flags})
}

func (m *machine) cuGraphInstantiateWithParams(out *sys.CUgraphExec, h sys.CUgraph, p *sys.CUDA_GRAPH_INSTANTIATE_PARAMS) sys.CUresult {
	return with(m, m.findGraph, h, func(g *graph) sys.CUresult {
		if out == nil || p == nil {
			return sys.CUDA_ERROR_INVALID_VALUE
		}
		p.HErrNode_out, p.Result_out = 0, sys.CUDA_GRAPH_INSTANTIATE_ERROR
		if p.Flags&^instantiateFlags != 0 {
			return sys.CUDA_ERROR_INVALID_VALUE
		}
		if _, ok := ordered(g.nodes); !ok {
			p.Result_out = sys.CUDA_GRAPH_INSTANTIATE_INVALID_STRUCTURE
			return sys.CUDA_ERROR_INVALID_VALUE
		}
		e := &graphExec{handle: sys.CUgraphExec(m.newHandle(kindExec, 0)), flags: p.Flags}
		e.take(g)
		m.execs[e.handle] = e
		p.Result_out = sys.CUDA_GRAPH_INSTANTIATE_SUCCESS
		return set(out, e.handle)
	})
}

// take makes the executable one of g, which has no cycle.
func (e *graphExec) take(g *graph) {
	e.nodes = g.copyNodes()
	e.steps, _ = ordered(e.nodes)
}

// cuGraphExecDestroy may be called during a launch, which goes on.
func (m *machine) cuGraphExecDestroy(h sys.CUgraphExec) sys.CUresult {
	return with(m, m.findExec, h, func(e *graphExec) sys.CUresult {
		delete(m.execs, h)
		dropWork(e.nodes)
		return sys.CUDA_SUCCESS
	})
}

func (m *machine) cuGraphExecGetFlags(h sys.CUgraphExec, out *uint64) sys.CUresult {
	return value(m, m.findExec, h, out, func(e *graphExec) uint64 { return e.flags })
}

// cuGraphLaunch runs the nodes one after the other as one piece of the stream's
// work, after the previous launch. If they touch the caller's memory it waits
// until that is done, and reports memory that was not there. A launch cannot be
// captured.
func (m *machine) cuGraphLaunch(h sys.CUgraphExec, hStream sys.CUstream) sys.CUresult {
	var wait *op
	r := withBoth(m, m.idleStream, hStream, m.findExec, h, func(s *stream, e *graphExec) sys.CUresult {
		steps := e.steps
		holdWork(steps)
		e.last = m.enqueue(s, &op{
			run:     func() sys.CUresult { return run(steps) },
			release: func() { dropWork(steps) },
			deps:    []*op{e.last},
		})
		if pageable(steps) {
			wait = e.last
		}
		return sys.CUDA_SUCCESS
	})
	if wait == nil {
		return r
	}
	if <-wait.done; wait.result == badHostMemory {
		return badHostMemory
	}
	return r
}

// cuGraphUpload has nothing to prepare.
func (m *machine) cuGraphUpload(h sys.CUgraphExec, hStream sys.CUstream) sys.CUresult {
	return withBoth(m, m.idleStream, hStream, m.findExec, h, func(*stream, *graphExec) sys.CUresult { return sys.CUDA_SUCCESS })
}

func (m *machine) cuGraphExecUpdate(h sys.CUgraphExec, hGraph sys.CUgraph, bad *sys.CUgraphNode, result *sys.CUgraphExecUpdateResult) sys.CUresult {
	info := new(sys.CUgraphExecUpdateResultInfo)
	r := m.cuGraphExecUpdate_v2(h, hGraph, info)
	if info.Result == sys.CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED && info.ErrorNode == 0 {
		info.Result = sys.CU_GRAPH_EXEC_UPDATE_ERROR_NOT_SUPPORTED // so the older call says
	}
	setOptional(result, info.Result)
	setOptional(bad, info.ErrorNode)
	return r
}

// cuGraphExecUpdate_v2 changes what the next launch does, if the graph is of
// the same form.
func (m *machine) cuGraphExecUpdate_v2(h sys.CUgraphExec, hGraph sys.CUgraph, info *sys.CUgraphExecUpdateResultInfo) sys.CUresult {
	if info == nil {
		info = new(sys.CUgraphExecUpdateResultInfo)
	}
	*info = sys.CUgraphExecUpdateResultInfo{Result: sys.CU_GRAPH_EXEC_UPDATE_SUCCESS}
	return withBoth(m, m.findExec, h, m.findGraph, hGraph, func(e *graphExec, g *graph) sys.CUresult {
		if n, why := differs(e.nodes, g.nodes); why != sys.CU_GRAPH_EXEC_UPDATE_SUCCESS {
			info.Result = why
			if n != nil {
				info.ErrorNode = n.handle
			}
			return sys.CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE
		}
		old := e.nodes
		e.take(g)
		dropWork(old)
		return sys.CUDA_SUCCESS
	})
}

// differs returns the first node that an executable of other nodes cannot be
// updated to, and why. It compares nodes in the order they were made.
func differs(old, fresh []*node) (*node, sys.CUgraphExecUpdateResult) {
	before, after := topology(old), topology(fresh)
	if len(before) != len(after) {
		return nil, sys.CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED
	}
	for i, n := range fresh {
		switch was := old[i].work; {
		case !slices.Equal(before[i], after[i]):
			return n, sys.CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED
		case was.kind != n.work.kind:
			return n, sys.CU_GRAPH_EXEC_UPDATE_ERROR_NODE_TYPE_CHANGED
		case was.shape != n.work.shape:
			return n, sys.CU_GRAPH_EXEC_UPDATE_ERROR_PARAMETERS_CHANGED
		}
	}
	return nil, sys.CU_GRAPH_EXEC_UPDATE_SUCCESS
}
