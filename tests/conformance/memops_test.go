package conformance

import (
	"fmt"
	"testing"

	"github.com/gpufd/gpufd/cu/sys"
)

// Waiting for and writing words. A wait here is for 0 in memory that is 0, so
// that what is accepted is done at once.

// A wordCall waits for 0 at p, or writes 1 there.
type wordCall func(c sys.Caller, s sys.CUstream, p sys.CUdeviceptr, flags uint32) sys.CUresult

func has2(c sys.Caller) bool { return c.Library().Has("cuStreamWaitValue32_v2") }

func wait32(c sys.Caller, s sys.CUstream, p sys.CUdeviceptr, flags uint32) sys.CUresult {
	if has2(c) {
		return c.CuStreamWaitValue32_v2(s, p, 0, flags)
	}
	return c.CuStreamWaitValue32(s, p, 0, flags)
}

func wait64(c sys.Caller, s sys.CUstream, p sys.CUdeviceptr, flags uint32) sys.CUresult {
	if has2(c) {
		return c.CuStreamWaitValue64_v2(s, p, 0, flags)
	}
	return c.CuStreamWaitValue64(s, p, 0, flags)
}

func write32(c sys.Caller, s sys.CUstream, p sys.CUdeviceptr, flags uint32) sys.CUresult {
	if has2(c) {
		return c.CuStreamWriteValue32_v2(s, p, 1, flags)
	}
	return c.CuStreamWriteValue32(s, p, 1, flags)
}

func write64(c sys.Caller, s sys.CUstream, p sys.CUdeviceptr, flags uint32) sys.CUresult {
	if has2(c) {
		return c.CuStreamWriteValue64_v2(s, p, 1, flags)
	}
	return c.CuStreamWriteValue64(s, p, 1, flags)
}

// batch queues operations in whichever ABI there is.
func batch(c sys.Caller, s sys.CUstream, n int, flags uint32, ops ...sys.CUstreamBatchMemOpParams) sys.CUresult {
	var first *sys.CUstreamBatchMemOpParams
	if len(ops) > 0 {
		first = &ops[0]
	}
	if has2(c) {
		return c.CuStreamBatchMemOp_v2(s, uint32(n), first, flags)
	}
	return c.CuStreamBatchMemOp(s, uint32(n), first, flags)
}

func writeOp(p sys.CUdeviceptr, value uint32) (o sys.CUstreamBatchMemOpParams) {
	w := o.WriteValue()
	w.Operation, w.Address = sys.CU_STREAM_MEM_OP_WRITE_VALUE_32, p
	*w.Value() = value
	return o
}

func typedOp(typ sys.CUstreamBatchMemOpType, flags uint32) (o sys.CUstreamBatchMemOpParams) {
	b := o.MemoryBarrier()
	b.Operation, b.Flags = typ, flags
	return o
}

