package soft

import (
	"slices"

	"github.com/gpufd/gpufd/cu/sys"
)

// A graph is work and its order. It belongs to no context; what its nodes do
// does.
type graph struct {
	handle sys.CUgraph
	nodes  []*node // in the order they were made
}

// A node is a piece of work in a graph.
type node struct {
	graph  *graph
	handle sys.CUgraphNode
	work   *work
	after  []*node // what must be done first
}

// A work is what a node does, any number of times. The clones and executables
// of a graph share it.
type work struct {
	traits
	run     func() sys.CUresult // nil for a mere point
	release func()              // called with the machine locked once nobody uses it
	users   int
}

// addNode gives the graph a node, which uses w.
func (m *machine) addNode(g *graph, w *work, after []*node) *node {
	w.users++
	n := &node{graph: g, handle: sys.CUgraphNode(m.newHandle(kindNode, 0)), work: w, after: slices.Clone(after)}
	g.nodes = append(g.nodes, n)
	m.nodes[n.handle] = n
	return n
}

// newGraph makes an empty graph.
func (m *machine) newGraph() *graph {
	g := &graph{handle: sys.CUgraph(m.newHandle(kindGraph, 0))}
	m.graphs[g.handle] = g
	return g
}

// dropGraph ends a graph. Executables keep what they use.
func (m *machine) dropGraph(g *graph) {
	delete(m.graphs, g.handle)
	for _, n := range g.nodes {
		delete(m.nodes, n.handle)
	}
	dropWork(g.nodes)
}

// holdWork keeps the work of nodes; dropWork ends that.
func holdWork(nodes []*node) {
	for _, n := range nodes {
		n.work.users++
	}
}

func dropWork(nodes []*node) {
	for _, n := range nodes {
		if n.work.users--; n.work.users == 0 && n.work.release != nil {
			n.work.release()
		}
	}
}

// copyNodes returns nodes like g's, in the same order, that refer to each
// other. They are of no graph and have no handles yet.
func (g *graph) copyNodes() []*node {
	twins := make(map[*node]*node, len(g.nodes))
	nodes := make([]*node, len(g.nodes))
	for i, n := range g.nodes {
		nodes[i] = &node{work: n.work}
		twins[n] = nodes[i]
	}
	for i, n := range g.nodes {
		for _, a := range n.after {
			nodes[i].after = append(nodes[i].after, twins[a])
		}
	}
	holdWork(nodes)
	return nodes
}

// ordered returns nodes so that each comes after what it follows; ok is false
// if there is a cycle.
func ordered(nodes []*node) (sorted []*node, ok bool) {
	seen := make(map[*node]bool, len(nodes)) // true once it is in its place
	var place func(n *node) bool
	place = func(n *node) bool {
		if done, begun := seen[n]; begun {
			return done
		}
		seen[n] = false
		for _, a := range n.after {
			if !place(a) {
				return false
			}
		}
		seen[n] = true
		sorted = append(sorted, n)
		return true
	}
	for _, n := range nodes {
		if !place(n) {
			return nil, false
		}
	}
	return sorted, true
}

// pageable reports whether a node touches the caller's memory.
func pageable(nodes []*node) bool {
	return slices.ContainsFunc(nodes, func(n *node) bool { return n.work.pageable })
}

// run does the work of ordered nodes, one after the other.
func run(nodes []*node) sys.CUresult {
	for _, n := range nodes {
		if n.work.run == nil {
			continue
		}
		if r := n.work.run(); r != sys.CUDA_SUCCESS {
			return r
		}
	}
	return sys.CUDA_SUCCESS
}

// findGraph returns a graph by its handle.
func (m *machine) findGraph(h sys.CUgraph) (*graph, sys.CUresult) {
	return find(m, m.graphs, h, kindGraph, "graph", sys.CUDA_ERROR_INVALID_VALUE)
}

// findNode returns a node by its handle.
func (m *machine) findNode(h sys.CUgraphNode) (*node, sys.CUresult) {
	return find(m, m.nodes, h, kindNode, "node", sys.CUDA_ERROR_INVALID_VALUE)
}

