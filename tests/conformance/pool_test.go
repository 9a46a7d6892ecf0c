package conformance

import (
	"math"
	"os"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gpufd/gpufd/cu/sys"
)

// Attributes of pools.
const (
	opportunistic = sys.CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC
	threshold     = sys.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD
	poolReserved  = sys.CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT
	poolHigh      = sys.CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH
	poolUsed      = sys.CU_MEMPOOL_ATTR_USED_MEM_CURRENT
	poolUsedHigh  = sys.CU_MEMPOOL_ATTR_USED_MEM_HIGH
)

// newPool makes a pool of the first device that can be shared as types.
func newPool(t testing.TB, types sys.CUmemAllocationHandleType) sys.CUmemoryPool {
	t.Helper()
	c, p := raw(t), new(sys.CUmemoryPool)
	ok(t, c.CuMemPoolCreate(p, &sys.CUmemPoolProps{
		AllocType:   sys.CU_MEM_ALLOCATION_TYPE_PINNED,
		HandleTypes: types,
		Location:    deviceLocation(0),
	}))
	t.Cleanup(func() { ok(t, c.CuMemPoolDestroy(*p)) })
	return *p
}

// fromPool allocates memory that the test frees.
func fromPool(t testing.TB, c sys.Caller, p sys.CUmemoryPool, n uintptr, s sys.CUstream) sys.CUdeviceptr {
	t.Helper()
	d := new(sys.CUdeviceptr)
	ok(t, c.CuMemAllocFromPoolAsync(d, n, p, s))
	return *d
}

// pooled allocates memory in the null stream, freed when the test ends.
func pooled(t testing.TB, c sys.Caller, p sys.CUmemoryPool, n uintptr) sys.CUdeviceptr {
	t.Helper()
	d := fromPool(t, c, p, n, 0)
	t.Cleanup(func() {
		ok(t, c.CuMemFreeAsync(d, 0))
		ok(t, c.CuCtxSynchronize())
	})
	return d
}

// defaultPool is the first device's.
func defaultPool(t testing.TB) sys.CUmemoryPool {
	t.Helper()
	p := new(sys.CUmemoryPool)
	ok(t, raw(t).CuDeviceGetDefaultMemPool(p, 0))
	return *p
}

func TestC29_Defaults(t *testing.T) {
	c, first, now := raw(t), defaultPool(t), new(sys.CUmemoryPool)
	ok(t, c.CuDeviceGetMemPool(now, 0))
	check(t, "the default pool is the current one", true, first == *now)
	supported := new(int32)
	ok(t, c.CuDeviceGetAttribute(supported, sys.CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED, 0))
	check(t, "supported", 1, *supported)
	ok(t, c.CuDeviceGetAttribute(supported, sys.CU_DEVICE_ATTRIBUTE_MEMPOOL_SUPPORTED_HANDLE_TYPES, 0))
	check(t, "shareable as descriptors", 1, *supported&int32(handleFD))
	p := newPool(t, handleFD)
	for a, want := range map[sys.CUmemPool_attribute]uint64{1: 1, 2: 1, 3: 1, threshold: 0, poolReserved: 0, poolHigh: 0, poolUsed: 0, poolUsedHigh: 0} {
		v, r := poolValue(c, p, a)
		ok(t, r)
		check(t, a.String(), want, v)
	}
	check(t, "no such device", noDevice, c.CuDeviceGetDefaultMemPool(now, 99))
	check(t, "destroy the default pool", invalid, c.CuMemPoolDestroy(first))
}

func TestC29_Attributes(t *testing.T) {
	c, p := raw(t), newPool(t, handleFD)
	for a, want := range map[sys.CUmemPool_attribute]sys.CUresult{
		0: invalid, 9: invalid, 100: invalid, poolReserved: invalid, poolUsed: invalid, poolHigh: invalid, poolUsedHigh: invalid, threshold: success,
	} {
		check(t, "set to 5: "+a.String(), want, setPoolValue(c, p, a, 5))
	}
	check(t, "set a high to 0", success, setPoolValue(c, p, poolHigh, 0))
	check(t, "set a high to 0", success, setPoolValue(c, p, poolUsedHigh, 0))
	check(t, "set a flag to 2", success, setPoolValue(c, p, opportunistic, 2))
	v, _ := poolValue(c, p, opportunistic)
	check(t, "which is set then", 1, v)
	for _, a := range []sys.CUmemPool_attribute{0, 9} {
		_, r := poolValue(c, p, a)
		check(t, "get "+a.String(), invalid, r)
	}
}

