package conformance

import (
	"strings"
	"testing"
	"time"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/cutest"
	"github.com/gpufd/gpufd/cu/sys"
)

// patience is how long a call that returns may take.
const patience = 30 * time.Second

// hanging is how long a call is watched that does not: one of the software driver returns
// at once, or never.
var hanging = map[cu.Kind]time.Duration{cu.Soft: 500 * time.Millisecond, cu.CUDA: 2 * time.Second}[cutest.Kind()]

// waitValue has a stream wait for a value, in whichever ABI there is.
func waitValue(c sys.Caller, s sys.CUstream, p sys.CUdeviceptr, value uint64) sys.CUresult {
	if c.Library().Has("cuStreamWaitValue64_v2") {
		return c.CuStreamWaitValue64_v2(s, p, value, uint32(sys.CU_STREAM_WAIT_VALUE_EQ))
	}
	return c.CuStreamWaitValue64(s, p, value, uint32(sys.CU_STREAM_WAIT_VALUE_EQ))
}

// writeValue has a stream write one.
func writeValue(c sys.Caller, s sys.CUstream, p sys.CUdeviceptr, value uint64) sys.CUresult {
	if c.Library().Has("cuStreamWriteValue64_v2") {
		return c.CuStreamWriteValue64_v2(s, p, value, 0)
	}
	return c.CuStreamWriteValue64(s, p, value, 0)
}

// story joins answers to several calls.
func story(answers ...any) string {
	words := make([]string, len(answers))
	for i, a := range answers {
		words[i] = word(a)
	}
	return strings.Join(words, " ")
}

// A stream that waits for a value. Each story is a process of its own.

var waitThenRelease = sheet("wait, then release",
	row{what: "wait, destroy the stream, release the context", want: "SUCCESS SUCCESS hangs", ask: func(t testing.TB) any {
		c, ctx := primary(t)
		in := c.With(ctx)
		p, _ := buffer(t, unit)
		s := stream(t, in)
		return story(waitValue(in, s, p, 1), in.CuStreamDestroy_v2(s),
			within(hanging, func() sys.CUresult { return c.CuDevicePrimaryCtxRelease_v2(0) }))
	}})

var waitThenUnmap = sheet("wait, then unmap",
	row{what: "wait, unmap, synchronise, synchronise again", want: "SUCCESS SUCCESS LAUNCH_FAILED LAUNCH_FAILED", ask: func(t testing.TB) any {
		c := inContext(t)
		p, _ := buffer(t, unit)
		s := stream(t, c)
		return story(waitValue(c, s, p, 1), c.CuMemUnmap(p, unit),
			within(patience, func() sys.CUresult { return c.CuStreamSynchronize(s) }), c.CuCtxSynchronize())
	}})

var waitThenWrite = sheet("wait, then write",
	row{what: "wait, query, write through another mapping, synchronise", want: "SUCCESS NOT_READY SUCCESS SUCCESS", ask: func(t testing.TB) any {
		c := inContext(t)
		p, h := buffer(t, unit)
		q := reserved(t, unit)
		mapped(t, q, unit, h)
		allowed(t, q, unit, readWrite)
		s, other := stream(t, c), stream(t, c)
		return story(waitValue(c, s, p, 1), c.CuStreamQuery(s), writeValue(c, other, q, 1),
			within(patience, func() sys.CUresult { return c.CuStreamSynchronize(s) }))
	}})

//fault:rows 18
func TestD20b_WaitForAValue(t *testing.T) {
	waitThenRelease.check(t)
	waitThenUnmap.check(t)
	waitThenWrite.check(t)
}

// poison fails the context for good.
func poison(t testing.TB, c sys.Caller) (queued, found sys.CUresult) {
	p, _ := buffer(t, unit)
	allowed(t, p, unit, readOnly)
	s := stream(t, c)
	queued = writeValue(c, s, p, 1)
	return queued, c.CuStreamSynchronize(s)
}

var poisoned = sheet("poisoned",
	row{what: "write to what is read-only, synchronise", want: "SUCCESS LAUNCH_FAILED", ask: func(t testing.TB) any {
		queued, found := poison(t, inContext(t))
		return story(queued, found)
	}})

// lost asks calls in a poisoned context.
func lost(what string, want sys.CUresult, call func(t testing.TB, c sys.Caller) sys.CUresult) row {
	return row{what: what, want: want, ask: func(t testing.TB) any {
		if !isPoisoned {
			poison(t, inContext(t))
			isPoisoned = true
		}
		ctx := new(sys.CUcontext)
		ok(t, raw(t).CuDevicePrimaryCtxRetain(ctx, 0)) // it is there still
		return call(t, raw(t).With(*ctx))
	}}
}

// isPoisoned is what a child remembers from row to row.
var isPoisoned bool

const failed = sys.CUDA_ERROR_LAUNCH_FAILED

