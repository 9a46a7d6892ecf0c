package cu

import (
	"errors"
	"fmt"
	"strings"

	"github.com/gpufd/gpufd/cu/sys"
)

// ErrClosed says that a handle was used after its Close. Nothing reached the
// driver.
var ErrClosed = errors.New("cu: use of a closed handle")

// ErrSymbolMissing matches every [*SymbolError].
var ErrSymbolMissing = errors.New("cu: the driver lacks this function")

// Result is a driver result other than success, as an error: CUresult. The
// Err… constants are all of them.
type Result sys.CUresult

// Error gives the result's name in C.
func (r Result) Error() string { return sys.CUresult(r).String() }

// An Error is a driver call that did not succeed. errors.Is matches it with
// its Result:
//
//	if errors.Is(err, cu.ErrOutOfMemory) { … }
type Error struct {
	Op     string // the driver function, e.g. cuMemMap
	Result Result
	Text   string // the driver's own words, from cuGetErrorString
	Bind   bool   // cuCtxSetCurrent failed, so that Op was not called
}

// Error prints the call, the result's name and number, the driver's words
// (cuGetErrorString) and, where we know one, what to do.
func (e *Error) Error() string {
	op := e.Op
	if e.Bind {
		op += " (binding its context)"
	}
	msg := fmt.Sprintf("%s: %s (%d)", op, e.Result.Error(), uint32(e.Result))
	if e.Text != "" {
		msg += ": " + e.Text
	}
	if h := e.hint(); h != "" {
		msg += "; " + h
	}
	return msg
}

// hint says what to do, where that can be said of the result.
func (e *Error) hint() string {
	if e.Op == "cuMemAddressReserve" && e.Result == ErrOutOfMemory {
		return spaceHint
	}
	if h, ok := callHints[callResult{strings.TrimSuffix(e.Op, "_v2"), e.Result}]; ok {
		return h
	}
	if op := onlyOf[e.Result]; op != "" && op != e.Op {
		return ""
	}
	if h, ok := hints[e.Result]; ok || !e.Result.Fatal() {
		return h
	}
	return fatalHint
}

// Is matches [ErrContextLost] if that is what the result means.
func (e *Error) Is(target error) bool { return target == ErrContextLost && e.Result.Fatal() }

// Unwrap returns the Result.
func (e *Error) Unwrap() error { return e.Result }

const spaceHint = "this process has not that much address space left in one piece: close what is reserved and attached and no longer needed, and see ulimit -v"

const fatalHint = "work queued earlier has failed, which this call noticed: all contexts of this process are lost, every later call in them fails and no new one can be made, so the process has to begin anew"

