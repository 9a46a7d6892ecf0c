package conformance

import (
	"testing"

	"github.com/gpufd/gpufd/cu/sys"
)

func TestC9_Alloc(t *testing.T) {
	c := inContext(t)
	try := func(size uintptr) sys.CUresult {
		p := new(sys.CUdeviceptr)
		r := c.CuMemAlloc_v2(p, size)
		if r == success {
			ok(t, c.CuMemFree_v2(*p))
		}
		return r
	}
	check(t, "nothing", invalid, try(0))
	check(t, "4 TiB", sys.CUDA_ERROR_OUT_OF_MEMORY, try(4*TiB))
	check(t, "half of all addresses", sys.CUDA_ERROR_OUT_OF_MEMORY, try(1<<63))
	check(t, "all addresses", sys.CUDA_ERROR_OUT_OF_MEMORY, try(^uintptr(0)))
	for _, size := range []uintptr{1, 3, 511, 513, 4097, 65537, unit + 1} {
		check(t, "aligned to 512", 0, plain(t, c, size)%512)
	}
}

func TestD16_Free(t *testing.T) {
	c := inContext(t)
	p, _ := buffer(t, unit)
	check(t, "memory of cuMemCreate", invalid, c.CuMemFree_v2(p))
	check(t, "no harm done", success, c.CuMemsetD8_v2(p, 1, 1))
	check(t, "address 0", success, c.CuMemFree_v2(0))
	check(t, "no address of the device", invalid, c.CuMemFree_v2(1<<45))
	q := plain(t, c, 4*KiB)
	check(t, "the middle of memory", invalid, c.CuMemFree_v2(q+512))
	check(t, "no harm done, either", success, c.CuMemsetD8_v2(q, 1, 4*KiB))
	r := reserved(t, unit)
	check(t, "reserved addresses", invalid, c.CuMemFree_v2(r))
	host, result := pinned(c, 4*KiB, 0)
	ok(t, result)
	check(t, "pinned memory", invalid, c.CuMemFree_v2(sys.CUdeviceptr(addressOf(host))))
	ok(t, c.CuMemFreeHost(host))
}

var freeing = sheet("freeing",
	row{what: "twice", want: invalid, ask: func(t testing.TB) any {
		c := inContext(t)
		p := plain(t, c, unit)
		ok(t, c.CuMemFree_v2(p))
		return c.CuMemFree_v2(p)
	}},
	row{what: "pinned memory twice", want: invalid, ask: func(t testing.TB) any {
		c := inContext(t)
		p, r := pinned(c, 4*KiB, 0)
		ok(t, r)
		ok(t, c.CuMemFreeHost(p))
		return c.CuMemFreeHost(p)
	}},
	row{what: "the middle of pinned memory", want: invalid, ask: func(t testing.TB) any {
		c := inContext(t)
		p, r := pinned(c, 8*KiB, 0)
		ok(t, r)
		return c.CuMemFreeHost(hostPointer(addressOf(p) + 4*KiB))
	}},
	row{what: "memory of the host that is not pinned", want: invalid, ask: func(t testing.TB) any {
		return inContext(t).CuMemFreeHost(at(make([]byte, 64)))
	}},
	row{what: "host address 0", want: success, ask: func(t testing.TB) any {
		return inContext(t).CuMemFreeHost(nil)
	}},
	row{what: "a wild host address", want: invalid, ask: func(t testing.TB) any {
		return inContext(t).CuMemFreeHost(hostPointer(1 << 40))
	}},
)

func TestC9_Freeing(t *testing.T) { freeing.check(t) }

