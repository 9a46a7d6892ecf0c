package cu

import (
	"encoding/hex"

	"github.com/gpufd/gpufd/cu/sys"
)

// An IPCEventHandle names an event to other processes: CUipcEventHandle, in the
// runtime API cudaIpcEventHandle_t. It is a value, good while the event is open
// and its process lives.
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
// [Context.OpenIPCEvent] or cudaIpcOpenEventHandle (cuIpcGetEventHandle). For
// both sides it marks the latest record, whoever made it. [ErrInvalidHandle]:
// it was not made with [EventInterprocess] and [EventDisableTiming], or was
// opened here.
func (e *Event) IPCHandle() (IPCEventHandle, error) {
	raw := new(sys.CUipcEventHandle)
	err := e.run("cuIpcGetEventHandle", func(call sys.Caller) sys.CUresult {
		return call.CuIpcGetEventHandle(raw, e.event)
	})
	return raw.Reserved, err
}

// OpenIPCEvent opens an event that another process shares
// (cuIpcOpenEventHandle). The caller owns it. Streams of c can record it and
// wait for it, like one that does not keep the time, while the process that
// made it has it open. If a process dies before its record is done, a stream
// that waits for that waits without end, so wait on the host, with a context that
// ends: [Event.Synchronize].
//
// The driver does not notice that the owner has closed the event or was killed:
// it opens, and a wait for it ends at once or never. Ask the owner over the
// connection that the handle came by. On a GPU the handle of another container
// may open an event that has nothing to do with it (D18).
//
// Errors: [ErrInvalidContext] for a handle of this process; [ErrMapFailed] for
// bytes that are no handle, and between containers with a /dev/shm each (D18).
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
