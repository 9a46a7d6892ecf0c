package conformance

import (
	"testing"

	"github.com/gpufd/gpufd/cu/sys"
)

func TestC17_StreamCreate(t *testing.T) {
	c := inContext(t)
	least, greatest := new(int32), new(int32)
	check(t, "the range of priorities", success, c.CuCtxGetStreamPriorityRange(least, greatest))
	check(t, "least", 0, *least)
	check(t, "greatest", -5, *greatest)
	for _, x := range []struct {
		what      string
		flags     uint32
		priority  int32
		create    sys.CUresult
		effective int32
	}{
		{"greatest", 0, -5, success, -5}, {"greater than that", 0, -100, success, -5}, {"less than least", 0, 7, success, 0},
		{"non-blocking", uint32(sys.CU_STREAM_NON_BLOCKING), -1, success, -1}, {"flags that do not exist", 2, 0, invalid, 0},
	} {
		s := new(sys.CUstream)
		check(t, x.what, x.create, c.CuStreamCreateWithPriority(s, x.flags, x.priority))
		if x.create != success || *s == 0 {
			continue
		}
		priority, flags := new(int32), new(uint32)
		ok(t, c.CuStreamGetPriority(*s, priority))
		check(t, x.what+": priority", x.effective, *priority)
		ok(t, c.CuStreamGetFlags(*s, flags))
		check(t, x.what+": flags", x.flags, *flags)
		ok(t, c.CuStreamDestroy_v2(*s))
	}
	s := new(sys.CUstream)
	check(t, "flags that do not exist, no priority", invalid, c.CuStreamCreate(s, 2))
}

func TestC17_DefaultStreams(t *testing.T) {
	c := inContext(t)
	for what, s := range map[string]sys.CUstream{"0": 0, "legacy": sys.CU_STREAM_LEGACY, "per thread": sys.CU_STREAM_PER_THREAD} {
		flags, priority, ctx := new(uint32), new(int32), new(sys.CUcontext)
		check(t, "query "+what, success, c.CuStreamQuery(s))
		check(t, "synchronise "+what, success, c.CuStreamSynchronize(s))
		check(t, "flags of "+what, success, c.CuStreamGetFlags(s, flags))
		check(t, "are, of "+what, 0, *flags)
		check(t, "priority of "+what, success, c.CuStreamGetPriority(s, priority))
		check(t, "is, of "+what, 0, *priority)
		check(t, "context of "+what, success, c.CuStreamGetCtx(s, ctx))
		check(t, "is the current one, of "+what, true, *ctx == c.Context())
	}
}

func TestC17_StreamOfAnotherContext(t *testing.T) {
	if !hasDevices(t, 2, 3) {
		return
	}
	c, peer := inContext(t), inContextOf(t, 1)
	s, p := stream(t, peer), plain(t, c, unit)
	check(t, "query it", success, c.CuStreamQuery(s))
	check(t, "set memory of the other on it", invalid, c.CuMemsetD8Async(p, 1, 8, s))
	check(t, "synchronise it", success, c.CuStreamSynchronize(s))
}

// spentStream is one that was destroyed.
func spentStream(t testing.TB) (sys.Caller, sys.CUstream) {
	c := inContext(t)
	s := stream(t, c)
	ok(t, c.CuStreamDestroy_v2(s))
	return c, s
}

var spentStreams = sheet("spent streams",
	about(spentStream, "query after destroy", varies, func(c sys.Caller, s sys.CUstream) any { return c.CuStreamQuery(s) }).differs("freed-stream", noHandle),
	about(spentStream, "synchronise after destroy", varies, func(c sys.Caller, s sys.CUstream) any { return c.CuStreamSynchronize(s) }).differs("freed-stream", noHandle),
	row{what: "set memory after destroy", want: varies, id: "freed-stream", soft: noHandle, ask: func(t testing.TB) any {
		c, s := spentStream(t)
		return c.CuMemsetD8Async(plain(t, c, unit), 1, 8, s)
	}},
	row{what: "record after destroy", want: varies, id: "freed-stream", soft: noHandle, ask: func(t testing.TB) any {
		c, s := spentStream(t)
		return c.CuEventRecord(event(t, c, 0), s)
	}},
	about(spentStream, "destroy twice", varies, func(c sys.Caller, s sys.CUstream) any { return c.CuStreamDestroy_v2(s) }).differs("freed-stream", noHandle),
	row{what: "destroy stream 0", want: noHandle, ask: func(t testing.TB) any { return inContext(t).CuStreamDestroy_v2(0) }},
	row{what: "destroy the legacy stream", want: noHandle, ask: func(t testing.TB) any {
		return inContext(t).CuStreamDestroy_v2(sys.CU_STREAM_LEGACY)
	}},
	row{what: "destroy the thread's stream", want: noHandle, ask: func(t testing.TB) any {
		return inContext(t).CuStreamDestroy_v2(sys.CU_STREAM_PER_THREAD)
	}},
	row{what: "query stream 3", want: crashes, id: "no-stream", soft: noHandle, ask: func(t testing.TB) any { return inContext(t).CuStreamQuery(3) }},
	row{what: "query stream 0xdeadbeef", want: crashes, id: "no-stream", soft: noHandle, ask: func(t testing.TB) any { return inContext(t).CuStreamQuery(0xdeadbeef) }},
	row{what: "destroy stream 0xdeadbeef", want: crashes, id: "no-stream", soft: noHandle, ask: func(t testing.TB) any {
		return inContext(t).CuStreamDestroy_v2(0xdeadbeef)
	}},
)

func TestC16_StreamAfterDestroy(t *testing.T) { spentStreams.check(t) }