// hints say what to do about results whose cause lies outside the program, or
// whose name does not say it.
var hints = map[Result]string{
	ErrNoDevice:                    "no GPU is visible here: check nvidia-smi, CUDA_VISIBLE_DEVICES and the container's device options",
	ErrNotSupported:                "for virtual memory the GPU needs compute capability 6.0 or newer and the driver CUDA 10.2 or newer (11.4 for this library)",
	ErrOutOfMemory:                 "the device has not that much memory free (nvidia-smi says who holds it), or its memory pool may not hold more",
	ErrDeviceUnavailable:           "its compute mode forbids a context, or another process, of which it allows one, has it: see nvidia-smi -q -d COMPUTE",
	ErrDeviceNotLicensed:           "the virtual GPU has no licence: see nvidia-smi -q for its state",
	ErrUnsupportedLimit:            "this device or driver does not have that limit",
	ErrPeerAccessUnsupported:       "these are one device, or two without a link that carries it: see nvidia-smi topo -p2p r",
	ErrPeerAccessAlreadyEnabled:    "some code of this process has enabled it before: go on, it works",
	ErrTooManyPeers:                "a context can have access to so many peers only: disable it where it is not needed",
	ErrHostMemoryAlreadyRegistered: "some code of this process has registered part of this memory before, or allocated it pinned",
	ErrOperatingSystem:             "the operating system refused something: see dmesg and ulimit -a, and the permissions of what was to be opened, /dev/nvidia* among it",
	ErrNotPermitted:                fabricHint,
	ErrSystemNotReady:              "a part of the system has not been started: on machines with NVSwitch the service nvidia-fabricmanager has to run and nvidia-smi -q to show the fabric's state as completed",
	ErrSystemDriverMismatch:        "libcuda and the kernel module are of different versions: reboot, or reload the nvidia module",
	ErrCompatNotSupportedOnDevice:  "libcuda is of the compatibility package for a newer CUDA, which this GPU does not allow: take its directory out of LD_LIBRARY_PATH, or install that driver",
	ErrStubLibrary:                 "libcuda is the toolkit's stub for linking: take its directory out of LD_LIBRARY_PATH",
	ErrCallRequiresNewerDriver:     "install a newer driver",
	ErrMPSConnectionFailed:         "the MPS control daemon does not answer: start nvidia-cuda-mps-control, or unset CUDA_MPS_PIPE_DIRECTORY if none is meant",
	ErrMPSRPCFailure:               "the MPS server failed: see its log in CUDA_MPS_LOG_DIRECTORY, and begin anew",
	ErrMPSServerNotReady:           "the MPS server is starting or recovering from another client's failure: try again later",
	ErrMPSMaxClientsReached:        "the MPS server has all the clients that it can have: end one",
	ErrMPSMaxConnectionsReached:    "the device has all the MPS connections that it can have: end a client",
	ErrMPSClientTerminated:         "the MPS server ended this process' work: begin anew",
	ErrUnknown:                     "often the kernel module nvidia-uvm is not loaded (nvidia-modprobe -u loads it) or /dev/nvidia-uvm cannot be opened; dmesg may say more",
	ErrStreamCaptureUnsupported:    "what is captured is not done, so before the capture has ended nothing can wait for the stream, ask how far it is, or allocate and free memory in it; and a graph in a graph is made with AddChild, not with a launch",
	ErrStreamCaptureInvalidated:    "an earlier call failed in a way that spoilt the capture: its error says why",
	ErrStreamCaptureMerge:          "a stream waited for an event of another capture: captures cannot be joined",
	ErrStreamCaptureUnmatched:      "a capture is ended on the stream that it began on",
	ErrStreamCaptureUnjoined:       "a stream that joined the capture has work that the first stream has not waited for: record an event after it and have the first stream wait for that",
	ErrStreamCaptureIsolation:      "a captured stream waited for an event that was recorded outside the capture: wait for it before the capture begins",
	ErrStreamCaptureImplicit:       "the null stream waits for the captured stream: capture one of NewStream, which it does not wait for, or do not use it meanwhile",
	ErrCapturedEvent:               "the event was last recorded in a capture, so it never happens: it can only be waited for by streams in that capture",
	ErrStreamCaptureWrongThread:    "a capture that is not of the relaxed mode is ended on the thread that it began on",
	ErrInvalidImage:                "it is neither PTX nor a cubin or fatbin, or not all of it",
	ErrNoBinaryForGPU:              "the code is for other devices: compile it for this one's compute capability, or to PTX",
	ErrUnsupportedPTXVersion:       "the PTX is of a newer CUDA than the driver: compile it with an older nvcc, lower its .version if it needs nothing newer, or install a newer driver",
	ErrJITCompilerNotFound:         "libnvidia-ptxjitcompiler, which comes with the driver, cannot be loaded: install it, or mount it into the container",
	ErrLaunchOutOfResources:        "its blocks need more registers than a multiprocessor has: launch smaller ones, or compile with fewer registers",
	ErrCooperativeLaunchTooLarge:   "all blocks of a cooperative launch have to fit the device at once: see MaxActiveBlocks",
	ErrGraphExecUpdateFailure:      "the graph differs in more than parameters: instantiate it anew",
}

// A callResult is a driver function, without its version, and what it said.
type callResult struct {
	op     string
	result Result
}

