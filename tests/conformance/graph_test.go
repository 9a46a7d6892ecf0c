package conformance

import (
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/gpufd/gpufd/cu/sys"
)

// The modes and results of captures.
const (
	relaxed        = sys.CU_STREAM_CAPTURE_MODE_RELAXED
	captureRefused = sys.CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED
	captureSpoilt  = sys.CUDA_ERROR_STREAM_CAPTURE_INVALIDATED
	illegalState   = sys.CUDA_ERROR_ILLEGAL_STATE
	updateRefused  = sys.CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE
	captureNone    = sys.CU_STREAM_CAPTURE_STATUS_NONE
	captureActive  = sys.CU_STREAM_CAPTURE_STATUS_ACTIVE
	captureInvalid = sys.CU_STREAM_CAPTURE_STATUS_INVALIDATED
)

// capturing returns a stream that is being captured.
func capturing(t testing.TB, c sys.Caller) sys.CUstream {
	t.Helper()
	s := stream(t, c)
	ok(t, c.CuStreamBeginCapture_v2(s, relaxed))
	return s
}

// captureStatus is how a stream is captured, or why it cannot be told.
func captureStatus(c sys.Caller, s sys.CUstream) any {
	st := new(sys.CUstreamCaptureStatus)
	if r := c.CuStreamIsCapturing(s, st); r != success {
		return r
	}
	return *st
}

// endCapture ends a capture. The graph goes when the test ends.
func endCapture(t testing.TB, c sys.Caller, s sys.CUstream) (sys.CUgraph, sys.CUresult) {
	t.Helper()
	g := new(sys.CUgraph)
	*g = 77
	r := c.CuStreamEndCapture(s, g)
	if r == success {
		t.Cleanup(func() { ok(t, c.CuGraphDestroy(*g)) })
	}
	return *g, r
}

// spoils checks what a call on a captured stream answers, and that the capture
// does not survive it.
func spoils(t testing.TB, c sys.Caller, what string, want sys.CUresult, call func(sys.CUstream) sys.CUresult) {
	t.Helper()
	s := capturing(t, c)
	check(t, what, want, call(s))
	check(t, "the capture after that", captureInvalid, captureStatus(c, s))
	g, r := endCapture(t, c, s)
	check(t, "its end", captureSpoilt, r)
	check(t, "its graph", sys.CUgraph(0), g)
	check(t, "the stream after the end", captureNone, captureStatus(c, s))
	check(t, "and it can be asked", success, c.CuStreamQuery(s))
}

// recorded is the graph of what f gives to a stream.
func recorded(t testing.TB, c sys.Caller, f func(sys.CUstream)) sys.CUgraph {
	t.Helper()
	s := capturing(t, c)
	f(s)
	g, r := endCapture(t, c, s)
	ok(t, r)
	return g
}

// executable makes a graph executable.
func executable(t testing.TB, c sys.Caller, g sys.CUgraph) sys.CUgraphExec {
	t.Helper()
	e := new(sys.CUgraphExec)
	ok(t, c.CuGraphInstantiateWithFlags(e, g, 0))
	t.Cleanup(func() { ok(t, c.CuGraphExecDestroy(*e)) })
	return *e
}

// nodeTypes spells a graph's nodes, sorted.
func nodeTypes(t testing.TB, c sys.Caller, g sys.CUgraph) string {
	t.Helper()
	n := new(uintptr)
	ok(t, c.CuGraphGetNodes(g, nil, n))
	if *n == 0 {
		return ""
	}
	list := make([]sys.CUgraphNode, *n)
	ok(t, c.CuGraphGetNodes(g, &list[0], n))
	var names []string
	for _, node := range list {
		typ := new(sys.CUgraphNodeType)
		ok(t, c.CuGraphNodeGetType(node, typ))
		names = append(names, strings.TrimPrefix(typ.String(), "CU_GRAPH_NODE_TYPE_"))
	}
	slices.Sort(names)
	return strings.Join(names, " ")
}

