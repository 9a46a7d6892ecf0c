package doctor

import (
	"context"
	"errors"
	"os"
	"slices"
	"syscall"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/sys"
	"github.com/gpufd/gpufd/internal/advice"
	"github.com/gpufd/gpufd/internal/cli"
	"github.com/gpufd/gpufd/share"
	"github.com/gpufd/gpufd/sock"
	"github.com/gpufd/gpufd/vmm"
)

// Child processes make all calls of the driver, so that they can be killed when the driver
// hangs. Requests and answers are records of JSON.

// A request tells a child what to do.
type request struct {
	Do     string
	Device cu.UUID
	Size   uint64             // of memory
	Memory *cu.IPCHandle      // to be opened
	Event  *cu.IPCEventHandle // to be opened
	Buffer *vmm.Descriptor    // of what comes as descriptors
	Fabric []byte             // a handle
	Salt   uint32             // of the bytes that are there
	Name   string             // of an abstract socket, or an offer
	Path   string             // of a socket
	PID    int                // of a process
	FD     int                // of its descriptors
	Count  int                // of descriptors, or milliseconds
	UIDs   []uint32           // of peers that are admitted
	Read   bool               // only read, do not write
}

// An answer is the result of a request.
type answer struct {
	Fault    *fault             `json:",omitempty"`
	PID      int                `json:",omitempty"`
	Driver   string             `json:",omitempty"`
	Kind     cu.Kind            `json:",omitempty"`
	Version  int                `json:",omitempty"`
	Devices  []deviceInfo       `json:",omitempty"` // that are seen, or that offers are on
	Memory   *cu.IPCHandle      `json:",omitempty"`
	Event    *cu.IPCEventHandle `json:",omitempty"`
	Buffer   *vmm.Descriptor    `json:",omitempty"`
	Fabric   []byte             `json:",omitempty"`
	Seen     string             `json:",omitempty"`
	Names    []string           `json:",omitempty"` // of offers
	Greeting *hello             `json:",omitempty"` // of the other side

	files []*os.File // that go with it
}

// A deviceInfo is a device that a process sees.
type deviceInfo struct {
	Name string
	UUID cu.UUID
	Mode string // the compute mode
	MIG  bool
}

// A fault is an error that came from another process.
type fault struct {
	Text   string
	Op     string // the driver's function, or ""
	Result cu.Result
	Errno  syscall.Errno
	Mark   string // the id of the cause, if it was known where the error happened
}

// Error is the text in one line.
func (f *fault) Error() string { return f.Text }

// and returns the fault with more text.
func (f *fault) and(text string) *fault {
	more := *f
	more.Text += "; " + text
	return &more
}

// marked is an error whose cause is known where it happens.
type marked struct {
	error
	cause string
}

func (m marked) Unwrap() error { return m.error }

// newFault makes a fault of an error; nil stays nil.
func newFault(err error) *fault {
	if err == nil {
		return nil
	}
	f := &fault{Text: cli.OneLine(err), Mark: markOf(err)}
	var driver *cu.Error
	var m marked
	if errors.As(err, &driver) {
		f.Op, f.Result = driver.Op, driver.Result
	}
	_ = errors.As(err, &f.Errno)
	if errors.As(err, &m) {
		f.Mark = m.cause
	}
	return f
}

// markOf returns the cause of an error that no call of the driver made, or "".
func markOf(err error) string {
	var lib *sys.LibraryError
	switch {
	case errors.As(err, &lib) && !lib.Found:
		return "no-libcuda"
	case errors.Is(err, cu.ErrContextLost):
		return "context-lost"
	case errors.Is(err, cu.ErrSymbolMissing):
		return "libcuda-version"
	case errors.Is(err, sock.ErrPath):
		return oneOf(advice.Read(err.Error()), "path-too-long") // others are malformed
	case errors.Is(err, sock.ErrControlTruncated), errors.Is(err, syscall.EMFILE), errors.Is(err, syscall.ENFILE):
		return "fd-limit"
	case errors.Is(err, sock.ErrNoListener):
		return "socket-dead"
	case errors.Is(err, sock.ErrNotAdmitted), errors.Is(err, share.ErrRefused):
		return "uid-common"
	case errors.Is(err, sock.ErrNotSocket), errors.Is(err, share.ErrProtocol), errors.Is(err, share.ErrUnsupported):
		return "socket-foreign"
	case errors.Is(err, vmm.ErrDevice):
		return "gpu-hidden"
	case errors.Is(err, share.ErrTimeout):
		return "peer-silent"
	case errors.Is(err, context.DeadlineExceeded):
		return "timeout"
	}
	return ""
}

// oneOf returns id if it is one of ids, else "".
func oneOf(ids []string, id string) string {
	if slices.Contains(ids, id) {
		return id
	}
	return ""
}
