package cu

import (
	"runtime"

	"github.com/gpufd/gpufd/cu/sys"
)

// A GraphNode is one piece of work in a graph, and lives as long as the graph.
type GraphNode struct {
	graph *Graph
	node  sys.CUgraphNode
}

// GraphNodeType is what a node does: CUgraphNodeType.
type GraphNodeType uint32

// The types of node.
const (
	NodeKernel          GraphNodeType = GraphNodeType(sys.CU_GRAPH_NODE_TYPE_KERNEL)           // launches a kernel
	NodeCopy            GraphNodeType = GraphNodeType(sys.CU_GRAPH_NODE_TYPE_MEMCPY)           // copies memory
	NodeFill            GraphNodeType = GraphNodeType(sys.CU_GRAPH_NODE_TYPE_MEMSET)           // sets memory
	NodeHost            GraphNodeType = GraphNodeType(sys.CU_GRAPH_NODE_TYPE_HOST)             // calls a function on the host
	NodeChild           GraphNodeType = GraphNodeType(sys.CU_GRAPH_NODE_TYPE_GRAPH)            // does what another graph does
	NodeEmpty           GraphNodeType = GraphNodeType(sys.CU_GRAPH_NODE_TYPE_EMPTY)            // does nothing, to follow and be followed
	NodeEventWait       GraphNodeType = GraphNodeType(sys.CU_GRAPH_NODE_TYPE_WAIT_EVENT)       // waits for an event
	NodeEventRecord     GraphNodeType = GraphNodeType(sys.CU_GRAPH_NODE_TYPE_EVENT_RECORD)     // records an event
	NodeSemaphoreSignal GraphNodeType = GraphNodeType(sys.CU_GRAPH_NODE_TYPE_EXT_SEMAS_SIGNAL) // signals external semaphores
	NodeSemaphoreWait   GraphNodeType = GraphNodeType(sys.CU_GRAPH_NODE_TYPE_EXT_SEMAS_WAIT)   // waits for external semaphores
	NodeAlloc           GraphNodeType = GraphNodeType(sys.CU_GRAPH_NODE_TYPE_MEM_ALLOC)        // allocates memory
	NodeFree            GraphNodeType = GraphNodeType(sys.CU_GRAPH_NODE_TYPE_MEM_FREE)         // frees it
	NodeMemOps          GraphNodeType = GraphNodeType(sys.CU_GRAPH_NODE_TYPE_BATCH_MEM_OP)     // writes and waits for values
	NodeConditional     GraphNodeType = GraphNodeType(sys.CU_GRAPH_NODE_TYPE_CONDITIONAL)      // runs a graph if, or while, a condition holds
)

// String gives the type's name in C.
func (t GraphNodeType) String() string { return sys.CUgraphNodeType(t).String() }

// Type returns what the node does (cuGraphNodeGetType).
func (n GraphNode) Type() (GraphNodeType, error) {
	t := new(sys.CUgraphNodeType)
	err := n.graph.run("cuGraphNodeGetType", func(call sys.Caller, _ sys.CUgraph) sys.CUresult {
		return call.CuGraphNodeGetType(n.node, t)
	})
	return GraphNodeType(*t), err
}

// IsZero reports whether n is not a node.
func (n GraphNode) IsZero() bool { return n.node == 0 }

// addNode makes a node that runs once those of after are done.
func (g *Graph) addNode(op string, after []GraphNode, create func(call sys.Caller, out *sys.CUgraphNode, g sys.CUgraph, deps *sys.CUgraphNode, n uintptr) sys.CUresult) (GraphNode, error) {
	deps := make([]sys.CUgraphNode, len(after), len(after)+1) // so that there is a first
	for i, a := range after {
		if a.graph != g || a.node == 0 {
			return GraphNode{}, &Error{Op: op, Result: ErrInvalidValue, Detail: "a node in after belongs to another graph"}
		}
		deps[i] = a.node
	}
	out := new(sys.CUgraphNode)
	err := g.run(op, func(call sys.Caller, h sys.CUgraph) sys.CUresult {
		return create(call, out, h, &deps[:1][0], uintptr(len(deps)))
	})
	return GraphNode{g, *out}, err
}

