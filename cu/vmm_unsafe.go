package cu

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/gpufd/gpufd/cu/sys"
	"github.com/gpufd/gpufd/internal/descriptor/fdtrace"
)

// HandleType is a way to hand physical memory to another process.
type HandleType uint32

// The handle types that memory can be created for. They can be combined.
const (
	HandleNone   = HandleType(sys.CU_MEM_HANDLE_TYPE_NONE)
	HandleFD     = HandleType(sys.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
	HandleFabric = HandleType(sys.CU_MEM_HANDLE_TYPE_FABRIC)
)

// MemHandle is a handle of physical memory: CUmemGenericAllocationHandle. The
// caller owns it. The memory is free when its last handle, descriptor and
// mapping, in any process, are gone. The garbage collector releases a lost
// MemHandle.
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

// Granularity returns the minimum and the recommended granularity in bytes
// (cuMemGetAllocationGranularity). Sizes and addresses of memory with these
// handle types must be multiples of the minimum.
func (dev *Device) Granularity(types HandleType) (minimum, recommended uint64, err error) {
	if known, ok := dev.granularities.Load(types); ok {
		g := known.([2]uint64)
		return g[0], g[1], nil
	}
	minimum, recommended, err = dev.drv.Granularity(MemProperties{Location: dev.Location(), HandleTypes: types})
	if err == nil {
		dev.granularities.Store(types, [2]uint64{minimum, recommended})
	}
	return minimum, recommended, err
}

// Granularity is [Device.Granularity] for memory of any kind and place
// (cuMemGetAllocationGranularity).
func (d *Driver) Granularity(p MemProperties) (minimum, recommended uint64, err error) {
	for _, g := range []struct {
		flag sys.CUmemAllocationGranularity_flags
		to   *uint64
	}{
		{sys.CU_MEM_ALLOC_GRANULARITY_MINIMUM, &minimum},
		{sys.CU_MEM_ALLOC_GRANULARITY_RECOMMENDED, &recommended},
	} {
		n := new(uintptr)
		r := d.call.CuMemGetAllocationGranularity(n, p.raw(), g.flag)
		if err = d.check("cuMemGetAllocationGranularity", r); err != nil {
			return 0, 0, err
		}
		*g.to = uint64(*n)
	}
	return minimum, recommended, nil
}

// CreateMemory creates size bytes of physical memory on the device (cuMemCreate).
// They read as zeros and can be exported as any of types. size is a multiple of
// the granularity. No context is needed. Errors: [ErrInvalidValue] for another
// size; [ErrOutOfMemory]; [ErrNotSupported]; [ErrNotPermitted] for fabric handles
// without an IMEX channel.
func (dev *Device) CreateMemory(size uint64, types HandleType) (*MemHandle, error) {
	return dev.drv.CreateMemory(size, MemProperties{Location: dev.Location(), HandleTypes: types})
}

// CreateMemory is [Device.CreateMemory] for memory of any kind and place
// (cuMemCreate). A NUMA node of the host needs CUDA 12.2 and a device with
// [AttributeHostNUMAVirtualMemoryManagementSupported]; the host as a whole, whose
// memory has no descriptors, needs
// [AttributeHostVirtualMemoryManagementSupported]. Without them the error is
// [ErrInvalidValue], [ErrInvalidDevice] or [ErrNotSupported].
func (d *Driver) CreateMemory(size uint64, p MemProperties) (*MemHandle, error) {
	h := new(sys.CUmemGenericAllocationHandle)
	if err := d.check("cuMemCreate", d.call.CuMemCreate(h, uintptr(size), p.raw(), 0)); err != nil {
		return nil, err
	}
	return d.newMemHandle(*h, size), nil
}

// ImportMemory makes a handle for the memory behind a descriptor that another
// process exported (cuMemImportFromShareableHandle). The caller keeps fd and may
// close it. size is what the exporter says; the driver notices a wrong one when
// mapping. No context is needed. Errors: [ErrUnknown] for any other descriptor;
// [os.ErrClosed].
func (d *Driver) ImportMemory(fd *os.File, size uint64) (*MemHandle, error) {
	h := new(sys.CUmemGenericAllocationHandle)
	if err := d.importFD(fd, h); err != nil {
		return nil, err
	}
	return d.newMemHandle(*h, size), nil
}

// ImportUncollected is [Driver.ImportMemory] for an owner that closes the handle
// even when it is lost itself, as vmm.Buffer does. The garbage collector does not
// release it.
func (d *Driver) ImportUncollected(fd *os.File, size uint64) (*MemHandle, error) {
	m := &struct {
		MemHandle
		h memHandle
	}{h: memHandle{drv: d, size: size}}
	if err := d.importFD(fd, &m.h.handle); err != nil {
		return nil, err
	}
	m.inner = &m.h
	return &m.MemHandle, nil
}

// importFD imports the memory behind f.
func (d *Driver) importFD(f *os.File, h *sys.CUmemGenericAllocationHandle) error {
	r, err := withFD(f, func(fd uintptr) sys.CUresult {
		return d.call.CuMemImportFromShareableHandle(h, fd, sys.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
	})
	if err != nil {
		return err
	}
	return d.check("cuMemImportFromShareableHandle", r)
}

// withFD calls use with the descriptor of f, which is not closed meanwhile.
func withFD(f *os.File, use func(fd uintptr) sys.CUresult) (r sys.CUresult, err error) {
	raw, err := f.SyscallConn()
	if err != nil {
		return r, err
	}
	if raw.Control(func(fd uintptr) { r = notZero(fd, use) }) != nil {
		return r, os.ErrClosed // the poller's own word for it matches nothing
	}
	return r, nil
}

// notZero duplicates fd for the import if it is 0, which the driver takes for no
// descriptor at all.
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

// Handle returns the driver's own handle.
func (m *MemHandle) Handle() sys.CUmemGenericAllocationHandle {
	if m == nil {
		return 0
	}
	return m.inner.handle
}

// Size returns the memory's size in bytes, as given when it was made.
func (m *MemHandle) Size() uint64 {
	if m == nil {
		return 0
	}
	return m.inner.size
}

// Export makes a new file descriptor for the memory
// (cuMemExportToShareableHandle). The caller owns it, and it alone keeps the
// memory alive. It costs 600 to 900 µs each time; a dup of an earlier one costs 1
// µs.
func (m *MemHandle) Export() (*os.File, error) {
	fd := new(int32)
	err := m.run("cuMemExportToShareableHandle", func(call sys.Caller, h sys.CUmemGenericAllocationHandle) sys.CUresult {
		return private(fd, func() sys.CUresult {
			return call.CuMemExportToShareableHandle(unsafe.Pointer(fd), h, sys.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0)
		})
	})
	if err != nil {
		return nil, err
	}
	return fdtrace.File(int(*fd), fmt.Sprintf("gpu memory of %d bytes", m.inner.size)), nil
}

// private makes a call that opens fd, and marks it close-on-exec. There is no
// fork before that: a child that inherited it would keep the memory.
func private(fd *int32, open func() sys.CUresult) sys.CUresult {
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	r := open()
	if r == sys.CUDA_SUCCESS {
		unix.CloseOnExec(int(*fd))
	}
	return r
}

// Properties returns the memory's properties
// (cuMemGetAllocationPropertiesFromHandle). The driver does not know the
// HandleTypes of imported memory, names the NUMA node for any place of the host,
// and forgets Usage.
func (m *MemHandle) Properties() (MemProperties, error) {
	prop := new(sys.CUmemAllocationProp)
	err := m.run("cuMemGetAllocationPropertiesFromHandle", func(call sys.Caller, h sys.CUmemGenericAllocationHandle) sys.CUresult {
		return call.CuMemGetAllocationPropertiesFromHandle(prop, h)
	})
	return propertiesOf(prop), err
}

// DeviceID returns the driver's number of the memory's device, −1 for the host;
// also of imported memory (cuMemGetAllocationPropertiesFromHandle).
func (m *MemHandle) DeviceID() (int, error) {
	p, err := m.Properties()
	if err == nil && p.Location.Type != LocationDevice {
		return -1, nil
	}
	return p.Location.ID, err
}

// Close releases the handle; mappings of the memory stay (cuMemRelease). If the
// driver refuses, Close cannot be tried again.
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

// run makes one driver call on the handle.
func (m *MemHandle) run(op string, f func(sys.Caller, sys.CUmemGenericAllocationHandle) sys.CUresult) error {
	if m == nil || !m.inner.enter() {
		return unusable(op, "the memory", m == nil)
	}
	defer runtime.KeepAlive(m)
	h := m.inner
	defer h.leave()
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

// FreeAddress frees what ReserveAddress reserved, whole and unmapped
// (cuMemAddressFree).
func (d *Driver) FreeAddress(p DevicePtr, size uint64) error {
	return d.check("cuMemAddressFree", d.call.CuMemAddressFree(sys.CUdeviceptr(p), uintptr(size)))
}

// Map maps size bytes of m, from offset on, at p within a reservation (cuMemMap).
// Drivers so far take only offset 0 and the whole size; the rest is
// [ErrNotSupported]. The mapping cannot be used before [Driver.SetAccess].
func (d *Driver) Map(p DevicePtr, size, offset uint64, m *MemHandle) error {
	const op = "cuMemMap"
	if m == nil {
		return unusable(op, "the memory", true)
	}
	if err := m.inner.drv.refuseOther(op, "the memory", d); err != nil {
		return err
	}
	return m.run(op, func(call sys.Caller, h sys.CUmemGenericAllocationHandle) sys.CUresult {
		return call.CuMemMap(sys.CUdeviceptr(p), uintptr(size), uintptr(offset), h, 0)
	})
}

// Unmap ends the mappings of size bytes at p. It does not wait for kernels that
// use them (cuMemUnmap).
func (d *Driver) Unmap(p DevicePtr, size uint64) error {
	return d.check("cuMemUnmap", d.call.CuMemUnmap(sys.CUdeviceptr(p), uintptr(size)))
}

// SetAccess sets what each of devices may do with the mappings of size bytes at p
// (cuMemSetAccess). If one device cannot reach the memory of another, the error
// is also [ErrPeerAccessUnsupported] and names the two.
func (d *Driver) SetAccess(p DevicePtr, size uint64, a Access, devices ...*Device) error {
	desc := make([]sys.CUmemAccessDesc, len(devices))
	for i, dev := range devices {
		desc[i] = sys.CUmemAccessDesc{Location: dev.location(), Flags: sys.CUmemAccess_flags(a)}
	}
	err := d.setAccess(p, size, desc)
	if err == nil {
		return nil
	}
	if why := d.outOfReach(p, devices); why != nil {
		return errors.Join(err, why)
	}
	return err
}

// SetAccessEach sets the rights of several places to the mappings of size bytes
// at p: all of them or, with an error, none (cuMemSetAccess).
func (d *Driver) SetAccessEach(p DevicePtr, size uint64, rights ...LocationAccess) error {
	desc := make([]sys.CUmemAccessDesc, len(rights))
	for i, r := range rights {
		desc[i] = sys.CUmemAccessDesc{Location: r.Location.raw(), Flags: sys.CUmemAccess_flags(r.Access)}
	}
	return d.setAccess(p, size, desc)
}

func (d *Driver) setAccess(p DevicePtr, size uint64, desc []sys.CUmemAccessDesc) error {
	r := d.call.CuMemSetAccess(sys.CUdeviceptr(p), uintptr(size), unsafe.SliceData(desc), uintptr(len(desc)))
	return d.check("cuMemSetAccess", r)
}

// AccessOf returns what dev may do at p (cuMemGetAccess).
func (d *Driver) AccessOf(p DevicePtr, dev *Device) (Access, error) {
	return d.AccessAt(p, dev.Location())
}

// AccessAt returns what a place may do at p (cuMemGetAccess).
func (d *Driver) AccessAt(p DevicePtr, l Location) (Access, error) {
	flags, loc := new(uint64), l.raw()
	err := d.check("cuMemGetAccess", d.call.CuMemGetAccess(flags, &loc, sys.CUdeviceptr(p)))
	return Access(*flags), err
}

// RetainMemory makes a handle for the memory mapped at p, anywhere in the mapping
// (cuMemRetainAllocationHandle). The caller owns it. Its Size is 0 before CUDA
// 11.7. [ErrInvalidValue]: no memory of a [MemHandle] is mapped there.
func (d *Driver) RetainMemory(p DevicePtr) (*MemHandle, error) {
	a, err := d.PointerAttributes(p)
	if err != nil {
		return nil, err
	}
	h := new(sys.CUmemGenericAllocationHandle)
	if err := d.check("cuMemRetainAllocationHandle", d.call.CuMemRetainAllocationHandle(h, uintptr(p))); err != nil {
		return nil, err
	}
	return d.newMemHandle(*h, a.MappingSize), nil
}

// DMABufFlags say what kind of dma-buf [Driver.DMABuf] makes.
type DMABufFlags uint64

// DMABufPCIe makes one that goes over PCIe even if there is a faster way.
const DMABufPCIe = DMABufFlags(sys.CU_MEM_RANGE_FLAG_DMA_BUF_MAPPING_TYPE_PCIE)

// DMABuf makes a dma-buf of size bytes of device memory at p, for drivers of
// other devices (cuMemGetHandleForAddressRange, CUDA 11.7). p and size are
// multiples of the host's page size. The caller owns the file, which keeps the
// memory alive. No access and no context are needed. [ErrNotSupported]: the
// device lacks [AttributeDMABufSupported] or, with DMABufPCIe, that way.
func (d *Driver) DMABuf(p DevicePtr, size uint64, flags DMABufFlags) (*os.File, error) {
	fd := new(int32)
	err := d.check("cuMemGetHandleForAddressRange", private(fd, func() sys.CUresult {
		return d.call.CuMemGetHandleForAddressRange(unsafe.Pointer(fd), sys.CUdeviceptr(p), uintptr(size),
			sys.CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, uint64(flags))
	}))
	if err != nil {
		return nil, err
	}
	return fdtrace.File(int(*fd), fmt.Sprintf("dma-buf of %d bytes", size)), nil
}