func TestC30_CaptureBeginsAndEnds(t *testing.T) {
	runtime.LockOSThread() // where a capture began it has to end
	defer runtime.UnlockOSThread()
	c := inContext(t)
	check(t, "begin on the null stream", captureRefused, c.CuStreamBeginCapture_v2(0, relaxed))
	check(t, "begin on the legacy default stream", captureRefused, c.CuStreamBeginCapture_v2(sys.CU_STREAM_LEGACY, relaxed))
	s := stream(t, c)
	check(t, "begin in a mode that does not exist", invalid, c.CuStreamBeginCapture_v2(s, 3))
	g, r := endCapture(t, c, s)
	check(t, "end what did not begin", illegalState, r)
	check(t, "its graph", sys.CUgraph(0), g)
	check(t, "ask without a place for the answer", invalid, c.CuStreamIsCapturing(s, nil))

	ok(t, c.CuStreamBeginCapture_v2(s, relaxed))
	check(t, "begin again", illegalState, c.CuStreamBeginCapture_v2(s, relaxed))
	check(t, "the capture after that", captureActive, captureStatus(c, s))
	_, r = endCapture(t, c, s)
	check(t, "end", success, r)
	check(t, "the stream after the end", captureNone, captureStatus(c, s))

	check(t, "begin in the oldest ABI", success, c.CuStreamBeginCapture(s))
	check(t, "which captures too", captureActive, captureStatus(c, s))
	_, r = endCapture(t, c, s)
	ok(t, r)
}

func TestC30_CaptureInfo(t *testing.T) {
	c := inContext(t)
	p, s := plain(t, c, 64), capturing(t, c)
	status, id, g, after, n := new(sys.CUstreamCaptureStatus), new(uint64), new(sys.CUgraph), new(*sys.CUgraphNode), new(uintptr)
	check(t, "in the oldest ABI", success, c.CuStreamGetCaptureInfo(s, status, id))
	check(t, "the status", captureActive, *status)
	check(t, "before any work", success, c.CuStreamGetCaptureInfo_v2(s, status, id, g, after, n))
	check(t, "there is a graph", true, *g != 0)
	check(t, "nothing to follow", uintptr(0), *n)
	check(t, "and no list of it", true, *after == nil)
	ok(t, c.CuMemsetD8Async(p, 1, 1, s))
	check(t, "after some", success, c.CuStreamGetCaptureInfo_v2(s, status, id, g, after, n))
	check(t, "one node to follow", uintptr(1), *n)
	check(t, "and a list of it", true, *after != nil)
	check(t, "query it", captureRefused, c.CuStreamQuery(s))
	check(t, "of a spoilt capture", success, c.CuStreamGetCaptureInfo(s, status, id))
	check(t, "the status", captureInvalid, *status)
	_, _ = endCapture(t, c, s)
	*id = 9
	check(t, "of none", success, c.CuStreamGetCaptureInfo(s, status, id))
	check(t, "the status", captureNone, *status)
	check(t, "the number is untouched", uint64(9), *id)
}

