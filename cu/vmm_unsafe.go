package cu

import (
	"fmt"
	"os"
	"runtime"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/gpufd/gpufd/cu/sys"
	"github.com/gpufd/gpufd/internal/made"
)

// HandleType is a way to hand physical memory to another process.
type HandleType uint32

// The handle types that memory can be created for. They may be added up.
const (
	HandleNone   = HandleType(sys.CU_MEM_HANDLE_TYPE_NONE)
	HandleFD     = HandleType(sys.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
	HandleFabric = HandleType(sys.CU_MEM_HANDLE_TYPE_FABRIC)
)

// Access is what a device may do with a mapping.
type Access uint32

// The rights of a mapping.
const (
	NoAccess  = Access(sys.CU_MEM_ACCESS_FLAGS_PROT_NONE)
	ReadOnly  = Access(sys.CU_MEM_ACCESS_FLAGS_PROT_READ)
	ReadWrite = Access(sys.CU_MEM_ACCESS_FLAGS_PROT_READWRITE)
)

// String gives "none", "read-only" or "read-write".
func (a Access) String() string {
	switch a {
	case NoAccess:
		return "none"
	case ReadOnly:
		return "read-only"
	case ReadWrite:
		return "read-write"
	}
	return fmt.Sprintf("Access(%d)", uint32(a))
}

// MemHandle is physical device memory: CUmemGenericAllocationHandle. The
// caller owns it; Close gives it back, and the memory itself is free when the
// last handle, file descriptor and mapping of it, in any process, is gone. A
// lost MemHandle is released by the garbage collector.
type MemHandle struct {
	inner *memHandle
}

type memHandle struct {
	gate
	drv    *Driver
	handle sys.CUmemGenericAllocationHandle
	size   uint64
}

func (d *Driver) newMemHandle(h sys.CUmemGenericAllocationHandle, size uint64) *MemHandle {
	m := &MemHandle{&memHandle{drv: d, handle: h, size: size}}
	runtime.AddCleanup(m, func(h *memHandle) { go h.release() }, m.inner) // may block: 53 ms for 64 GiB
	return m
}

func (dev *Device) allocationProp(types HandleType) *sys.CUmemAllocationProp {
	return &sys.CUmemAllocationProp{
		Type:                 sys.CU_MEM_ALLOCATION_TYPE_PINNED,
		RequestedHandleTypes: sys.CUmemAllocationHandleType(types),
		Location:             dev.location(),
	}
}

func (dev *Device) location() sys.CUmemLocation {
	return sys.CUmemLocation{Type: sys.CU_MEM_LOCATION_TYPE_DEVICE, Id: int32(dev.dev)}
}

// Granularity returns what sizes and addresses of memory with these handle
// types must be multiples of, in bytes: the minimum, and what the driver
// recommends (cuMemGetAllocationGranularity).
func (dev *Device) Granularity(types HandleType) (minimum, recommended uint64, err error) {
	for _, g := range []struct {
		flag sys.CUmemAllocationGranularity_flags
		to   *uint64
	}{
		{sys.CU_MEM_ALLOC_GRANULARITY_MINIMUM, &minimum},
		{sys.CU_MEM_ALLOC_GRANULARITY_RECOMMENDED, &recommended},
	} {
		n := new(uintptr)
		r := dev.drv.call.CuMemGetAllocationGranularity(n, dev.allocationProp(types), g.flag)
		if err = dev.drv.check("cuMemGetAllocationGranularity", r); err != nil {
			return 0, 0, err
		}
		*g.to = uint64(*n)
	}
	return minimum, recommended, nil
}

// CreateMemory creates size bytes of physical memory on the device, which read
// as zeros and can be exported as any of types (cuMemCreate). size is a
// multiple of the granularity. Errors: [ErrInvalidValue] for another size,
// [ErrOutOfMemory], [ErrNotSupported], [ErrNotPermitted] for fabric handles
// without an IMEX channel. No context is needed.
func (dev *Device) CreateMemory(size uint64, types HandleType) (*MemHandle, error) {
	h := new(sys.CUmemGenericAllocationHandle)
	r := dev.drv.call.CuMemCreate(h, uintptr(size), dev.allocationProp(types), 0)
	if err := dev.drv.check("cuMemCreate", r); err != nil {
		return nil, err
	}
	return dev.drv.newMemHandle(*h, size), nil
}

// ImportMemory makes a handle of the memory behind a file descriptor that
// another process exported (cuMemImportFromShareableHandle). The caller keeps
// fd and may close it. size is what the exporter says; the driver cannot be
// asked, and finds out a wrong one when mapping. A descriptor that is no such
// memory gives [ErrUnknown]. No context is needed.
func (d *Driver) ImportMemory(fd *os.File, size uint64) (*MemHandle, error) {
	raw, err := fd.SyscallConn()
	if err != nil {
		return nil, err
	}
	h := new(sys.CUmemGenericAllocationHandle)
	r := sys.CUDA_ERROR_UNKNOWN
	err = raw.Control(func(fd uintptr) {
		r = notZero(fd, func(fd uintptr) sys.CUresult {
			return d.call.CuMemImportFromShareableHandle(h, fd, sys.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
		})
	})
	if err != nil {
		return nil, err
	}
	if err := d.check("cuMemImportFromShareableHandle", r); err != nil {
		return nil, err
	}
	return d.newMemHandle(*h, size), nil
}

// notZero imports fd by way of a duplicate if it is 0, which the driver takes
// for no descriptor at all.
func notZero(fd uintptr, use func(fd uintptr) sys.CUresult) sys.CUresult {
	if fd == 0 {
		dup, err := unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 3)
		if err != nil {
			return sys.CUDA_ERROR_OPERATING_SYSTEM
		}
		defer unix.Close(dup)
		fd = uintptr(dup)
	}
	return use(fd)
}

// Size is the memory's size in bytes, as given when it was made.
func (m *MemHandle) Size() uint64 { return m.inner.size }

// Export makes a new file descriptor for the memory, which the caller owns and
// which by itself keeps the memory alive (cuMemExportToShareableHandle). It
// costs 600 to 900 µs each time; a dup of an earlier one costs 1 µs.
func (m *MemHandle) Export() (*os.File, error) {
	fd := new(int32)
	err := m.use("cuMemExportToShareableHandle", func(call sys.Caller, h sys.CUmemGenericAllocationHandle) sys.CUresult {
		// No fork before it is close-on-exec: a child that inherited it would
		// keep the memory.
		syscall.ForkLock.RLock()
		defer syscall.ForkLock.RUnlock()
		r := call.CuMemExportToShareableHandle(unsafe.Pointer(fd), h, sys.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0)
		if r == sys.CUDA_SUCCESS {
			unix.CloseOnExec(int(*fd))
		}
		return r
	})
	if err != nil {
		return nil, err
	}
	return made.File(int(*fd), fmt.Sprintf("gpu memory of %d bytes", m.inner.size)), nil
}

// DeviceID returns the driver's number of the device that the memory is on
// (cuMemGetAllocationPropertiesFromHandle). It works for imported memory too.
func (m *MemHandle) DeviceID() (int, error) {
	prop := new(sys.CUmemAllocationProp)
	err := m.use("cuMemGetAllocationPropertiesFromHandle", func(call sys.Caller, h sys.CUmemGenericAllocationHandle) sys.CUresult {
		return call.CuMemGetAllocationPropertiesFromHandle(prop, h)
	})
	return int(prop.Location.Id), err
}

// Close gives the handle back; mappings of the memory stay (cuMemRelease). A
// second Close does nothing and does not reach the driver, which would crash;
// so a release that the driver refuses cannot be tried again.
func (m *MemHandle) Close() error {
	if m == nil {
		return nil
	}
	defer runtime.KeepAlive(m)
	return m.inner.release()
}

func (h *memHandle) release() error {
	if !h.gate.close() {
		return nil
	}
	return h.drv.check("cuMemRelease", h.drv.call.CuMemRelease(h.handle))
}

// use makes one driver call on the handle.
func (m *MemHandle) use(op string, f func(sys.Caller, sys.CUmemGenericAllocationHandle) sys.CUresult) error {
	h := m.inner
	if !h.enter() {
		return ErrClosed
	}
	defer h.leave()
	defer runtime.KeepAlive(m)
	return h.drv.check(op, f(h.drv.call, h.handle))
}

// The calls below deal in plain addresses and keep no state, as the driver's
// own do: unmapping twice succeeds there. Package vmm owns them properly.

// ReserveAddress reserves size bytes of device address space, aligned to align
// (0: the driver's choice) and at hint if that is free (cuMemAddressReserve).
func (d *Driver) ReserveAddress(size, align uint64, hint DevicePtr) (DevicePtr, error) {
	p := new(sys.CUdeviceptr)
	r := d.call.CuMemAddressReserve(p, uintptr(size), uintptr(align), sys.CUdeviceptr(hint), 0)
	return DevicePtr(*p), d.check("cuMemAddressReserve", r)
}

// FreeAddress gives back what ReserveAddress reserved, whole and unmapped
// (cuMemAddressFree).
func (d *Driver) FreeAddress(p DevicePtr, size uint64) error {
	return d.check("cuMemAddressFree", d.call.CuMemAddressFree(sys.CUdeviceptr(p), uintptr(size)))
}

// Map maps size bytes of m from offset on at p, within a reservation
// (cuMemMap). Drivers so far accept offset 0 and the whole size only, and say
// [ErrNotSupported] to anything else. The mapping cannot be used before
// [Driver.SetAccess].
func (d *Driver) Map(p DevicePtr, size, offset uint64, m *MemHandle) error {
	if m.inner.drv.call.Library() != d.call.Library() {
		return &Error{Op: "cuMemMap", Result: ErrInvalidHandle, Text: "the memory belongs to another driver"}
	}
	return m.use("cuMemMap", func(call sys.Caller, h sys.CUmemGenericAllocationHandle) sys.CUresult {
		return call.CuMemMap(sys.CUdeviceptr(p), uintptr(size), uintptr(offset), h, 0)
	})
}

// Unmap ends the mappings of size bytes at p. It does not wait for kernels that
// use them (cuMemUnmap).
func (d *Driver) Unmap(p DevicePtr, size uint64) error {
	return d.check("cuMemUnmap", d.call.CuMemUnmap(sys.CUdeviceptr(p), uintptr(size)))
}

// SetAccess sets what each of devices may do with the mappings of size bytes at
// p (cuMemSetAccess).
func (d *Driver) SetAccess(p DevicePtr, size uint64, a Access, devices ...*Device) error {
	desc := make([]sys.CUmemAccessDesc, len(devices))
	for i, dev := range devices {
		desc[i] = sys.CUmemAccessDesc{Location: dev.location(), Flags: sys.CUmemAccess_flags(a)}
	}
	r := d.call.CuMemSetAccess(sys.CUdeviceptr(p), uintptr(size), unsafe.SliceData(desc), uintptr(len(desc)))
	return d.check("cuMemSetAccess", r)
}

// AccessOf returns what dev may do at p (cuMemGetAccess).
func (d *Driver) AccessOf(p DevicePtr, dev *Device) (Access, error) {
	flags, loc := new(uint64), dev.location()
	err := d.check("cuMemGetAccess", d.call.CuMemGetAccess(flags, &loc, sys.CUdeviceptr(p)))
	return Access(*flags), err
}
