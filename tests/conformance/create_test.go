package conformance

import (
	"testing"

	"github.com/gpufd/gpufd/cu/sys"
)

// tryCreate makes memory and gives it back.
func tryCreate(t testing.TB, size uintptr, prop *sys.CUmemAllocationProp, flags uint64) sys.CUresult {
	t.Helper()
	c := raw(t)
	h := new(sys.CUmemGenericAllocationHandle)
	r := c.CuMemCreate(h, size, prop, flags)
	if r == success {
		ok(t, c.CuMemRelease(*h))
	}
	return r
}

func TestD14_Granularity(t *testing.T) {
	c := raw(t)
	get := func(prop *sys.CUmemAllocationProp, option sys.CUmemAllocationGranularity_flags) any {
		g := new(uintptr)
		if r := c.CuMemGetAllocationGranularity(g, prop, option); r != success {
			return r
		}
		return *g
	}
	check(t, "minimum", unit, get(propOf(0), sys.CU_MEM_ALLOC_GRANULARITY_MINIMUM))
	check(t, "recommended", unit, get(propOf(0), sys.CU_MEM_ALLOC_GRANULARITY_RECOMMENDED))
	check(t, "an option that does not exist", invalid, get(propOf(0), 2))
	check(t, "another", invalid, get(propOf(0), 1<<30))
	for _, x := range odd {
		check(t, x.what, x.granularity, get(propWith(x.change), 0))
	}
}

// odd is memory that is not what this library makes, with what
// cuMemGetAllocationGranularity and cuMemCreate answer.
var odd = []struct {
	what                string
	change              func(*sys.CUmemAllocationProp)
	granularity, create any
}{
	{"not to be shared", func(p *sys.CUmemAllocationProp) { p.RequestedHandleTypes = 0 }, unit, success},
	{"a Windows handle", types(sys.CU_MEM_HANDLE_TYPE_WIN32), unit, invalid},
	{"an older Windows handle", types(sys.CU_MEM_HANDLE_TYPE_WIN32_KMT), unit, invalid},
	{"a descriptor and a Windows handle", types(handleFD | sys.CU_MEM_HANDLE_TYPE_WIN32), unit, invalid},
	{"a handle type that does not exist", types(1 << 20), unit, success},
	{"a type that does not exist", func(p *sys.CUmemAllocationProp) { p.Type = 77 }, unit, invalid},
	{"no type", func(p *sys.CUmemAllocationProp) { p.Type = 0 }, unit, invalid},
	{"a device that is not there", func(p *sys.CUmemAllocationProp) { p.Location.Id = 99 }, unit, noDevice},
	{"device -1", func(p *sys.CUmemAllocationProp) { p.Location.Id = -1 }, unit, noDevice},
	{"no location", place(sys.CU_MEM_LOCATION_TYPE_INVALID), unit, invalid},
	{"a location that does not exist", place(77), unit, invalid},
	{"the host", place(sys.CU_MEM_LOCATION_TYPE_HOST), unit, invalid},
	{"this NUMA node", place(sys.CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT), unit, invalid},
	{"compression", func(p *sys.CUmemAllocationProp) { p.AllocFlags.CompressionType = 1 }, unit, success},
	{"a compression that does not exist", func(p *sys.CUmemAllocationProp) { p.AllocFlags.CompressionType = 77 }, unit, invalid},
	{"for a tile pool", func(p *sys.CUmemAllocationProp) { p.AllocFlags.Usage = 1 }, unit, invalid},
	{"a usage that does not exist", func(p *sys.CUmemAllocationProp) { p.AllocFlags.Usage = 0x80 }, unit, success},
	{"for RDMA", func(p *sys.CUmemAllocationProp) { p.AllocFlags.GpuDirectRDMACapable = 1 }, unit, success},
	{"reserved bytes", func(p *sys.CUmemAllocationProp) { p.AllocFlags.Reserved[0] = 1 }, unit, invalid},
}

func types(t sys.CUmemAllocationHandleType) func(*sys.CUmemAllocationProp) {
	return func(p *sys.CUmemAllocationProp) { p.RequestedHandleTypes = t }
}

func place(l sys.CUmemLocationType) func(*sys.CUmemAllocationProp) {
	return func(p *sys.CUmemAllocationProp) { p.Location.Type = l }
}

func TestC6_Create(t *testing.T) {
	for _, x := range odd {
		check(t, x.what, x.create, tryCreate(t, unit, propWith(x.change), 0))
	}
	check(t, "a Windows attribute", invalid, tryCreate(t, unit, propWith(func(p *sys.CUmemAllocationProp) { p.Win32HandleMetaData = 1 }), 0))
	check(t, "flags", invalid, tryCreate(t, unit, propOf(0), 1))
	check(t, "flags and a size that is not aligned", invalid, tryCreate(t, 1, propOf(0), 1))
}

// Bits of the handle types that have no meaning are dropped.
func TestC6_CreateUnknownType(t *testing.T) {
	c := raw(t)
	for _, kind := range []sys.CUmemAllocationHandleType{0, handleFD} {
		h, p := new(sys.CUmemGenericAllocationHandle), new(sys.CUmemAllocationProp)
		ok(t, c.CuMemCreate(h, unit, propWith(types(1<<20|kind)), 0))
		ok(t, c.CuMemGetAllocationPropertiesFromHandle(p, *h))
		check(t, "the types read", uint32(kind), uint32(p.RequestedHandleTypes))
		ok(t, c.CuMemRelease(*h))
	}
}

