package cu

import (
	"encoding/hex"

	"github.com/gpufd/gpufd/cu/sys"
)

// An IPCEventHandle names an event of one process to others: CUipcEventHandle,
// in the runtime API cudaIpcEventHandle_t. It is a value, good while the event is
// open and its process lives.
type IPCEventHandle [64]byte

// String gives 128 hexadecimal digits.
func (h IPCEventHandle) String() string { return hex.EncodeToString(h[:]) }

// MarshalText gives 128 hexadecimal digits.
func (h IPCEventHandle) MarshalText() ([]byte, error) { return hex.AppendEncode(nil, h[:]), nil }

// UnmarshalText reads what MarshalText gives.
func (h *IPCEventHandle) UnmarshalText(text []byte) error {
	return unmarshal64((*[64]byte)(h), "an IPC event handle", text)
}

// IPCHandle returns what names the event to other processes, which open it with
// [Context.OpenIPCEvent] or cudaIpcOpenEventHandle (cuIpcGetEventHandle). The
// event was made with [EventInterprocess] and [EventDisableTiming]: any other is
// [ErrInvalidHandle], and so is one that was opened here. What it marks is for
// both sides the latest record, whoever made it.
func (e *Event) IPCHandle() (IPCEventHandle, error) {
	raw := new(sys.CUipcEventHandle)
	err := e.run("cuIpcGetEventHandle", func(call sys.Caller) sys.CUresult {
		return call.CuIpcGetEventHandle(raw, e.event)
	})
	return raw.Reserved, err
}

// OpenIPCEvent makes an event of c of one that another process shares
// (cuIpcOpenEventHandle). The caller owns it. Streams of c can record it and wait
// for it, like one of [Context.NewEvent] that does not keep the time; as long as
// the process that made it has it open. A stream that waits for a record which
// its process did not live to finish waits without end, and nothing frees it: see
// [IPCOrder].
//
// That the event was closed by its owner, or that its owner was killed, is not
// noticed (seen on an H200): it opens, and who waits for it waits for nothing, or
// for what never comes. Ask the owner over the connection that the handle came by.
// Nor is it noticed on a GPU that the event is of another container, if one of a
// process of the same number and user was opened before: what opens then has nothing to
// do with it (D18).
//
// Errors: [ErrInvalidContext] for a handle of this very process; [ErrMapFailed]
// for bytes that are no handle, and between containers that do not have /dev/shm
// in common, where events cannot be shared (D18).
func (c *Context) OpenIPCEvent(h IPCEventHandle) (*Event, error) {
	e := &Event{&eventHandle{}, c}
	raw := sys.CUipcEventHandle{Reserved: h}
	err := c.create("cuIpcOpenEventHandle", e.eventHandle, func(call sys.Caller) sys.CUresult {
		return call.CuIpcOpenEventHandle(&e.event, raw)
	})
	if err != nil {
		return nil, err
	}
	return e, nil
}
