package cu

import (
	"cmp"
	"errors"
	"fmt"
	"math/bits"
	"os"

	"golang.org/x/sys/unix"

	"github.com/gpufd/gpufd/cu/sys"
)

// ExternalFlags say how the memory of another API was made.
type ExternalFlags uint32

// ExternalDedicated is for memory that was made for one image or buffer alone:
// with VkMemoryDedicatedAllocateInfo.
const ExternalDedicated = ExternalFlags(sys.CUDA_EXTERNAL_MEMORY_DEDICATED)

// An ExternalMemory is memory of another API, such as Vulkan, in a context of this
// process. The caller owns it. [ExternalMemory.Map] makes it usable.
type ExternalMemory struct {
	*externalHandle
	ctx *Context
}

// externalHandle is the part of an ExternalMemory that its context closes.
type externalHandle struct {
	gate
	memory sys.CUexternalMemory
	size   uint64
}

// ImportExternal imports the memory behind f, which stays the caller's and may be
// closed at once: the driver is given a duplicate, takes that over and closes it
// (cuImportExternalMemory, with OPAQUE_FD).
//
// f comes from Vulkan (VK_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD_BIT), for the device
// of c; a descriptor of [MemHandle.Export] will do, too. size is that of the whole
// memory in bytes (VkMemoryAllocateInfo.allocationSize), and flags is 0 or
// [ExternalDedicated]. The driver does not find out if size is wrong: work that
// gets to what is not there loses the context.
//
// External semaphores are not typed: call cuImportExternalSemaphore and the like
// with [Context.Caller]. That call takes its descriptor over, too.
//
// Errors: [ErrInvalidValue] for a size of 0, or one that is larger than f if f
// is a file that has a size; [ErrUnknown] and others for a descriptor that is not
// such memory; [os.ErrInvalid] for no file, [os.ErrClosed] for a closed one.
func (c *Context) ImportExternal(f *os.File, size uint64, flags ExternalFlags) (*ExternalMemory, error) {
	const op = "cuImportExternalMemory"
	if c == nil || c.inner.isClosed() {
		return nil, unusable(op, "the context", c == nil)
	}
	fd, err := duplicateExternal(f, size)
	if err != nil {
		return nil, err
	}
	desc := &sys.CUDA_EXTERNAL_MEMORY_HANDLE_DESC{
		Type: sys.CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD, Size: size, Flags: uint32(flags),
	}
	*desc.HandleFd() = int32(fd)
	m := &ExternalMemory{&externalHandle{size: size}, c}
	handle := new(sys.CUexternalMemory)
	err = c.create(op, m.externalHandle, func(call sys.Caller) sys.CUresult {
		r := call.CuImportExternalMemory(handle, desc)
		m.memory = *handle
		return r
	})
	if err != nil && !errors.Is(err, ErrUnknown) { // the driver closes what is no such memory (C42)
		_ = unix.Close(fd)
	}
	return made(m, err)
}

// duplicateExternal checks f, as far as that can be done, and returns a duplicate
// for the driver. It is never 0.
func duplicateExternal(f *os.File, size uint64) (fd int, err error) {
	if f == nil {
		return -1, fmt.Errorf("cu: importing external memory: no file: %w", os.ErrInvalid)
	}
	if size == 0 {
		return -1, externalSize("cuImportExternalMemory", "the size is 0; pass the size that the memory was made with, which the descriptor does not tell")
	}
	info, err := f.Stat()
	if err != nil {
		return -1, fmt.Errorf("cu: importing external memory: %w", err)
	}
	if info.Mode().IsRegular() && uint64(info.Size()) < size {
		return -1, externalSize("cuImportExternalMemory", fmt.Sprintf("the size is %d, but the descriptor's file has %d bytes", size, info.Size()))
	}
	var dupErr error
	_, err = withFD(f, func(from uintptr) sys.CUresult {
		fd, dupErr = unix.FcntlInt(from, unix.F_DUPFD_CLOEXEC, 3)
		return sys.CUDA_SUCCESS
	})
	if err := cmp.Or(err, os.NewSyscallError("fcntl F_DUPFD_CLOEXEC", dupErr)); err != nil {
		return -1, fmt.Errorf("cu: duplicating the descriptor of external memory: %w", err)
	}
	return fd, nil
}

