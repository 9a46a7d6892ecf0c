package main

// #include "loops.h"
import "C"

import (
	"context"
	"runtime"
	"time"
	"unsafe"

	"github.com/gpufd/gpufd/bench/internal/report"
	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/sys"
)

// How often a call is made before the stream is drained. What is queued stays
// far below what the driver's queues hold, about a thousand; lasting is far above.
const (
	quick   = 5000 // queues nothing
	queued  = 100
	lasting = 5000
)

// inC is the way of a loop in C, on a thread that has the context.
func (s *stage) inC(loop func(n C.int) C.int64_t) way {
	bind := s.binder()
	return way{byC, func(n int) (time.Duration, error) {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		if r := bind(); r != 0 {
			return 0, cu.Result(r)
		}
		ns := loop(C.int(n))
		if ns < 0 {
			return 0, cu.Result(-ns)
		}
		return time.Duration(ns), nil
	}}
}

// inCgo is the way of a cgo call for each, on a thread that has the context;
// after ends the batch, nil for nothing.
func (s *stage) inCgo(f, after func() C.int) way {
	bind := s.binder()
	return way{byCgo, func(n int) (time.Duration, error) {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		if r := bind(); r != 0 {
			return 0, cu.Result(r)
		}
		return repeat(n, f, after)
	}}
}

// inCgoBound is the way of a binding by cgo that may be called from any
// goroutine. What it is given is made by bound.
func inCgoBound(f, after func() C.int) way {
	return way{byCgoBound, func(n int) (time.Duration, error) { return repeat(n, f, after) }}
}

// bound makes one call as such a binding does.
func (s *stage) bound(f func() C.int) func() C.int {
	bind := s.binder()
	return func() C.int {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		if r := bind(); r != 0 {
			return r
		}
		return f()
	}
}

// repeat makes the calls of a way by cgo.
func repeat(n int, f, after func() C.int) (time.Duration, error) {
	begin := time.Now()
	for range n {
		if r := f(); r != 0 {
			return 0, cu.Result(r)
		}
	}
	if after != nil {
		if r := after(); r != 0 {
			return 0, cu.Result(r)
		}
	}
	return time.Since(begin), nil
}

// binder sets the context of the thread.
func (s *stage) binder() func() C.int {
	fn, ctx := s.fn("cuCtxSetCurrent"), C.uintptr_t(s.ctx.Handle())
	return func() C.int { return C.ctx_set_current(fn, ctx) }
}

func (s *stage) fn(symbol string) C.uintptr_t { return C.uintptr_t(s.address(symbol)) }

// calls are all that the driver can make, and the names of those that it
// cannot.
func (s *stage) calls() (can []call, cannot []string) {
	all := []call{
		s.deviceAttribute(), s.currentContext(), s.pointerAttribute(),
		s.streamQuery(), s.eventQuery(), s.eventRecord(), s.recordAndWait(), s.writeValue(),
		s.fill(),
		s.toDevice(small), s.toHost(small), s.onDevice(small),
		s.toDevice(large), s.toHost(large), s.onDevice(large),
		s.launchBurst(), s.launchSustained(), s.launchAndWait(),
	}
	for _, c := range all {
		if s.makes(c) {
			can = append(can, c)
		} else {
			cannot = append(cannot, c.name)
		}
	}
	return can, cannot
}

// makes reports whether the driver has the functions.
func (s *stage) makes(c call) bool {
	for _, symbol := range c.symbols {
		if s.address(symbol) == 0 {
			return false
		}
	}
	return true
}

// deviceAttribute needs no context; nobody binds one for it.
func (s *stage) deviceAttribute() call {
	const symbol, attribute = "cuDeviceGetAttribute", cu.AttributeMultiprocessorCount
	fn, plain, dev, v := s.fn(symbol), s.drv.Caller(), sys.CUdevice(s.dev.Ordinal()), new(int32)
	cv, ca, cd := (*C.int)(unsafe.Pointer(v)), C.int(attribute), C.int(dev)
	return call{name: symbol, plot: asking, label: "device\nattribute", symbols: []string{symbol}, batch: quick, ways: []way{
		s.inC(func(n C.int) C.int64_t { return C.device_get_attribute_loop(n, fn, cv, ca, cd) }),
		rawWay(func() sys.CUresult { return plain.CuDeviceGetAttribute(v, sys.CUdevice_attribute(attribute), dev) }, nil),
		typedWay(func() error { _, err := s.dev.Attribute(attribute); return err }),
		s.inCgo(func() C.int { return C.device_get_attribute(fn, cv, ca, cd) }, nil),
	}}
}