func TestD15_Sizes(t *testing.T) {
	for _, x := range []struct {
		what string
		size uintptr
	}{{"nothing", 0}, {"a byte", 1}, {"a page", 4 * KiB}, {"a large page", 64 * KiB}, {"a page too many", unit + 4*KiB}, {"a byte too few", unit - 1}} {
		check(t, x.what, invalid, tryCreate(t, x.size, propOf(0), 0))
	}
	check(t, "4 TiB", sys.CUDA_ERROR_OUT_OF_MEMORY, tryCreate(t, 4*TiB, propOf(0), 0))
	check(t, "half of all addresses", sys.CUDA_ERROR_OUT_OF_MEMORY, tryCreate(t, 1<<63, propOf(0), 0))
	check(t, "one and a half units", invalid, tryCreate(t, unit+unit/2, propOf(0), 0))
	check(t, "three units", success, tryCreate(t, 3*unit, propOf(0), 0))
}

//fault:rows 45
func TestD20_Fabric(t *testing.T) {
	check(t, "a fabric handle", sys.CUDA_ERROR_NOT_PERMITTED, tryCreate(t, unit, propWith(types(sys.CU_MEM_HANDLE_TYPE_FABRIC)), 0))
	check(t, "a descriptor and a fabric handle", sys.CUDA_ERROR_NOT_PERMITTED, tryCreate(t, unit, propWith(types(handleFD|sys.CU_MEM_HANDLE_TYPE_FABRIC)), 0))
	g := new(uintptr)
	check(t, "its granularity", success, raw(t).CuMemGetAllocationGranularity(g, propWith(types(sys.CU_MEM_HANDLE_TYPE_FABRIC)), 0))
}

// tryReserve reserves address space and frees it.
func tryReserve(t testing.TB, size, align uintptr, hint sys.CUdeviceptr, flags uint64) (sys.CUdeviceptr, sys.CUresult) {
	t.Helper()
	c := raw(t)
	p := new(sys.CUdeviceptr)
	r := c.CuMemAddressReserve(p, size, align, hint, flags)
	if r == success {
		ok(t, c.CuMemAddressFree(*p, size))
	}
	return *p, r
}

func TestD15_Reserve(t *testing.T) {
	for _, x := range []struct {
		what string
		size uintptr
		want sys.CUresult
	}{
		{"nothing", 0, invalid}, {"a byte", 1, invalid}, {"a page", 4 * KiB, invalid}, {"a large page", 64 * KiB, invalid},
		{"a page too many", unit + 4*KiB, invalid}, {"a byte too few", unit - 1, invalid}, {"three units", 3 * unit, success},
		{"all addresses", 1 << 47, sys.CUDA_ERROR_OUT_OF_MEMORY}, {"more than all", 1 << 62, sys.CUDA_ERROR_OUT_OF_MEMORY},
	} {
		_, r := tryReserve(t, x.size, 0, 0, 0)
		check(t, x.what, x.want, r)
	}
	_, r := tryReserve(t, unit, 0, 0, 1)
	check(t, "flags", invalid, r)
}

func TestC7_ReserveAlignment(t *testing.T) {
	for _, x := range []struct {
		what  string
		align uintptr
		want  sys.CUresult
	}{
		{"1", 1, success}, {"3", 3, invalid}, {"4 KiB", 4 * KiB, success}, {"64 KiB", 64 * KiB, success}, {"2 MiB", unit, success},
		{"3 MiB", 3 * MiB, invalid}, {"4 MiB", 2 * unit, success}, {"6 MiB", 3 * unit, invalid}, {"1 GiB", GiB, success},
		{"2^57", 1 << 57, sys.CUDA_ERROR_OUT_OF_MEMORY}, {"2^47", 1 << 47, sys.CUDA_ERROR_OUT_OF_MEMORY}, {"2^62", 1 << 62, invalid},
	} {
		p, r := tryReserve(t, unit, x.align, 0, 0)
		check(t, "aligned to "+x.what, x.want, r)
		if r == success {
			check(t, "it is, to "+x.what, 0, uintptr(p)%max(x.align, unit))
		}
	}
}

func TestC7_ReserveHint(t *testing.T) {
	p := reserved(t, 2*unit)
	free, r := tryReserve(t, 2*unit, 0, 0, 0)
	ok(t, r)
	q, r := tryReserve(t, 2*unit, 0, free, 0)
	check(t, "a free address", success, r)
	check(t, "is honoured", true, q == free)
	q, r = tryReserve(t, 2*unit, 0, p, 0)
	check(t, "an occupied address", success, r)
	check(t, "is not honoured", false, q == p)
	_, r = tryReserve(t, 2*unit, 0, free+4*KiB, 0)
	check(t, "an address that is not aligned", invalid, r)
	_, r = tryReserve(t, unit, 4*unit, free/(4*unit)*4*unit+unit, 0)
	check(t, "an address that is not aligned as asked for", invalid, r)
	_, r = tryReserve(t, 2*unit, 0, 1<<62, 0)
	check(t, "an address that cannot be", sys.CUDA_ERROR_OUT_OF_MEMORY, r)
}
