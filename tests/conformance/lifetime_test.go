package conformance

import (
	"testing"

	"github.com/gpufd/gpufd/cu/sys"
)

// Memory is free when it is unmapped and released, in whichever order.
func TestD12_UnmappedAndReleased(t *testing.T) {
	const size = 16 * unit
	c := inContext(t)
	p := reserved(t, size)
	for _, releaseFirst := range []bool{true, false} {
		before := freeBytes(t, c)
		h := new(sys.CUmemGenericAllocationHandle)
		ok(t, c.CuMemCreate(h, size, propOf(0), 0))
		ok(t, c.CuMemMap(p, size, 0, *h, 0))
		allowed(t, p, size, readWrite)
		release := func() sys.CUresult { return c.CuMemRelease(*h) }
		unmap := func() sys.CUresult { return c.CuMemUnmap(p, size) }
		first, second := unmap, release
		if releaseFirst {
			first, second = release, unmap
		}
		check(t, "the first of the two", success, first())
		check(t, "keeps the memory", size, before-freeBytes(t, c))
		if releaseFirst {
			check(t, "the mapping works", success, c.CuMemsetD8_v2(p, 1, size))
			ok(t, c.CuCtxSynchronize())
		}
		check(t, "the second", success, second())
		check(t, "frees it", 0, before-freeBytes(t, c))
	}
}

// An imported handle holds the memory like the first one does.
//
//fault:rows 9
func TestD12_ImportedHolds(t *testing.T) {
	const size = 16 * unit
	c := inContext(t)
	before := freeBytes(t, c)
	own, other := new(sys.CUmemGenericAllocationHandle), new(sys.CUmemGenericAllocationHandle)
	ok(t, c.CuMemCreate(own, size, propOf(0), 0))
	f := exported(t, *own)
	ok(t, c.CuMemImportFromShareableHandle(other, f.Fd(), handleFD))
	check(t, "an import takes no memory", size, before-freeBytes(t, c))
	ok(t, c.CuMemRelease(*own))
	check(t, "the import holds it", size, before-freeBytes(t, c))
	ok(t, c.CuMemRelease(*other))
	check(t, "the descriptor holds it", size, before-freeBytes(t, c))
	check(t, "closing it", nil, f.Close())
	check(t, "frees it", 0, before-freeBytes(t, c))
}

// Import, map, release the handle, close the descriptor; and what of it is
// wrong too early.
func TestD13_Order(t *testing.T) {
	c := inContext(t)
	p, h := buffer(t, unit)
	ok(t, c.CuMemsetD8_v2(p, 9, 1))
	f := exported(t, h)
	h2 := new(sys.CUmemGenericAllocationHandle)
	ok(t, c.CuMemImportFromShareableHandle(h2, f.Fd(), handleFD))
	q := reserved(t, unit)
	check(t, "map", success, c.CuMemMap(q, unit, 0, *h2, 0))
	check(t, "release the handle", success, c.CuMemRelease(*h2))
	check(t, "close the descriptor", nil, f.Close())
	check(t, "set access", success, c.CuMemSetAccess(q, unit, accessTo(0, readOnly), 1))
	check(t, "read", 9, byteAt(c, q))
	check(t, "unmap", success, c.CuMemUnmap(q, unit))
}

var afterContext = sheet("after the context",
	row{what: "unmap", want: success, ask: func(t testing.TB) any {
		c, _ := primary(t)
		p, _ := buffer(t, unit)
		ok(t, c.CuDevicePrimaryCtxRelease_v2(0))
		return c.CuMemUnmap(p, unit)
	}},
	row{what: "memory outlives the context", want: 5, ask: func(t testing.TB) any {
		c, ctx := primary(t)
		p, _ := buffer(t, unit)
		ok(t, c.With(ctx).CuMemsetD8_v2(p, 5, 8))
		ok(t, c.CuDevicePrimaryCtxRelease_v2(0))
		return byteAt(inContext(t), p)
	}},
	row{what: "mapped before any context", want: success, ask: func(t testing.TB) any {
		p, _ := buffer(t, unit)
		return inContext(t).CuMemsetD8_v2(p, 1, unit)
	}},
)

func TestD13_AfterTheContext(t *testing.T) { afterContext.check(t) }

var fresh = sheet("fresh memory",
	row{what: "cuMemCreate", want: 0, ask: func(t testing.TB) any {
		p, _ := buffer(t, unit)
		return highest(t, p, unit)
	}},
	row{what: "cuMemAlloc", want: 0, ask: func(t testing.TB) any {
		return highest(t, plain(t, inContext(t), unit), unit)
	}},
)

// highest is the largest byte of memory.
func highest(t testing.TB, p sys.CUdeviceptr, n int) (most byte) {
	b := make([]byte, n)
	ok(t, inContext(t).CuMemcpyDtoH_v2(at(b), p, uintptr(n)))
	for _, x := range b {
		most = max(most, x)
	}
	return most
}

func TestD9_FreshMemoryIsZero(t *testing.T) { fresh.check(t) }