func (s *stage) currentContext() call {
	const symbol = "cuCtxGetCurrent"
	fn, ctx := s.fn(symbol), new(sys.CUcontext)
	cctx := (*C.uintptr_t)(unsafe.Pointer(ctx))
	return call{name: symbol, plot: asking, label: "current\ncontext", symbols: []string{symbol}, batch: quick, ways: []way{
		s.inC(func(n C.int) C.int64_t { return C.ctx_get_current_loop(n, fn, cctx) }),
		rawWay(func() sys.CUresult { return s.call.CuCtxGetCurrent(ctx) }, nil),
		s.inCgo(func() C.int { return C.ctx_get_current(fn, cctx) }, nil),
	}}
}

func (s *stage) pointerAttribute() call {
	const symbol, attribute = "cuPointerGetAttribute", sys.CU_POINTER_ATTRIBUTE_MEMORY_TYPE
	fn, p, v := s.fn(symbol), s.here.Ptr(), unsafe.Pointer(new(uint32))
	return call{name: symbol, plot: asking, label: "pointer\nattribute", symbols: []string{symbol}, batch: quick, ways: []way{
		s.inC(func(n C.int) C.int64_t {
			return C.pointer_get_attribute_loop(n, fn, v, C.int(attribute), C.uint64_t(p))
		}),
		rawWay(func() sys.CUresult { return s.call.CuPointerGetAttribute(v, attribute, sys.CUdeviceptr(p)) }, nil),
		s.inCgo(func() C.int { return C.pointer_get_attribute(fn, v, C.int(attribute), C.uint64_t(p)) }, nil),
	}}
}

func (s *stage) streamQuery() call {
	const symbol = "cuStreamQuery"
	fn, stream := s.fn(symbol), s.stream.Handle()
	cs := C.uintptr_t(stream)
	return call{name: symbol, plot: asking, label: "stream\nquery", symbols: []string{symbol}, batch: quick, ways: []way{
		s.inC(func(n C.int) C.int64_t { return C.stream_query_loop(n, fn, cs) }),
		rawWay(func() sys.CUresult { return s.call.CuStreamQuery(stream) }, nil),
		typedWay(func() error { _, err := s.stream.Query(); return err }),
		s.inCgo(func() C.int { return C.stream_query(fn, cs) }, nil),
	}}
}

func (s *stage) eventQuery() call {
	const symbol = "cuEventQuery"
	fn, event := s.fn(symbol), s.event.Handle()
	ce := C.uintptr_t(event)
	return call{name: symbol, plot: asking, label: "event\nquery", symbols: []string{symbol}, batch: quick, ways: []way{
		s.inC(func(n C.int) C.int64_t { return C.event_query_loop(n, fn, ce) }),
		rawWay(func() sys.CUresult { return s.call.CuEventQuery(event) }, nil),
		typedWay(func() error { _, err := s.event.Query(); return err }),
		s.inCgo(func() C.int { return C.event_query(fn, ce) }, nil),
	}}
}

func (s *stage) eventRecord() call {
	const symbol = "cuEventRecord"
	fn, event, stream := s.fn(symbol), s.event.Handle(), s.stream.Handle()
	ce, cs := C.uintptr_t(event), C.uintptr_t(stream)
	return call{name: symbol, plot: queueing, label: "event\nrecord", symbols: []string{symbol}, batch: queued, ways: []way{
		s.inC(func(n C.int) C.int64_t { return C.event_record_loop(n, fn, ce, cs) }),
		rawWay(func() sys.CUresult { return s.call.CuEventRecord(event, stream) }, nil),
		typedWay(func() error { return s.event.Record(s.stream) }),
		s.inCgo(func() C.int { return C.event_record(fn, ce, cs) }, nil),
	}}
}

func (s *stage) recordAndWait() call {
	const record, wait = "cuEventRecord", "cuEventSynchronize"
	fr, fw, event, stream := s.fn(record), s.fn(wait), s.event.Handle(), s.stream.Handle()
	ce, cs := C.uintptr_t(event), C.uintptr_t(stream)
	bg := context.Background()
	return call{name: record + " + " + wait, plot: launching, label: "event record\nand wait", symbols: []string{record, wait}, batch: queued, ways: []way{
		s.inC(func(n C.int) C.int64_t { return C.record_and_wait_loop(n, fr, fw, ce, cs) }),
		rawWay(both(
			func() sys.CUresult { return s.call.CuEventRecord(event, stream) },
			func() sys.CUresult { return s.call.CuEventSynchronize(event) },
		), nil),
		typedWay(func() error {
			if err := s.event.Record(s.stream); err != nil {
				return err
			}
			return s.event.Synchronize(bg)
		}),
		s.inCgo(both(
			func() C.int { return C.event_record(fr, ce, cs) },
			func() C.int { return C.event_synchronize(fw, ce) },
		), nil),
	}}
}

