package soft

import (
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/gpufd/gpufd/cu/sys"
)

// add makes a node of what makeWork returns, which follows the listed nodes of
// the same graph.
func (m *machine) add(out *sys.CUgraphNode, h sys.CUgraph, deps *sys.CUgraphNode, n uintptr, makeWork func() (*work, sys.CUresult)) sys.CUresult {
	return with(m, m.findGraph, h, func(g *graph) sys.CUresult {
		after, ok := m.nodesOf(g, deps, n)
		if out == nil || !ok {
			return sys.CUDA_ERROR_INVALID_VALUE
		}
		w, r := makeWork()
		if r != sys.CUDA_SUCCESS {
			return r
		}
		return set(out, m.addNode(g, w, after).handle)
	})
}

// nodesOf returns nodes by their handles; ok is false if one is not g's.
func (m *machine) nodesOf(g *graph, handles *sys.CUgraphNode, n uintptr) (nodes []*node, ok bool) {
	if n == 0 {
		return nil, true
	}
	if handles == nil || n > uintptr(len(g.nodes)) {
		return nil, false
	}
	for _, h := range array(handles, n) {
		d := m.nodes[h]
		if d == nil || d.graph != g || slices.Contains(nodes, d) {
			return nil, false
		}
		nodes = append(nodes, d)
	}
	return nodes, true
}

func (m *machine) cuGraphAddEmptyNode(out *sys.CUgraphNode, h sys.CUgraph, deps *sys.CUgraphNode, n uintptr) sys.CUresult {
	return m.add(out, h, deps, n, func() (*work, sys.CUresult) {
		return &work{traits: traits{kind: sys.CU_GRAPH_NODE_TYPE_EMPTY}}, sys.CUDA_SUCCESS
	})
}

// cuGraphAddChildGraphNode takes the other graph as it is now.
func (m *machine) cuGraphAddChildGraphNode(out *sys.CUgraphNode, h sys.CUgraph, deps *sys.CUgraphNode, n uintptr, child sys.CUgraph) sys.CUresult {
	return m.add(out, h, deps, n, func() (*work, sys.CUresult) {
		c, r := m.findGraph(child)
		if r != sys.CUDA_SUCCESS {
			return nil, r
		}
		if _, ok := ordered(c.nodes); !ok {
			return nil, sys.CUDA_ERROR_INVALID_VALUE
		}
		if child == h { // the real driver crashes
			return nil, m.misuse(sys.CUDA_ERROR_INVALID_VALUE, "graph %#x made a child of itself", uint64(h))
		}
		steps, _ := ordered(c.copyNodes())
		return &work{
			traits:  traits{sys.CU_GRAPH_NODE_TYPE_GRAPH, form(c.nodes), pageable(steps)},
			run:     func() sys.CUresult { return run(steps) },
			release: func() { dropWork(steps) },
		}, sys.CUDA_SUCCESS
	})
}

// cuGraphAddMemcpyNode adds copies of at least one byte.
func (m *machine) cuGraphAddMemcpyNode(out *sys.CUgraphNode, h sys.CUgraph, deps *sys.CUgraphNode, n uintptr, p *sys.CUDA_MEMCPY3D, ctx sys.CUcontext) sys.CUresult {
	return m.add(out, h, deps, n, func() (*work, sys.CUresult) {
		if p == nil || p.WidthInBytes == 0 || p.Height == 0 || p.Depth == 0 {
			return nil, sys.CUDA_ERROR_INVALID_VALUE
		}
		var c copyDesc
		c.read(p)
		if c.dst.kind == sys.CU_MEMORYTYPE_ARRAY || c.src.kind == sys.CU_MEMORYTYPE_ARRAY {
			return nil, sys.CUDA_ERROR_NOT_SUPPORTED
		}
		t := transfer{extent: c.extent}
		if r := m.sides(&t, &c); r != sys.CUDA_SUCCESS {
			return nil, r
		}
		return m.transferWork(ctx, &t)
	})
}

