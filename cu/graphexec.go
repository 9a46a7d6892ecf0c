package cu

import (
	"errors"
	"fmt"
	"runtime"
	"sync"

	"github.com/gpufd/gpufd/cu/sys"
)

// A GraphExec is a graph made executable. It does not depend on its [Graph]. The
// caller owns it. It is safe for concurrent use.
type GraphExec struct {
	*graphExecHandle
	ctx *Context
}

// Handle returns the driver's own handle. Two calls must not use it at once.
func (e *GraphExec) Handle() sys.CUgraphExec {
	if e == nil {
		return 0
	}
	return e.exec
}

// graphExecHandle is the part of a GraphExec that its context closes.
type graphExecHandle struct {
	gate
	mu   sync.Mutex // against two launches at once: see Driver.graphs
	exec sys.CUgraphExec
}

// InstantiateFlags change what [Graph.Instantiate] makes:
// CUgraphInstantiate_flags.
type InstantiateFlags uint64

// The flags of Instantiate. They can be combined.
const (
	InstantiateAutoFree     InstantiateFlags = InstantiateFlags(sys.CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH) // a launch first frees what the one before left allocated (CUDA 11.4)
	InstantiateDeviceLaunch InstantiateFlags = InstantiateFlags(sys.CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH)       // kernels can launch the graph (CUDA 12.0)
	InstantiateNodePriority InstantiateFlags = InstantiateFlags(sys.CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY)   // nodes keep the priority of their stream at capture, instead of the launch's (CUDA 11.7)
)

// GraphInstantiateReason is why a graph could not be made executable:
// CUgraphInstantiateResult.
type GraphInstantiateReason uint32

// The reasons of a [GraphInstantiateError].
const (
	InstantiateFailed            GraphInstantiateReason = GraphInstantiateReason(sys.CUDA_GRAPH_INSTANTIATE_ERROR)                        // see the driver's result
	InstantiateInvalidStructure  GraphInstantiateReason = GraphInstantiateReason(sys.CUDA_GRAPH_INSTANTIATE_INVALID_STRUCTURE)            // a cycle, for example
	InstantiateNodeNotSupported  GraphInstantiateReason = GraphInstantiateReason(sys.CUDA_GRAPH_INSTANTIATE_NODE_OPERATION_NOT_SUPPORTED) // a node cannot be launched by a kernel
	InstantiateManyContexts      GraphInstantiateReason = GraphInstantiateReason(sys.CUDA_GRAPH_INSTANTIATE_MULTIPLE_CTXS_NOT_SUPPORTED)  // nodes are of several contexts
	InstantiateUnusedConditional GraphInstantiateReason = GraphInstantiateReason(sys.CUDA_GRAPH_INSTANTIATE_CONDITIONAL_HANDLE_UNUSED)    // a condition has no node
)

// String gives the reason's name in C.
func (r GraphInstantiateReason) String() string { return sys.CUgraphInstantiateResult(r).String() }

// A GraphInstantiateError says what is wrong with a graph that could not be made
// executable. It matches what Err matches.
type GraphInstantiateError struct {
	Reason GraphInstantiateReason
	Node   GraphNode // the one to blame; may be zero
	Err    error     // the call's *Error
}

// Error adds the reason to the call's error.
func (e *GraphInstantiateError) Error() string { return graphErrorText(e.Err, e.Reason, e.Node) }

// Unwrap returns Err.
func (e *GraphInstantiateError) Unwrap() error { return e.Err }

// GraphUpdateReason is why an executable graph could not be updated:
// CUgraphExecUpdateResult.
type GraphUpdateReason uint32

