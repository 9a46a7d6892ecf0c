package conformance

import (
	"fmt"
	"testing"

	"github.com/gpufd/gpufd/cu/sys"
)

// current is the calling thread's context.
func current(t testing.TB) sys.CUcontext {
	t.Helper()
	ctx := new(sys.CUcontext)
	ok(t, raw(t).CuCtxGetCurrent(ctx))
	return *ctx
}

func TestC14_ContextStack(t *testing.T) {
	ctx := inContext(t).Context()
	c := withoutContext(t)
	popped := new(sys.CUcontext)
	check(t, "pop from an empty stack", noContext, c.CuCtxPopCurrent_v2(popped))
	check(t, "push", success, c.CuCtxPushCurrent_v2(ctx))
	check(t, "it is current", true, current(t) == ctx)
	check(t, "push again", success, c.CuCtxPushCurrent_v2(ctx))
	check(t, "set current to none", success, c.CuCtxSetCurrent(0))
	check(t, "which pops one", true, current(t) == ctx)
	check(t, "set current to the same", success, c.CuCtxSetCurrent(ctx))
	check(t, "pop", success, c.CuCtxPopCurrent_v2(popped))
	check(t, "gives it", true, *popped == ctx)
	check(t, "the stack is empty", 0, uintptr(current(t)))
	check(t, "set current on an empty stack", success, c.CuCtxSetCurrent(ctx))
	check(t, "pushes", success, c.CuCtxPopCurrent_v2(popped))
	check(t, "and is popped", 0, uintptr(current(t)))
}

// A primary is the first device's primary context in a process of its own,
// retained once.
func primary(t testing.TB) (sys.Caller, sys.CUcontext) {
	c, ctx := raw(t), new(sys.CUcontext)
	ok(t, c.CuDevicePrimaryCtxRetain(ctx, 0))
	return c, *ctx
}

// ended is a primary context that was released.
func ended(t testing.TB) (sys.Caller, sys.CUcontext) {
	c, ctx := primary(t)
	ok(t, c.CuDevicePrimaryCtxRelease_v2(0))
	return c, ctx
}

// state is a primary context's flags and whether it is active.
func state(t testing.TB, c sys.Caller) string {
	flags, active := new(uint32), new(int32)
	ok(t, c.CuDevicePrimaryCtxGetState(0, flags, active))
	return fmt.Sprintf("flags %d active %d", *flags, *active)
}