// AddEmpty adds a node that does nothing, once the nodes of after are done, so
// that others can follow it (cuGraphAddEmptyNode).
func (g *Graph) AddEmpty(after ...GraphNode) (GraphNode, error) {
	return g.addNode("cuGraphAddEmptyNode", after, sys.Caller.CuGraphAddEmptyNode)
}

// AddCopy adds a copy of n bytes from src to dst, both in device memory, once
// the nodes of after are done (cuGraphAddMemcpyNode). Errors: [ErrTooShort], [ErrClosed].
func (g *Graph) AddCopy(dst, src Pointer, n uint64, after ...GraphNode) (GraphNode, error) {
	const op = "cuGraphAddMemcpyNode"
	to, from, err := reachBoth(op, dst, src, n)
	if err != nil {
		return GraphNode{}, err
	}
	p := &sys.CUDA_MEMCPY3D{
		SrcMemoryType: sys.CU_MEMORYTYPE_DEVICE, SrcDevice: sys.CUdeviceptr(from),
		DstMemoryType: sys.CU_MEMORYTYPE_DEVICE, DstDevice: sys.CUdeviceptr(to),
		WidthInBytes: uintptr(n), Height: 1, Depth: 1,
	}
	node, err := g.addNode(op, after, func(call sys.Caller, out *sys.CUgraphNode, h sys.CUgraph, deps *sys.CUgraphNode, n uintptr) sys.CUresult {
		return call.CuGraphAddMemcpyNode(out, h, deps, n, p, g.ctx.inner.ctx)
	})
	return node, g.explain(err, destination(to, n), source(from, n))
}

// AddFill adds a fill that sets count elements at dst, aligned to their size, to
// value, once the nodes of after are done (cuGraphAddMemsetNode). Errors: [ErrTooShort],
// [ErrClosed].
func AddFill[T uint8 | uint16 | uint32, P Pointer](g *Graph, dst P, value T, count uint64, after ...GraphNode) (GraphNode, error) {
	const op = "cuGraphAddMemsetNode"
	at, err := reachElements[T](op, dst, bytesOf(count, unitOf[T]()))
	if err != nil {
		return GraphNode{}, err
	}
	p := &sys.CUDA_MEMSET_NODE_PARAMS{
		Dst: sys.CUdeviceptr(at), Value: uint32(value), ElementSize: uint32(unitOf[T]()), Width: uintptr(count), Height: 1,
	}
	node, err := g.addNode(op, after, func(call sys.Caller, out *sys.CUgraphNode, h sys.CUgraph, deps *sys.CUgraphNode, n uintptr) sys.CUresult {
		return call.CuGraphAddMemsetNode(out, h, deps, n, p, g.ctx.inner.ctx)
	})
	return node, g.explain(err, filled[T](at, 0, count, 1))
}

// explain adds to the error of a node what is wrong with its operands.
func (g *Graph) explain(err error, operands ...operand) error {
	if g == nil {
		return err
	}
	return g.ctx.null.explain(err, operands...)
}

// AddChild adds a node that does what child does, once the nodes of after are
// done. It takes a copy of child (cuGraphAddChildGraphNode).
func (g *Graph) AddChild(child *Graph, after ...GraphNode) (GraphNode, error) {
	const op = "cuGraphAddChildGraphNode"
	if g == nil {
		return GraphNode{}, unusable(op, "the graph", true)
	}
	if child == nil {
		return GraphNode{}, unusable(op, "the child graph", true)
	}
	if err := child.belongs(op, g.ctx); err != nil {
		return GraphNode{}, err
	}
	c, err := child.Clone() // nobody else uses that
	if err != nil {
		return GraphNode{}, err
	}
	defer c.Close()
	defer runtime.KeepAlive(c)
	return g.addNode(op, after, func(call sys.Caller, out *sys.CUgraphNode, h sys.CUgraph, deps *sys.CUgraphNode, n uintptr) sys.CUresult {
		return call.CuGraphAddChildGraphNode(out, h, deps, n, c.graph)
	})
}