// The places that words may be at, and what is said of waiting and writing
// there, and of the synchronisation after it. Each in a process of its own.
var places = []struct {
	what        string
	wait, write string
	at          func(t testing.TB, c sys.Caller) sys.CUdeviceptr
}{
	{"mapped memory", "SUCCESS SUCCESS", "SUCCESS SUCCESS", func(t testing.TB, c sys.Caller) sys.CUdeviceptr { p, _ := buffer(t, unit); return p }},
	{"memory of cuMemAlloc", "SUCCESS SUCCESS", "SUCCESS SUCCESS", func(t testing.TB, c sys.Caller) sys.CUdeviceptr {
		p := plain(t, c, 4096)
		ok(t, c.CuMemsetD8_v2(p, 0, 4096))
		ok(t, c.CuCtxSynchronize())
		return p
	}},
	{"the last word of a mapping", "SUCCESS SUCCESS", "SUCCESS SUCCESS", func(t testing.TB, c sys.Caller) sys.CUdeviceptr { p, _ := buffer(t, unit); return p + unit - 8 }},
	{"pinned host memory", "SUCCESS SUCCESS", "SUCCESS SUCCESS", func(t testing.TB, c sys.Caller) sys.CUdeviceptr {
		p, r := pinned(c, 4096, 0)
		ok(t, r)
		return sys.CUdeviceptr(addressOf(p))
	}},
	{"address 0", "INVALID_VALUE SUCCESS", "INVALID_VALUE SUCCESS", func(t testing.TB, c sys.Caller) sys.CUdeviceptr { return 0 }},
	{"a misaligned address", "INVALID_VALUE SUCCESS", "INVALID_VALUE SUCCESS", func(t testing.TB, c sys.Caller) sys.CUdeviceptr { p, _ := buffer(t, unit); return p + 2 }},
	{"a reservation, unmapped", "INVALID_VALUE SUCCESS", "INVALID_VALUE SUCCESS", func(t testing.TB, c sys.Caller) sys.CUdeviceptr { return reserved(t, unit) }},
	{"a mapping without rights", "INVALID_VALUE SUCCESS", "INVALID_VALUE SUCCESS", func(t testing.TB, c sys.Caller) sys.CUdeviceptr {
		p := reserved(t, unit)
		mapped(t, p, unit, created(t, unit))
		return p
	}},
	{"a read-only mapping", "SUCCESS SUCCESS", "SUCCESS LAUNCH_FAILED", func(t testing.TB, c sys.Caller) sys.CUdeviceptr {
		p, _ := buffer(t, unit)
		allowed(t, p, unit, readOnly)
		return p
	}},
	{"past the end of a mapping", "INVALID_VALUE SUCCESS", "INVALID_VALUE SUCCESS", func(t testing.TB, c sys.Caller) sys.CUdeviceptr {
		p := reserved(t, 2*unit)
		mapped(t, p, unit, created(t, unit))
		allowed(t, p, unit, readWrite)
		return p + unit
	}},
	{"memory that was freed", "INVALID_VALUE SUCCESS", "INVALID_VALUE SUCCESS", func(t testing.TB, c sys.Caller) sys.CUdeviceptr {
		p := new(sys.CUdeviceptr)
		ok(t, c.CuMemAlloc_v2(p, 64*MiB))
		ok(t, c.CuMemFree_v2(*p))
		return *p
	}},
	{"the heap of the host", "INVALID_VALUE SUCCESS", "INVALID_VALUE SUCCESS", func(t testing.TB, c sys.Caller) sys.CUdeviceptr {
		return sys.CUdeviceptr(addressOf(at(onHeap)))
	}},
	{"nowhere", "INVALID_VALUE SUCCESS", "INVALID_VALUE SUCCESS", func(t testing.TB, c sys.Caller) sys.CUdeviceptr { return 0xdead0000 }},
}

var onHeap = make([]byte, 64*KiB)

// wordSheets has a process for each place and call.
var wordSheets = func() (all []*rows) {
	add := func(what, want string, ask wordCall, at func(testing.TB, sys.Caller) sys.CUdeviceptr) {
		all = append(all, sheet("words: "+what, row{what: what, want: want, ask: func(t testing.TB) any {
			c := inContext(t)
			s := stream(t, c)
			p := at(t, c)
			queued := ask(c, s, p, 0)
			return story(queued, within(patience, func() sys.CUresult { return c.CuStreamSynchronize(s) }))
		}}))
	}
	for _, p := range places {
		add("wait at "+p.what, p.wait, wait32, p.at)
		add("write at "+p.what, p.write, write32, p.at)
	}
	return all
}()

func TestC26_PlacesOfWords(t *testing.T) {
	for _, s := range wordSheets {
		s.check(t)
	}
}

// old is what is said where there is the first ABI alone, else now.
func old(c sys.Caller, then, now sys.CUresult) sys.CUresult {
	if has2(c) {
		return now
	}
	return then
}

