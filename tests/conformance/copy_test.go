package conformance

import (
	"testing"

	"github.com/gpufd/gpufd/cu/sys"
)

func TestC11_CopyOfNothing(t *testing.T) {
	c := inContext(t)
	p := plain(t, c, unit)
	s := stream(t, c)
	b := make([]byte, 1)
	check(t, "from the host", success, c.CuMemcpyHtoD_v2(p, at(b), 0))
	check(t, "from null to null", success, c.CuMemcpyHtoD_v2(0, nil, 0))
	check(t, "to the host", success, c.CuMemcpyDtoH_v2(nil, 0, 0))
	check(t, "on the device", success, c.CuMemcpyDtoD_v2(0, 0, 0))
	check(t, "anywhere", success, c.CuMemcpy(0, 0, 0))
	check(t, "from the host, queued", success, c.CuMemcpyHtoDAsync_v2(0, nil, 0, s))
	check(t, "to the host, queued", success, c.CuMemcpyDtoHAsync_v2(nil, 0, 0, s))
	check(t, "at a wild address", success, c.CuMemcpyHtoD_v2(1<<45, at(b), 0))
	check(t, "set", success, c.CuMemsetD8_v2(p, 1, 0))
	check(t, "set at null", success, c.CuMemsetD8_v2(0, 1, 0))
	check(t, "set at a wild address", success, c.CuMemsetD8_v2(1<<45, 1, 0))
	check(t, "set at an odd address", success, c.CuMemsetD32_v2(p+1, 1, 0))
}

func TestC11_CopyBounds(t *testing.T) {
	c := inContext(t)
	b := make([]byte, unit)
	// One after the other, so that what follows one is not the other.
	p := plain(t, c, 5*unit)
	end := p + 5*unit
	check(t, "up to the end", success, c.CuMemcpyDtoH_v2(at(b), end-8, 8))
	check(t, "a byte off the end", invalid, c.CuMemcpyDtoH_v2(at(b), end-8, 9))
	check(t, "a byte off the end, written", invalid, c.CuMemcpyHtoD_v2(end-8, at(b), 9))
	check(t, "a byte off the end, set", invalid, c.CuMemsetD8_v2(end-8, 0, 9))
	check(t, "a byte off the end, on the device", invalid, c.CuMemcpyDtoD_v2(p, end-8, 9))
	check(t, "round the end of all addresses, on the device", invalid, c.CuMemcpyDtoD_v2(p, p, ^uintptr(0)))
	check(t, "round the end of all addresses, to the host", invalid, c.CuMemcpyDtoH_v2(at(b), p, ^uintptr(0)))
	check(t, "far off the end, set", invalid, c.CuMemsetD8_v2(p, 0, TiB))
	check(t, "all of it off the end", invalid, c.CuMemcpyDtoH_v2(at(b), end, 8))
	check(t, "a byte before", invalid, c.CuMemcpyDtoH_v2(at(b), p-1, 2))
	odd := plain(t, c, 1000)
	check(t, "into the rounded-up tail", invalid, c.CuMemcpyDtoH_v2(at(b), odd, 1001))
	check(t, "set the rounded-up tail", invalid, c.CuMemsetD8_v2(odd, 0, 1001))
	check(t, "address 0", invalid, c.CuMemcpyDtoH_v2(at(b), 0, 8))
	check(t, "no address of the device", invalid, c.CuMemcpyDtoH_v2(at(b), 1<<45, 8))
	check(t, "to address 0", invalid, c.CuMemcpyHtoD_v2(0, at(b), 8))
	check(t, "none of that is sticky", success, c.CuCtxSynchronize())
}

func TestC11_SetAlignment(t *testing.T) {
	c := inContext(t)
	p := plain(t, c, unit)
	check(t, "16 bits at an odd address", invalid, c.CuMemsetD16_v2(p+1, 1, 1))
	check(t, "32 bits at an even address", invalid, c.CuMemsetD32_v2(p+2, 1, 1))
	check(t, "32 bits", success, c.CuMemsetD32_v2(p+4, 0x04030201, 2))
	check(t, "lowest byte first", 2, byteAt(c, p+5))
}

