package conformance

import (
	"testing"

	"github.com/gpufd/gpufd/cu/sys"
)

// elapsed asks for the time between two events in whichever ABI there is.
func elapsed(c sys.Caller, start, end sys.CUevent) (float32, sys.CUresult) {
	ms := new(float32)
	if c.Library().Has("cuEventElapsedTime_v2") {
		r := c.CuEventElapsedTime_v2(ms, start, end)
		return *ms, r
	}
	r := c.CuEventElapsedTime(ms, start, end)
	return *ms, r
}

func TestC17_EventCreate(t *testing.T) {
	c := inContext(t)
	try := func(flags sys.CUevent_flags) sys.CUresult {
		e := new(sys.CUevent)
		r := c.CuEventCreate(e, uint32(flags))
		if r == success {
			ok(t, c.CuEventDestroy_v2(*e))
		}
		return r
	}
	check(t, "flags that do not exist", invalid, try(8))
	check(t, "blocking, untimed", success, try(sys.CU_EVENT_BLOCKING_SYNC|sys.CU_EVENT_DISABLE_TIMING))
	check(t, "for other processes, timed", invalid, try(sys.CU_EVENT_INTERPROCESS))
	check(t, "for other processes", success, try(sys.CU_EVENT_INTERPROCESS|sys.CU_EVENT_DISABLE_TIMING))
}

func TestC17_EventStates(t *testing.T) {
	c := inContext(t)
	never, a, b := event(t, c, 0), event(t, c, 0), event(t, c, 0)
	untimed := event(t, c, sys.CU_EVENT_DISABLE_TIMING)
	check(t, "query what was never recorded", success, c.CuEventQuery(never))
	check(t, "wait for what was never recorded", success, c.CuEventSynchronize(never))
	check(t, "have a stream wait for it", success, c.CuStreamWaitEvent(0, never, 0))
	check(t, "wait with flags that do not exist", invalid, c.CuStreamWaitEvent(0, never, 2))
	for _, e := range []sys.CUevent{a, b, untimed} {
		ok(t, c.CuEventRecord(e, 0))
	}
	ok(t, c.CuCtxSynchronize())
	for _, x := range []struct {
		what       string
		start, end sys.CUevent
		want       sys.CUresult
	}{
		{"in order", a, b, success}, {"backwards", b, a, success}, {"with itself", a, a, success},
		{"from one never recorded", never, a, noHandle}, {"to one never recorded", a, never, noHandle},
		{"from one untimed", untimed, a, noHandle}, {"to one untimed", a, untimed, noHandle},
	} {
		_, r := elapsed(c, x.start, x.end)
		check(t, "time "+x.what, x.want, r)
	}
	ms, _ := elapsed(c, a, b)
	check(t, "it is not negative", true, ms >= 0)
	check(t, "record with flags that do not exist", invalid, c.CuEventRecordWithFlags(a, 0, 2))
	check(t, "wait for external, not captured", sys.CUDA_ERROR_ILLEGAL_STATE, c.CuStreamWaitEvent(0, a, uint32(sys.CU_EVENT_WAIT_EXTERNAL)))
	check(t, "record as external, not captured", sys.CUDA_ERROR_ILLEGAL_STATE, c.CuEventRecordWithFlags(a, 0, uint32(sys.CU_EVENT_RECORD_EXTERNAL)))
}

func TestC17_EventOfAnotherContext(t *testing.T) {
	if !hasDevices(t, 2, 4) {
		return
	}
	c, peer := inContext(t), inContextOf(t, 1)
	here, there := event(t, c, 0), event(t, peer, 0)
	check(t, "record on a stream of another context", noHandle, c.CuEventRecord(there, stream(t, c)))
	check(t, "have a stream of another context wait", success, c.CuStreamWaitEvent(stream(t, c), there, 0))
	ok(t, c.CuEventRecord(here, 0))
	ok(t, c.CuEventSynchronize(here))
	ok(t, peer.CuEventRecord(there, 0))
	ok(t, peer.CuEventSynchronize(there))
	check(t, "query another context's", success, c.CuEventQuery(there))
	_, r := elapsed(c, here, there)
	check(t, "time between contexts", noHandle, r)
}

// spentEvent is one that was destroyed.
func spentEvent(t testing.TB) (sys.Caller, sys.CUevent) {
	c := inContext(t)
	e := event(t, c, 0)
	ok(t, c.CuEventDestroy_v2(e))
	return c, e
}

var spentEvents = sheet("spent events",
	about(spentEvent, "query after destroy", varies, func(c sys.Caller, e sys.CUevent) any { return c.CuEventQuery(e) }).differs("freed-event", destroyed),
	about(spentEvent, "record after destroy", varies, func(c sys.Caller, e sys.CUevent) any { return c.CuEventRecord(e, 0) }).differs("freed-event", destroyed),
	about(spentEvent, "destroy twice", varies, func(c sys.Caller, e sys.CUevent) any { return c.CuEventDestroy_v2(e) }).differs("freed-event", destroyed),
	row{what: "destroy event 0", want: noHandle, ask: func(t testing.TB) any { return inContext(t).CuEventDestroy_v2(0) }},
	row{what: "query event 0", want: noHandle, ask: func(t testing.TB) any { return inContext(t).CuEventQuery(0) }},
	row{what: "query event 0xdeadbeef", want: crashes, id: "no-event", soft: noHandle, ask: func(t testing.TB) any { return inContext(t).CuEventQuery(0xdeadbeef) }},
	row{what: "record event 0", want: noHandle, ask: func(t testing.TB) any { return inContext(t).CuEventRecord(0, 0) }},
	row{what: "wait for event 0", want: noHandle, ask: func(t testing.TB) any { return inContext(t).CuStreamWaitEvent(0, 0, 0) }},
)

func TestC16_EventAfterDestroy(t *testing.T) { spentEvents.check(t) }