// Used is what was asked for, to the byte, and falls when the free is called.
// Reserved falls when somebody synchronises, which asking is not.
func TestC29_Accounting(t *testing.T) {
	c := inContext(t)
	p, s := newPool(t, handleFD), stream(t, c)
	asked := func(what string, a sys.CUmemPool_attribute, want any) {
		t.Helper()
		v, r := poolValue(c, p, a)
		ok(t, r)
		check(t, what, want, v)
	}
	d := fromPool(t, c, p, 1, s)
	v, _ := poolValue(c, p, poolReserved)
	differs(t, "pool-step", "what a pool holds for one byte", 32*MiB, 64*KiB, v)
	e := fromPool(t, c, p, 513, s)
	asked("used: 1 and 513 bytes", poolUsed, 514)
	base, size := new(sys.CUdeviceptr), new(uintptr)
	ok(t, c.CuMemGetAddressRange_v2(base, size, e+100))
	check(t, "the range begins", e, *base)
	check(t, "and has bytes", 513, *size)
	check(t, "the byte behind it", sys.CUDA_ERROR_NOT_FOUND, c.CuMemGetAddressRange_v2(base, size, d+1))
	ok(t, c.CuMemFreeAsync(d, s))
	ok(t, c.CuMemFreeAsync(e, s))
	asked("used when the free has been called", poolUsed, 0)
	asked("the most that was used", poolUsedHigh, 514)
	ok(t, c.CuStreamSynchronize(s))
	asked("reserved when the stream was waited for", poolReserved, 0)

	four := func() {
		var all []sys.CUdeviceptr
		for range 4 {
			all = append(all, fromPool(t, c, p, 32*MiB, s))
		}
		for _, d := range all {
			ok(t, c.CuMemFreeAsync(d, s))
		}
		asked("reserved before anybody waits", poolReserved, 128*MiB)
		for c.CuStreamQuery(s) != success {
			runtime.Gosched()
		}
		asked("reserved when the stream was asked", poolReserved, 128*MiB)
		ok(t, c.CuStreamSynchronize(s))
	}
	ok(t, setPoolValue(c, p, threshold, 64*MiB))
	four()
	asked("reserved with a threshold of 64 MiB", poolReserved, 64*MiB)
	ok(t, setPoolValue(c, p, threshold, math.MaxUint64))
	four()
	asked("reserved with a threshold of all", poolReserved, 128*MiB)
	for _, trim := range []struct{ keep, left uintptr }{{100 * MiB, 128 * MiB}, {40 * MiB, 64 * MiB}, {0, 0}} {
		ok(t, c.CuMemPoolTrimTo(p, trim.keep))
		asked("reserved when trimmed", poolReserved, trim.left)
	}
	asked("the most that was reserved", poolHigh, 128*MiB)
	ok(t, setPoolValue(c, p, poolHigh, 0))
	asked("the most, begun again", poolHigh, 0)
}

func TestC29_Alloc(t *testing.T) {
	c, p, d := inContext(t), newPool(t, handleFD), new(sys.CUdeviceptr)
	check(t, "0 bytes", success, c.CuMemAllocFromPoolAsync(d, 0, p, 0))
	check(t, "free them", success, c.CuMemFreeAsync(*d, 0))
	for _, n := range []uintptr{4 * TiB, 1 << 46, 1 << 62, math.MaxUint64} {
		check(t, "more than there is", sys.CUDA_ERROR_OUT_OF_MEMORY, c.CuMemAllocFromPoolAsync(d, n, p, 0))
	}
	check(t, "of no pool", invalid, c.CuMemAllocFromPoolAsync(d, 4096, 0, 0))
	check(t, "to nowhere", invalid, c.CuMemAllocFromPoolAsync(nil, 4096, p, 0))
	check(t, "to nowhere, of the current pool", invalid, c.CuMemAllocAsync(nil, 4096, 0))
	check(t, "0 bytes of the current pool", success, c.CuMemAllocAsync(d, 0, 0))
	check(t, "free them", success, c.CuMemFreeAsync(*d, 0))
	check(t, "more than there is of the current pool", sys.CUDA_ERROR_OUT_OF_MEMORY, c.CuMemAllocAsync(d, 4*TiB, 0))
}

