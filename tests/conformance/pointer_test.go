package conformance

import (
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gpufd/gpufd/cu/sys"
)

// pages is memory of mmap.
func pages(t testing.TB, rights int) []byte {
	t.Helper()
	b, err := unix.Mmap(-1, 0, 32*KiB, rights, unix.MAP_PRIVATE|unix.MAP_ANON)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, unix.Munmap(b)) })
	return b
}

func TestC35_Register(t *testing.T) {
	c := inContext(t)
	b := pages(t, unix.PROT_READ|unix.PROT_WRITE)
	again, none := sys.CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, sys.CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED
	register := func(b []byte, flags uint32) sys.CUresult {
		return c.CuMemHostRegister_v2(at(b), uintptr(len(b)), flags)
	}
	end := func(b []byte) sys.CUresult { return c.CuMemHostUnregister(at(b)) }
	check(t, "a page", success, register(b[:4*KiB], 0))
	check(t, "again", again, register(b[:4*KiB], 0))
	check(t, "part of it", again, register(b[100:200], 0))
	check(t, "overlapping", again, register(b[2*KiB:8*KiB], 0))
	check(t, "the next page", success, register(b[4*KiB:8*KiB], 0))
	check(t, "end the middle of it", invalid, end(b[100:]))
	check(t, "end it", success, end(b))
	check(t, "end it again", none, end(b))
	check(t, "end the next page", success, end(b[4*KiB:]))
	check(t, "part of a page", success, register(b[100:200], 0))
	check(t, "another part of it", success, register(b[300:400], 0))
	check(t, "a byte", success, register(b[4*KiB:4*KiB+1], 0))
	d := new(sys.CUdeviceptr)
	device := func(b []byte) sys.CUresult { return c.CuMemHostGetDevicePointer_v2(d, at(b), 0) }
	check(t, "the device address of the middle", success, device(b[150:]))
	check(t, "is the same", true, *d == addressIn(b[150:]))
	check(t, "of the page between", invalid, device(b[250:]))
	check(t, "of the page before", invalid, device(b[50:]))
	check(t, "with flags", invalid, c.CuMemHostGetDevicePointer_v2(d, at(b[150:]), 1))
	check(t, "set just after it", invalid, c.CuMemsetD8_v2(addressIn(b[200:]), 1, 16))
	check(t, "end the beginning of the page", none, end(b))
	check(t, "free it", invalid, c.CuMemFreeHost(at(b[100:])))
	check(t, "end it", success, end(b[100:]))
	check(t, "end the other", success, end(b[300:]))
	check(t, "end the byte", success, end(b[4*KiB:]))

	check(t, "nothing", invalid, register(b[:0], 0))
	check(t, "address 0", invalid, c.CuMemHostRegister_v2(nil, 100, 0))
	check(t, "a flag that does not exist", invalid, register(b, 0x10))
	check(t, "as memory of a device", invalid, register(b, sys.CU_MEMHOSTREGISTER_IOMEMORY))
	check(t, "a wild address", invalid, c.CuMemHostRegister_v2(hostPointer(4096), 4096, 0))
	check(t, "device memory", invalid, c.CuMemHostRegister_v2(hostPointer(uintptr(plain(t, c, unit))), 4096, 0))
	p, _ := buffer(t, unit)
	check(t, "memory of cuMemCreate", invalid, c.CuMemHostRegister_v2(hostPointer(uintptr(p)), 4096, 0))
	host, r := pinned(c, 4*KiB, 0)
	ok(t, r)
	check(t, "pinned memory", invalid, c.CuMemHostRegister_v2(host, 4096, 0))
	check(t, "end pinned memory", invalid, c.CuMemHostUnregister(host))
	ok(t, c.CuMemFreeHost(host))
	check(t, "end what is pageable", none, end(make([]byte, 64)))
	check(t, "end address 0", invalid, c.CuMemHostUnregister(nil))
	check(t, "32 TiB", sys.CUDA_ERROR_OUT_OF_MEMORY, c.CuMemHostRegister_v2(at(b), 32*TiB, 0))
	check(t, "all addresses", invalid, c.CuMemHostRegister_v2(at(b), ^uintptr(0), 0))

	readable, guard := pages(t, unix.PROT_READ), pages(t, unix.PROT_NONE)
	check(t, "what can only be read", invalid, register(readable, 0))
	check(t, "the same for reading", success, register(readable, sys.CU_MEMHOSTREGISTER_READ_ONLY))
	check(t, "set it", invalid, c.CuMemsetD8_v2(addressIn(readable), 1, 10))
	check(t, "end it", success, end(readable))
	check(t, "what cannot be touched", invalid, register(guard, 0))
	check(t, "none of that is sticky", success, c.CuCtxSynchronize())
}

