package conformance

import (
	"testing"

	"github.com/gpufd/gpufd/cu/sys"
)

// hasNodes skips n checks where the first device has no memory of NUMA nodes.
func hasNodes(t testing.TB, n int) bool {
	t.Helper()
	if !has(t, "cuMemPrefetchAsync_v2", n) { // of CUDA 12.2, as they are
		return false
	}
	can := new(int32)
	ok(t, raw(t).CuDeviceGetAttribute(can, sys.CU_DEVICE_ATTRIBUTE_HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 0))
	if *can == 0 {
		skip(t, n, "the device has no memory of NUMA nodes")
	}
	return *can != 0
}

// onNode describes memory of a NUMA node that can be shared as a descriptor.
func onNode(node int32) *sys.CUmemAllocationProp {
	return propWith(func(p *sys.CUmemAllocationProp) { p.Location = nodeLocation(node) })
}

func nodeLocation(node int32) sys.CUmemLocation {
	return sys.CUmemLocation{Type: sys.CU_MEM_LOCATION_TYPE_HOST_NUMA, Id: node}
}

// nodeMemory is memory of node 0.
func nodeMemory(t testing.TB) sys.CUmemGenericAllocationHandle {
	t.Helper()
	c, h := raw(t), new(sys.CUmemGenericAllocationHandle)
	ok(t, c.CuMemCreate(h, unit, onNode(0), 0))
	t.Cleanup(func() { ok(t, c.CuMemRelease(*h)) })
	return *h
}

func TestC43_Create(t *testing.T) {
	if !hasNodes(t, 8) {
		return
	}
	c := raw(t)
	check(t, "node 0", success, tryCreate(t, unit, onNode(0), 0))
	check(t, "node 7", invalid, tryCreate(t, unit, onNode(7), 0))
	check(t, "node 99", invalid, tryCreate(t, unit, onNode(99), 0))
	own := nodeMemory(t)
	for what, h := range map[string]sys.CUmemGenericAllocationHandle{"own": own, "imported": imported(t, exported(t, own))} {
		p := new(sys.CUmemAllocationProp)
		check(t, what+": properties", success, c.CuMemGetAllocationPropertiesFromHandle(p, h))
		check(t, what+": location", nodeLocation(0), p.Location)
	}
	g := new(uintptr)
	ok(t, c.CuMemGetAllocationGranularity(g, onNode(0), sys.CU_MEM_ALLOC_GRANULARITY_MINIMUM))
	check(t, "the granularity", unit, *g)
}

func TestC43_HostAndDevice(t *testing.T) {
	if !hasNodes(t, 11) {
		return
	}
	c, h := inContext(t), nodeMemory(t)
	p, q := reserved(t, unit), reserved(t, unit)
	mapped(t, p, unit, h)
	mapped(t, q, unit, imported(t, exported(t, h)))
	access := func() any {
		flags, l := new(uint64), nodeLocation(0)
		if r := c.CuMemGetAccess(flags, &l, p); r != success {
			return r
		}
		return *flags
	}
	check(t, "the host's access at first", 0, access())
	for _, at := range []sys.CUdeviceptr{p, q} {
		check(t, "access of the host", success, c.CuMemSetAccess(at, unit, &sys.CUmemAccessDesc{Location: nodeLocation(0), Flags: readWrite}, 1))
		check(t, "access of the device", success, c.CuMemSetAccess(at, unit, accessTo(0, readWrite), 1))
	}
	check(t, "the host's access now", 3, access())
	host, other := hostBytes(p, unit), hostBytes(q, unit)
	host[unit-1] = 42
	check(t, "the device reads what the host wrote", 42, byteAt(c, q+unit-1))
	ok(t, c.CuMemsetD8_v2(p+7, 43, 1))
	ok(t, c.CuCtxSynchronize())
	check(t, "the host reads what the device wrote", 43, host[7])
	check(t, "by another mapping, too", 43, other[7])
	check(t, "a copy from there to there", success, c.CuMemcpyDtoD_v2(p, q+7, 1))
	ok(t, c.CuCtxSynchronize())
	check(t, "the host sees it", 43, host[0])
}
