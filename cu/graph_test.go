package cu_test

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/cutest"
	"github.com/gpufd/gpufd/cu/sys"
)

// newGraph is an empty graph that goes when t ends.
func newGraph(t testing.TB, ctx *cu.Context) *cu.Graph {
	t.Helper()
	return untilEnd(t, ok(ctx.NewGraph())(t))
}

func TestGraphBuiltByHand(t *testing.T) {
	d := newDrawing(t, cutest.Device(t))
	g := newGraph(t, d.ctx)
	start := ok(g.AddEmpty())(t)
	one := ok(cu.AddFill(g, d.at(0), uint8(1), 4, start))(t)
	two := ok(cu.AddFill(g, d.at(4), uint16(0x0202), 2, start))(t)
	three := ok(cu.AddFill(g, d.at(8), uint32(0x03030303), 1, start))(t)
	require.NoError(t, errOf(g.AddCopy(d.at(12), d.at(0), 12, one, two, three)))
	require.Equal(t, map[cu.GraphNodeType]int{cu.NodeEmpty: 1, cu.NodeFill: 3, cu.NodeCopy: 1}, types(t, g))

	exec := executable(t, g)
	require.NoError(t, exec.Launch(d.a))
	half := []byte{1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3}
	require.Equal(t, append(half, half...), d.read(t, 24))

	// A child is as it was when it was added.
	parent := newGraph(t, d.ctx)
	clear := ok(cu.AddFill(parent, d.at(0), uint8(0), 24))(t)
	child := ok(parent.AddChild(g, clear))(t)
	require.Equal(t, cu.NodeChild, ok(child.Type())(t))
	require.NoError(t, g.Close())
	outer := executable(t, parent)
	require.NoError(t, d.fill(d.a, 23, 99))
	require.NoError(t, outer.Launch(d.a))
	require.Equal(t, append(half, half...), d.read(t, 24))
	_, err := parent.AddEmpty(start)
	require.ErrorIs(t, err, cu.ErrInvalidValue)
	require.ErrorContains(t, err, "another graph")
	require.ErrorIs(t, errOf(parent.AddEmpty(cu.GraphNode{})), cu.ErrInvalidValue)
	require.True(t, cu.GraphNode{}.IsZero())
	require.False(t, child.IsZero())
}

func TestGraphCloneIsItsOwn(t *testing.T) {
	d := newDrawing(t, cutest.Device(t))
	g := d.captured(t, func() error { return d.fill(d.a, 0, 6) })
	clone := ok(g.Clone())(t)
	require.NoError(t, g.Close())
	require.Equal(t, map[cu.GraphNodeType]int{cu.NodeFill: 1}, types(t, clone))
	require.NoError(t, executable(t, clone).Launch(d.a))
	require.Equal(t, []byte{6}, d.read(t, 1))
	require.NoError(t, clone.Close())
}

func TestEmptyGraphRuns(t *testing.T) {
	d := newDrawing(t, cutest.Device(t))
	g := newGraph(t, d.ctx)
	require.Empty(t, ok(g.Nodes())(t))
	require.NoError(t, executable(t, g).Launch(d.a))
	require.NoError(t, d.a.Synchronize(soon(t)))
	require.Same(t, d.ctx, g.Context())
	require.Same(t, d.ctx, executable(t, g).Context())
}

func TestUpdateChangesWhatALaunchDoes(t *testing.T) {
	d := newDrawing(t, cutest.Device(t))
	record := func(v uint8, to uint64) *cu.Graph {
		return d.captured(t, func() error { return errors.Join(d.fill(d.a, 0, v), d.copy(d.a, to, 0)) })
	}
	first, second := record(1, 1), record(2, 2)
	exec := executable(t, first)
	require.NoError(t, exec.Launch(d.a))
	require.NoError(t, exec.Update(second))
	require.NoError(t, second.Close())
	require.NoError(t, exec.Launch(d.a))
	require.Equal(t, []byte{2, 1, 2}, d.read(t, 3))
	require.NoError(t, exec.Update(first))
	require.NoError(t, exec.Launch(d.a))
	require.Equal(t, []byte{1, 1, 2}, d.read(t, 3))
}

func TestUpdateRefusedLeavesItAsItWas(t *testing.T) {
	d := newDrawing(t, cutest.Device(t))
	exec := executable(t, d.captured(t, func() error { return errors.Join(d.fill(d.a, 0, 1), d.copy(d.a, 1, 0)) }))
	for name, c := range map[string]struct {
		record func() error
		want   cu.GraphUpdateReason
	}{
		"one more":     {func() error { return errors.Join(d.fill(d.a, 0, 9), d.copy(d.a, 1, 0), d.copy(d.a, 2, 0)) }, cu.UpdateTopologyChanged},
		"one less":     {func() error { return d.fill(d.a, 0, 9) }, cu.UpdateTopologyChanged},
		"another kind": {func() error { return errors.Join(d.fill(d.a, 0, 9), d.fill(d.a, 1, 9)) }, cu.UpdateNodeTypeChanged},
	} {
		g := d.captured(t, c.record)
		err := exec.Update(g)
		require.ErrorIs(t, err, cu.ErrGraphExecUpdateFailure, name)
		var refused *cu.GraphUpdateError
		require.ErrorAs(t, err, &refused, name)
		if drv := d.ctx.Device().Driver(); drv.Version() < 12000 && c.want == cu.UpdateTopologyChanged {
			c.want = cu.UpdateNotSupported // says the older function
		}
		require.Equal(t, c.want, refused.Reason, name)
		require.ErrorContains(t, err, "instantiate it again", name)
		require.ErrorContains(t, err, c.want.String(), name)
		if !refused.Node.IsZero() {
			require.ErrorContains(t, err, ", node 0x", name)
		}
		require.NoError(t, g.Close())
		require.NoError(t, cu.FillAsync(d.a, d.mem, uint8(0), 3))
		require.NoError(t, exec.Launch(d.a))
		require.Equal(t, []byte{1, 1, 0}, d.read(t, 3), name)
	}
}