func TestC30_WhatACaptureDoesNotSurvive(t *testing.T) {
	c := inContext(t)
	e, outside := event(t, c, 0), event(t, c, 0)
	ok(t, c.CuEventRecord(outside, stream(t, c)))
	exec := executable(t, c, recorded(t, c, func(sys.CUstream) {}))
	spoils(t, c, "query", captureRefused, c.CuStreamQuery)
	spoils(t, c, "synchronize", captureRefused, c.CuStreamSynchronize)
	spoils(t, c, "synchronize the context", captureRefused, func(sys.CUstream) sys.CUresult { return c.CuCtxSynchronize() })
	spoils(t, c, "query an event recorded in it", sys.CUDA_ERROR_CAPTURED_EVENT, func(s sys.CUstream) sys.CUresult {
		ok(t, c.CuEventRecord(e, s))
		return c.CuEventQuery(e)
	})
	spoils(t, c, "synchronize with one", sys.CUDA_ERROR_CAPTURED_EVENT, func(s sys.CUstream) sys.CUresult {
		ok(t, c.CuEventRecord(e, s))
		return c.CuEventSynchronize(e)
	})
	spoils(t, c, "wait for an event outside", sys.CUDA_ERROR_STREAM_CAPTURE_ISOLATION, func(s sys.CUstream) sys.CUresult {
		return c.CuStreamWaitEvent(s, outside, 0)
	})
	spoils(t, c, "wait for an event of a capture that has ended", invalid, func(s sys.CUstream) sys.CUresult {
		other := capturing(t, c)
		ok(t, c.CuEventRecord(e, other))
		_, r := endCapture(t, c, other)
		ok(t, r)
		return c.CuStreamWaitEvent(s, e, 0)
	})
	spoils(t, c, "launch a graph", captureRefused, func(s sys.CUstream) sys.CUresult { return c.CuGraphLaunch(exec, s) })
	spoils(t, c, "end it on a stream that joined", sys.CUDA_ERROR_STREAM_CAPTURE_UNMATCHED, func(s sys.CUstream) sys.CUresult {
		joined := stream(t, c)
		ok(t, c.CuEventRecord(e, s))
		ok(t, c.CuStreamWaitEvent(joined, e, 0))
		g := new(sys.CUgraph)
		return c.CuStreamEndCapture(joined, g)
	})
	spoils(t, c, "use the null stream while a stream that waits for it is in it", sys.CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, func(s sys.CUstream) sys.CUresult {
		blocking := new(sys.CUstream)
		ok(t, c.CuStreamCreate(blocking, 0))
		t.Cleanup(func() { ok(t, c.CuStreamDestroy_v2(*blocking)) })
		ok(t, c.CuEventRecord(e, s))
		ok(t, c.CuStreamWaitEvent(*blocking, e, 0))
		return c.CuEventRecord(outside, 0)
	})
}

func TestC30_SpoiltCapture(t *testing.T) {
	c := inContext(t)
	p, s, e := plain(t, c, 64), capturing(t, c), event(t, c, 0)
	check(t, "query it", captureRefused, c.CuStreamQuery(s))
	check(t, "begin", illegalState, c.CuStreamBeginCapture_v2(s, relaxed))
	check(t, "query", captureRefused, c.CuStreamQuery(s))
	check(t, "synchronize", captureRefused, c.CuStreamSynchronize(s))
	check(t, "ask for the flags", captureRefused, c.CuStreamGetFlags(s, new(uint32)))
	check(t, "set memory", captureSpoilt, c.CuMemsetD8Async(p, 1, 1, s))
	check(t, "record an event", captureSpoilt, c.CuEventRecord(e, s))
	check(t, "which does not happen", success, c.CuEventQuery(e))
	_, r := endCapture(t, c, s)
	check(t, "end", captureSpoilt, r)
}