func TestC26_WordFlags(t *testing.T) {
	c := inContext(t)
	s := stream(t, c)
	p, _ := buffer(t, unit)
	for _, x := range []struct {
		what string
		call wordCall
		off  sys.CUdeviceptr
		f    uint32
		want sys.CUresult
	}{
		{"wait 64", wait64, 0, 0, success},
		{"wait 64, misaligned by 4", wait64, 4, 0, invalid},
		{"write 64, misaligned by 4", write64, 4, 0, invalid},
		{"wait, equal", wait32, 0, 1, success},
		{"wait, 1<<2", wait32, 0, 1 << 2, invalid},
		{"wait, 1<<5", wait32, 0, 1 << 5, invalid},
		{"wait, flush", wait32, 0, uint32(sys.CU_STREAM_WAIT_VALUE_FLUSH), notSupported},
		{"wait, nor", wait32, 0, uint32(sys.CU_STREAM_WAIT_VALUE_NOR), success},
		{"wait 64, nor", wait64, 0, uint32(sys.CU_STREAM_WAIT_VALUE_NOR), success},
		{"write, 1<<1", write32, 8, 2, invalid},
		{"write, 1<<5", write32, 8, 1 << 5, invalid},
		{"write 64, 1<<5", write64, 8, 1 << 5, invalid},
		{"write, no memory barrier", write32, 8, 1, old(c, success, invalid)},
		{"write 64, no memory barrier", write64, 8, 1, old(c, success, invalid)},
	} {
		check(t, x.what, x.want, x.call(c, s, p+x.off, x.f))
	}
	check(t, "synchronise", success, c.CuStreamSynchronize(s))
	check(t, "wait on the legacy stream", success, wait32(c, sys.CU_STREAM_LEGACY, p, 1))
	check(t, "wait on stream 0", success, wait32(c, 0, p, 1))
	check(t, "write on the thread's stream", success, write32(c, sys.CU_STREAM_PER_THREAD, p+16, 0))
	check(t, "synchronise all", success, c.CuCtxSynchronize())
}

// The first ABI is there and refused, and so are its attributes. Before CUDA
// 11.7 it depends on how the kernel module was loaded.
func TestC26_FirstABIOfWords(t *testing.T) {
	c := inContext(t)
	s := stream(t, c)
	p, _ := buffer(t, unit)
	want := old(c, success, notSupported)
	check(t, "wait 32", want, c.CuStreamWaitValue32(s, p, 0, 0))
	check(t, "wait 64", want, c.CuStreamWaitValue64(s, p, 0, 0))
	check(t, "write 32", want, c.CuStreamWriteValue32(s, p, 0, 0))
	check(t, "write 32, no memory barrier", want, c.CuStreamWriteValue32(s, p, 0, 1))
	check(t, "write 64", want, c.CuStreamWriteValue64(s, p, 0, 0))
	op := writeOp(p, 0)
	check(t, "batch", want, c.CuStreamBatchMemOp(s, 1, &op, 0))
	check(t, "synchronise", success, c.CuStreamSynchronize(s))
}

func TestC26_WordAttributes(t *testing.T) {
	c := raw(t)
	first := 0
	if !has2(c) {
		first = 1
	}
	for a, want := range map[sys.CUdevice_attribute]int{
		sys.CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_MEM_OPS_V1:        first,
		sys.CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS_V1: first,
		sys.CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE_NOR_V1: first,
		sys.CU_DEVICE_ATTRIBUTE_CAN_FLUSH_REMOTE_WRITES:          0,
		sys.CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS:    1,
		sys.CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE_NOR:    1,
	} {
		v := new(int32)
		ok(t, c.CuDeviceGetAttribute(v, a, 0))
		check(t, fmt.Sprint(a), want, *v)
	}
}

// many is n writes of numbers from 0 on.
func many(p sys.CUdeviceptr, n int) []sys.CUstreamBatchMemOpParams {
	ops := make([]sys.CUstreamBatchMemOpParams, n)
	for i := range ops {
		ops[i] = writeOp(p, uint32(i))
	}
	return ops
}

func TestC27_Batches(t *testing.T) {
	c := inContext(t)
	s := stream(t, c)
	p, _ := buffer(t, unit)
	left := func() any {
		ok(t, c.CuStreamSynchronize(s))
		return byteAt(c, p)
	}
	check(t, "no operations, no array", success, batch(c, s, 0, 0))
	check(t, "no operations", success, batch(c, s, 0, 0, many(p, 1)...))
	check(t, "1 operation", success, batch(c, s, 1, 0, many(p, 1)...))
	check(t, "255 operations", success, batch(c, s, 255, 0, many(p, 255)...))
	check(t, "they were done in order", 254, left())
	check(t, "a bad one after a good one", invalid, batch(c, s, 2, 0, writeOp(p, 1), writeOp(p+2, 1)))
	check(t, "the good one was not done", 254, left())
}