// The reasons of a [GraphUpdateError].
const (
	UpdateFailed                    GraphUpdateReason = GraphUpdateReason(sys.CU_GRAPH_EXEC_UPDATE_ERROR)                             // see the driver's result
	UpdateTopologyChanged           GraphUpdateReason = GraphUpdateReason(sys.CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED)            // nodes or their order differ
	UpdateNodeTypeChanged           GraphUpdateReason = GraphUpdateReason(sys.CU_GRAPH_EXEC_UPDATE_ERROR_NODE_TYPE_CHANGED)           // a node is of another type
	UpdateFunctionChanged           GraphUpdateReason = GraphUpdateReason(sys.CU_GRAPH_EXEC_UPDATE_ERROR_FUNCTION_CHANGED)            // a node has another kernel (drivers before CUDA 11.2)
	UpdateParametersChanged         GraphUpdateReason = GraphUpdateReason(sys.CU_GRAPH_EXEC_UPDATE_ERROR_PARAMETERS_CHANGED)          // in a way that is not supported
	UpdateNotSupported              GraphUpdateReason = GraphUpdateReason(sys.CU_GRAPH_EXEC_UPDATE_ERROR_NOT_SUPPORTED)               // something about a node, or, before CUDA 12.0, another number of nodes
	UpdateUnsupportedFunctionChange GraphUpdateReason = GraphUpdateReason(sys.CU_GRAPH_EXEC_UPDATE_ERROR_UNSUPPORTED_FUNCTION_CHANGE) // to a kernel that differs too much
	UpdateAttributesChanged         GraphUpdateReason = GraphUpdateReason(sys.CU_GRAPH_EXEC_UPDATE_ERROR_ATTRIBUTES_CHANGED)          // in a way that is not supported
)

// String gives the reason's name in C.
func (r GraphUpdateReason) String() string { return sys.CUgraphExecUpdateResult(r).String() }

// A GraphUpdateError says why an executable graph could not be updated. It
// matches [ErrGraphExecUpdateFailure], or whatever Err matches.
type GraphUpdateError struct {
	Reason GraphUpdateReason
	Node   GraphNode // the one that differs, in the graph to update to; may be zero
	Err    error     // the call's *Error
}

// Error adds the reason to the call's error.
func (e *GraphUpdateError) Error() string { return graphErrorText(e.Err, e.Reason, e.Node) }

// Unwrap returns Err.
func (e *GraphUpdateError) Unwrap() error { return e.Err }

func graphErrorText(err error, reason fmt.Stringer, node GraphNode) string {
	if node.node == 0 {
		return fmt.Sprintf("%v (%v)", err, reason)
	}
	return fmt.Sprintf("%v (%v, node %#x)", err, reason, uint64(node.node))
}

// Instantiate makes an executable of the graph as it is now
// (cuGraphInstantiateWithParams; cuGraphInstantiateWithFlags before CUDA 12.0).
// If the driver gives a reason, the error is a [*GraphInstantiateError].
func (g *Graph) Instantiate(flags InstantiateFlags) (*GraphExec, error) {
	p := &sys.CUDA_GRAPH_INSTANTIATE_PARAMS{Flags: uint64(flags)}
	e, err := g.instantiate("cuGraphInstantiateWithParams", func(call sys.Caller, out *sys.CUgraphExec, h sys.CUgraph) sys.CUresult {
		return call.CuGraphInstantiateWithParams(out, h, p)
	})
	if errors.Is(err, ErrSymbolMissing) {
		return g.instantiate("cuGraphInstantiateWithFlags", func(call sys.Caller, out *sys.CUgraphExec, h sys.CUgraph) sys.CUresult {
			return call.CuGraphInstantiateWithFlags(out, h, uint64(flags))
		})
	}
	if err != nil && p.Result_out != sys.CUDA_GRAPH_INSTANTIATE_SUCCESS {
		err = &GraphInstantiateError{GraphInstantiateReason(p.Result_out), GraphNode{g, p.HErrNode_out}, err}
	}
	return e, err
}

func (g *Graph) instantiate(op string, create func(sys.Caller, *sys.CUgraphExec, sys.CUgraph) sys.CUresult) (e *GraphExec, err error) {
	err = g.run(op, func(call sys.Caller, h sys.CUgraph) sys.CUresult {
		out := new(sys.CUgraphExec)
		r := create(call, out, h)
		if r == sys.CUDA_SUCCESS {
			e = &GraphExec{&graphExecHandle{exec: *out}, g.ctx}
			g.ctx.inner.adopt(e.graphExecHandle)
		}
		return r
	})
	return e, err
}

