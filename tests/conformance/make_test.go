package conformance

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu/sys"
)

// Arguments of calls. Each is given back when the test ends.

// propOf describes memory of a device that can be shared as a descriptor.
func propOf(dev int32) *sys.CUmemAllocationProp {
	return &sys.CUmemAllocationProp{
		Type:                 sys.CU_MEM_ALLOCATION_TYPE_PINNED,
		RequestedHandleTypes: handleFD,
		Location:             deviceLocation(dev),
	}
}

// propWith is propOf the first device, changed by f.
func propWith(f func(*sys.CUmemAllocationProp)) *sys.CUmemAllocationProp {
	p := propOf(0)
	f(p)
	return p
}

func deviceLocation(dev int32) sys.CUmemLocation {
	return sys.CUmemLocation{Type: sys.CU_MEM_LOCATION_TYPE_DEVICE, Id: dev}
}

// accessTo describes rights of a device.
func accessTo(dev int32, flags sys.CUmemAccess_flags) *sys.CUmemAccessDesc {
	return &sys.CUmemAccessDesc{Location: deviceLocation(dev), Flags: flags}
}

// created makes memory of the first device.
func created(t testing.TB, size uintptr) sys.CUmemGenericAllocationHandle {
	t.Helper()
	c := raw(t)
	h := new(sys.CUmemGenericAllocationHandle)
	ok(t, c.CuMemCreate(h, size, propOf(0), 0))
	t.Cleanup(func() { ok(t, c.CuMemRelease(*h)) })
	return *h
}

// reserved returns address space.
func reserved(t testing.TB, size uintptr) sys.CUdeviceptr {
	t.Helper()
	c := raw(t)
	p := new(sys.CUdeviceptr)
	ok(t, c.CuMemAddressReserve(p, size, 0, 0, 0))
	t.Cleanup(func() { ok(t, c.CuMemAddressFree(*p, size)) })
	return *p
}

// neighbours makes two reservations, one behind the other. Hints are not always
// honoured; but of many reservations some are neighbours.
func neighbours(t testing.TB, size uintptr) sys.CUdeviceptr {
	t.Helper()
	all, step := map[sys.CUdeviceptr]bool{}, sys.CUdeviceptr(size)
	for p := step; len(all) < 256; { // the first hint is none
		p = reservedFor(t, size, p-step)
		all[p] = true
		for _, q := range []sys.CUdeviceptr{p - step, p} {
			if all[q] && all[q+step] {
				delete(all, q)
				delete(all, q+step)
				freeAll(t, all, size)
				return q
			}
		}
	}
	freeAll(t, all, size)
	require.Fail(t, "no two of many reservations are neighbours")
	return 0
}

// freeAll frees reservations of one size.
func freeAll(t testing.TB, all map[sys.CUdeviceptr]bool, size uintptr) {
	t.Helper()
	for p := range all {
		ok(t, raw(t).CuMemAddressFree(p, size))
	}
}

// reservedFor reserves address space, at hint if the driver likes.
func reservedFor(t testing.TB, size uintptr, hint sys.CUdeviceptr) sys.CUdeviceptr {
	t.Helper()
	p := new(sys.CUdeviceptr)
	ok(t, raw(t).CuMemAddressReserve(p, size, 0, hint, 0))
	return *p
}

// mapped maps memory of that size.
func mapped(t testing.TB, p sys.CUdeviceptr, size uintptr, h sys.CUmemGenericAllocationHandle) {
	t.Helper()
	c := raw(t)
	ok(t, c.CuMemMap(p, size, 0, h, 0))
	t.Cleanup(func() { ok(t, c.CuMemUnmap(p, size)) })
}

// allowed sets the first device's rights.
func allowed(t testing.TB, p sys.CUdeviceptr, size uintptr, flags sys.CUmemAccess_flags) {
	t.Helper()
	ok(t, raw(t).CuMemSetAccess(p, size, accessTo(0, flags), 1))
}

// buffer returns memory of the first device, mapped and read-write there.
func buffer(t testing.TB, size uintptr) (sys.CUdeviceptr, sys.CUmemGenericAllocationHandle) {
	t.Helper()
	h := created(t, size)
	p := reserved(t, size)
	mapped(t, p, size, h)
	allowed(t, p, size, readWrite)
	return p, h
}

// plain returns memory of cuMemAlloc.
func plain(t testing.TB, c sys.Caller, size uintptr) sys.CUdeviceptr {
	t.Helper()
	p := new(sys.CUdeviceptr)
	ok(t, c.CuMemAlloc_v2(p, size))
	t.Cleanup(func() { ok(t, c.CuMemFree_v2(*p)) })
	return *p
}

// stream returns a stream that does not wait for the legacy default stream.
func stream(t testing.TB, c sys.Caller) sys.CUstream {
	t.Helper()
	s := new(sys.CUstream)
	ok(t, c.CuStreamCreate(s, uint32(sys.CU_STREAM_NON_BLOCKING)))
	t.Cleanup(func() { ok(t, c.CuStreamDestroy_v2(*s)) })
	return *s
}

// event returns an event.
func event(t testing.TB, c sys.Caller, flags sys.CUevent_flags) sys.CUevent {
	t.Helper()
	e := new(sys.CUevent)
	ok(t, c.CuEventCreate(e, uint32(flags)))
	t.Cleanup(func() { ok(t, c.CuEventDestroy_v2(*e)) })
	return *e
}

// byteAt reads the byte at p in c's context, or says why it cannot.
func byteAt(c sys.Caller, p sys.CUdeviceptr) any {
	b := make([]byte, 1)
	if r := c.CuMemcpyDtoH_v2(at(b), p, 1); r != success {
		return r
	}
	return b[0]
}

// freeBytes is the device's free memory.
func freeBytes(t testing.TB, c sys.Caller) uintptr {
	t.Helper()
	free, total := new(uintptr), new(uintptr)
	ok(t, c.CuMemGetInfo_v2(free, total))
	return *free
}

// exported returns a descriptor of the memory.
func exported(t testing.TB, h sys.CUmemGenericAllocationHandle) *os.File {
	t.Helper()
	fd, r := export(raw(t), h, handleFD, 0)
	ok(t, r)
	f := os.NewFile(uintptr(fd), "device memory")
	t.Cleanup(func() { f.Close() })
	return f
}

// imported returns a handle of the memory that a descriptor is.
func imported(t testing.TB, f *os.File) sys.CUmemGenericAllocationHandle {
	t.Helper()
	c := raw(t)
	h := new(sys.CUmemGenericAllocationHandle)
	ok(t, c.CuMemImportFromShareableHandle(h, f.Fd(), handleFD))
	t.Cleanup(func() { ok(t, c.CuMemRelease(*h)) })
	return *h
}