func TestC29_Free(t *testing.T) {
	c := inContext(t)
	p, s := newPool(t, handleFD), stream(t, c)
	d := fromPool(t, c, p, 4096, s)
	check(t, "address 0", success, c.CuMemFreeAsync(0, s))
	check(t, "no address", invalid, c.CuMemFreeAsync(0x1234000, s))
	check(t, "inside", invalid, c.CuMemFreeAsync(d+512, s))
	check(t, "inside, by cuMemFree", invalid, c.CuMemFree_v2(d+512))
	check(t, "set beyond the end", invalid, c.CuMemsetD8Async(d, 1, 8192, s))
	check(t, "free", success, c.CuMemFreeAsync(d, s))
	check(t, "again", invalid, c.CuMemFreeAsync(d, s))
	check(t, "use", invalid, c.CuMemsetD8Async(d, 1, 4096, s))
	ok(t, c.CuStreamSynchronize(s))
	check(t, "again, when it is done", invalid, c.CuMemFreeAsync(d, s))
	check(t, "by cuMemFree", invalid, c.CuMemFree_v2(d))
	check(t, "read", invalid, byteAt(c, d))
	d = fromPool(t, c, p, 4096, s)
	ok(t, c.CuStreamSynchronize(s))
	check(t, "cuMemFree", success, c.CuMemFree_v2(d))
	check(t, "again", invalid, c.CuMemFree_v2(d))
	check(t, "again in a stream", invalid, c.CuMemFreeAsync(d, s))
	check(t, "inside memory of cuMemAlloc", invalid, c.CuMemFreeAsync(plain(t, c, 4096)+512, s))
	ok(t, c.CuCtxSynchronize())
}

func TestC29_Share(t *testing.T) {
	c := inContext(t)
	p, alone, d := newPool(t, handleFD), newPool(t, 0), new(sys.CUdeviceptr)
	for what, q := range map[string]sys.CUmemoryPool{"a pool that cannot be shared": alone, "the default pool": defaultPool(t)} {
		_, r := exportPool(c, q, handleFD, 0)
		check(t, "export "+what, invalid, r)
	}
	_, r := exportPool(c, p, handleFD, 1)
	check(t, "export with flags", invalid, r)
	_, r = exportPool(c, p, 0, 0)
	check(t, "export as nothing", invalid, r)
	data := new(sys.CUmemPoolPtrExportData)
	check(t, "a pointer before the pool", invalid, c.CuMemPoolExportPointer(data, pooled(t, c, p, 4096)))
	fd, r := exportPool(c, p, handleFD, 0)
	ok(t, r)
	f := os.NewFile(uintptr(fd), "pool")
	defer f.Close()

	check(t, "a pointer of a pool that cannot be shared", invalid, c.CuMemPoolExportPointer(data, pooled(t, c, alone, 4096)))
	check(t, "of cuMemAlloc", invalid, c.CuMemPoolExportPointer(data, plain(t, c, 4096)))
	check(t, "of nothing", invalid, c.CuMemPoolExportPointer(data, 0x1234))
	q := pooled(t, c, p, 4096)
	check(t, "inside", invalid, c.CuMemPoolExportPointer(data, q+256))
	check(t, "to nowhere", invalid, c.CuMemPoolExportPointer(nil, q))
	check(t, "at the beginning", success, c.CuMemPoolExportPointer(data, q))

	imported := new(sys.CUmemoryPool)
	check(t, "import to nowhere", invalid, c.CuMemPoolImportFromShareableHandle(nil, f.Fd(), handleFD, 0))
	ok(t, c.CuMemPoolImportFromShareableHandle(imported, f.Fd(), handleFD, 0))
	check(t, "allocate from an imported pool", invalid, c.CuMemAllocFromPoolAsync(d, 4096, *imported, 0))
	check(t, "make it the current one", invalid, c.CuDeviceSetMemPool(0, *imported))
	_, r = exportPool(c, *imported, handleFD, 0)
	check(t, "export it", invalid, r)
	check(t, "import no pointer", invalid, c.CuMemPoolImportPointer(d, *imported, nil))
	check(t, "import a pointer to nowhere", invalid, c.CuMemPoolImportPointer(nil, *imported, data))
	check(t, "import zeros", invalid, c.CuMemPoolImportPointer(d, *imported, new(sys.CUmemPoolPtrExportData)))
	check(t, "destroy it", success, c.CuMemPoolDestroy(*imported))
}

