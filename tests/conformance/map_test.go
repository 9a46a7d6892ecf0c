package conformance

import (
	"testing"

	"github.com/gpufd/gpufd/cu/sys"
)

func TestD1_MapIsWhole(t *testing.T) {
	c := raw(t)
	h := created(t, 2*unit)
	p := reserved(t, 4*unit)
	for _, x := range []struct {
		what         string
		size, offset uintptr
	}{
		{"the first half", unit, 0},
		{"the second half", unit, unit},
		{"more than there is", 4 * unit, 0},
		{"all and more from an offset", 2 * unit, unit},
		{"a byte less", 2*unit - 1, 0},
		{"a byte more", 2*unit + 1, 0},
		{"a page", 4 * KiB, 0},
		{"an offset of one", 2 * unit, 1},
		{"an offset far out", 2 * unit, TiB},
	} {
		check(t, x.what, notSupported, c.CuMemMap(p, x.size, x.offset, h, 0))
	}
	check(t, "nothing", invalid, c.CuMemMap(p, 0, 0, h, 0))
	check(t, "the whole", success, c.CuMemMap(p, 2*unit, 0, h, 0))
	ok(t, c.CuMemUnmap(p, 2*unit))
}

func TestD2_Aliases(t *testing.T) {
	c := inContext(t)
	p, h := buffer(t, unit)
	q := reserved(t, unit)
	check(t, "a second mapping", success, c.CuMemMap(q, unit, 0, h, 0))
	t.Cleanup(func() { ok(t, c.CuMemUnmap(q, unit)) })
	allowed(t, q, unit, readOnly)
	b := []byte{42}
	ok(t, c.CuMemcpyHtoD_v2(p+5, at(b), 1))
	check(t, "written through one, read through the other", 42, byteAt(c, q+5))
	check(t, "each has its own rights", invalid, c.CuMemcpyHtoD_v2(q+5, at(b), 1))
	allowed(t, q, unit, readWrite)
	check(t, "and may get more", success, c.CuMemcpyHtoD_v2(q+5, at([]byte{43}), 1))
	check(t, "the other way round", 43, byteAt(c, p+5))
}

func TestD3_MapWhere(t *testing.T) {
	c := raw(t)
	h, h2 := created(t, 2*unit), created(t, unit)
	p := reserved(t, 6*unit)
	mapped(t, p+2*unit, 2*unit, h)
	for _, x := range []struct {
		what string
		at   sys.CUdeviceptr
	}{
		{"an occupied range", p + 2*unit},
		{"over the head of a mapping", p + unit},
		{"over the tail of a mapping", p + 3*unit},
		{"an address that is not aligned", p + unit/2},
		{"an address off by one", p + 1},
		{"no reservation", 1 << 45},
		{"address 0", 0},
	} {
		check(t, x.what, invalid, c.CuMemMap(x.at, 2*unit, 0, h, 0))
	}
	check(t, "other memory inside a mapping", invalid, c.CuMemMap(p+3*unit, unit, 0, h2, 0))
	check(t, "the same memory again, elsewhere", success, c.CuMemMap(p+4*unit, 2*unit, 0, h, 0))
	ok(t, c.CuMemUnmap(p+4*unit, 2*unit))
}

// Beyond the borders of a reservation there may be others, the driver's own
// among them, and then a mapping may succeed (C8).
func mapBeyond(what string, at int) row {
	return row{what: what, want: either, id: "beyond-reservation", soft: invalid, ask: func(t testing.TB) any {
		h, p := created(t, 2*unit), reserved(t, 6*unit)
		return raw(t).CuMemMap(p+sys.CUdeviceptr(at*unit), 2*unit, 0, h, 0)
	}}
}

var beyond = alone("map beyond a reservation",
	mapBeyond("across the reservation's end", 5),
	mapBeyond("across the reservation's beginning", -1),
	mapBeyond("right after the reservation", 6),
	mapBeyond("right before the reservation", -2),
)

func TestD3_MapBeyond(t *testing.T) { beyond.check(t) }