func TestC30_CapturedEvents(t *testing.T) {
	c := inContext(t)
	p, a, b, e := plain(t, c, 64), capturing(t, c), stream(t, c), event(t, c, 0)
	ok(t, c.CuMemsetD8Async(p, 1, 1, a))
	ok(t, c.CuEventRecord(e, a))
	check(t, "a stream joins", success, c.CuStreamWaitEvent(b, e, 0))
	check(t, "and is captured", captureActive, captureStatus(c, b))
	ok(t, c.CuMemsetD8Async(p, 1, 1, b))
	_, r := endCapture(t, c, a)
	check(t, "end without its work", sys.CUDA_ERROR_STREAM_CAPTURE_UNJOINED, r)
	check(t, "the stream that joined", captureNone, captureStatus(c, b))
	check(t, "query the event", invalid, c.CuEventQuery(e))
	check(t, "synchronize with it", invalid, c.CuEventSynchronize(e))
	check(t, "have a stream wait for it", invalid, c.CuStreamWaitEvent(b, e, 0))
	check(t, "record it again", success, c.CuEventRecord(e, b))
	check(t, "then it happens", success, c.CuEventSynchronize(e))

	a = capturing(t, c)
	ok(t, c.CuEventRecord(e, a))
	ok(t, c.CuStreamWaitEvent(b, e, 0))
	_, r = endCapture(t, c, a)
	check(t, "end with a stream that joined and did nothing", success, r)

	a = capturing(t, c)
	other := new(sys.CUstream)
	ok(t, c.CuStreamCreate(other, uint32(sys.CU_STREAM_NON_BLOCKING)))
	ok(t, c.CuEventRecord(e, a))
	ok(t, c.CuStreamWaitEvent(*other, e, 0))
	check(t, "destroy a stream that joined", success, c.CuStreamDestroy_v2(*other))
	check(t, "the capture after that", captureActive, captureStatus(c, a))
	_, r = endCapture(t, c, a)
	check(t, "its end", success, r)

	ok(t, c.CuStreamCreate(other, uint32(sys.CU_STREAM_NON_BLOCKING)))
	ok(t, c.CuStreamBeginCapture_v2(*other, relaxed))
	ok(t, c.CuEventRecord(e, *other))
	ok(t, c.CuStreamWaitEvent(b, e, 0))
	check(t, "destroy the stream that it began on", success, c.CuStreamDestroy_v2(*other))
	check(t, "the one that joined", captureNone, captureStatus(c, b))

	a = capturing(t, c)
	second := capturing(t, c)
	ok(t, c.CuEventRecord(e, a))
	check(t, "merge two captures", sys.CUDA_ERROR_STREAM_CAPTURE_MERGE, c.CuStreamWaitEvent(second, e, 0))
	check(t, "the one", captureInvalid, captureStatus(c, a))
	check(t, "the other", captureInvalid, captureStatus(c, second))
	endCapture(t, c, a)
	endCapture(t, c, second)
}

// A capture that is not of the relaxed mode belongs to its thread.
func TestC30_CaptureOfAThread(t *testing.T) {
	c := inContext(t)
	for _, x := range []struct {
		mode        sys.CUstreamCaptureMode
		what        string
		alloc, ends sys.CUresult
	}{
		{sys.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL, "thread-local", success, sys.CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD},
		{sys.CU_STREAM_CAPTURE_MODE_GLOBAL, "global", captureRefused, captureSpoilt},
		{relaxed, "relaxed", success, success},
	} {
		s, p := stream(t, c), plain(t, c, 64)
		done := make(chan struct{})
		go func() {
			defer close(done)
			runtime.LockOSThread() // the thread ends with the goroutine
			ok(t, c.CuStreamBeginCapture_v2(s, x.mode))
		}()
		<-done
		check(t, x.what+": work of another thread", success, c.CuMemsetD8Async(p, 1, 1, s))
		q := new(sys.CUdeviceptr)
		r := c.CuMemAlloc_v2(q, 64)
		check(t, x.what+": another thread allocates", x.alloc, r)
		if r == success {
			ok(t, c.CuMemFree_v2(*q))
		}
		_, r = endCapture(t, c, s)
		check(t, x.what+": another thread ends it", x.ends, r)
		check(t, x.what+": which ends it", captureNone, captureStatus(c, s))
	}
}

// Pageable memory can be captured; a launch then waits.
func TestC30_CaptureOfPageableMemory(t *testing.T) {
	c := inContext(t)
	p, src, dst := plain(t, c, 64), make([]byte, 64), make([]byte, 64)
	s := stream(t, c)
	g := recorded(t, c, func(s sys.CUstream) {
		check(t, "copy from it", success, c.CuMemcpyHtoDAsync_v2(p, at(src), 64, s))
		check(t, "copy to it", success, c.CuMemcpyDtoHAsync_v2(at(dst), p, 64, s))
	})
	check(t, "the nodes", "MEMCPY MEMCPY", nodeTypes(t, c, g))
	exec := executable(t, c, g)
	for v := range byte(3) {
		src[0] = v + 1
		ok(t, c.CuGraphLaunch(exec, s))
		src[0] = 100
		check(t, "after the launch all is done", success, c.CuStreamQuery(s))
		check(t, "with the bytes that were there", v+1, dst[0])
	}
	runtime.KeepAlive(src)
}

