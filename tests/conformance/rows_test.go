package conformance

import (
	"testing"

	"github.com/gpufd/gpufd/cu/sys"
)

func TestC32_Pitch(t *testing.T) {
	c := inContext(t)
	pitch := new(uintptr)
	try := func(width, height uintptr, element uint32) sys.CUresult {
		p := new(sys.CUdeviceptr)
		r := c.CuMemAllocPitch_v2(p, pitch, width, height, element)
		if r == success {
			ok(t, c.CuMemFree_v2(*p))
		}
		return r
	}
	for _, element := range []uint32{4, 8, 16} {
		for width, want := range map[uintptr]uintptr{1: 512, 100: 512, 512: 512, 513: 1024, 70000: 70144} {
			check(t, "rows of that width", success, try(width, 3, element))
			check(t, "have a pitch of", want, *pitch)
		}
	}
	for _, element := range []uint32{0, 2, 3, 32} {
		check(t, "elements of another size", invalid, try(100, 3, element))
	}
	check(t, "no width", invalid, try(0, 3, 4))
	check(t, "no height", invalid, try(100, 0, 4))
	check(t, "1 TiB", sys.CUDA_ERROR_OUT_OF_MEMORY, try(TiB, 1, 4))
	check(t, "more than there are addresses", invalid, try(1<<62, 1<<62, 4))
}

func TestC33_SetsOfRows(t *testing.T) {
	c := inContext(t)
	p := plain(t, c, unit)
	check(t, "16 bits at an odd address", invalid, c.CuMemsetD2D16_v2(p+1, 64, 1, 4, 4))
	check(t, "16 bits with an odd pitch", invalid, c.CuMemsetD2D16_v2(p, 63, 1, 4, 4))
	check(t, "32 bits with a pitch of 62", invalid, c.CuMemsetD2D32_v2(p, 62, 1, 4, 4))
	check(t, "queued", invalid, c.CuMemsetD2D32Async(p, 62, 1, 4, 4, 0))
	check(t, "the same for one row", success, c.CuMemsetD2D32_v2(p, 62, 1, 4, 1))
	check(t, "a pitch less than a row", invalid, c.CuMemsetD2D8_v2(p, 8, 1, 16, 4))
	check(t, "the same for one row", success, c.CuMemsetD2D8_v2(p, 8, 1, 16, 1))
	check(t, "a pitch of 0 for one row", success, c.CuMemsetD2D8_v2(p, 0, 1, 16, 1))
	check(t, "no width", success, c.CuMemsetD2D8_v2(p, 64, 1, 0, 4))
	check(t, "no height", success, c.CuMemsetD2D8_v2(p, 64, 1, 4, 0))
	check(t, "no width at address 0", success, c.CuMemsetD2D8_v2(0, 64, 1, 0, 4))
	check(t, "no width, and nothing right", success, c.CuMemsetD2D32_v2(p+1, 3, 1, 0, 4))
	check(t, "a huge pitch for one row", success, c.CuMemsetD2D8_v2(p, 1<<31, 1, 4, 1))
	check(t, "rows far off the end", invalid, c.CuMemsetD2D8_v2(p, 1<<32, 1, 4, 2))
	q := hole(t)
	check(t, "a hole between the rows", invalid, c.CuMemsetD2D8_v2(q, 2*unit, 1, 10, 2))
	check(t, "pageable memory", invalid, c.CuMemsetD2D8_v2(addressIn(make([]byte, 64)), 8, 1, 4, 4))
	check(t, "none of that is sticky", success, c.CuCtxSynchronize())
}

// hole is three pieces of address space of which the middle one is not mapped.
func hole(t testing.TB) sys.CUdeviceptr {
	t.Helper()
	p := reserved(t, 3*unit)
	for _, at := range []sys.CUdeviceptr{0, 2 * unit} {
		mapped(t, p+at, unit, created(t, unit))
		allowed(t, p+at, unit, readWrite)
	}
	return p
}