// cuGraphAddMemsetNode adds sets of at least one byte.
func (m *machine) cuGraphAddMemsetNode(out *sys.CUgraphNode, h sys.CUgraph, deps *sys.CUgraphNode, n uintptr, p *sys.CUDA_MEMSET_NODE_PARAMS, ctx sys.CUcontext) sys.CUresult {
	return m.add(out, h, deps, n, func() (*work, sys.CUresult) {
		if p == nil || p.Width == 0 || p.Height == 0 {
			return nil, sys.CUDA_ERROR_INVALID_VALUE
		}
		width := p.ElementSize
		if width != 1 && width != 2 && width != 4 {
			return nil, sys.CUDA_ERROR_INVALID_VALUE
		}
		pattern := binary.LittleEndian.AppendUint32(nil, p.Value)[:width]
		t, ok := setOfRows(p.Dst, p.Pitch, pattern, p.Width, p.Height)
		if !ok {
			return nil, sys.CUDA_ERROR_INVALID_VALUE
		}
		return m.transferWork(ctx, &t)
	})
}

// transferWork makes a copy or a set that a context, or the current one, does
// at every launch.
func (m *machine) transferWork(h sys.CUcontext, t *transfer) (*work, sys.CUresult) {
	ctx, r := m.contextOr(h)
	if r != sys.CUDA_SUCCESS {
		return nil, r
	}
	dev := m.number(ctx.dev)
	if r := m.locate(t, ctx); r != sys.CUDA_SUCCESS {
		return nil, r
	}
	m.begin(t, true)
	return &work{
		traits:  t.traits(dev),
		run:     func() sys.CUresult { return m.perform(t) },
		release: func() { m.endTransfer(t) },
	}, sys.CUDA_SUCCESS
}

// traits returns what a graph knows of the transfer. An update may change the
// host memory, but not which side it is on.
func (t *transfer) traits(dev sys.CUdevice) traits {
	host := [2]bool{t.to.place != placeDevice, t.from.place != placeDevice}
	kind := sys.CU_GRAPH_NODE_TYPE_MEMCPY
	if t.pattern != nil {
		kind = sys.CU_GRAPH_NODE_TYPE_MEMSET
	}
	touches := t.to.place == placePageable || t.from.place == placePageable
	return traits{kind: kind, shape: fmt.Sprint(host, dev), pageable: touches}
}

// topology returns which nodes each node follows, by their place.
func topology(nodes []*node) [][]int {
	place := make(map[*node]int, len(nodes))
	for i, n := range nodes {
		place[n] = i
	}
	follows := make([][]int, len(nodes))
	for i, n := range nodes {
		for _, a := range n.after {
			follows[i] = append(follows[i], place[a])
		}
		slices.Sort(follows[i])
	}
	return follows
}

// form returns what two graphs must have in common for one to update the other.
func form(nodes []*node) string {
	s := fmt.Sprint(topology(nodes))
	for _, n := range nodes {
		s += fmt.Sprint(" ", n.work.kind, n.work.shape)
	}
	return s
}

// cuGraphAddDependencies makes nodes follow others.
func (m *machine) cuGraphAddDependencies(h sys.CUgraph, from, to *sys.CUgraphNode, n uintptr) sys.CUresult {
	return with(m, m.findGraph, h, func(g *graph) sys.CUresult {
		if n == 0 {
			return sys.CUDA_SUCCESS
		}
		if from == nil || to == nil {
			return sys.CUDA_ERROR_INVALID_VALUE
		}
		var before, after []*node
		for i, f := range array(from, n) {
			b, a := m.nodes[f], m.nodes[array(to, n)[i]]
			if b == nil || a == nil || b.graph != g || a.graph != g || a == b || slices.Contains(a.after, b) {
				return sys.CUDA_ERROR_INVALID_VALUE
			}
			before, after = append(before, b), append(after, a)
		}
		for i, a := range after {
			a.after = append(a.after, before[i])
		}
		return sys.CUDA_SUCCESS
	})
}

// cuGraphAddDependencies_v2 knows no data of edges but zeros.
func (m *machine) cuGraphAddDependencies_v2(h sys.CUgraph, from, to *sys.CUgraphNode, data *sys.CUgraphEdgeData, n uintptr) sys.CUresult {
	if data != nil {
		for _, d := range array(data, n) {
			if d != (sys.CUgraphEdgeData{}) {
				return sys.CUDA_ERROR_NOT_SUPPORTED
			}
		}
	}
	return m.cuGraphAddDependencies(h, from, to, n)
}