// Batches, as the documents describe them or leave open: each in a process of its
// own.
var oddBatches = func() (all []*rows) {
	add := func(r row) { all = append(all, sheet("batch: "+r.what, r)) }
	odd := func(what string, want sys.CUresult, n int, flags uint32, op sys.CUstreamBatchMemOpParams) {
		add(row{what: what, want: story(want, success), ask: func(t testing.TB) any {
			c := inContext(t)
			s := stream(t, c)
			p, _ := buffer(t, unit)
			ops := many(p, n)
			if *op.Operation() != sys.CU_STREAM_MEM_OP_WRITE_VALUE_32 {
				ops[n-1] = op
			}
			return story(batch(c, s, n, flags, ops...), c.CuStreamSynchronize(s))
		}})
	}
	plain := writeOp(0, 0)
	odd("256 operations", invalid, 256, 0, plain)
	odd("1000 operations", invalid, 1000, 0, plain)
	odd("flags", invalid, 1, 1, plain)
	odd("no operation", invalid, 1, 0, sys.CUstreamBatchMemOpParams{})
	odd("operation 99", invalid, 1, 0, typedOp(99, 0))
	odd("flush", notSupported, 1, 0, typedOp(sys.CU_STREAM_MEM_OP_FLUSH_REMOTE_WRITES, 0))
	odd("barrier", success, 2, 0, typedOp(sys.CU_STREAM_MEM_OP_BARRIER, 0))
	odd("barrier on the device", success, 2, 0, typedOp(sys.CU_STREAM_MEM_OP_BARRIER, 1))
	odd("barrier, 1<<1", invalid, 2, 0, typedOp(sys.CU_STREAM_MEM_OP_BARRIER, 2))
	add(row{what: "no array", want: crashes, id: "wild-pointer", soft: invalid, ask: func(t testing.TB) any {
		c := inContext(t)
		return batch(c, stream(t, c), 1, 0)
	}})
	return all
}()

func TestC27_OddBatches(t *testing.T) {
	for _, s := range oddBatches {
		s.check(t)
	}
}

// A stream that waits, when the thing that it waits for goes.
var endedWaits = []*rows{
	sheet("wait, then take the rights", row{what: "wait, take the rights, synchronise", want: "SUCCESS SUCCESS LAUNCH_FAILED", ask: func(t testing.TB) any {
		c := inContext(t)
		p, _ := buffer(t, unit)
		s := stream(t, c)
		return story(waitValue(c, s, p, 1), raw(t).CuMemSetAccess(p, unit, accessTo(0, none), 1),
			within(patience, func() sys.CUresult { return c.CuStreamSynchronize(s) }))
	}}),
	sheet("wait, then free", row{what: "wait, free the memory", want: "SUCCESS hangs", ask: func(t testing.TB) any {
		c := inContext(t)
		p := plain(t, c, 4*KiB)
		ok(t, c.CuMemsetD8_v2(p, 0, 4*KiB))
		return story(waitValue(c, stream(t, c), p, 1), within(hanging, func() sys.CUresult { return c.CuMemFree_v2(p) }))
	}}),
	sheet("wait, destroy, write", row{what: "wait, destroy the stream, write, synchronise, release the context", want: "SUCCESS SUCCESS SUCCESS SUCCESS SUCCESS", ask: func(t testing.TB) any {
		c := inContext(t)
		p, _ := buffer(t, unit)
		s, other := stream(t, c), stream(t, c)
		return story(waitValue(c, s, p, 1), c.CuStreamDestroy_v2(s), writeValue(c, other, p, 1), c.CuStreamSynchronize(other),
			within(patience, func() sys.CUresult { return raw(t).CuDevicePrimaryCtxRelease_v2(0) }))
	}}),
	sheet("batch, partly read-only", row{what: "a batch that writes what is read-only, synchronise", want: "SUCCESS LAUNCH_FAILED", ask: func(t testing.TB) any {
		c := inContext(t)
		p, h := buffer(t, unit)
		q := reserved(t, unit)
		mapped(t, q, unit, h)
		allowed(t, q, unit, readOnly)
		s := stream(t, c)
		return story(batch(c, s, 2, 0, writeOp(p, 1), writeOp(q+8, 1)), c.CuStreamSynchronize(s))
	}}),
}

func TestD20b_EndedWaits(t *testing.T) {
	for _, s := range endedWaits {
		s.check(t)
	}
}
