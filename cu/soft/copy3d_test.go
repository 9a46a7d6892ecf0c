package soft

import (
	"testing"

	"github.com/gpufd/gpufd/cu/sys"
	"github.com/stretchr/testify/require"
)

// toDevice is a copy of four rows of three bytes from the host, where they are
// five apart, to memory of a device, where they are seven apart.
func toDevice(src []byte, dst sys.CUdeviceptr) *sys.CUDA_MEMCPY2D {
	return &sys.CUDA_MEMCPY2D{
		SrcMemoryType: sys.CU_MEMORYTYPE_HOST, SrcHost: at(src), SrcPitch: 5, SrcXInBytes: 1, SrcY: 1,
		DstMemoryType: sys.CU_MEMORYTYPE_DEVICE, DstDevice: dst, DstPitch: 7, DstXInBytes: 2, DstY: 0,
		WidthInBytes: 3, Height: 4,
	}
}

// rowsOf is what toDevice makes of 28 bytes of zeros.
func rowsOf(src []byte) []byte {
	dst := make([]byte, 28)
	for y := range 4 {
		copy(dst[y*7+2:][:3], src[(y+1)*5+1:])
	}
	return dst
}

// Rows of pageable memory have been taken when the call returns, those of
// registered memory have not. What is between them is never touched.
func TestStagingOfRows(t *testing.T) { // fault 68
	c := inContext(t, 0)
	q := linear(t, c, 56)
	ok(t, c.CuMemsetD8_v2(q, 0, 56))
	ok(t, c.CuCtxSynchronize())
	pageable, registered := pattern(25, 1), pattern(25, 2)
	ok(t, c.CuMemHostRegister_v2(at(registered), 25, 0))
	t.Cleanup(func() { ok(t, c.CuMemHostUnregister(at(registered))) })
	s := newStream(t, c, nonBlocking)
	open := block(t, c, s)
	ok(t, c.CuMemcpy2DAsync_v2(toDevice(pageable, q), s))
	ok(t, c.CuMemcpy2DAsync_v2(toDevice(registered, q+28), s))
	wanted := rowsOf(pageable)
	clear(pageable)
	copy(registered, pattern(25, 3))
	open()
	ok(t, c.CuStreamSynchronize(s))
	got := make([]byte, 56)
	ok(t, c.CuMemcpyDtoH_v2(at(got), q, 56))
	require.Equal(t, append(wanted, rowsOf(registered)...), got)
}

// Rows cross the border of two mappings, and their bytes land beside others that
// stay.
func TestRowsAcrossBorder(t *testing.T) { // fault 71
	c := inContext(t, 0)
	_, border := twoMappings(t)
	src, got := pattern(25, 4), make([]byte, 28)
	for off := range sys.CUdeviceptr(28) {
		ok(t, c.CuMemsetD8_v2(border-100, 0, 200))
		ok(t, c.CuMemcpy2D_v2(toDevice(src, border-off)))
		ok(t, c.CuMemcpyDtoH_v2(at(got), border-off, 28))
		require.Equal(t, rowsOf(src), got, off)
	}
}

// cuMemcpyPeer comes after what both contexts have, but for streams that do not
// block.
func TestPeerCopyWaitsForBothContexts(t *testing.T) {
	c0, c1 := inContext(t, 0), inContext(t, 1)
	a, b := linear(t, c0, 100), linear(t, c1, 100)
	s0, s1, loose := newStream(t, c0, 0), newStream(t, c1, 0), newStream(t, c1, nonBlocking)
	block(t, c1, loose)
	for _, x := range []struct {
		c sys.Caller
		s sys.CUstream
	}{{c0, s0}, {c1, s1}} {
		open := block(t, x.c, x.s)
		copied := blocked(t, func() sys.CUresult { return c0.CuMemcpyPeer(b, c1.Context(), a, c0.Context(), 100) })
		open()
		ok(t, <-copied)
	}
}