func (s *stage) writeValue() call {
	const symbol, value = "cuStreamWriteValue32_v2", 7
	fn, stream, p := s.fn(symbol), s.stream.Handle(), s.here.Ptr()
	cs, cp := C.uintptr_t(stream), C.uint64_t(p)
	return call{name: symbol, plot: queueing, label: "write\nvalue", symbols: []string{symbol}, batch: queued, ways: []way{
		s.inC(func(n C.int) C.int64_t { return C.stream_write_value_loop(n, fn, cs, cp, value, 0) }),
		rawWay(func() sys.CUresult { return s.call.CuStreamWriteValue32_v2(stream, sys.CUdeviceptr(p), value, 0) }, nil),
		typedWay(func() error { return s.stream.WriteValue32(p, value, cu.WriteDefault) }),
		s.inCgo(func() C.int { return C.stream_write_value(fn, cs, cp, value, 0) }, nil),
	}}
}

func (s *stage) fill() call {
	const symbol, value = "cuMemsetD8Async", 7
	fn, stream, p := s.fn(symbol), s.stream.Handle(), s.here.Ptr()
	cs, cp := C.uintptr_t(stream), C.uint64_t(p)
	return call{name: named(symbol, small), plot: queueing, label: "set\n4 KiB", symbols: []string{symbol}, batch: queued, ways: []way{
		s.inC(func(n C.int) C.int64_t { return C.memset_8_loop(n, fn, cp, value, small, cs) }),
		rawWay(func() sys.CUresult { return s.call.CuMemsetD8Async(sys.CUdeviceptr(p), value, small, stream) }, nil),
		typedWay(func() error { return cu.FillAsync(s.stream, p, uint8(value), small) }),
		s.inCgo(func() C.int { return C.memset_8(fn, cp, value, small, cs) }, nil),
	}}
}

func (s *stage) toDevice(size int) call {
	const symbol = "cuMemcpyHtoDAsync_v2"
	fn, stream, p, host := s.fn(symbol), s.stream.Handle(), s.here.Ptr(), s.host.Bytes()[:size]
	cs, cp, ch, cn := C.uintptr_t(stream), C.uint64_t(p), unsafe.Pointer(&host[0]), C.size_t(size)
	return call{name: named(symbol, size), plot: queueing, label: "to device\n" + report.Bytes(float64(size)), symbols: []string{symbol}, batch: queued, ways: []way{
		s.inC(func(n C.int) C.int64_t { return C.copy_to_device_loop(n, fn, cp, ch, cn, cs) }),
		rawWay(func() sys.CUresult {
			return s.call.CuMemcpyHtoDAsync_v2(sys.CUdeviceptr(p), ch, uintptr(size), stream)
		}, nil),
		typedWay(func() error { return cu.CopyToDeviceAsync(s.stream, p, host) }),
		s.inCgo(func() C.int { return C.copy_to_device(fn, cp, ch, cn, cs) }, nil),
	}}
}

func (s *stage) toHost(size int) call {
	const symbol = "cuMemcpyDtoHAsync_v2"
	fn, stream, p, host := s.fn(symbol), s.stream.Handle(), s.here.Ptr(), s.host.Bytes()[:size]
	cs, cp, ch, cn := C.uintptr_t(stream), C.uint64_t(p), unsafe.Pointer(&host[0]), C.size_t(size)
	return call{name: named(symbol, size), plot: queueing, label: "to host\n" + report.Bytes(float64(size)), symbols: []string{symbol}, batch: queued, ways: []way{
		s.inC(func(n C.int) C.int64_t { return C.copy_to_host_loop(n, fn, ch, cp, cn, cs) }),
		rawWay(func() sys.CUresult {
			return s.call.CuMemcpyDtoHAsync_v2(ch, sys.CUdeviceptr(p), uintptr(size), stream)
		}, nil),
		typedWay(func() error { return cu.CopyToHostAsync(s.stream, host, p) }),
		s.inCgo(func() C.int { return C.copy_to_host(fn, ch, cp, cn, cs) }, nil),
	}}
}

func (s *stage) onDevice(size int) call {
	const symbol = "cuMemcpyAsync"
	fn, stream, to, from := s.fn(symbol), s.stream.Handle(), s.there.Ptr(), s.here.Ptr()
	cs, ct, cf, cn := C.uintptr_t(stream), C.uint64_t(to), C.uint64_t(from), C.size_t(size)
	return call{name: named(symbol, size), plot: queueing, label: "on device\n" + report.Bytes(float64(size)), symbols: []string{symbol}, batch: queued, ways: []way{
		s.inC(func(n C.int) C.int64_t { return C.copy_device_loop(n, fn, ct, cf, cn, cs) }),
		rawWay(func() sys.CUresult {
			return s.call.CuMemcpyAsync(sys.CUdeviceptr(to), sys.CUdeviceptr(from), uintptr(size), stream)
		}, nil),
		typedWay(func() error { return cu.CopyAsync(s.stream, to, from, uint64(size)) }),
		s.inCgo(func() C.int { return C.copy_device(fn, ct, cf, cn, cs) }, nil),
	}}
}

