package cu

import (
	"fmt"
	"runtime"
	"unsafe"

	"github.com/gpufd/gpufd/cu/sys"
)

// HostFlags say how pinned host memory will be used.
type HostFlags uint32

// The flags of [Context.AllocHost]. They can be combined.
const (
	HostPortable      = HostFlags(sys.CU_MEMHOSTALLOC_PORTABLE)      // pinned for every context; always so with unified addressing
	HostMapped        = HostFlags(sys.CU_MEMHOSTALLOC_DEVICEMAP)     // kernels can reach it; always so with unified addressing
	HostWriteCombined = HostFlags(sys.CU_MEMHOSTALLOC_WRITECOMBINED) // faster over the bus, very slow for the host to read
)

// RegisterFlags say how registered host memory will be used.
type RegisterFlags uint32

// The flags of [Context.RegisterHost]. They can be combined.
const (
	RegisterPortable = RegisterFlags(sys.CU_MEMHOSTREGISTER_PORTABLE)  // as HostPortable
	RegisterMapped   = RegisterFlags(sys.CU_MEMHOSTREGISTER_DEVICEMAP) // as HostMapped
	RegisterIOMemory = RegisterFlags(sys.CU_MEMHOSTREGISTER_IOMEMORY)  // it is a mapping of another device's memory
	RegisterReadOnly = RegisterFlags(sys.CU_MEMHOSTREGISTER_READ_ONLY) // read-only for the device; see AttributeReadOnlyHostRegisterSupported
)

// HostMemory is pinned host memory. The host and every device can use it; copies
// from and to it are the fastest and truly asynchronous. The caller owns it. It
// is not on the Go heap: slices of it must not outlive it.
type HostMemory struct {
	*hostHandle
	ctx *Context
}

// HostRegistration keeps host memory of the caller pinned until Close. The caller
// owns it; it keeps the memory reachable.
type HostRegistration struct {
	*hostHandle
	ctx *Context
}

// hostHandle is the part of HostMemory and HostRegistration that the context
// closes.
type hostHandle struct {
	gate
	bytes      []byte
	at         DevicePtr // for kernels; 0 if there is none
	registered bool      // the caller's memory, not the driver's
}

// AllocHost allocates size bytes of pinned host memory (cuMemHostAlloc). With 0
// bytes the memory has no address.
func (c *Context) AllocHost(size uint64, flags HostFlags) (*HostMemory, error) {
	m := &HostMemory{new(hostHandle), c}
	return made(m, c.create("cuMemHostAlloc", m.hostHandle, func(call sys.Caller) sys.CUresult {
		p := new(unsafe.Pointer)
		r := call.CuMemHostAlloc(p, uintptr(size), uint32(flags))
		if r == sys.CUDA_SUCCESS {
			m.bytes = unsafe.Slice((*byte)(*p), size)
			m.findAddress(call)
		}
		return r
	}))
}

// Bytes returns the memory itself, nil after Close. Do not use it, or a slice of
// it, after Close of the memory or its context: the memory is unmapped then, and
// touching it ends the process.
func (m *HostMemory) Bytes() []byte {
	if m == nil || m.isClosed() {
		return nil
	}
	return m.bytes
}

// HostSlice returns the memory of m as values of T, as many as fit. The limits of
// [HostMemory.Bytes] apply. Errors: [ErrPointers], [ErrClosed].
func HostSlice[T any](m *HostMemory) ([]T, error) {
	if m == nil || m.isClosed() {
		return nil, unusable("HostSlice", "the memory", m == nil)
	}
	b := m.bytes
	var t T
	if _, _, err := memory[T](nil); err != nil || unsafe.Sizeof(t) == 0 {
		return nil, err
	}
	return unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(b))), uintptr(len(b))/unsafe.Sizeof(t)), nil
}

// Size returns the memory's size in bytes.
func (m *HostMemory) Size() uint64 {
	if m == nil {
		return 0
	}
	return uint64(len(m.bytes))
}

// Ptr returns the memory's address for kernels, copies and fills, 0 after Close
// (cuMemHostGetDevicePointer).
func (m *HostMemory) Ptr() DevicePtr {
	if m == nil {
		return 0
	}
	return m.openAt(m.at)
}