func TestC35_CopiesOfRegisteredMemory(t *testing.T) {
	c := inContext(t)
	p, b := plain(t, c, unit), pages(t, unix.PROT_READ|unix.PROT_WRITE)
	ok(t, c.CuMemHostRegister_v2(at(b), 8*KiB, 0))
	check(t, "over its end as a device's", invalid, c.CuMemcpyDtoD_v2(p, addressIn(b[4*KiB:]), 8*KiB))
	check(t, "set over its end", invalid, c.CuMemsetD8_v2(addressIn(b[4*KiB:]), 1, 8*KiB))
	flags := new(uint32)
	check(t, "its flags", success, c.CuMemHostGetFlags(flags, at(b[100:])))
	check(t, "are", 2, *flags)
	base, size := new(sys.CUdeviceptr), new(uintptr)
	check(t, "its range", success, c.CuMemGetAddressRange_v2(base, size, addressIn(b[100:])))
	check(t, "begins there", true, *base == addressIn(b))
	check(t, "and is as long", 8*KiB, *size)
	ok(t, c.CuMemHostUnregister(at(b)))
	check(t, "none of that is sticky", success, c.CuCtxSynchronize())
}

// A known is what the driver says of an address in memory of some kind: what it
// is asked for, attribute by attribute.
type known struct {
	what           string
	p, base        sys.CUdeviceptr // the address, and where its range begins
	kind           any
	inContext      bool // it belongs to the context
	device, host   any  // the addresses, less p, or the error
	size           uintptr
	types, ipc, rw any
	sync           sys.CUresult // of setting CU_POINTER_ATTRIBUTE_SYNC_MEMOPS
}

