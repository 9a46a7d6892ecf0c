package cu

import (
	"errors"
	"fmt"

	"github.com/gpufd/gpufd/cu/sys"
)

// SupportsIPC reports whether the device has legacy IPC for memory and events
// (CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED; before CUDA 12.0, whether addresses
// are unified).
func (dev *Device) SupportsIPC() (bool, error) {
	ok, err := dev.supports(AttributeIPCEventSupported)
	if errors.Is(err, ErrInvalidValue) {
		return dev.supports(AttributeUnifiedAddressing)
	}
	return ok, err
}

// IPCHandle returns a handle that names the memory to other processes, the same
// each time (cuIpcGetMemHandle). They open it with [Context.OpenIPC] or
// cudaIpcOpenMemHandle. Synchronise before sending it, so that they read what was
// written.
//
// The driver does not know who has the memory open, and CUDA leaves undefined
// what an opener finds after Close. So openers close first, and tell the owner by
// other means.
func (m *Memory) IPCHandle() (IPCHandle, error) {
	if m == nil || !m.enter() {
		return IPCHandle{}, unusable("cuIpcGetMemHandle", "the memory", m == nil)
	}
	defer m.leave()
	h, _, err := m.ctx.IPCHandle(m.ptr)
	return h, err
}

// IPCHandle is [Memory.IPCHandle] for the memory around p, which other code of
// this process may have allocated, such as PyTorch's pool with cudaMalloc
// (cuIpcGetMemHandle, cuMemGetAddressRange). offset is p's place in that memory.
// Send it with the handle: the opener gets the beginning. Memory of another kind
// is [ErrInvalidValue], and the error names the kind.
func (c *Context) IPCHandle(p DevicePtr) (h IPCHandle, offset uint64, err error) {
	raw := new(sys.CUipcMemHandle)
	base := p
	err = c.run("cuIpcGetMemHandle", func(call sys.Caller) sys.CUresult {
		begin, n := new(sys.CUdeviceptr), new(uintptr)
		if call.CuMemGetAddressRange_v2(begin, n, sys.CUdeviceptr(p)) == sys.CUDA_SUCCESS {
			base = DevicePtr(*begin)
		}
		return call.CuIpcGetMemHandle(raw, sys.CUdeviceptr(base))
	})
	if errors.Is(err, ErrInvalidValue) {
		err = fmt.Errorf("cu: legacy IPC cannot share %s: %s: %w", p, c.kindOf(p), err)
	}
	if err != nil {
		return IPCHandle{}, 0, err
	}
	return raw.Reserved, uint64(p - base), nil
}

// kindOf says what kind of memory has no IPC handle, and how to share it.
func (c *Context) kindOf(p DevicePtr) string {
	a, err := c.PointerAttributes(p)
	switch {
	case err != nil || a.Type == 0:
		return "the driver knows no memory there"
	case a.Type == MemoryHost:
		return "it is pinned host memory"
	case a.Managed:
		return "it is managed memory"
	case a.Pool != 0:
		return "it belongs to a memory pool, which is shared as a whole: see Pool.Export and StreamMemory.ExportPointer"
	}
	m, err := c.inner.dev.drv.RetainMemory(p)
	if err == nil {
		_ = m.Close()
		return "it is virtual memory of cuMemCreate, which is shared as a file descriptor: see MemHandle.Export and package vmm"
	}
	return "if another process has shared it, pass on the handle that came from there"
}

// An IPCMemory is memory of another process, opened in a context of this one. The
// caller owns it.
type IPCMemory struct {
	*ipcMemoryHandle
	ctx *Context
}

// ipcMemoryHandle is the part of an IPCMemory that its context closes.
type ipcMemoryHandle struct {
	gate
	ptr  DevicePtr
	size uint64
}

// OpenIPC maps memory that another process shares (cuIpcOpenMemHandle). Opened
// again in c it has the same address, and stays until all are closed. If it is on
// another device, visible here or not, c gets access to that device
// ([Context.EnablePeerAccess]).
//
// Open all memory of one process and device in one context of each device here.
// The opener closes before the owner frees; the two have to agree on that. The
// driver does not notice that the owner has freed the memory or has ended, and an
// old handle may open other memory: see [IPCHandle].
//
// Each error says what to do. [ErrInvalidValue]: the bytes are no handle of this
// machine and driver, or the memory was freed. [ErrInvalidContext]: the handle is
// of this process, or of one with the same number in another PID namespace (D18).
// [ErrInvalidHandle]: the owner has ended, or another context has memory of it.
// [ErrMapFailed]: the memory cannot be mapped. [ErrPeerAccessUnsupported],
// [ErrTooManyPeers]: it is on another device. [ErrNotSupported]: see
// [Device.SupportsIPC].
func (c *Context) OpenIPC(h IPCHandle) (*IPCMemory, error) {
	m := &IPCMemory{&ipcMemoryHandle{}, c}
	raw := sys.CUipcMemHandle{Reserved: h}
	const flags = uint32(sys.CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS) // there is no other
	p := new(sys.CUdeviceptr)
	return made(m, c.create("cuIpcOpenMemHandle", m.ipcMemoryHandle, func(call sys.Caller) sys.CUresult {
		r := older(call.CuIpcOpenMemHandle_v2(p, raw, flags), func() sys.CUresult {
			return call.CuIpcOpenMemHandle(p, raw, flags)
		})
		if r == sys.CUDA_SUCCESS {
			m.ptr, m.size = DevicePtr(*p), extentOf(call, *p)
		}
		return r
	}))
}

// extentOf returns the size of the memory that begins at p, or 0 if the driver
// does not say.
func extentOf(call sys.Caller, p sys.CUdeviceptr) uint64 {
	base, n := new(sys.CUdeviceptr), new(uintptr)
	if call.CuMemGetAddressRange_v2(base, n, p) != sys.CUDA_SUCCESS || *base != p {
		return 0
	}
	return uint64(*n)
}

// Ptr returns the memory's address in this process, 0 after Close.
func (m *IPCMemory) Ptr() DevicePtr {
	if m == nil {
		return 0
	}
	return m.openAt(m.ptr)
}

// Size returns the memory's size in bytes, as the driver says
// (cuMemGetAddressRange), or 0. Its owner may have asked for less.
func (m *IPCMemory) Size() uint64 {
	if m == nil {
		return 0
	}
	return m.size
}

// sizeUntold reports whether the driver has not told the size. What embeds the memory has this method, too.
func (m *IPCMemory) sizeUntold() bool { return m != nil && m.size == 0 }

// Context returns the context in which the memory was opened.
func (m *IPCMemory) Context() *Context {
	if m == nil {
		return nil
	}
	return m.ctx
}

// Close waits for queued work and ends one OpenIPC; the last one of a handle ends the mapping
// (cuIpcCloseMemHandle). Or it returns [ErrInUse], as [Memory.Close]. The owner keeps the memory.
func (m *IPCMemory) Close() error {
	if m == nil {
		return nil
	}
	return m.ctx.releaseUnused(m.ipcMemoryHandle, func() string {
		return fmt.Sprintf("cu: memory of another process at %s", m.ptr)
	})
}

func (m *ipcMemoryHandle) closeIn(h *contextHandle) error {
	return h.check("cuIpcCloseMemHandle", h.call.CuIpcCloseMemHandle(sys.CUdeviceptr(m.ptr)))
}