var primaries = sheet("primary contexts",
	row{what: "inactive at first", want: "flags 0 active 0", ask: func(t testing.TB) any { return state(t, raw(t)) }},
	row{what: "release without retain", want: noContext, ask: func(t testing.TB) any { return raw(t).CuDevicePrimaryCtxRelease_v2(0) }},
	row{what: "reset without retain", want: success, ask: func(t testing.TB) any { return raw(t).CuDevicePrimaryCtxReset_v2(0) }},
	row{what: "flags that do not exist", want: invalid, ask: func(t testing.TB) any { return raw(t).CuDevicePrimaryCtxSetFlags_v2(0, 1<<20) }},
	row{what: "two ways of waiting", want: invalid, ask: func(t testing.TB) any { return raw(t).CuDevicePrimaryCtxSetFlags_v2(0, 3) }},
	row{what: "host memory mapped, which it is anyway", want: invalid, ask: func(t testing.TB) any {
		return raw(t).CuDevicePrimaryCtxSetFlags_v2(0, uint32(sys.CU_CTX_MAP_HOST))
	}},
	row{what: "flags while inactive", want: success, ask: func(t testing.TB) any {
		return raw(t).CuDevicePrimaryCtxSetFlags_v2(0, uint32(sys.CU_CTX_SCHED_BLOCKING_SYNC))
	}},
	row{what: "are set", want: "flags 4 active 0", ask: func(t testing.TB) any { return state(t, raw(t)) }},
	row{what: "retain", want: "flags 4 active 1", ask: func(t testing.TB) any {
		c, _ := primary(t)
		return state(t, c)
	}},
	row{what: "flags while active", want: success, ask: func(t testing.TB) any { return raw(t).CuDevicePrimaryCtxSetFlags_v2(0, 0) }},
	row{what: "are set at once", want: "flags 0 active 1", ask: func(t testing.TB) any { return state(t, raw(t)) }},
	row{what: "retain again is the same", want: true, ask: func(t testing.TB) any {
		_, a := primary(t)
		_, b := primary(t)
		return a == b
	}},
	row{what: "release thrice", want: success, ask: func(t testing.TB) any {
		c := raw(t)
		ok(t, c.CuDevicePrimaryCtxRelease_v2(0))
		ok(t, c.CuDevicePrimaryCtxRelease_v2(0))
		return c.CuDevicePrimaryCtxRelease_v2(0)
	}},
	row{what: "ends it", want: "flags 0 active 0", ask: func(t testing.TB) any { return state(t, raw(t)) }},
	row{what: "release once more", want: noContext, ask: func(t testing.TB) any { return raw(t).CuDevicePrimaryCtxRelease_v2(0) }},
	row{what: "retained after its end it is the same", want: true, ask: func(t testing.TB) any {
		_, a := ended(t)
		_, b := ended(t)
		return a == b
	}},
	row{what: "reset ends it", want: "flags 0 active 0", ask: func(t testing.TB) any {
		c, _ := primary(t)
		ok(t, c.CuDevicePrimaryCtxReset_v2(0))
		return state(t, c)
	}},
	row{what: "release after reset", want: success, ask: func(t testing.TB) any { return raw(t).CuDevicePrimaryCtxRelease_v2(0) }},
	row{what: "and again", want: noContext, ask: func(t testing.TB) any { return raw(t).CuDevicePrimaryCtxRelease_v2(0) }},
	row{what: "the last release forgets flags", want: "flags 0 active 0", ask: func(t testing.TB) any {
		c := raw(t)
		ok(t, c.CuDevicePrimaryCtxSetFlags_v2(0, 4))
		ended(t)
		return state(t, c)
	}},
	row{what: "the context has them, and host memory mapped", want: 12, ask: func(t testing.TB) any {
		ok(t, raw(t).CuDevicePrimaryCtxSetFlags_v2(0, 4))
		c, ctx := primary(t)
		flags := new(uint32)
		ok(t, c.With(ctx).CuCtxGetFlags(flags))
		ok(t, c.CuDevicePrimaryCtxRelease_v2(0))
		return *flags
	}},
	row{what: "reset forgets flags", want: "flags 0 active 0", ask: func(t testing.TB) any {
		c := raw(t)
		ok(t, c.CuDevicePrimaryCtxSetFlags_v2(0, 4))
		ok(t, c.CuDevicePrimaryCtxReset_v2(0))
		return state(t, c)
	}},
)

func TestC13_PrimaryContext(t *testing.T) { primaries.check(t) }