func TestC36_PointerAttributes(t *testing.T) {
	c := inContext(t)
	p, q := plain(t, c, 1000), hole(t)
	r := reserved(t, unit)
	mapped(t, r, unit, created(t, unit))
	b := pages(t, unix.PROT_READ|unix.PROT_WRITE)
	ok(t, c.CuMemHostRegister_v2(at(b), 8*KiB, 0))
	host, result := pinned(c, 5000, 0)
	ok(t, result)
	h, dev, virtual := sys.CU_MEMORYTYPE_HOST, sys.CU_MEMORYTYPE_DEVICE, notSupported
	for _, k := range []known{
		{"memory of cuMemAlloc", p + 10, p, dev, true, 0, invalid, 1000, 0, 1, 3, success},
		{"pinned memory", sys.CUdeviceptr(addressOf(host)) + 10, sys.CUdeviceptr(addressOf(host)), h, true, 0, 0, 5000, 0, 0, 3, success},
		{"registered memory", addressIn(b[10:]), addressIn(b), h, true, 0, 0, 8 * KiB, 0, 0, 3, success},
		{"a mapping", q + 10, q, dev, false, 0, invalid, 3 * unit, 1, 0, 3, virtual},
		{"the last of two", q + 2*unit + 10, q, dev, false, 0, invalid, 3 * unit, 1, 0, 3, virtual},
		{"a mapping before cuMemSetAccess", r + 10, r, dev, false, invalid, invalid, unit, 1, 0, 0, virtual},
	} {
		ctx := any(0)
		if k.inContext {
			ctx = uint64(c.Context())
		}
		less := func(v any) any {
			if at, is := v.(uint64); is {
				return int64(at) - int64(k.p)
			}
			return v
		}
		check(t, k.what+": type", uint32(k.kind.(sys.CUmemorytype)), attribute(c, sys.CU_POINTER_ATTRIBUTE_MEMORY_TYPE, k.p, 4))
		check(t, k.what+": context", ctx, attribute(c, sys.CU_POINTER_ATTRIBUTE_CONTEXT, k.p, 8))
		check(t, k.what+": device", 0, attribute(c, sys.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, k.p, 4))
		check(t, k.what+": device address", k.device, less(attribute(c, sys.CU_POINTER_ATTRIBUTE_DEVICE_POINTER, k.p, 8)))
		check(t, k.what+": host address", k.host, less(attribute(c, sys.CU_POINTER_ATTRIBUTE_HOST_POINTER, k.p, 8)))
		check(t, k.what+": begin", uint64(k.base), attribute(c, sys.CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, k.p, 8))
		check(t, k.what+": size", k.size, attribute(c, sys.CU_POINTER_ATTRIBUTE_RANGE_SIZE, k.p, 8))
		check(t, k.what+": mapped", 1, attribute(c, sys.CU_POINTER_ATTRIBUTE_MAPPED, k.p, 4))
		check(t, k.what+": managed", 0, attribute(c, sys.CU_POINTER_ATTRIBUTE_IS_MANAGED, k.p, 4))
		check(t, k.what+": handle types", k.types, attribute(c, sys.CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES, k.p, 8))
		check(t, k.what+": legacy IPC", k.ipc, attribute(c, sys.CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, k.p, 4))
		check(t, k.what+": rights", k.rw, attribute(c, sys.CU_POINTER_ATTRIBUTE_ACCESS_FLAGS, k.p, 4))
		check(t, k.what+": pool", 0, attribute(c, sys.CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, k.p, 8))
		check(t, k.what+": an attribute that does not exist", invalid, attribute(c, 0, k.p, 8))
		check(t, k.what+": another", invalid, attribute(c, 99, k.p, 8))
		check(t, k.what+": make calls wait", k.sync, setAttribute(c, sys.CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, k.p, 1))
		if k.sync == success {
			check(t, k.what+": they do", 1, attribute(c, sys.CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, k.p, 4))
			check(t, k.what+": no more", success, setAttribute(c, sys.CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, k.p, 0))
			check(t, k.what+": another attribute", invalid, setAttribute(c, sys.CU_POINTER_ATTRIBUTE_BUFFER_ID, k.p, 0))
		}
		check(t, k.what+": they do not", 0, attribute(c, sys.CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, k.p, 4))
	}
	check(t, "two mappings are two buffers", true,
		attribute(c, sys.CU_POINTER_ATTRIBUTE_BUFFER_ID, q, 8) != attribute(c, sys.CU_POINTER_ATTRIBUTE_BUFFER_ID, q+2*unit, 8))
	version := new(int32)
	if ok(t, c.CuDriverGetVersion(version)); *version < 11070 {
		skip(t, 2, "attributes of mappings came with CUDA 11.7")
	} else {
		check(t, "the mapping itself", uint64(unit), attribute(c, sys.CU_POINTER_ATTRIBUTE_MAPPING_SIZE, q+2*unit, 8))
		check(t, "begins", uint64(q+2*unit), attribute(c, sys.CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR, q+2*unit+5, 8))
	}
	ok(t, c.CuMemHostUnregister(at(b)))
	ok(t, c.CuMemFreeHost(host))
}

