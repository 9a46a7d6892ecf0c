package conformance

import (
	"testing"

	"github.com/gpufd/gpufd/cu/sys"
)

func TestD5_CopiesNeedAccess(t *testing.T) {
	c := inContext(t)
	h, p := created(t, unit), reserved(t, unit)
	b := make([]byte, 8)
	check(t, "read what is reserved only", invalid, c.CuMemcpyDtoH_v2(at(b), p, 8))
	mapped(t, p, unit, h)
	check(t, "read before cuMemSetAccess", invalid, c.CuMemcpyDtoH_v2(at(b), p, 8))
	check(t, "write before cuMemSetAccess", invalid, c.CuMemcpyHtoD_v2(p, at(b), 8))
	check(t, "set before cuMemSetAccess", invalid, c.CuMemsetD8_v2(p, 1, 8))
	allowed(t, p, unit, readWrite)
	check(t, "write after it", success, c.CuMemcpyHtoD_v2(p, at([]byte{1, 2, 3}), 3))
	allowed(t, p, unit, readOnly)
	check(t, "read what is read-only", success, c.CuMemcpyDtoH_v2(at(b), p, 8))
	check(t, "write to it", invalid, c.CuMemcpyHtoD_v2(p, at(b), 8))
	check(t, "set it", invalid, c.CuMemsetD8_v2(p, 1, 8))
	check(t, "copy to it", invalid, c.CuMemcpyDtoD_v2(p, p+8, 8))
	check(t, "nothing was written", 2, byteAt(c, p+1))
	allowed(t, p, unit, none)
	check(t, "read what was closed again", invalid, c.CuMemcpyDtoH_v2(at(b), p, 8))
	check(t, "none of that is sticky", success, c.CuCtxSynchronize())
}

// A copy must be allowed all through.
func TestD5_CopiesAcrossMappings(t *testing.T) {
	c := inContext(t)
	p := reserved(t, 3*unit)
	mapped(t, p, unit, created(t, unit))
	mapped(t, p+unit, unit, created(t, unit))
	allowed(t, p, 2*unit, readWrite)
	b := make([]byte, 16)
	check(t, "from one mapping into the next", success, c.CuMemcpyDtoH_v2(at(b), p+unit-8, 16))
	check(t, "off the last mapping", invalid, c.CuMemcpyDtoH_v2(at(b), p+2*unit-8, 16))
	allowed(t, p+unit, unit, readOnly)
	check(t, "write from one that may into one that may not", invalid, c.CuMemcpyHtoD_v2(p+unit-8, at(b), 16))
	check(t, "set the same", invalid, c.CuMemsetD8_v2(p+unit-8, 1, 16))
}

// The descriptor carries no rights: who imports decides.
//
//fault:rows 70
func TestD5_DescriptorCarriesNoRights(t *testing.T) {
	c := inContext(t)
	p, h := buffer(t, unit)
	ok(t, c.CuMemcpyHtoD_v2(p, at([]byte{1}), 1))
	allowed(t, p, unit, readOnly)
	h2 := imported(t, exported(t, h))
	q := reserved(t, unit)
	mapped(t, q, unit, h2)
	check(t, "the importer makes it read-write", success, c.CuMemSetAccess(q, unit, accessTo(0, readWrite), 1))
	check(t, "and writes", success, c.CuMemcpyHtoD_v2(q, at([]byte{2}), 1))
	check(t, "which the owner reads", 2, byteAt(c, p))
}

func TestC1_SetAccess(t *testing.T) {
	c := raw(t)
	rw := accessTo(0, readWrite)
	p := reserved(t, 8*unit)
	mapped(t, p, 2*unit, created(t, 2*unit))
	mapped(t, p+2*unit, unit, created(t, unit))
	mapped(t, p+5*unit, unit, created(t, unit))
	check(t, "one mapping", success, c.CuMemSetAccess(p, 2*unit, rw, 1))
	check(t, "two side by side", success, c.CuMemSetAccess(p, 3*unit, rw, 1))
	check(t, "half of one", invalid, c.CuMemSetAccess(p, unit, rw, 1))
	check(t, "its other half", invalid, c.CuMemSetAccess(p+unit, unit, rw, 1))
	check(t, "one and a half", invalid, c.CuMemSetAccess(p+unit, 2*unit, rw, 1))
	check(t, "one and a hole after it", invalid, c.CuMemSetAccess(p+2*unit, 2*unit, rw, 1))
	check(t, "a hole and one after it", invalid, c.CuMemSetAccess(p+4*unit, 2*unit, rw, 1))
	check(t, "a hole", invalid, c.CuMemSetAccess(p+3*unit, unit, rw, 1))
	check(t, "out of the reservation", invalid, c.CuMemSetAccess(p+5*unit, 4*unit, rw, 1))
	check(t, "no reservation", invalid, c.CuMemSetAccess(1<<45, unit, rw, 1))
	check(t, "nothing", invalid, c.CuMemSetAccess(p, 0, rw, 1))
	check(t, "an address that is not aligned", invalid, c.CuMemSetAccess(p+1, 2*unit, rw, 1))
	check(t, "a size that is not aligned", invalid, c.CuMemSetAccess(p, 2*unit-1, rw, 1))
}

// It says nothing of a hole between two mappings, and stops there.
var accessOverAHole = alone("access over a hole",
	row{what: "set access, use the first, use the last", want: "SUCCESS SUCCESS INVALID_VALUE", ask: func(t testing.TB) any {
		c := inContext(t)
		p := reserved(t, 3*unit)
		mapped(t, p, unit, created(t, unit))
		mapped(t, p+2*unit, unit, created(t, unit))
		return story(c.CuMemSetAccess(p, 3*unit, accessTo(0, readWrite), 1),
			c.CuMemsetD8_v2(p, 1, 8), c.CuMemsetD8_v2(p+2*unit, 1, 8))
	}})