// Calls without a stream wait where the memory wants them to.
func TestSyncMemops(t *testing.T) {
	c := inContext(t, 0)
	q, r := linear(t, c, 4096), linear(t, c, 4096)
	on := new(uint32)
	*on = 1
	setSync(t, c, on, q)
	rows := &sys.CUDA_MEMCPY2D{
		SrcMemoryType: sys.CU_MEMORYTYPE_DEVICE, SrcDevice: q, DstMemoryType: sys.CU_MEMORYTYPE_DEVICE, DstDevice: r,
		WidthInBytes: 8, Height: 8,
	}
	s := newStream(t, c, 0) // the legacy default stream waits for it
	for name, call := range map[string]func(p sys.CUdeviceptr) sys.CUresult{
		"cuMemsetD8":    func(p sys.CUdeviceptr) sys.CUresult { return c.CuMemsetD8_v2(p, 1, 8) },
		"cuMemsetD16":   func(p sys.CUdeviceptr) sys.CUresult { return c.CuMemsetD16_v2(p, 1, 8) },
		"cuMemsetD32":   func(p sys.CUdeviceptr) sys.CUresult { return c.CuMemsetD32_v2(p, 1, 8) },
		"cuMemsetD2D8":  func(p sys.CUdeviceptr) sys.CUresult { return c.CuMemsetD2D8_v2(p, 64, 1, 8, 8) },
		"cuMemsetD2D16": func(p sys.CUdeviceptr) sys.CUresult { return c.CuMemsetD2D16_v2(p, 64, 1, 8, 8) },
		"cuMemsetD2D32": func(p sys.CUdeviceptr) sys.CUresult { return c.CuMemsetD2D32_v2(p, 64, 1, 8, 8) },
		"cuMemcpyDtoD":  func(p sys.CUdeviceptr) sys.CUresult { return c.CuMemcpyDtoD_v2(p, r+2048, 8) },
		"cuMemcpy":      func(p sys.CUdeviceptr) sys.CUresult { return c.CuMemcpy(r+2048, p, 8) },
		"cuMemcpy2D": func(p sys.CUdeviceptr) sys.CUresult {
			d := *rows
			d.SrcDevice = p
			return c.CuMemcpy2D_v2(&d)
		},
	} {
		open := block(t, c, s)
		ok(t, call(r)) // does not wait
		done := blocked(t, func() sys.CUresult { return call(q) })
		open()
		require.Equal(t, sys.CUDA_SUCCESS, <-done, name)
	}
}

// Nodes of graphs copy and set rows, too.
func TestGraphsOfRows(t *testing.T) {
	c := inContext(t, 0)
	q, s := linear(t, c, 28), newStream(t, c, nonBlocking)
	g, n, e := new(sys.CUgraph), new([2]sys.CUgraphNode), new(sys.CUgraphExec)
	ok(t, c.CuGraphCreate(g, 0))
	t.Cleanup(func() { ok(t, c.CuGraphDestroy(*g)) })
	src := pattern(25, 6)
	set := &sys.CUDA_MEMSET_NODE_PARAMS{Dst: q, Pitch: 14, Value: 0xabcd, ElementSize: 2, Width: 3, Height: 2}
	ok(t, c.CuGraphAddMemsetNode(&n[0], *g, nil, 0, set, c.Context()))
	flat := toDevice(src, q)
	rows := &sys.CUDA_MEMCPY3D{
		SrcMemoryType: flat.SrcMemoryType, SrcHost: flat.SrcHost, SrcPitch: flat.SrcPitch, SrcXInBytes: flat.SrcXInBytes, SrcY: flat.SrcY,
		DstMemoryType: flat.DstMemoryType, DstDevice: flat.DstDevice, DstPitch: flat.DstPitch, DstXInBytes: flat.DstXInBytes,
		WidthInBytes: flat.WidthInBytes, Height: flat.Height, Depth: 1,
	}
	ok(t, c.CuGraphAddMemcpyNode(&n[1], *g, &n[0], 1, rows, c.Context()))
	ok(t, c.CuGraphInstantiateWithFlags(e, *g, 0))
	t.Cleanup(func() { ok(t, c.CuGraphExecDestroy(*e)) })
	for seed := range 2 {
		copy(src, pattern(25, seed))
		wanted := make([]byte, 28)
		for _, at := range []int{0, 14} {
			copy(wanted[at:], []byte{0xcd, 0xab, 0xcd, 0xab, 0xcd, 0xab})
		}
		for y := range 4 {
			copy(wanted[y*7+2:][:3], src[(y+1)*5+1:])
		}
		ok(t, c.CuMemsetD8Async(q, 0, 28, s))
		ok(t, c.CuGraphLaunch(*e, s))
		got := make([]byte, 28)
		ok(t, c.CuMemcpyDtoHAsync_v2(at(got), q, 28, s))
		require.Equal(t, wanted, got)
	}
	want(t, sys.CUDA_ERROR_INVALID_VALUE, c.CuGraphAddMemsetNode(&n[0], *g, nil, 0, &sys.CUDA_MEMSET_NODE_PARAMS{Dst: q, Pitch: 13, ElementSize: 2, Width: 3, Height: 2}, c.Context()))
	rows.DstPitch = 4
	want(t, sys.CUDA_ERROR_INVALID_VALUE, c.CuGraphAddMemcpyNode(&n[0], *g, nil, 0, rows, c.Context()))
}