func TestC30_CapturedMemOps(t *testing.T) {
	c := inContext(t)
	if !c.Library().Has("cuStreamWriteValue32_v2") {
		skip(t, 4, "there is no cuStreamWriteValue32_v2, and the older one may be switched off")
		return
	}
	p := plain(t, c, 64)
	write := func(s sys.CUstream) { ok(t, c.CuStreamWriteValue32_v2(s, p, 1, 0)) }
	g := recorded(t, c, write)
	check(t, "a value written", "BATCH_MEM_OP", nodeTypes(t, c, g))
	result, r := updated(t, c, g, recorded(t, c, func(s sys.CUstream) { ok(t, c.CuStreamWaitValue32_v2(s, p, 1, 0)) }))
	check(t, "updated to a wait", updateRefused, r)
	check(t, "because", sys.CU_GRAPH_EXEC_UPDATE_ERROR_PARAMETERS_CHANGED, result)
	_, r = updated(t, c, g, recorded(t, c, write))
	check(t, "updated to the like", success, r)
}

// updated updates an executable of one graph to another.
func updated(t testing.TB, c sys.Caller, from, to sys.CUgraph) (sys.CUgraphExecUpdateResult, sys.CUresult) {
	t.Helper()
	node, result := new(sys.CUgraphNode), new(sys.CUgraphExecUpdateResult)
	r := c.CuGraphExecUpdate(executable(t, c, from), to, node, result)
	return *result, r
}

func TestC31_GraphUpdate(t *testing.T) {
	c := inContext(t)
	p := plain(t, c, 4096)
	host, r := pinned(c, 64, 0)
	ok(t, r)
	t.Cleanup(func() { ok(t, c.CuMemFreeHost(host)) })
	page := make([]byte, 64)
	set := func(s sys.CUstream) { ok(t, c.CuMemsetD8Async(p, 1, 16, s)) }
	move := func(s sys.CUstream) { ok(t, c.CuMemcpyDtoDAsync_v2(p+64, p, 16, s)) }
	both := func(s sys.CUstream) { set(s); move(s) }
	up := func(s sys.CUstream) { ok(t, c.CuMemcpyHtoDAsync_v2(p, host, 16, s)) }
	for _, x := range []struct {
		what     string
		from, to func(sys.CUstream)
		want     sys.CUgraphExecUpdateResult
	}{
		{"to itself", both, both, sys.CU_GRAPH_EXEC_UPDATE_SUCCESS},
		{"another value, place and length", both, func(s sys.CUstream) { ok(t, c.CuMemsetD8Async(p+99, 2, 32, s)); move(s) }, sys.CU_GRAPH_EXEC_UPDATE_SUCCESS},
		{"another width", set, func(s sys.CUstream) { ok(t, c.CuMemsetD32Async(p, 2, 4, s)) }, sys.CU_GRAPH_EXEC_UPDATE_SUCCESS},
		{"another length of a copy", move, func(s sys.CUstream) { ok(t, c.CuMemcpyDtoDAsync_v2(p+1024, p, 1024, s)) }, sys.CU_GRAPH_EXEC_UPDATE_SUCCESS},
		{"a copy from the host", move, up, sys.CU_GRAPH_EXEC_UPDATE_ERROR_PARAMETERS_CHANGED},
		{"a copy to the host", up, func(s sys.CUstream) { ok(t, c.CuMemcpyDtoHAsync_v2(host, p, 16, s)) }, sys.CU_GRAPH_EXEC_UPDATE_ERROR_PARAMETERS_CHANGED},
		{"from pinned to pageable", up, func(s sys.CUstream) { ok(t, c.CuMemcpyHtoDAsync_v2(p, at(page), 16, s)) }, sys.CU_GRAPH_EXEC_UPDATE_SUCCESS},
		{"another type", both, func(s sys.CUstream) { set(s); set(s) }, sys.CU_GRAPH_EXEC_UPDATE_ERROR_NODE_TYPE_CHANGED},
		{"one more, by the older call", both, func(s sys.CUstream) { both(s); set(s) }, sys.CU_GRAPH_EXEC_UPDATE_ERROR_NOT_SUPPORTED},
		{"one less, by the older call", both, set, sys.CU_GRAPH_EXEC_UPDATE_ERROR_NOT_SUPPORTED},
	} {
		from, to := recorded(t, c, x.from), recorded(t, c, x.to)
		want := success
		if x.want != sys.CU_GRAPH_EXEC_UPDATE_SUCCESS {
			want = updateRefused
		}
		result, r := updated(t, c, from, to)
		check(t, x.what, want, r)
		check(t, "because", x.want, result)
	}
	if !c.Library().Has("cuGraphExecUpdate_v2") {
		skip(t, 3, "there is no cuGraphExecUpdate_v2")
		return
	}
	exec, info := executable(t, c, recorded(t, c, both)), new(sys.CUgraphExecUpdateResultInfo)
	check(t, "one less", updateRefused, c.CuGraphExecUpdate_v2(exec, recorded(t, c, set), info))
	check(t, "because", sys.CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED, info.Result)
	check(t, "without a place for the reason", success, c.CuGraphExecUpdate_v2(exec, recorded(t, c, both), nil))
}