// externalSize is the error of a size or range that the driver need not be asked
// about.
func externalSize(op, detail string) error {
	return &Error{Op: op, Result: ErrInvalidValue, Detail: detail}
}

// Size returns the memory's size in bytes, as it was given.
func (m *ExternalMemory) Size() uint64 {
	if m == nil {
		return 0
	}
	return m.size
}

// Map makes size bytes of the memory, from offset on, a buffer
// (cuExternalMemoryGetMappedBuffer). The caller owns it; it stays when m is
// closed. Ranges may overlap; those of [ExternalDedicated] memory begin at 0. [ErrInvalidValue]: no
// bytes, or more than m has.
func (m *ExternalMemory) Map(offset, size uint64) (*ExternalBuffer, error) {
	const op = "cuExternalMemoryGetMappedBuffer"
	if m == nil || !m.enter() {
		return nil, unusable(op, "the external memory", m == nil)
	}
	defer m.leave()
	end, over := bits.Add64(offset, size, 0)
	switch {
	case m.ctx.inner.isClosed():
		return nil, unusable(op, "the context", false)
	case size == 0:
		return nil, externalSize(op, "the size is 0; map at least one byte")
	case over != 0 || end > m.size:
		return nil, externalSize(op, fmt.Sprintf("%d bytes at offset %d do not lie in external memory of %d", size, offset, m.size))
	}
	b := &ExternalBuffer{&externalBufferHandle{size: size}, m.ctx}
	p := new(sys.CUdeviceptr)
	return made(b, m.ctx.create(op, b.externalBufferHandle, func(call sys.Caller) sys.CUresult {
		r := call.CuExternalMemoryGetMappedBuffer(p, m.memory, &sys.CUDA_EXTERNAL_MEMORY_BUFFER_DESC{Offset: offset, Size: size})
		b.ptr = DevicePtr(*p)
		return r
	}))
}

// Close gives the memory back (cuDestroyExternalMemory). Buffers of it stay, and
// keep what they map.
func (m *ExternalMemory) Close() error {
	if m == nil {
		return nil
	}
	return m.ctx.release(m.externalHandle)
}

func (m *externalHandle) closeIn(h *contextHandle) error {
	return h.check("cuDestroyExternalMemory", h.call.CuDestroyExternalMemory(m.memory))
}

// An ExternalBuffer is device memory that is part of an [ExternalMemory]. The
// caller owns it. It is an argument of kernels, copies and fills as [Memory] is.
type ExternalBuffer struct {
	*externalBufferHandle
	ctx *Context
}

// externalBufferHandle is the part of an ExternalBuffer that its context closes.
type externalBufferHandle struct {
	gate
	ptr  DevicePtr
	size uint64
}

// Ptr returns the buffer's address, 0 after Close.
func (b *ExternalBuffer) Ptr() DevicePtr {
	if b == nil {
		return 0
	}
	return b.openAt(b.ptr)
}

// Size returns the buffer's size in bytes.
func (b *ExternalBuffer) Size() uint64 {
	if b == nil {
		return 0
	}
	return b.size
}

// Close waits for queued work and unmaps the buffer (cuMemFree), or returns [ErrInUse], as [Memory.Close]. The
// memory stays its maker's.
func (b *ExternalBuffer) Close() error {
	if b == nil {
		return nil
	}
	return b.ctx.releaseUnused(b.externalBufferHandle, func() string {
		return fmt.Sprintf("cu: external memory of %d bytes at %s", b.size, b.ptr)
	})
}

func (b *externalBufferHandle) closeIn(h *contextHandle) error {
	return h.check("cuMemFree_v2", h.call.CuMemFree_v2(sys.CUdeviceptr(b.ptr)))
}