func TestC33_CopiesOfRows(t *testing.T) {
	c := inContext(t)
	p, q := plain(t, c, unit), hole(t)
	host := make([]byte, 64*KiB)
	ask := func(what string, want sys.CUresult, change func(*sys.CUDA_MEMCPY2D)) {
		t.Helper()
		d := &sys.CUDA_MEMCPY2D{
			SrcMemoryType: sys.CU_MEMORYTYPE_HOST, SrcHost: at(host), SrcPitch: 64,
			DstMemoryType: sys.CU_MEMORYTYPE_DEVICE, DstDevice: p, DstPitch: 64, WidthInBytes: 32, Height: 4,
		}
		change(d)
		check(t, what, want, c.CuMemcpy2D_v2(d))
		check(t, what+", unaligned", want, c.CuMemcpy2DUnaligned_v2(d))
		check(t, what+", queued", want, c.CuMemcpy2DAsync_v2(d, 0))
	}
	ask("plain", success, func(d *sys.CUDA_MEMCPY2D) {})
	ask("from pitch less than a row", invalid, func(d *sys.CUDA_MEMCPY2D) { d.SrcPitch = 31 })
	ask("to pitch less than a row", invalid, func(d *sys.CUDA_MEMCPY2D) { d.DstPitch = 31 })
	ask("the same for one row", invalid, func(d *sys.CUDA_MEMCPY2D) { d.DstPitch, d.Height = 31, 1 })
	ask("a pitch of 0", success, func(d *sys.CUDA_MEMCPY2D) { d.SrcPitch = 0 })
	ask("a pitch of 0 to", success, func(d *sys.CUDA_MEMCPY2D) { d.DstPitch = 0 })
	ask("to the end of the pitch", success, func(d *sys.CUDA_MEMCPY2D) { d.SrcXInBytes = 32 })
	ask("beyond it", invalid, func(d *sys.CUDA_MEMCPY2D) { d.SrcXInBytes = 33 })
	ask("beyond it to", invalid, func(d *sys.CUDA_MEMCPY2D) { d.DstXInBytes = 33 })
	ask("no width", success, func(d *sys.CUDA_MEMCPY2D) { d.WidthInBytes = 0 })
	ask("no height", success, func(d *sys.CUDA_MEMCPY2D) { d.Height = 0 })
	ask("no height, and nothing right", success, func(d *sys.CUDA_MEMCPY2D) {
		d.Height, d.SrcHost, d.DstDevice, d.DstMemoryType = 0, nil, 0, 9
	})
	ask("from host address 0", invalid, func(d *sys.CUDA_MEMCPY2D) { d.SrcHost = nil })
	ask("to address 0", invalid, func(d *sys.CUDA_MEMCPY2D) { d.DstDevice = 0 })
	ask("to a wild address", invalid, func(d *sys.CUDA_MEMCPY2D) { d.DstDevice = 4096 })
	ask("no memory type", invalid, func(d *sys.CUDA_MEMCPY2D) { d.DstMemoryType = 0 })
	ask("a memory type that does not exist", invalid, func(d *sys.CUDA_MEMCPY2D) { d.DstMemoryType = 9 })
	ask("no array", invalid, func(d *sys.CUDA_MEMCPY2D) { d.DstMemoryType = sys.CU_MEMORYTYPE_ARRAY })
	ask("pageable memory as unified", success, func(d *sys.CUDA_MEMCPY2D) {
		d.SrcMemoryType, d.SrcDevice = sys.CU_MEMORYTYPE_UNIFIED, addressIn(host)
	})
	ask("pageable memory as a device's", invalid, func(d *sys.CUDA_MEMCPY2D) {
		d.SrcMemoryType, d.SrcDevice = sys.CU_MEMORYTYPE_DEVICE, addressIn(host)
	})
	ask("device memory as the host's", success, func(d *sys.CUDA_MEMCPY2D) { d.SrcHost = hostPointer(uintptr(p + 4096)) })
	ask("a huge pitch for one row", success, func(d *sys.CUDA_MEMCPY2D) { d.DstPitch, d.Height = 1<<31, 1 })
	ask("an odd pitch on the device", success, func(d *sys.CUDA_MEMCPY2D) {
		d.SrcMemoryType, d.SrcDevice, d.SrcPitch = sys.CU_MEMORYTYPE_DEVICE, p+8192, 1001
	})
	ask("a hole between the rows", invalid, func(d *sys.CUDA_MEMCPY2D) { d.DstDevice, d.DstPitch, d.Height = q, 2*unit, 2 })
	ask("a row in a hole", invalid, func(d *sys.CUDA_MEMCPY2D) { d.DstDevice, d.DstPitch, d.Height = q, unit, 2 })
	check(t, "no description", invalid, c.CuMemcpy2D_v2(nil))
	check(t, "none of that is sticky", success, c.CuCtxSynchronize())
}