func TestC31_GraphLists(t *testing.T) {
	c := inContext(t)
	p := plain(t, c, 64)
	g := recorded(t, c, func(s sys.CUstream) {
		for range 3 {
			ok(t, c.CuMemsetD8Async(p, 1, 1, s))
		}
	})
	n, list, to := new(uintptr), make([]sys.CUgraphNode, 5), make([]sys.CUgraphNode, 5)
	check(t, "without a count", invalid, c.CuGraphGetNodes(g, nil, nil))
	check(t, "without room", invalid, c.CuGraphGetNodes(g, &list[0], n))
	*n = 2
	check(t, "with room for two of three", success, c.CuGraphGetNodes(g, &list[0], n))
	check(t, "there are two", uintptr(2), *n)
	*n, list[4] = 5, 1
	check(t, "with room for more", success, c.CuGraphGetNodes(g, &list[0], n))
	check(t, "there are three", uintptr(3), *n)
	check(t, "the rest is null", sys.CUgraphNode(0), list[4])
	check(t, "roots", success, c.CuGraphGetRootNodes(g, nil, n))
	check(t, "there is one", uintptr(1), *n)
	check(t, "edges", success, c.CuGraphGetEdges(g, nil, nil, n))
	check(t, "there are two", uintptr(2), *n)
	check(t, "edges with one list", invalid, c.CuGraphGetEdges(g, &list[0], nil, n))
	ok(t, c.CuGraphGetEdges(g, &list[0], &to[0], n))
	check(t, "they are a chain", true, list[1] == to[0] || list[0] == to[1])
}