// With unified addresses a host pointer says what it is.
func TestC11_CopyKinds(t *testing.T) {
	c := inContext(t)
	p := plain(t, c, unit)
	host, r := pinned(c, 4*KiB, 0)
	ok(t, r)
	d := sys.CUdeviceptr(addressOf(host))
	check(t, "device to pinned memory as to a device", success, c.CuMemcpyDtoD_v2(d, p, 8))
	check(t, "set pinned memory", success, c.CuMemsetD8_v2(d, 1, 8))
	ok(t, c.CuCtxSynchronize())
	check(t, "pinned memory as from a device", success, c.CuMemcpyDtoD_v2(p, d, 8))
	check(t, "which arrives", 1, byteAt(c, p))
	check(t, "device memory as the host's", success, c.CuMemcpyHtoD_v2(p, hostPointer(uintptr(p+unit/2)), 8))
	check(t, "as anything", success, c.CuMemcpy(d, p, 8))
	check(t, "a byte off pinned memory", invalid, c.CuMemcpyDtoD_v2(p, d, 4*KiB+1))
	ok(t, c.CuMemFreeHost(host))
}

var wild = sheet("wild",
	row{what: "from pageable memory as from a device", want: invalid, ask: func(t testing.TB) any {
		c := inContext(t)
		b := make([]byte, 64)
		return c.CuMemcpyDtoD_v2(plain(t, c, unit), sys.CUdeviceptr(addressOf(at(b))), 8)
	}},
	row{what: "set pageable memory", want: invalid, ask: func(t testing.TB) any {
		b := make([]byte, 64)
		return inContext(t).CuMemsetD8_v2(sys.CUdeviceptr(addressOf(at(b))), 1, 8)
	}},
	row{what: "from pageable to pageable memory", want: success, ask: func(t testing.TB) any {
		a, b := make([]byte, 64), make([]byte, 64)
		return inContext(t).CuMemcpy(sys.CUdeviceptr(addressOf(at(a))), sys.CUdeviceptr(addressOf(at(b))), 8)
	}},
	asked("from host address 0", invalid, func(t testing.TB, c sys.Caller) any { return c.CuMemcpyHtoD_v2(plain(t, c, unit), nil, 8) }),
	asked("to host address 0", invalid, func(t testing.TB, c sys.Caller) any { return c.CuMemcpyDtoH_v2(nil, plain(t, c, unit), 8) }),
	asked("to host address 0, queued", invalid, func(t testing.TB, c sys.Caller) any {
		return c.CuMemcpyDtoHAsync_v2(nil, plain(t, c, unit), 8, stream(t, c))
	}),
	row{what: "from a wild host address", want: crashes, id: "wild-pointer", soft: invalid, ask: func(t testing.TB) any {
		c := inContext(t)
		return c.CuMemcpyHtoD_v2(plain(t, c, unit), hostPointer(1<<40), 8)
	}},
	row{what: "to a wild host address", want: crashes, id: "wild-pointer", soft: invalid, ask: func(t testing.TB) any {
		c := inContext(t)
		return c.CuMemcpyDtoH_v2(hostPointer(1<<40), plain(t, c, unit), 8)
	}},
	row{what: "much from a wild host address", want: crashes, id: "wild-pointer", soft: invalid, ask: func(t testing.TB) any {
		c := inContext(t)
		return c.CuMemcpyHtoD_v2(plain(t, c, 16*unit), hostPointer(1<<40), 16*unit)
	}},
)

var overflows = sheet("overflows",
	row{what: "set more bytes than there are addresses", want: success, id: "set-overflow", soft: invalid, ask: func(t testing.TB) any {
		c := inContext(t)
		return c.CuMemsetD32_v2(plain(t, c, unit), 1, 1<<62)
	}},
	row{what: "set round the end of all addresses", want: success, id: "set-overflow", soft: invalid, ask: func(t testing.TB) any {
		c := inContext(t)
		return c.CuMemsetD8_v2(plain(t, c, unit), 0, ^uintptr(0))
	}},
)

func TestC11_SetOverflow(t *testing.T) { overflows.check(t) }

func TestC11_WildCopies(t *testing.T) { wild.check(t) }