func TestC33_CopiesOfLayers(t *testing.T) {
	c := inContext(t)
	p := plain(t, c, unit)
	host := make([]byte, 64*KiB)
	ask := func(what string, want sys.CUresult, change func(*sys.CUDA_MEMCPY3D)) {
		t.Helper()
		d := &sys.CUDA_MEMCPY3D{
			SrcMemoryType: sys.CU_MEMORYTYPE_HOST, SrcHost: at(host), SrcPitch: 64, SrcHeight: 8,
			DstMemoryType: sys.CU_MEMORYTYPE_DEVICE, DstDevice: p, DstPitch: 64, DstHeight: 8,
			WidthInBytes: 32, Height: 4, Depth: 2,
		}
		change(d)
		check(t, what, want, c.CuMemcpy3D_v2(d))
		check(t, what+", queued", want, c.CuMemcpy3DAsync_v2(d, 0))
	}
	ask("plain", success, func(d *sys.CUDA_MEMCPY3D) {})
	ask("a height of 0", success, func(d *sys.CUDA_MEMCPY3D) { d.SrcHeight = 0 })
	ask("the same for one layer", success, func(d *sys.CUDA_MEMCPY3D) { d.SrcHeight, d.Depth = 0, 1 })
	ask("the same, a layer in", success, func(d *sys.CUDA_MEMCPY3D) { d.SrcHeight, d.Depth, d.SrcZ = 0, 1, 1 })
	ask("a height less than a layer", invalid, func(d *sys.CUDA_MEMCPY3D) { d.SrcHeight = 3 })
	ask("the same to", invalid, func(d *sys.CUDA_MEMCPY3D) { d.DstHeight = 3 })
	ask("the same for one layer", invalid, func(d *sys.CUDA_MEMCPY3D) { d.SrcHeight, d.Depth = 3, 1 })
	ask("beyond the height", invalid, func(d *sys.CUDA_MEMCPY3D) { d.SrcY = 5 })
	ask("the same for one layer", invalid, func(d *sys.CUDA_MEMCPY3D) { d.SrcY, d.Depth = 5, 1 })
	ask("a pitch less than a row", invalid, func(d *sys.CUDA_MEMCPY3D) { d.SrcPitch = 31 })
	ask("the same for one row", invalid, func(d *sys.CUDA_MEMCPY3D) { d.SrcPitch, d.Height, d.Depth = 31, 1, 1 })
	ask("a pitch of 0 for one row", success, func(d *sys.CUDA_MEMCPY3D) { d.SrcPitch, d.Height, d.Depth = 0, 1, 1 })
	ask("no width", success, func(d *sys.CUDA_MEMCPY3D) { d.WidthInBytes = 0 })
	ask("no height", success, func(d *sys.CUDA_MEMCPY3D) { d.Height = 0 })
	ask("no depth", success, func(d *sys.CUDA_MEMCPY3D) { d.Depth = 0 })
	ask("a level of detail", success, func(d *sys.CUDA_MEMCPY3D) { d.SrcLOD = 1 })
	ask("something reserved", success, func(d *sys.CUDA_MEMCPY3D) { d.Reserved0 = 1 })
	ask("a memory type that does not exist", invalid, func(d *sys.CUDA_MEMCPY3D) { d.SrcMemoryType = 9 })
	check(t, "no description", invalid, c.CuMemcpy3D_v2(nil))
	check(t, "none of that is sticky", success, c.CuCtxSynchronize())
}

func TestC34_PeerCopies(t *testing.T) {
	c := inContext(t)
	p, ctx := plain(t, c, unit), c.Context()
	check(t, "a context and itself", success, c.CuMemcpyPeer(p, ctx, p+4096, ctx, 100))
	check(t, "queued", success, c.CuMemcpyPeerAsync(p, ctx, p+4096, ctx, 100, 0))
	check(t, "to no context", success, c.CuMemcpyPeer(p, 0, p+4096, ctx, 100))
	check(t, "from no context", success, c.CuMemcpyPeer(p, ctx, p+4096, 0, 100))
	check(t, "nothing", success, c.CuMemcpyPeer(p, ctx, p+4096, ctx, 0))
	check(t, "from pageable memory", invalid, c.CuMemcpyPeer(p, ctx, addressIn(make([]byte, 100)), ctx, 100))
	check(t, "to address 0", invalid, c.CuMemcpyPeer(0, ctx, p, ctx, 100))
	host := make([]byte, 64*KiB)
	for what, change := range map[string]func(*sys.CUDA_MEMCPY3D_PEER){
		"rows":                      func(*sys.CUDA_MEMCPY3D_PEER) {},
		"rows from no context":      func(d *sys.CUDA_MEMCPY3D_PEER) { d.SrcContext = 0 },
		"rows to no context":        func(d *sys.CUDA_MEMCPY3D_PEER) { d.DstContext = 0 },
		"rows of a level of detail": func(d *sys.CUDA_MEMCPY3D_PEER) { d.SrcLOD = 1 },
		"no rows":                   func(d *sys.CUDA_MEMCPY3D_PEER) { d.Height = 0 },
	} {
		d := &sys.CUDA_MEMCPY3D_PEER{
			SrcMemoryType: sys.CU_MEMORYTYPE_HOST, SrcHost: at(host), SrcPitch: 64, SrcHeight: 8, SrcContext: ctx,
			DstMemoryType: sys.CU_MEMORYTYPE_DEVICE, DstDevice: p, DstPitch: 64, DstHeight: 8, DstContext: ctx,
			WidthInBytes: 32, Height: 4, Depth: 2,
		}
		change(d)
		check(t, what, success, c.CuMemcpy3DPeer(d))
		check(t, what+", queued", success, c.CuMemcpy3DPeerAsync(d, 0))
	}
}