// Context returns the graph's context.
func (e *GraphExec) Context() *Context {
	if e == nil {
		return nil
	}
	return e.ctx
}

// Close destroys the executable graph; a launch under way is still finished
// (cuGraphExecDestroy).
func (e *GraphExec) Close() error {
	if e == nil {
		return nil
	}
	return e.ctx.release(e.graphExecHandle)
}

func (e *graphExecHandle) closeIn(h *contextHandle) error {
	h.dev.drv.graphs.Lock()
	defer h.dev.drv.graphs.Unlock()
	return h.check("cuGraphExecDestroy", h.call.CuGraphExecDestroy(e.exec))
}

// launch makes one driver call that gives the executable graph to a stream.
func (e *GraphExec) launch(s *Stream, op string, f func(sys.Caller, sys.CUgraphExec, sys.CUstream) sys.CUresult) error {
	if e == nil || !e.enter() {
		return unusable(op, "the executable graph", e == nil)
	}
	defer e.leave()
	graphs := &e.ctx.inner.dev.drv.graphs
	graphs.RLock()
	defer graphs.RUnlock()
	e.mu.Lock()
	defer e.mu.Unlock()
	return s.runIn(e.ctx, op, func(call sys.Caller, h sys.CUstream) sys.CUresult {
		if r := e.ctx.inner.refuseCaptured(call, h); r != sys.CUDA_SUCCESS {
			return r
		}
		return f(call, e.exec, h)
	})
}

// run makes one driver call on the executable graph.
func (e *GraphExec) run(op string, f func(sys.Caller, sys.CUgraphExec) sys.CUresult) error {
	if e == nil || !e.enter() {
		return unusable(op, "the executable graph", e == nil)
	}
	defer e.leave()
	return e.ctx.run(op, func(call sys.Caller) sys.CUresult { return f(call, e.exec) })
}

// Launch queues the graph's work on s, a stream of its context, and returns
// before it is done (cuGraphLaunch). If the graph copies from or to Go memory,
// Launch waits in the driver, and later launches and calls that make, change or
// close a graph wait for it. Launches of one GraphExec run one after the other,
// on any streams. They cannot be captured ([ErrStreamCaptureUnsupported]): see
// [Graph.AddChild].
func (e *GraphExec) Launch(s *Stream) error {
	return e.launch(s, "cuGraphLaunch", sys.Caller.CuGraphLaunch)
}

// Upload queues the preparation of the first launch on s, and returns before that
// is done (cuGraphUpload).
func (e *GraphExec) Upload(s *Stream) error {
	return e.launch(s, "cuGraphUpload", sys.Caller.CuGraphUpload)
}

// Update makes later launches do what g does, a graph with the same nodes in the
// same order but other parameters (cuGraphExecUpdate_v2; cuGraphExecUpdate before
// CUDA 12.0). It is much cheaper than Instantiate, and does not affect launches
// under way. A refusal is a [*GraphUpdateError], and leaves e as it was.
func (e *GraphExec) Update(g *Graph) error {
	const op = "cuGraphExecUpdate"
	if e == nil {
		return unusable(op, "the executable graph", true)
	}
	if g == nil || !g.enter() {
		return unusable(op, "the graph", g == nil)
	}
	defer runtime.KeepAlive(g)
	defer g.leave()
	if err := g.belongs(op, e.ctx); err != nil {
		return err
	}
	graphs := &e.ctx.inner.dev.drv.graphs
	graphs.Lock()
	defer graphs.Unlock()
	info := new(sys.CUgraphExecUpdateResultInfo)
	err := e.run(op, func(call sys.Caller, exec sys.CUgraphExec) sys.CUresult {
		return older(call.CuGraphExecUpdate_v2(exec, g.graph, info), func() sys.CUresult {
			return call.CuGraphExecUpdate(exec, g.graph, &info.ErrorNode, &info.Result)
		})
	})
	if err != nil && info.Result != sys.CU_GRAPH_EXEC_UPDATE_SUCCESS {
		return &GraphUpdateError{GraphUpdateReason(info.Result), GraphNode{g, info.ErrorNode}, err}
	}
	return err
}