// sideBySide maps memory into two reservations of a unit each, one behind the
// other.
func sideBySide(t testing.TB) sys.CUdeviceptr {
	t.Helper()
	p := neighbours(t, unit)
	mapped(t, p, unit, created(t, unit))
	mapped(t, p+unit, unit, created(t, unit))
	return p
}

// The driver does not mind where one reservation ends and the next begins, but
// frees them one by one.
var besides = alone("side by side",
	row{what: "free both at once", want: invalid, ask: func(t testing.TB) any {
		return raw(t).CuMemAddressFree(neighbours(t, unit), 2*unit)
	}},
	row{what: "map across both", want: success, id: "across-reservations", soft: invalid, ask: func(t testing.TB) any {
		return raw(t).CuMemMap(neighbours(t, unit), 2*unit, 0, created(t, 2*unit), 0)
	}},
	row{what: "set access across both", want: success, id: "across-reservations", soft: invalid, ask: func(t testing.TB) any {
		return raw(t).CuMemSetAccess(sideBySide(t), 2*unit, accessTo(0, readWrite), 1)
	}},
)

func TestC8_SideBySide(t *testing.T) { besides.check(t) }

func TestD3_Free(t *testing.T) {
	c := raw(t)
	h := created(t, unit)
	p := reserved(t, 4*unit)
	ok(t, c.CuMemMap(p, unit, 0, h, 0))
	check(t, "a reservation that is mapped", invalid, c.CuMemAddressFree(p, 4*unit))
	ok(t, c.CuMemUnmap(p, unit))
	check(t, "its head", invalid, c.CuMemAddressFree(p, unit))
	check(t, "its tail", invalid, c.CuMemAddressFree(p+2*unit, 2*unit))
	check(t, "more than it", invalid, c.CuMemAddressFree(p, 8*unit))
	check(t, "a byte less", invalid, c.CuMemAddressFree(p, 4*unit-1))
	check(t, "nothing", invalid, c.CuMemAddressFree(p, 0))
	check(t, "address 0", invalid, c.CuMemAddressFree(0, 4*unit))
	check(t, "no reservation", invalid, c.CuMemAddressFree(1<<45, unit))
}

func TestD3_Unmap(t *testing.T) {
	c := raw(t)
	h := created(t, 2*unit)
	p := reserved(t, 4*unit)
	ok(t, c.CuMemMap(p, 2*unit, 0, h, 0))
	ok(t, c.CuMemMap(p+2*unit, 2*unit, 0, h, 0))
	check(t, "the head of a mapping", invalid, c.CuMemUnmap(p, unit))
	check(t, "the tail of a mapping", invalid, c.CuMemUnmap(p+unit, unit))
	check(t, "one and a half mappings", invalid, c.CuMemUnmap(p, 3*unit))
	check(t, "the halves that meet", invalid, c.CuMemUnmap(p+unit, 2*unit))
	check(t, "nothing", invalid, c.CuMemUnmap(p, 0))
	check(t, "a size that is not aligned", invalid, c.CuMemUnmap(p, 2*unit-1))
	check(t, "two mappings at once", success, c.CuMemUnmap(p, 4*unit))
}

// Errors that crash the driver, or that it lets pass.
var misuse = alone("misuse",
	row{what: "unmap again", want: success, id: "unmap-unmapped", soft: invalid, ask: func(t testing.TB) any {
		p := reserved(t, unit)
		mapped(t, p, unit, created(t, unit))
		ok(t, raw(t).CuMemUnmap(p, unit))
		return raw(t).CuMemUnmap(p, unit)
	}},
	row{what: "unmap more than is mapped", want: success, id: "unmap-unmapped", soft: invalid, ask: func(t testing.TB) any {
		p := reserved(t, 2*unit)
		mapped(t, p, unit, created(t, unit))
		return raw(t).CuMemUnmap(p, 2*unit)
	}},
	row{what: "unmap what was never mapped", want: success, id: "unmap-unmapped", soft: invalid, ask: func(t testing.TB) any {
		return raw(t).CuMemUnmap(reserved(t, unit), unit)
	}},
	row{what: "unmap outside reservations", want: invalid, ask: func(t testing.TB) any {
		return raw(t).CuMemUnmap(1<<45, unit)
	}},
	row{what: "unmap at address 0", want: invalid, ask: func(t testing.TB) any {
		return raw(t).CuMemUnmap(0, unit)
	}},
	row{what: "unmap across the end of a reservation", want: success, id: "unmap-unmapped", soft: invalid, ask: func(t testing.TB) any {
		p := reserved(t, unit)
		mapped(t, p, unit, created(t, unit))
		return raw(t).CuMemUnmap(p, 2*unit)
	}},
	row{what: "free a reservation twice", want: invalid, ask: func(t testing.TB) any {
		p := reserved(t, unit)
		ok(t, raw(t).CuMemAddressFree(p, unit))
		return raw(t).CuMemAddressFree(p, unit)
	}},
)