// At an address without memory of the driver's, a single attribute is an error and several
// at once are zeros, but for three.
func TestC36_AttributesOfNothing(t *testing.T) {
	c := inContext(t)
	p, q, b := plain(t, c, 1000), hole(t), make([]byte, 64)
	kind, base := sys.CU_POINTER_ATTRIBUTE_MEMORY_TYPE, sys.CU_POINTER_ATTRIBUTE_RANGE_START_ADDR
	all := []sys.CUpointer_attribute{
		kind, sys.CU_POINTER_ATTRIBUTE_CONTEXT, sys.CU_POINTER_ATTRIBUTE_DEVICE_POINTER, sys.CU_POINTER_ATTRIBUTE_BUFFER_ID,
		sys.CU_POINTER_ATTRIBUTE_MAPPED, sys.CU_POINTER_ATTRIBUTE_ACCESS_FLAGS, sys.CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES,
		sys.CU_POINTER_ATTRIBUTE_HOST_POINTER, sys.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, base, sys.CU_POINTER_ATTRIBUTE_RANGE_SIZE,
	}
	const untouched = 0x7777777777777777
	for _, x := range []struct {
		what       string
		p          sys.CUdeviceptr
		base, size uint64
	}{
		{"pageable memory", addressIn(b), untouched, untouched}, {"address 0", 0, untouched, untouched},
		{"a wild address", 4096, untouched, untouched}, {"the end of memory", p + 1000, untouched, untouched},
		{"reserved addresses", q + unit + 10, uint64(q), 3 * unit},
	} {
		check(t, x.what, invalid, attribute(c, kind, x.p, 4))
		check(t, x.what+", its range", invalid, attribute(c, base, x.p, 8))
		check(t, x.what+", to set", invalid, setAttribute(c, sys.CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, x.p, 1))
		w, r := attributes(c, x.p, untouched, all...)
		check(t, x.what+", several", success, r)
		for i := range 7 {
			check(t, x.what+", "+all[i].String(), 0, uint32(w[i]))
		}
		check(t, x.what+", the host's", uint64(x.p), w[7])
		check(t, x.what+", the device's", -2, int32(w[8]))
		check(t, x.what+", begin", x.base, w[9])
		check(t, x.what+", size", x.size, w[10])
	}
	_, r := attributes(c, p, 0)
	check(t, "no attributes", invalid, r)
	_, r = attributes(c, p, 0, kind, 99)
	check(t, "one that does not exist", invalid, r)
	_, r = attributes(c, addressIn(b), 0, kind, 0)
	check(t, "the same of pageable memory", invalid, r)
	check(t, "no list", invalid, c.CuPointerGetAttributes(1, nil, nil, p))
}

// Without a context there is no address to kernels, and rights only to memory
// that belongs to one.
func TestC36_AttributesWithoutContext(t *testing.T) {
	in := inContext(t)
	p, q := plain(t, in, 1000), hole(t)
	c := withoutContext(t)
	check(t, "the type", 2, attribute(c, sys.CU_POINTER_ATTRIBUTE_MEMORY_TYPE, p, 4))
	check(t, "the device address", noContext, attribute(c, sys.CU_POINTER_ATTRIBUTE_DEVICE_POINTER, p, 8))
	w, r := attributes(c, p, 7, sys.CU_POINTER_ATTRIBUTE_DEVICE_POINTER, sys.CU_POINTER_ATTRIBUTE_CONTEXT)
	check(t, "several", success, r)
	check(t, "the device address", 0, w[0])
	check(t, "the context", uint64(in.Context()), w[1])
	check(t, "rights to memory of cuMemAlloc", 3, attribute(c, sys.CU_POINTER_ATTRIBUTE_ACCESS_FLAGS, p, 4))
	check(t, "rights to a mapping", 0, attribute(c, sys.CU_POINTER_ATTRIBUTE_ACCESS_FLAGS, q, 4))
	check(t, "setting", success, setAttribute(c, sys.CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, p, 0))
}