var endedContexts = alone("ended contexts",
	about(ended, "set current", success, func(c sys.Caller, ctx sys.CUcontext) any { return c.CuCtxSetCurrent(ctx) }),
	row{what: "the call after it", want: destroyed, ask: func(t testing.TB) any {
		c, ctx := ended(t)
		ok(t, c.CuCtxSetCurrent(ctx))
		return c.CuCtxSynchronize()
	}},
	about(ended, "push", success, func(c sys.Caller, ctx sys.CUcontext) any { return c.CuCtxPushCurrent_v2(ctx) }),
	about(ended, "its device", success, func(c sys.Caller, ctx sys.CUcontext) any { return c.With(ctx).CuCtxGetDevice(new(sys.CUdevice)) }),
	about(ended, "its API version", noContext, func(c sys.Caller, ctx sys.CUcontext) any { return c.CuCtxGetApiVersion(ctx, new(uint32)) }),
	about(ended, "its flags", success, func(c sys.Caller, ctx sys.CUcontext) any { return c.With(ctx).CuCtxGetFlags(new(uint32)) }),
	about(ended, "the current API version", destroyed, func(c sys.Caller, ctx sys.CUcontext) any { return c.With(ctx).CuCtxGetApiVersion(0, new(uint32)) }),
	about(ended, "its priorities", destroyed, func(c sys.Caller, ctx sys.CUcontext) any {
		return c.With(ctx).CuCtxGetStreamPriorityRange(new(int32), new(int32))
	}),
	about(ended, "its default stream", destroyed, func(c sys.Caller, ctx sys.CUcontext) any { return c.With(ctx).CuStreamQuery(0) }),
	about(ended, "a copy of nothing in it", destroyed, func(c sys.Caller, ctx sys.CUcontext) any { return c.With(ctx).CuMemcpyHtoD_v2(0, nil, 0) }),
	about(ended, "freeing address 0 in it", destroyed, func(c sys.Caller, ctx sys.CUcontext) any { return c.With(ctx).CuMemFree_v2(0) }),
	about(ended, "pop", success, func(c sys.Caller, ctx sys.CUcontext) any { return c.With(ctx).CuCtxPopCurrent_v2(new(sys.CUcontext)) }),
	row{what: "a stream of it", want: varies, id: "freed-with-context", soft: destroyed, ask: func(t testing.TB) any {
		c, ctx := primary(t)
		s := stream(t, c.With(ctx))
		ok(t, c.CuDevicePrimaryCtxRelease_v2(0))
		return c.CuStreamQuery(s)
	}},
	row{what: "an event of it", want: varies, id: "freed-with-context", soft: destroyed, ask: func(t testing.TB) any {
		c, ctx := primary(t)
		e := event(t, c.With(ctx), 0)
		ok(t, c.CuDevicePrimaryCtxRelease_v2(0))
		return c.CuEventQuery(e)
	}},
	about(ended, "memory in it", destroyed, func(c sys.Caller, ctx sys.CUcontext) any {
		return c.With(ctx).CuMemAlloc_v2(new(sys.CUdeviceptr), unit)
	}),
	row{what: "its end leaves it current", want: true, ask: func(t testing.TB) any {
		c, ctx := primary(t)
		ok(t, c.CuCtxSetCurrent(ctx))
		ok(t, c.CuDevicePrimaryCtxRelease_v2(0))
		return current(t) == ctx
	}},
	row{what: "address space under it", want: success, ask: func(t testing.TB) any {
		c, ctx := ended(t)
		ok(t, c.CuCtxSetCurrent(ctx))
		_, r := tryReserve(t, unit, 0, 0, 0)
		return r
	}},
	row{what: "memory of cuMemCreate under it", want: success, ask: func(t testing.TB) any {
		c, ctx := ended(t)
		ok(t, c.CuCtxSetCurrent(ctx))
		p, _ := buffer(t, unit)
		return c.CuMemUnmap(p, unit)
	}},
	row{what: "a stream of it, in the next one", want: varies, id: "freed-stream", soft: noHandle, ask: func(t testing.TB) any {
		c, ctx := primary(t)
		s := stream(t, c.With(ctx))
		ok(t, c.CuDevicePrimaryCtxRelease_v2(0))
		return inContext(t).CuStreamQuery(s)
	}},
	row{what: "an event of it, in the next one", want: varies, id: "freed-with-context", soft: destroyed, ask: func(t testing.TB) any {
		c, ctx := primary(t)
		e := event(t, c.With(ctx), 0)
		ok(t, c.CuDevicePrimaryCtxRelease_v2(0))
		return inContext(t).CuEventQuery(e)
	}},
	row{what: "memory of it, in the next one", want: invalid, ask: func(t testing.TB) any {
		c, ctx := primary(t)
		p := plain(t, c.With(ctx), unit)
		ok(t, c.CuDevicePrimaryCtxRelease_v2(0))
		return inContext(t).CuMemsetD8_v2(p, 1, 8)
	}},
	row{what: "freed in the next one", want: invalid, ask: func(t testing.TB) any {
		c, ctx := primary(t)
		p := plain(t, c.With(ctx), unit)
		ok(t, c.CuDevicePrimaryCtxRelease_v2(0))
		return inContext(t).CuMemFree_v2(p)
	}},
	row{what: "freed without a context", want: invalid, ask: func(t testing.TB) any {
		c, ctx := primary(t)
		p := plain(t, c.With(ctx), unit)
		ok(t, c.CuDevicePrimaryCtxRelease_v2(0))
		return withoutContext(t).CuMemFree_v2(p)
	}},
	row{what: "its handle, in the next one", want: success, ask: func(t testing.TB) any {
		c, ctx := ended(t)
		_, _ = primary(t)
		return c.With(ctx).CuCtxSynchronize()
	}},
)

func TestD20a_DestroyedContext(t *testing.T) { endedContexts.check(t) }

var noContexts = sheet("no contexts",
	row{what: "set current to 1", want: crashes, id: "no-context", soft: noContext, ask: func(t testing.TB) any { return raw(t).CuCtxSetCurrent(1) }},
	row{what: "set current to 0xdeadbeef", want: crashes, id: "no-context", soft: noContext, ask: func(t testing.TB) any { return raw(t).CuCtxSetCurrent(0xdeadbeef) }},
	row{what: "push 0xdeadbeef", want: crashes, id: "no-context", soft: noContext, ask: func(t testing.TB) any { return raw(t).CuCtxPushCurrent_v2(0xdeadbeef) }},
	row{what: "the API version of 0xdeadbeef", want: crashes, id: "no-context", soft: noContext, ask: func(t testing.TB) any {
		return raw(t).CuCtxGetApiVersion(0xdeadbeef, new(uint32))
	}},
)

func TestC14_NoSuchContext(t *testing.T) { noContexts.check(t) }