// callHints say what to do about results that mean something else, or more, in
// one function than elsewhere.
var callHints = map[callResult]string{
	{"cuIpcGetMemHandle", ErrNotSupported}:              noIPCHint,
	{"cuIpcOpenMemHandle", ErrNotSupported}:             noIPCHint,
	{"cuIpcGetEventHandle", ErrNotSupported}:            noIPCHint,
	{"cuIpcOpenEventHandle", ErrNotSupported}:           noIPCHint,
	{"cuIpcOpenMemHandle", ErrInvalidContext}:           "the handle is of this very process, where the memory is used at its own address; or its owner has the same process number in another PID namespace, as the first process of each container has: start one of them behind an init process (docker run --init), or ask for a descriptor",
	{"cuIpcOpenMemHandle", ErrInvalidHandle}:            "the owner of the memory has ended; or another context of this process has memory of that owner open, and one context for each device may: open it there, or close what is open first",
	{"cuIpcOpenMemHandle", ErrMapFailed}:                "the memory is there and cannot be mapped into this process: see that its addresses are not limited (ulimit -v), and that no container hides it, nor, of the software driver, another GPUFD_SOFT_DIR, as each user has; between those ask for a descriptor. Memory that is freed and owners that have ended give other errors",
	{"cuIpcOpenMemHandle", ErrInvalidValue}:             "these bytes are no handle that a process of this machine and driver has now: its owner has freed the memory, or they are damaged, or of another kind (an event's, a pool's)",
	{"cuIpcOpenMemHandle", ErrAlreadyMapped}:            "part of the memory is open in this process by another handle: close that first",
	{"cuIpcOpenMemHandle", ErrPeerAccessUnsupported}:    "the memory is on another device, which this one cannot reach: see nvidia-smi topo -p2p r, or open it in a context of that device",
	{"cuIpcCloseMemHandle", ErrInvalidValue}:            "nothing of another process is open there: it was closed before, or is not the address that it was opened at",
	{"cuIpcGetEventHandle", ErrInvalidHandle}:           "the event was not made for other processes: that takes EventInterprocess and EventDisableTiming; or it is another process' own",
	{"cuIpcOpenEventHandle", ErrInvalidContext}:         "the handle is of this very process, where the event itself is used",
	{"cuIpcOpenEventHandle", ErrMapFailed}:              "these bytes are no handle of an event, or its process is in a container whose /dev/shm is another, or, of the software driver, has another GPUFD_SOFT_DIR, between which events cannot be shared: use a counter in shared memory (share.Counter)",
	{"cuMemImportFromShareableHandle", ErrNotPermitted}: fabricHint,
	{"cuMemImportFromShareableHandle", ErrNotSupported}: "a fabric handle takes an IMEX channel (nvidia-modprobe, nvidia-imex) and devices of one NVLink domain on both sides",
	{"cuMemExportToShareableHandle", ErrNotPermitted}:   fabricHint,
}

const noIPCHint = "this device or system has no legacy IPC (see Device.SupportsIPC): share memory of package vmm as descriptors"

const fabricHint = "not allowed here: a fabric handle wants an IMEX channel, which an administrator makes (nvidia-modprobe, nvidia-imex)"

// onlyOf are the functions for which alone a hint is true: elsewhere the result
// has many reasons.
var onlyOf = map[Result]string{ErrNotSupported: "cuMemCreate", ErrNotPermitted: "cuMemCreate", ErrUnknown: "cuInit"}

// A SymbolError is a call to a function that this driver does not export.
type SymbolError struct {
	Symbol string // exact symbol, e.g. cuMemCreate
	Needs  int    // CUDA version that introduced it (11040 is 11.4); 0 unknown
	Has    int    // CUDA version of the driver
}

// Error names the symbol and, as far as they are known, the versions.
func (e *SymbolError) Error() string {
	msg := e.Symbol + ": the driver does not have this function"
	if e.Needs > 0 {
		msg += ", which came with CUDA " + sys.Version(e.Needs)
	}
	if e.Has > 0 {
		msg += "; it is of CUDA " + sys.Version(e.Has)
	}
	if e.Has > 0 && e.Has < e.Needs {
		msg += "; install a newer driver"
	}
	return msg
}

// Is matches [ErrSymbolMissing].
func (e *SymbolError) Is(target error) bool { return target == ErrSymbolMissing }

// check turns the result of the driver function op into an error. It is the
// only place where driver errors are made.
func (d *Driver) check(op string, r sys.CUresult) error {
	if r == sys.CUDA_SUCCESS {
		return nil
	}
	inner, bind := r.BindFailed()
	if inner == sys.SymbolMissing {
		if bind {
			op = "cuCtxSetCurrent"
		}
		needs, _ := sys.Since(op)
		return &SymbolError{Symbol: op, Needs: needs, Has: d.version}
	}
	return &Error{Op: op, Result: Result(inner), Text: d.text(inner), Bind: bind}
}

// text is the driver's description of r.
func (d *Driver) text(r sys.CUresult) string {
	p := new(*byte)
	if d.call.CuGetErrorString(r, p) != sys.CUDA_SUCCESS {
		return ""
	}
	return sys.GoString(*p, 1024)
}