// Drivers before CUDA 12.0 instantiate and update in other words.
func TestGraphsOfOlderDrivers(t *testing.T) {
	drv := cutest.Driver(t, without(t, "cuGraphInstantiateWithParams", "cuGraphExecUpdate_v2"))
	d := newDrawing(t, firstDevice(t, drv))
	exec := executable(t, d.captured(t, func() error { return d.fill(d.a, 0, 1) }))
	require.NoError(t, exec.Update(d.captured(t, func() error { return d.fill(d.a, 0, 2) })))
	require.NoError(t, exec.Launch(d.a))
	require.Equal(t, []byte{2}, d.read(t, 1))
	err := exec.Update(d.captured(t, func() error { return d.copy(d.a, 1, 0) }))
	var refused *cu.GraphUpdateError
	require.ErrorAs(t, err, &refused)
	require.Equal(t, cu.UpdateNodeTypeChanged, refused.Reason)
	require.ErrorIs(t, err, cu.ErrGraphExecUpdateFailure)

	require.ErrorIs(t, errOf(d.captured(t, func() error { return d.fill(d.a, 0, 1) }).Instantiate(1<<40)), cu.ErrInvalidValue)

	drv = cutest.Driver(t, without(t, "cuGraphInstantiateWithParams", "cuGraphInstantiateWithFlags"))
	d = newDrawing(t, firstDevice(t, drv))
	_, err = d.captured(t, func() error { return nil }).Instantiate(0)
	require.ErrorIs(t, err, cu.ErrSymbolMissing)
	require.ErrorContains(t, err, "cuGraphInstantiateWithFlags")
}

// The error says what the driver knows.
func TestInstantiateRefused(t *testing.T) {
	s, drv, dev := spied(t)
	d := newDrawing(t, dev)
	g := d.captured(t, func() error { return d.fill(d.a, 0, 1) })
	full := s.Fail("cuGraphInstantiateWithParams", cu.ErrOutOfMemory)
	_, err := g.Instantiate(0)
	require.ErrorIs(t, err, cu.ErrOutOfMemory)
	var refused *cu.GraphInstantiateError
	require.False(t, errors.As(err, &refused), "the driver said nothing more")
	full.Stop()

	nodes := ok(g.Nodes())(t)
	loop := new(sys.CUgraphNode)
	first, one := new(sys.CUgraphNode), new(uintptr)
	*one = 1
	// A cycle can be made with raw calls alone.
	call := d.ctx.Caller()
	require.Zero(t, call.CuGraphGetNodes(g.Handle(), first, one))
	require.Zero(t, call.CuGraphAddEmptyNode(loop, g.Handle(), first, 1))
	if drv.Version() >= 12030 {
		require.Zero(t, call.CuGraphAddDependencies_v2(g.Handle(), loop, first, nil, 1))
	} else {
		require.Zero(t, call.CuGraphAddDependencies(g.Handle(), loop, first, 1))
	}
	require.Len(t, nodes, 1)
	_, err = g.Instantiate(0)
	require.ErrorIs(t, err, cu.ErrInvalidValue)
	if drv.Version() >= 12000 {
		require.ErrorAs(t, err, &refused)
		require.Equal(t, cu.InstantiateInvalidStructure, refused.Reason)
		require.ErrorContains(t, err, "CUDA_GRAPH_INSTANTIATE_INVALID_STRUCTURE")
	}
}

func TestGraphWritesDOT(t *testing.T) {
	d := newDrawing(t, cutest.Device(t))
	g := d.captured(t, func() error { return errors.Join(d.fill(d.a, 0, 1), d.copy(d.a, 1, 0)) })
	path := filepath.Join(t.TempDir(), "graph.dot")
	require.NoError(t, g.WriteDOT(path))
	text := ok(os.ReadFile(path))(t)
	require.Contains(t, string(text), "digraph")
	require.Contains(t, string(text), "->")
	require.Contains(t, string(text), "MEMSET")
	require.Error(t, g.WriteDOT(filepath.Join(path, "no directory")))
}