var poisonedCalls = sheet("poisoned calls",
	lost("set current", success, func(t testing.TB, c sys.Caller) sys.CUresult { return c.CuCtxSetCurrent(c.Context()) }),
	lost("its device", success, func(t testing.TB, c sys.Caller) sys.CUresult { return c.CuCtxGetDevice(new(sys.CUdevice)) }),
	lost("its flags", success, func(t testing.TB, c sys.Caller) sys.CUresult { return c.CuCtxGetFlags(new(uint32)) }),
	lost("its API version", success, func(t testing.TB, c sys.Caller) sys.CUresult {
		return c.CuCtxGetApiVersion(c.Context(), new(uint32))
	}),
	lost("its priorities", failed, func(t testing.TB, c sys.Caller) sys.CUresult {
		return c.CuCtxGetStreamPriorityRange(new(int32), new(int32))
	}),
	lost("synchronise", failed, func(t testing.TB, c sys.Caller) sys.CUresult { return c.CuCtxSynchronize() }),
	lost("synchronise the default stream", failed, func(t testing.TB, c sys.Caller) sys.CUresult { return c.CuStreamSynchronize(0) }),
	lost("allocate", failed, func(t testing.TB, c sys.Caller) sys.CUresult { return c.CuMemAlloc_v2(new(sys.CUdeviceptr), unit) }),
	lost("allocate nothing", failed, func(t testing.TB, c sys.Caller) sys.CUresult { return c.CuMemAlloc_v2(new(sys.CUdeviceptr), 0) }),
	lost("free address 0", failed, func(t testing.TB, c sys.Caller) sys.CUresult { return c.CuMemFree_v2(0) }),
	lost("copy nothing", failed, func(t testing.TB, c sys.Caller) sys.CUresult { return c.CuMemcpyHtoD_v2(0, nil, 0) }),
	lost("make a stream", failed, func(t testing.TB, c sys.Caller) sys.CUresult { return c.CuStreamCreate(new(sys.CUstream), 0) }),
	lost("make an event", failed, func(t testing.TB, c sys.Caller) sys.CUresult { return c.CuEventCreate(new(sys.CUevent), 0) }),
	lost("free memory", failed, func(t testing.TB, c sys.Caller) sys.CUresult { return c.CuMemGetInfo_v2(new(uintptr), new(uintptr)) }),
	lost("memory of cuMemCreate", success, func(t testing.TB, c sys.Caller) sys.CUresult {
		p, _ := buffer(t, unit)
		return c.CuMemUnmap(p, unit)
	}),
)

var poisonForEver = alone("poison for ever",
	row{what: "the streams and events of it", want: story(failed, failed, failed, failed, failed), ask: func(t testing.TB) any {
		c := inContext(t)
		e, s := event(t, c, 0), stream(t, c)
		poison(t, c)
		return story(c.CuStreamQuery(s), c.CuEventQuery(e), c.CuEventRecord(e, s), c.CuEventDestroy_v2(e), c.CuStreamDestroy_v2(s))
	}},
	row{what: "its memory", want: story(failed, failed, failed), ask: func(t testing.TB) any {
		c := inContext(t)
		p := plain(t, c, unit)
		poison(t, c)
		return story(byteAt(c, p), c.CuMemsetD8_v2(p, 1, 1), c.CuMemFree_v2(p))
	}},
	row{what: "release, retain", want: story(success, failed, "flags 0 active 0", noContext), ask: func(t testing.TB) any {
		poison(t, inContext(t))
		c := raw(t)
		return story(c.CuDevicePrimaryCtxRelease_v2(0), c.CuDevicePrimaryCtxRetain(new(sys.CUcontext), 0), state(t, c),
			c.CuDevicePrimaryCtxRelease_v2(0))
	}},
	row{what: "reset, retain", want: story(success, failed), ask: func(t testing.TB) any {
		poison(t, inContext(t))
		return story(raw(t).CuDevicePrimaryCtxReset_v2(0), raw(t).CuDevicePrimaryCtxRetain(new(sys.CUcontext), 0))
	}},
)

var poisonedPeer = alone("poisoned peer",
	row{what: "calls in a context of another device", want: story(failed, failed), ask: func(t testing.TB) any {
		peer := inContextOf(t, 1)
		poison(t, inContext(t))
		return story(peer.CuMemAlloc_v2(new(sys.CUdeviceptr), unit), peer.CuCtxSynchronize())
	}},
	row{what: "a context of another device", want: failed, ask: func(t testing.TB) any {
		poison(t, inContext(t))
		return raw(t).CuDevicePrimaryCtxRetain(new(sys.CUcontext), 1)
	}},
)

func TestD20a_PoisonedContext(t *testing.T) {
	poisoned.check(t)
	poisonedCalls.check(t)
	poisonForEver.check(t)
}

// The process is lost, with all its devices.
func TestC15_PoisonedProcess(t *testing.T) {
	if hasDevices(t, 2, len(poisonedPeer.all)) {
		poisonedPeer.check(t)
	}
}

var waitValues = alone("wait values",
	row{what: "wait and write without a context", want: story(success, success, noContext), ask: func(t testing.TB) any {
		in := inContext(t)
		s := stream(t, in)
		p, _ := buffer(t, unit)
		c := withoutContext(t)
		return story(waitValue(c, s, p, 1), writeValue(c, s, p, 1), writeValue(c, 0, p, 1))
	}},
	row{what: "the time to what is not finished, query, finish, the time", want: story(sys.CUDA_ERROR_NOT_READY, sys.CUDA_ERROR_NOT_READY, success, success, success), ask: func(t testing.TB) any {
		c := inContext(t)
		a, b, s := event(t, c, 0), event(t, c, 0), stream(t, c)
		p, _ := buffer(t, unit)
		ok(t, c.CuEventRecord(a, s))
		ok(t, waitValue(c, s, p, 1))
		ok(t, c.CuEventRecord(b, s))
		_, before := elapsed(c, a, b)
		query := c.CuEventQuery(b)
		wrote := writeValue(c, stream(t, c), p, 1)
		done := within(patience, func() sys.CUresult { return c.CuEventSynchronize(b) })
		_, after := elapsed(c, a, b)
		return story(before, query, wrote, done, after)
	}},
)

func TestC21_WaitValues(t *testing.T) { waitValues.check(t) }