func TestC10_HostAlloc(t *testing.T) {
	c := inContext(t)
	try := func(size uintptr, flags uint32) sys.CUresult {
		p, r := pinned(c, size, flags)
		if r == success {
			ok(t, c.CuMemFreeHost(p))
		}
		return r
	}
	nothing, r := pinned(c, 0, 0)
	check(t, "nothing", success, r)
	check(t, "is at no address", true, nothing == nil)
	check(t, "flags that do not exist", invalid, try(4*KiB, 1<<20))
	check(t, "all flags", success, try(4*KiB, 7))
	check(t, "more than there is", sys.CUDA_ERROR_OUT_OF_MEMORY, try(1<<47, 0))
	p, r := pinned(c, 8*KiB, 0)
	ok(t, r)
	d := new(sys.CUdeviceptr)
	check(t, "its device address", success, c.CuMemHostGetDevicePointer_v2(d, p, 0))
	check(t, "is the same", true, uintptr(*d) == addressOf(p))
	check(t, "the middle's", success, c.CuMemHostGetDevicePointer_v2(d, hostPointer(addressOf(p)+5), 0))
	check(t, "is the same, too", true, uintptr(*d) == addressOf(p)+5)
	check(t, "with flags", invalid, c.CuMemHostGetDevicePointer_v2(d, p, 1))
	check(t, "of other memory", invalid, c.CuMemHostGetDevicePointer_v2(d, at(make([]byte, 64)), 0))
	flags := new(uint32)
	check(t, "its flags", success, c.CuMemHostGetFlags(flags, p))
	check(t, "are", 2, *flags)
	ok(t, c.CuMemFreeHost(p))
	p, r = pinned(c, 4*KiB, 4)
	ok(t, r)
	ok(t, c.CuMemHostGetFlags(flags, p))
	check(t, "of write-combined memory they are", 6, *flags)
	check(t, "the flags of other memory", invalid, c.CuMemHostGetFlags(flags, at(make([]byte, 64))))
	ok(t, c.CuMemFreeHost(p))
}

func TestC9_AddressRange(t *testing.T) {
	c := inContext(t)
	base, size := new(sys.CUdeviceptr), new(uintptr)
	get := func(p sys.CUdeviceptr) sys.CUresult { return c.CuMemGetAddressRange_v2(base, size, p) }
	p := plain(t, c, 1000)
	check(t, "memory of cuMemAlloc", success, get(p))
	check(t, "begins there", true, *base == p)
	check(t, "and is as long as asked for", 1000, *size)
	check(t, "its middle", success, get(p+500))
	check(t, "begins where it does", true, *base == p)
	check(t, "its last byte", success, get(p+999))
	check(t, "the byte after it", sys.CUDA_ERROR_NOT_FOUND, get(p+1000))
	check(t, "the base alone", success, c.CuMemGetAddressRange_v2(base, nil, p))
	check(t, "the size alone", success, c.CuMemGetAddressRange_v2(nil, size, p))
	check(t, "neither", success, c.CuMemGetAddressRange_v2(nil, nil, p))
	check(t, "neither, of nothing", success, c.CuMemGetAddressRange_v2(nil, nil, 0))
	check(t, "no address of the device", sys.CUDA_ERROR_NOT_FOUND, get(1<<45))
	check(t, "address 0", sys.CUDA_ERROR_NOT_FOUND, get(0))

	q := reserved(t, 4*unit)
	check(t, "reserved addresses", sys.CUDA_ERROR_NOT_FOUND, get(q))
	mapped(t, q+unit, unit, created(t, unit))
	check(t, "a mapping before cuMemSetAccess", sys.CUDA_ERROR_NOT_FOUND, get(q+unit))
	allowed(t, q+unit, unit, readWrite)
	check(t, "a mapping", success, get(q+unit+5))
	check(t, "begins with the mapping", true, *base == q+unit)
	check(t, "and is as long", unit, *size)
	check(t, "beside it", sys.CUDA_ERROR_NOT_FOUND, get(q))
	mapped(t, q+2*unit, unit, created(t, unit))
	allowed(t, q+unit, 2*unit, readWrite)
	ok(t, get(q+unit))
	check(t, "two mappings side by side are two", unit, *size)

	host, r := pinned(c, 8*KiB, 0)
	ok(t, r)
	check(t, "pinned memory", success, get(sys.CUdeviceptr(addressOf(host)+5)))
	check(t, "begins there", true, uintptr(*base) == addressOf(host))
	check(t, "and is as long as asked for", 8*KiB, *size)
	ok(t, c.CuMemFreeHost(host))
}

// Free memory goes down by what is made, and up again.
func TestC9_GetInfo(t *testing.T) {
	c := inContext(t)
	before := freeBytes(t, c)
	h := new(sys.CUmemGenericAllocationHandle)
	ok(t, c.CuMemCreate(h, 16*unit, propOf(0), 0))
	check(t, "cuMemCreate takes", 16*unit, before-freeBytes(t, c))
	ok(t, c.CuMemRelease(*h))
	check(t, "cuMemRelease leaves", 0, before-freeBytes(t, c))
	p := new(sys.CUdeviceptr)
	ok(t, c.CuMemAlloc_v2(p, 16*unit))
	check(t, "cuMemAlloc takes", 16*unit, before-freeBytes(t, c))
	ok(t, c.CuMemFree_v2(*p))
	check(t, "cuMemFree leaves", 0, before-freeBytes(t, c))
}
