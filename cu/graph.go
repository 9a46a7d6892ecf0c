package cu

import (
	"runtime"

	"github.com/gpufd/gpufd/cu/sys"
)

// A Graph is work and its order. [Stream.Capture] records one, the Add
// functions build one, and [Graph.Instantiate] makes it executable. The caller
// owns it. It is safe for concurrent use.
type Graph struct {
	*graphHandle
	ctx *Context
}

// graphHandle is the part of a Graph that its context closes.
type graphHandle struct {
	gate
	graph sys.CUgraph
}

// NewGraph makes an empty graph (cuGraphCreate).
func (c *Context) NewGraph() (*Graph, error) {
	return c.newGraph("cuGraphCreate", func(call sys.Caller, out *sys.CUgraph) sys.CUresult {
		return call.CuGraphCreate(out, 0)
	})
}

// newGraph makes the graph that one driver call stores.
func (c *Context) newGraph(op string, create func(sys.Caller, *sys.CUgraph) sys.CUresult) (*Graph, error) {
	if c == nil {
		return nil, unusable(op, "the context", true)
	}
	g := &Graph{&graphHandle{}, c}
	graphs := &c.inner.dev.drv.graphs
	graphs.Lock()
	defer graphs.Unlock()
	return made(g, c.create(op, g.graphHandle, func(call sys.Caller) sys.CUresult { return create(call, &g.graph) }))
}

// Context returns the graph's context.
func (g *Graph) Context() *Context {
	if g == nil {
		return nil
	}
	return g.ctx
}

// Handle returns the driver's own handle. Two calls must not use it at once.
func (g *Graph) Handle() sys.CUgraph {
	if g == nil {
		return 0
	}
	return g.graph
}

// Close destroys the graph, but no [GraphExec] made of it (cuGraphDestroy).
func (g *Graph) Close() error {
	if g == nil {
		return nil
	}
	return g.ctx.release(g.graphHandle)
}

func (g *graphHandle) closeIn(h *contextHandle) error {
	h.dev.drv.graphs.Lock()
	defer h.dev.drv.graphs.Unlock()
	return h.check("cuGraphDestroy", h.call.CuGraphDestroy(g.graph))
}

// run makes one driver call on the graph.
func (g *Graph) run(op string, f func(sys.Caller, sys.CUgraph) sys.CUresult) error {
	if g == nil || !g.enter() {
		return unusable(op, "the graph", g == nil)
	}
	defer runtime.KeepAlive(g)
	defer g.leave()
	graphs := &g.ctx.inner.dev.drv.graphs
	graphs.Lock()
	defer graphs.Unlock()
	return g.ctx.run(op, func(call sys.Caller) sys.CUresult { return f(call, g.graph) })
}

// belongs returns an error unless the graph and c are of the same driver.
func (g *Graph) belongs(op string, c *Context) error {
	return g.ctx.inner.dev.drv.refuseOther(op, "the graph", c.inner.dev.drv)
}

// Clone makes a copy of the graph, with nodes of its own (cuGraphClone).
func (g *Graph) Clone() (clone *Graph, err error) {
	const op = "cuGraphClone"
	if g == nil || !g.enter() {
		return nil, unusable(op, "the graph", g == nil)
	}
	defer runtime.KeepAlive(g)
	defer g.leave()
	return g.ctx.newGraph(op, func(call sys.Caller, out *sys.CUgraph) sys.CUresult {
		return call.CuGraphClone(out, g.graph)
	})
}

// NodeCount returns the number of nodes; a child graph is one node
// (cuGraphGetNodes).
func (g *Graph) NodeCount() (int, error) {
	n := new(uintptr)
	err := g.run("cuGraphGetNodes", func(call sys.Caller, h sys.CUgraph) sys.CUresult {
		return call.CuGraphGetNodes(h, nil, n)
	})
	return int(*n), err
}

// Nodes lists the graph's nodes, in no particular order (cuGraphGetNodes).
func (g *Graph) Nodes() ([]GraphNode, error) {
	var handles []sys.CUgraphNode
	err := g.run("cuGraphGetNodes", func(call sys.Caller, h sys.CUgraph) sys.CUresult {
		n := new(uintptr)
		if r := call.CuGraphGetNodes(h, nil, n); r != sys.CUDA_SUCCESS || *n == 0 {
			return r
		}
		handles = make([]sys.CUgraphNode, *n)
		return call.CuGraphGetNodes(h, &handles[0], n)
	})
	if err != nil {
		return nil, err
	}
	nodes := make([]GraphNode, len(handles))
	for i, h := range handles {
		nodes[i] = GraphNode{g, h}
	}
	return nodes, nil
}

// WriteDOT writes the graph to the file at path in Graphviz's language, with all
// that the driver knows of it (cuGraphDebugDotPrint, CUDA 11.3).
func (g *Graph) WriteDOT(path string) error {
	const op = "cuGraphDebugDotPrint"
	file, err := cString(op, path)
	if err != nil {
		return err
	}
	return g.run(op, func(call sys.Caller, h sys.CUgraph) sys.CUresult {
		return call.CuGraphDebugDotPrint(h, file, uint32(sys.CU_GRAPH_DEBUG_DOT_FLAGS_VERBOSE))
	})
}