func TestC29_Import(t *testing.T) {
	c, p := raw(t), new(sys.CUmemoryPool)
	memfd, err := unix.MemfdCreate("test", unix.MFD_CLOEXEC)
	null, err2 := unix.Open(os.DevNull, unix.O_RDWR|unix.O_CLOEXEC, 0)
	pipe := make([]int, 2)
	if err != nil || err2 != nil || unix.Pipe2(pipe, unix.O_CLOEXEC) != nil {
		t.Fatal(err, err2)
	}
	for what, fd := range map[string]int{"memfd": memfd, "/dev/null": null, "pipe": pipe[0], "the pipe's end": pipe[1]} {
		check(t, what, sys.CUDA_ERROR_UNKNOWN, c.CuMemPoolImportFromShareableHandle(p, uintptr(fd), handleFD, 0))
		unix.Close(fd)
	}
	minus1 := -1
	check(t, "-1", sys.CUDA_ERROR_UNKNOWN, c.CuMemPoolImportFromShareableHandle(p, uintptr(minus1), handleFD, 0))
	check(t, "0", invalid, c.CuMemPoolImportFromShareableHandle(p, 0, handleFD, 0))
	f := exported(t, created(t, unit))
	check(t, "memory of cuMemCreate", notSupported, c.CuMemPoolImportFromShareableHandle(p, f.Fd(), handleFD, 0))
}

func TestC29_Nulls(t *testing.T) {
	c, p := raw(t), newPool(t, handleFD)
	own := deviceLocation(0)
	check(t, "cuDeviceGetDefaultMemPool", invalid, c.CuDeviceGetDefaultMemPool(nil, 0))
	check(t, "cuDeviceSetMemPool", invalid, c.CuDeviceSetMemPool(0, 0))
	check(t, "cuMemPoolDestroy", invalid, c.CuMemPoolDestroy(0))
	check(t, "cuMemPoolCreate, result", invalid, c.CuMemPoolCreate(nil, &sys.CUmemPoolProps{AllocType: 1, Location: own}))
	check(t, "cuMemPoolCreate, properties", invalid, c.CuMemPoolCreate(new(sys.CUmemoryPool), nil))
	check(t, "cuMemPoolSetAccess", invalid, c.CuMemPoolSetAccess(p, nil, 1))
	check(t, "cuMemPoolGetAccess, result", invalid, c.CuMemPoolGetAccess(nil, p, &own))
	check(t, "cuMemPoolGetAccess, location", invalid, c.CuMemPoolGetAccess(new(sys.CUmemAccess_flags), p, nil))
	check(t, "cuMemPoolGetAttribute", invalid, c.CuMemPoolGetAttribute(p, threshold, nil))
	check(t, "cuMemPoolExportToShareableHandle", invalid, c.CuMemPoolExportToShareableHandle(nil, p, handleFD, 0))
	if !has(t, "cuMemGetMemPool", 2) {
		return
	}
	check(t, "cuMemGetMemPool, result", invalid, c.CuMemGetMemPool(nil, &own, sys.CU_MEM_ALLOCATION_TYPE_PINNED))
	check(t, "cuMemGetMemPool, location", invalid, c.CuMemGetMemPool(new(sys.CUmemoryPool), nil, sys.CU_MEM_ALLOCATION_TYPE_PINNED))
}

var noPools = sheet("no pools",
	row{what: "set an attribute to what is at 0", want: crashes, id: "pool-attribute-at-0", soft: invalid, ask: func(t testing.TB) any {
		return raw(t).CuMemPoolSetAttribute(newPool(t, handleFD), threshold, nil)
	}},
	row{what: "allocate from what is no pool", want: varies, id: "no-pool", soft: invalid, ask: func(t testing.TB) any {
		return inContext(t).CuMemAllocFromPoolAsync(new(sys.CUdeviceptr), 4096, 0x12345678, 0)
	}},
	row{what: "trim what is no pool", want: varies, id: "no-pool", soft: invalid, ask: func(t testing.TB) any {
		return raw(t).CuMemPoolTrimTo(0x12345678, 0)
	}},
)

func TestC29_None(t *testing.T) { noPools.check(t) }

// Memory of a pool is not the context's that it was allocated in.
var pastContext = sheet("past the context", row{what: "memory of a pool after a reset", want: 7, ask: func(t testing.TB) any {
	c := inContext(t)
	d := new(sys.CUdeviceptr)
	ok(t, c.CuMemAllocAsync(d, 4096, 0))
	ok(t, c.CuMemsetD8_v2(*d, 7, 4096))
	ok(t, c.CuCtxSynchronize())
	ok(t, raw(t).CuDevicePrimaryCtxReset_v2(0))
	again := inContext(t)
	have := byteAt(again, *d)
	ok(t, again.CuMemFreeAsync(*d, 0))
	ok(t, again.CuCtxSynchronize())
	return have
}})

func TestC29_PastTheContext(t *testing.T) { pastContext.check(t) }