func (m *machine) cuGraphCreate(out *sys.CUgraph, flags uint32) sys.CUresult {
	return m.locked(func() sys.CUresult {
		if out == nil || flags != 0 {
			return sys.CUDA_ERROR_INVALID_VALUE
		}
		return set(out, m.newGraph().handle)
	})
}

// cuGraphDestroy refuses a graph that is still captured: the end of the capture
// would give it out once more.
func (m *machine) cuGraphDestroy(h sys.CUgraph) sys.CUresult {
	return with(m, m.findGraph, h, func(g *graph) sys.CUresult {
		for c := range m.captures {
			if c.graph == g {
				return m.misuse(sys.CUDA_ERROR_INVALID_VALUE, "graph %#x destroyed while it is captured", uint64(h))
			}
		}
		m.dropGraph(g)
		return sys.CUDA_SUCCESS
	})
}

func (m *machine) cuGraphClone(out *sys.CUgraph, h sys.CUgraph) sys.CUresult {
	return with(m, m.findGraph, h, func(g *graph) sys.CUresult {
		if out == nil {
			return sys.CUDA_ERROR_INVALID_VALUE
		}
		return set(out, m.cloneGraph(g).handle)
	})
}

// cloneGraph makes a graph of its own with the same work.
func (m *machine) cloneGraph(g *graph) *graph {
	clone := m.newGraph()
	clone.nodes = g.copyNodes()
	for _, n := range clone.nodes {
		n.graph, n.handle = clone, sys.CUgraphNode(m.newHandle(kindNode, 0))
		m.nodes[n.handle] = n
	}
	return clone
}

func (m *machine) cuGraphGetNodes(h sys.CUgraph, out *sys.CUgraphNode, count *uintptr) sys.CUresult {
	return with(m, m.findGraph, h, func(g *graph) sys.CUresult { return listNodes(g.nodes, out, count) })
}

// cuGraphGetRootNodes lists the nodes that follow none.
func (m *machine) cuGraphGetRootNodes(h sys.CUgraph, out *sys.CUgraphNode, count *uintptr) sys.CUresult {
	return with(m, m.findGraph, h, func(g *graph) sys.CUresult {
		roots := slices.DeleteFunc(slices.Clone(g.nodes), func(n *node) bool { return len(n.after) > 0 })
		return listNodes(roots, out, count)
	})
}

// listNodes stores as many nodes as there is room for, their number, and null in
// the room left over. Without room it stores how many there are.
func listNodes(nodes []*node, out *sys.CUgraphNode, count *uintptr) sys.CUresult {
	if count == nil {
		return sys.CUDA_ERROR_INVALID_VALUE
	}
	if out == nil {
		*count = uintptr(len(nodes))
		return sys.CUDA_SUCCESS
	}
	if *count == 0 {
		return sys.CUDA_ERROR_INVALID_VALUE
	}
	room := array(out, *count)
	clear(room)
	for i := range min(len(room), len(nodes)) {
		room[i] = nodes[i].handle
	}
	*count = uintptr(min(len(room), len(nodes)))
	return sys.CUDA_SUCCESS
}

func (m *machine) cuGraphGetEdges(h sys.CUgraph, from, to *sys.CUgraphNode, count *uintptr) sys.CUresult {
	return m.cuGraphGetEdges_v2(h, from, to, nil, count)
}

// cuGraphGetEdges_v2 lists the edges. Edges have no data here.
func (m *machine) cuGraphGetEdges_v2(h sys.CUgraph, from, to *sys.CUgraphNode, data *sys.CUgraphEdgeData, count *uintptr) sys.CUresult {
	return with(m, m.findGraph, h, func(g *graph) sys.CUresult {
		if count == nil || (from == nil) != (to == nil) || from == nil && data != nil {
			return sys.CUDA_ERROR_INVALID_VALUE
		}
		var before, after []*node
		for _, n := range g.nodes {
			for _, a := range n.after {
				before, after = append(before, a), append(after, n)
			}
		}
		if data != nil {
			clear(array(data, *count))
		}
		n := *count
		return firstError(listNodes(before, from, &n), listNodes(after, to, count))
	})
}

func (m *machine) cuGraphNodeGetType(h sys.CUgraphNode, out *sys.CUgraphNodeType) sys.CUresult {
	return value(m, m.findNode, h, out, func(n *node) sys.CUgraphNodeType { return n.work.kind })
}