// launch is one launch of the empty kernel, by ours and by cgo.
func (s *stage) launch() (raw func() sys.CUresult, cgo func() C.int) {
	fn, function, stream := s.fn("cuLaunchKernel"), s.function, s.stream.Handle()
	ck, cs := C.uintptr_t(function), C.uintptr_t(stream)
	return func() sys.CUresult { return s.call.CuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, nil, nil) },
		func() C.int { return C.launch(fn, ck, 1, 1, 1, 1, 1, 1, 0, cs, nil, nil) }
}

// typedLaunch is one launch by package cu, prepared before.
func (s *stage) typedLaunch() error { return s.launched.Run(s.stream) }

// wait waits for the stream in the driver, by ours and by cgo.
func (s *stage) wait() (raw func() sys.CUresult, cgo func() C.int) {
	fn, stream := s.fn("cuStreamSynchronize"), s.stream.Handle()
	return func() sys.CUresult { return s.call.CuStreamSynchronize(stream) },
		func() C.int { return C.stream_synchronize(fn, C.uintptr_t(stream)) }
}

// launchBurst is launches that the queue has room for.
func (s *stage) launchBurst() call {
	const symbol = "cuLaunchKernel"
	fn, ck, cs := s.fn(symbol), C.uintptr_t(s.function), C.uintptr_t(s.stream.Handle())
	raw, cgo := s.launch()
	return call{name: symbol + ", burst", plot: launching, label: "launch,\nburst", symbols: []string{symbol}, batch: queued, ways: []way{
		s.inC(func(n C.int) C.int64_t { return C.launch_loop(n, fn, ck, 1, 1, 1, 1, 1, 1, 0, cs, nil, nil) }),
		rawWay(raw, nil), typedWay(s.typedLaunch), s.inCgo(cgo, nil), inCgoBound(s.bound(cgo), nil),
	}}
}

// sustained is the name of the launches that the bar is about.
const sustained = "cuLaunchKernel, sustained"

// launchSustained is launches back to back and the wait for the last of them,
// all in the time. The wait is for all of them and not among the symbols, which
// are called once each.
func (s *stage) launchSustained() call {
	fn, fw := s.fn("cuLaunchKernel"), s.fn("cuStreamSynchronize")
	ck, cs := C.uintptr_t(s.function), C.uintptr_t(s.stream.Handle())
	raw, cgo := s.launch()
	rawWait, cgoWait := s.wait()
	return call{name: sustained, plot: launching, label: "launch,\nsustained", symbols: []string{"cuLaunchKernel"}, batch: lasting, ways: []way{
		s.inC(func(n C.int) C.int64_t { return C.launch_then_wait_loop(n, fn, fw, ck, cs) }),
		rawWay(raw, rawWait), typedWay(s.typedLaunch, s.drain), s.inCgo(cgo, cgoWait), inCgoBound(s.bound(cgo), s.bound(cgoWait)),
	}}
}

func (s *stage) launchAndWait() call {
	const launch, wait = "cuLaunchKernel", "cuStreamSynchronize"
	fn, fw, ck, cs := s.fn(launch), s.fn(wait), C.uintptr_t(s.function), C.uintptr_t(s.stream.Handle())
	raw, cgo := s.launch()
	rawWait, cgoWait := s.wait()
	return call{name: launch + " + " + wait, plot: launching, label: "launch\nand wait", symbols: []string{launch, wait}, batch: queued, ways: []way{
		s.inC(func(n C.int) C.int64_t { return C.launch_and_wait_loop(n, fn, fw, ck, cs) }),
		rawWay(both(raw, rawWait), nil),
		typedWay(func() error {
			if err := s.typedLaunch(); err != nil {
				return err
			}
			return s.drain()
		}),
		s.inCgo(both(cgo, cgoWait), nil), inCgoBound(both(s.bound(cgo), s.bound(cgoWait)), nil),
	}}
}

// named is the name of a call that is about so many bytes.
func named(symbol string, size int) string { return symbol + ", " + report.Bytes(float64(size)) }

// both makes two calls, the second if the first succeeds.
func both[R C.int | sys.CUresult](f, g func() R) func() R {
	return func() R {
		if r := f(); r != 0 {
			return r
		}
		return g()
	}
}
