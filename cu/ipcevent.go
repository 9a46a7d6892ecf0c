package cu

import (
	"github.com/gpufd/gpufd/cu/sys"
)

// IPCHandle returns a handle that names the event to other processes, which open
// it with [Context.OpenIPCEvent] or cudaIpcOpenEventHandle (cuIpcGetEventHandle).
// Both sides see the latest record, whoever made it. [ErrInvalidHandle]: the
// event was not made with [EventInterprocess] and [EventDisableTiming], or was
// opened here.
func (e *Event) IPCHandle() (IPCEventHandle, error) {
	raw := new(sys.CUipcEventHandle)
	err := e.run("cuIpcGetEventHandle", func(call sys.Caller) sys.CUresult {
		return call.CuIpcGetEventHandle(raw, e.event)
	})
	return raw.Reserved, err
}

// OpenIPCEvent opens an event that another process shares (cuIpcOpenEventHandle).
// The caller owns it. Streams of c can record it and wait for it, while its
// process has it open; it does not record the time. If a process dies before its
// record is done, a stream that waits for it waits forever: wait on the host,
// with a context that ends ([Event.Synchronize]).
//
// The driver does not notice that the owner has closed the event or was killed:
// the event opens, and a wait for it ends at once or never. Ask the owner over
// the connection that brought the handle. On a GPU the handle of a
// process with another /dev/shm may open an unrelated event (D18 of
// docs/driver-facts.md).
//
// Errors: [ErrInvalidContext] for a handle of this process; [ErrMapFailed] for
// bytes that are no handle, and between processes with a /dev/shm each (D18).
func (c *Context) OpenIPCEvent(h IPCEventHandle) (*Event, error) {
	e := &Event{&eventHandle{}, c}
	raw := sys.CUipcEventHandle{Reserved: h}
	return made(e, c.create("cuIpcOpenEventHandle", e.eventHandle, func(call sys.Caller) sys.CUresult {
		return call.CuIpcOpenEventHandle(&e.event, raw)
	}))
}