// Flags returns the memory's flags (cuMemHostGetFlags). HostMapped is always
// among them; small pieces may share a block, and HostPortable, with others.
func (m *HostMemory) Flags() (HostFlags, error) {
	const op = "cuMemHostGetFlags"
	if m == nil {
		return 0, unusable(op, "the memory", true)
	}
	flags := new(uint32)
	err := m.hostHandle.run(m.ctx, op, func(call sys.Caller, p unsafe.Pointer) sys.CUresult {
		return call.CuMemHostGetFlags(flags, p)
	})
	return HostFlags(*flags), err
}

// Close waits for queued work and frees the memory (cuMemFreeHost), or returns [ErrInUse], as
// [Memory.Close].
func (m *HostMemory) Close() error {
	if m == nil {
		return nil
	}
	return m.ctx.releaseUnused(m.hostHandle, m.describe)
}

// RegisterHost pins b, so that copies from and to it are as fast and asynchronous
// as with [Context.AllocHost] (cuMemHostRegister). b may be of the Go heap or of
// mmap, and need not be aligned. Errors: [ErrHostMemoryAlreadyRegistered] if any
// of b is registered; [ErrInvalidValue] for an empty b, memory of AllocHost,
// read-only memory without RegisterReadOnly, and flags that do not fit.
func (c *Context) RegisterHost(b []byte, flags RegisterFlags) (*HostRegistration, error) {
	m := &HostRegistration{&hostHandle{bytes: b, registered: true}, c}
	return made(m, c.create("cuMemHostRegister_v2", m.hostHandle, func(call sys.Caller) sys.CUresult {
		r := call.CuMemHostRegister_v2(unsafe.Pointer(unsafe.SliceData(b)), uintptr(len(b)), uint32(flags))
		if r == sys.CUDA_SUCCESS {
			m.findAddress(call)
		}
		return r
	}))
}

// Bytes returns the memory, which is the caller's.
func (m *HostRegistration) Bytes() []byte {
	if m == nil {
		return nil
	}
	return m.bytes
}

// Size returns the memory's size in bytes.
func (m *HostRegistration) Size() uint64 {
	if m == nil {
		return 0
	}
	return uint64(len(m.bytes))
}

// Ptr returns the memory's address for kernels, copies and fills, 0 after Close
// (cuMemHostGetDevicePointer).
func (m *HostRegistration) Ptr() DevicePtr {
	if m == nil {
		return 0
	}
	return m.openAt(m.at)
}

// Close waits for queued work and unpins the memory (cuMemHostUnregister), or returns [ErrInUse], as
// [Memory.Close]. The caller must not unmap the memory before.
func (m *HostRegistration) Close() error {
	if m == nil {
		return nil
	}
	return m.ctx.releaseUnused(m.hostHandle, m.describe)
}

func (h *hostHandle) describe() string {
	return fmt.Sprintf("cu: pinned memory of %d bytes", len(h.bytes))
}

// findAddress asks where kernels find the memory. Memory of 0 bytes has no address.
func (h *hostHandle) findAddress(call sys.Caller) {
	p := new(sys.CUdeviceptr)
	if call.CuMemHostGetDevicePointer_v2(p, unsafe.Pointer(unsafe.SliceData(h.bytes)), 0) == sys.CUDA_SUCCESS {
		h.at = DevicePtr(*p)
	}
}

// run makes one driver call on the memory.
func (h *hostHandle) run(c *Context, op string, f func(sys.Caller, unsafe.Pointer) sys.CUresult) error {
	defer runtime.KeepAlive(c)
	if !h.enter() {
		return unusable(op, "the memory", false)
	}
	defer h.leave()
	return c.run(op, func(call sys.Caller) sys.CUresult { return f(call, unsafe.Pointer(unsafe.SliceData(h.bytes))) })
}

func (h *hostHandle) closeIn(ctx *contextHandle) error {
	p := unsafe.Pointer(unsafe.SliceData(h.bytes))
	if h.registered {
		return ctx.check("cuMemHostUnregister", ctx.call.CuMemHostUnregister(p))
	}
	return ctx.check("cuMemFreeHost", ctx.call.CuMemFreeHost(p))
}