// Invariant 1: launches, updates and captures from many goroutines at once.
func TestGraphsFromManyGoroutines(t *testing.T) {
	d := newDrawing(t, cutest.Device(t))
	g := d.captured(t, func() error { return errors.Join(d.fill(d.a, 0, 1), d.copy(d.a, 1, 0)) })
	exec := executable(t, g)
	var wg sync.WaitGroup
	for w := range 6 {
		wg.Go(func() {
			s, err := d.ctx.NewStream()
			for i := 0; i < 20 && err == nil; i++ {
				var own *cu.Graph
				own, err = s.Capture(func() error { return errors.Join(d.fill(s, 0, uint8(w+2)), d.copy(s, 1, 0)) })
				if err == nil {
					err = errors.Join(exec.Update(own), exec.Launch(s), own.Close(), s.Synchronize(t.Context()))
				}
				if err == nil {
					own, err = g.Clone()
				}
				if err == nil {
					err = errors.Join(exec.Update(own), own.Close(), exec.Launch(s))
				}
			}
			if err = errors.Join(err, s.Synchronize(t.Context()), s.Close()); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	require.NoError(t, exec.Update(g))
	require.NoError(t, exec.Launch(d.a))
	require.Equal(t, []byte{1, 1}, d.read(t, 2))
}

// The driver does not guard a graph, or an executable, against two calls at
// once, so there never are.
func TestCallsOnAGraphDoNotOverlap(t *testing.T) {
	s, _, dev := spied(t)
	d := newDrawing(t, dev)
	g := d.captured(t, func() error { return d.fill(d.a, 0, 1) })
	exec := executable(t, g)
	var inGraph, inExec, overlaps atomic.Int32
	alone := func(in ...*atomic.Int32) sys.Hook {
		return func(sys.Call, func() sys.CUresult) sys.CUresult {
			for _, n := range in {
				if n.Add(1) > 1 {
					overlaps.Add(1)
				}
			}
			runtime.Gosched()
			for _, n := range in {
				n.Add(-1)
			}
			return sys.CUDA_SUCCESS
		}
	}
	s.Hook("cuGraphLaunch", alone(&inExec))
	s.Hook("cuGraphUpload", alone(&inExec))
	s.Hook("cuGraphExecUpdate", alone(&inExec, &inGraph))
	s.Hook("cuGraphGetNodes", alone(&inGraph))
	s.Hook("cuGraphDebugDotPrint", alone(&inGraph))
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 50 {
				_, err := g.NodeCount()
				err = errors.Join(err, exec.Launch(d.a), exec.Update(g), g.WriteDOT("x"), exec.Upload(d.b))
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	require.Zero(t, overlaps.Load())
}

// Graphs share with what was made of them, and the driver guards none of it: an
// H200 died of a graph that was destroyed while what had been updated to it was
// launched. So nothing is changed while anything is launched.
func TestNoGraphIsChangedDuringALaunch(t *testing.T) {
	var launching, changing, overlaps atomic.Int32
	drv := cutest.Driver(t, cu.WithHook(func(call sys.Call, next func() sys.CUresult) sys.CUresult {
		symbol := call.Symbol()
		switch {
		case symbol == "cuGraphLaunch":
			launching.Add(1)
			defer launching.Add(-1)
			overlaps.Add(changing.Load())
		case strings.HasPrefix(symbol, "cuGraph"):
			overlaps.Add(launching.Load() + changing.Load())
			changing.Add(1)
			defer changing.Add(-1)
		}
		runtime.Gosched()
		return next()
	}))
	d := newDrawing(t, firstDevice(t, drv))
	g := d.captured(t, func() error { return d.fill(d.a, 0, 1) })
	var wg sync.WaitGroup
	for range 6 {
		wg.Go(func() {
			for range 20 {
				own, err := g.Clone()
				if err != nil {
					t.Error(err)
					return
				}
				exec, err := own.Instantiate(0)
				if err = errors.Join(err, exec.Launch(d.a), exec.Update(g), own.Close(), exec.Launch(d.b), exec.Close()); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	require.Zero(t, overlaps.Load())
}

// Handles of one driver mean nothing to another.
func TestGraphOfAnotherDriver(t *testing.T) {
	d := newDrawing(t, cutest.Device(t))
	other := newDrawing(t, firstDevice(t, cutest.Driver(t)))
	g := d.captured(t, func() error { return d.fill(d.a, 0, 1) })
	foreign := other.captured(t, func() error { return other.fill(other.a, 0, 1) })
	require.ErrorIs(t, executable(t, g).Update(foreign), cu.ErrInvalidHandle)
	_, err := g.AddChild(foreign)
	require.ErrorIs(t, err, cu.ErrInvalidHandle)
	require.ErrorContains(t, err, "another driver")
}

// A stream of another context is refused before the driver sees it.
func TestLaunchOnAStreamOfAnotherContext(t *testing.T) {
	s, drv, _ := spied(t)
	a, b := cutest.TwoDevices(t, drv)
	d, other := newDrawing(t, a), newDrawing(t, b)
	exec := executable(t, d.captured(t, func() error { return d.fill(d.a, 0, 1) }))
	before := s.calls()
	require.ErrorIs(t, exec.Launch(other.a), cu.ErrInvalidHandle)
	require.Equal(t, before, s.calls())
}