func TestD4_Misuse(t *testing.T) { misuse.check(t) }

// handleUses are the calls that take an allocation's handle.
var handleUses = map[string]func(testing.TB, sys.CUmemGenericAllocationHandle) sys.CUresult{
	"release": func(t testing.TB, h sys.CUmemGenericAllocationHandle) sys.CUresult { return raw(t).CuMemRelease(h) },
	"map": func(t testing.TB, h sys.CUmemGenericAllocationHandle) sys.CUresult {
		return raw(t).CuMemMap(reserved(t, unit), unit, 0, h, 0)
	},
	"export": func(t testing.TB, h sys.CUmemGenericAllocationHandle) sys.CUresult {
		_, r := export(raw(t), h, handleFD, 0)
		return r
	},
	"properties": func(t testing.TB, h sys.CUmemGenericAllocationHandle) sys.CUresult {
		return raw(t).CuMemGetAllocationPropertiesFromHandle(new(sys.CUmemAllocationProp), h)
	},
}

// use asks for a use of a handle that is none, where the driver is lucky to
// crash.
func use(call, what string, want any, h func(testing.TB) sys.CUmemGenericAllocationHandle) row {
	r := row{what: call + " of " + what, want: want, ask: func(t testing.TB) any { return handleUses[call](t, h(t)) }}
	switch want {
	case crashes:
		r.id, r.soft = "no-handle", invalid
	case success:
		r.id, r.soft = "released-handle", invalid
	}
	return r
}

func handleOf(h sys.CUmemGenericAllocationHandle) func(testing.TB) sys.CUmemGenericAllocationHandle {
	return func(testing.TB) sys.CUmemGenericAllocationHandle { return h }
}

// released is a handle that was.
func released(t testing.TB) sys.CUmemGenericAllocationHandle {
	h := created(t, unit)
	ok(t, raw(t).CuMemRelease(h))
	return h
}

// releasedWhileMapped is a handle that was, of memory that is still mapped.
func releasedWhileMapped(t testing.TB) sys.CUmemGenericAllocationHandle {
	h := created(t, unit)
	mapped(t, reserved(t, unit), unit, h)
	ok(t, raw(t).CuMemRelease(h))
	return h
}

var noHandles = sheet("no handle",
	use("release", "0", invalid, handleOf(0)),
	use("release", "1", crashes, handleOf(1)),
	use("release", "0xdeadbeef", crashes, handleOf(0xdeadbeef)),
	use("release", "a released handle", invalid, released),
	use("release", "a handle released while mapped", invalid, releasedWhileMapped),
	use("map", "0", invalid, handleOf(0)),
	use("map", "0xdeadbeef", crashes, handleOf(0xdeadbeef)),
	use("map", "a released handle", crashes, released),
	use("map", "a handle released while mapped", success, releasedWhileMapped),
	use("export", "0", invalid, handleOf(0)),
	use("export", "0xdeadbeef", crashes, handleOf(0xdeadbeef)),
	use("export", "a released handle", crashes, released),
	use("export", "a handle released while mapped", success, releasedWhileMapped),
	use("properties", "0", invalid, handleOf(0)),
	use("properties", "0xdeadbeef", crashes, handleOf(0xdeadbeef)),
	use("properties", "a released handle", success, released),
	use("properties", "a handle released while mapped", success, releasedWhileMapped),
)

func TestD4_NoHandle(t *testing.T) { noHandles.check(t) }