func TestC1_SetAccessOverAHole(t *testing.T) { accessOverAHole.check(t) }

func TestC2_SetAccessDescriptions(t *testing.T) {
	c := inContext(t)
	p := reserved(t, unit)
	mapped(t, p, unit, created(t, unit))
	set := func(d ...sys.CUmemAccessDesc) sys.CUresult {
		return c.CuMemSetAccess(p, unit, &d[0], uintptr(len(d)))
	}
	to := func(location sys.CUmemLocationType, id int32, flags sys.CUmemAccess_flags) sys.CUmemAccessDesc {
		return sys.CUmemAccessDesc{Location: sys.CUmemLocation{Type: location, Id: id}, Flags: flags}
	}
	device := sys.CU_MEM_LOCATION_TYPE_DEVICE
	check(t, "a device that is not there", invalid, set(to(device, 99, readWrite)))
	check(t, "device -1", invalid, set(to(device, -1, readWrite)))
	check(t, "the host", notSupported, set(to(sys.CU_MEM_LOCATION_TYPE_HOST, 0, readWrite)))
	check(t, "a NUMA node", notSupported, set(to(sys.CU_MEM_LOCATION_TYPE_HOST_NUMA, 0, readWrite)))
	check(t, "this NUMA node", invalid, set(to(sys.CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT, 0, readWrite)))
	check(t, "no location", invalid, set(to(sys.CU_MEM_LOCATION_TYPE_INVALID, 0, readWrite)))
	check(t, "a location that does not exist", invalid, set(to(77, 0, readWrite)))
	check(t, "write only", invalid, set(to(device, 0, 2)))
	check(t, "rights that do not exist", invalid, set(to(device, 0, 4)))
	check(t, "no description", invalid, c.CuMemSetAccess(p, unit, accessTo(0, readWrite), 0))
	check(t, "a good one and one without a device", invalid, set(to(device, 0, readWrite), to(device, 99, readWrite)))
	check(t, "of which the good one has no effect", invalid, byteAt(c, p))
	check(t, "the same device twice", success, set(to(device, 0, readWrite), to(device, 0, readOnly)))
	check(t, "where the last one counts", invalid, c.CuMemsetD8_v2(p, 1, 1))
	check(t, "none", success, set(to(device, 0, none)))
}

func TestD21_AccessOfTwoDevices(t *testing.T) {
	if !hasDevices(t, 2, 6) {
		return
	}
	c, peer := inContext(t), inContextOf(t, 1)
	p := reserved(t, unit)
	mapped(t, p, unit, created(t, unit))
	allowed(t, p, unit, readWrite)
	ok(t, c.CuMemcpyHtoD_v2(p, at([]byte{7}), 1))
	check(t, "the peer reads without rights", invalid, byteAt(peer, p))
	both := []sys.CUmemAccessDesc{*accessTo(0, readWrite), *accessTo(1, readWrite)}
	check(t, "both at once", success, c.CuMemSetAccess(p, unit, &both[0], 2))
	check(t, "the peer reads", 7, byteAt(peer, p))
	check(t, "the peer writes", success, peer.CuMemcpyHtoD_v2(p, at([]byte{8}), 1))
	check(t, "the owner reads", 8, byteAt(c, p))
	ok(t, c.CuMemSetAccess(p, unit, accessTo(1, readOnly), 1))
	check(t, "the peer writes what is read-only for it", invalid, peer.CuMemcpyHtoD_v2(p, at([]byte{9}), 1))
}

func TestC3_GetAccess(t *testing.T) {
	c := inContext(t)
	p := reserved(t, 2*unit)
	mapped(t, p, unit, created(t, unit))
	get := func(l sys.CUmemLocation, p sys.CUdeviceptr) any {
		flags := new(uint64)
		if r := c.CuMemGetAccess(flags, &l, p); r != success {
			return r
		}
		return *flags
	}
	here := deviceLocation(0)
	check(t, "before cuMemSetAccess", 0, get(here, p))
	allowed(t, p, unit, readOnly)
	check(t, "after it", 1, get(here, p))
	check(t, "inside the mapping", 1, get(here, p+5))
	check(t, "its last byte", 1, get(here, p+unit-1))
	check(t, "reserved, not mapped", invalid, get(here, p+unit))
	check(t, "no reservation", invalid, get(here, 1<<45))
	check(t, "address 0", invalid, get(here, 0))
	check(t, "a device that is not there", noDevice, get(deviceLocation(99), p))
	check(t, "the host has what the device has", 1, get(sys.CUmemLocation{Type: sys.CU_MEM_LOCATION_TYPE_HOST, Id: 5}, p))
	check(t, "a NUMA node has none", 0, get(sys.CUmemLocation{Type: sys.CU_MEM_LOCATION_TYPE_HOST_NUMA, Id: 9}, p))
	check(t, "this NUMA node", noDevice, get(sys.CUmemLocation{Type: sys.CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT}, p))
	check(t, "no location", noDevice, get(sys.CUmemLocation{}, p))
	check(t, "memory of cuMemAlloc has none", 0, get(here, plain(t, c, unit)))
	host, r := pinned(c, 4*KiB, 0)
	ok(t, r)
	check(t, "pinned memory has none", 0, get(here, sys.CUdeviceptr(addressOf(host))))
	ok(t, c.CuMemFreeHost(host))
}