func TestC31_GraphMakesAndNulls(t *testing.T) {
	c := inContext(t)
	g, clone, node := new(sys.CUgraph), new(sys.CUgraph), new(sys.CUgraphNode)
	check(t, "create with flags", invalid, c.CuGraphCreate(g, 1))
	ok(t, c.CuGraphCreate(g, 0))
	t.Cleanup(func() { ok(t, c.CuGraphDestroy(*g)) })
	ok(t, c.CuGraphCreate(clone, 0))
	t.Cleanup(func() { ok(t, c.CuGraphDestroy(*clone)) })
	check(t, "clone to nowhere", invalid, c.CuGraphClone(nil, *g))
	foreign := new(sys.CUgraphNode)
	check(t, "an empty node", success, c.CuGraphAddEmptyNode(node, *g, nil, 0))
	ok(t, c.CuGraphAddEmptyNode(foreign, *clone, nil, 0))
	other := new(sys.CUgraphNode)
	check(t, "after a list that is not there", invalid, c.CuGraphAddEmptyNode(other, *g, nil, 1))
	check(t, "to nowhere", invalid, c.CuGraphAddEmptyNode(nil, *g, nil, 0))
	check(t, "after a node of another graph", invalid, c.CuGraphAddEmptyNode(other, *g, foreign, 1))
	twice := []sys.CUgraphNode{*node, *node}
	check(t, "after one node twice", invalid, c.CuGraphAddEmptyNode(other, *g, &twice[0], 2))

	p := plain(t, c, 4096)
	set := func(size uint32, width, height uintptr, at sys.CUdeviceptr) sys.CUresult {
		params := &sys.CUDA_MEMSET_NODE_PARAMS{Dst: at, Value: 7, ElementSize: size, Width: width, Height: height}
		return c.CuGraphAddMemsetNode(other, *g, nil, 0, params, c.Context())
	}
	check(t, "a set", success, set(1, 16, 1, p))
	check(t, "of elements of three bytes", invalid, set(3, 16, 1, p))
	check(t, "of none", invalid, set(1, 0, 1, p))
	check(t, "of no rows", invalid, set(1, 16, 0, p))
	check(t, "unaligned", invalid, set(4, 4, 1, p+1))
	check(t, "where nothing is", invalid, set(1, 16, 1, 4096))
	move := func(from sys.CUdeviceptr, n, height uintptr) sys.CUresult {
		params := &sys.CUDA_MEMCPY3D{
			SrcMemoryType: sys.CU_MEMORYTYPE_DEVICE, SrcDevice: from,
			DstMemoryType: sys.CU_MEMORYTYPE_DEVICE, DstDevice: p, WidthInBytes: n, Height: height, Depth: 1,
		}
		return c.CuGraphAddMemcpyNode(other, *g, nil, 0, params, c.Context())
	}
	check(t, "a copy", success, move(p+64, 16, 1))
	check(t, "of no bytes", invalid, move(p+64, 0, 1))
	check(t, "of no rows", invalid, move(p+64, 16, 0))
	check(t, "from where nothing is", invalid, move(4096, 16, 1))
	check(t, "without its description", invalid, c.CuGraphAddMemcpyNode(other, *g, nil, 0, nil, c.Context()))
	check(t, "a child", success, c.CuGraphAddChildGraphNode(other, *g, nil, 0, *clone))
}

func TestC31_GraphInstantiate(t *testing.T) {
	c := inContext(t)
	p, s := plain(t, c, 64), stream(t, c)
	g := recorded(t, c, func(s sys.CUstream) { ok(t, c.CuMemsetD8Async(p, 9, 1, s)) })
	try := func(flags uint64) sys.CUresult {
		e := new(sys.CUgraphExec)
		r := c.CuGraphInstantiateWithFlags(e, g, flags)
		if r == success {
			ok(t, c.CuGraphExecDestroy(*e))
		}
		return r
	}
	check(t, "with no flags", success, try(0))
	check(t, "auto free", success, try(1))
	check(t, "upload, without a stream for it", invalid, try(2))
	check(t, "device launch", success, try(4))
	check(t, "node priority", success, try(8))
	check(t, "flags that do not exist", invalid, try(16))
	e := new(sys.CUgraphExec)
	check(t, "in the oldest ABI", success, c.CuGraphInstantiate(e, g, nil, nil, 0))
	ok(t, c.CuGraphExecDestroy(*e))
	check(t, "in the next", success, c.CuGraphInstantiate_v2(e, g, nil, nil, 0))
	copied := new(sys.CUgraph)
	ok(t, c.CuGraphClone(copied, g))
	x := new(sys.CUgraphExec)
	ok(t, c.CuGraphInstantiate_v2(x, *copied, nil, nil, 0))
	ok(t, c.CuGraphDestroy(*copied))
	ok(t, c.CuMemsetD8Async(p, 0, 1, s))
	check(t, "launch when the graph is gone", success, c.CuGraphLaunch(*x, s))
	check(t, "upload", success, c.CuGraphUpload(*x, s))
	ok(t, c.CuStreamSynchronize(s))
	check(t, "it was done", byte(9), byteAt(c, p))
	check(t, "launch on the null stream", success, c.CuGraphLaunch(*x, 0))
	ok(t, c.CuGraphExecDestroy(*x))
	ok(t, c.CuGraphExecDestroy(*e))
	ok(t, c.CuCtxSynchronize())
}
