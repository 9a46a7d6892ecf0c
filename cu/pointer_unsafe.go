package cu

import (
	"fmt"
	"unsafe"

	"github.com/gpufd/gpufd/cu/sys"
)

// MemoryType is the kind of memory at an address: CUmemorytype.
type MemoryType uint32

// The types of memory. The zero MemoryType is memory unknown to the driver.
const (
	MemoryHost    = MemoryType(sys.CU_MEMORYTYPE_HOST)    // pinned by the driver
	MemoryDevice  = MemoryType(sys.CU_MEMORYTYPE_DEVICE)  // of a device
	MemoryArray   = MemoryType(sys.CU_MEMORYTYPE_ARRAY)   // of a CUDA array
	MemoryUnified = MemoryType(sys.CU_MEMORYTYPE_UNIFIED) // managed: moves between the two
)

// String gives "unknown", "host", "device", "array" or "unified".
func (t MemoryType) String() string {
	if name, ok := memoryTypes[t]; ok {
		return name
	}
	return fmt.Sprintf("MemoryType(%d)", uint32(t))
}

var memoryTypes = map[MemoryType]string{0: "unknown", MemoryHost: "host", MemoryDevice: "device", MemoryArray: "array", MemoryUnified: "unified"}

// PointerAttributes are what the driver knows of an address. For an unknown one
// all but Device and HostPtr are zero.
type PointerAttributes struct {
	Type          MemoryType
	Context       sys.CUcontext    // that it was allocated or registered in, or 0: memory of cuMemCreate has none
	Device        int              // the driver's number of the device, negative for none
	HostPtr       uintptr          // the host's address for it, or itself if that is not known
	RangeStart    DevicePtr        // where the allocation, or the whole reservation, begins
	RangeSize     uint64           // its size in bytes
	MappingStart  DevicePtr        // where the mapping begins (since CUDA 11.7, else 0)
	MappingSize   uint64           // its size in bytes (since CUDA 11.7, else 0)
	BufferID      uint64           // the allocation's or mapping's, unique in the process
	BlockID       uint64           // the memory's own, wherever it is mapped (since CUDA 11.7, else 0)
	Mapped        bool             // memory is there
	Managed       bool             // it comes from cuMemAllocManaged
	SyncMemops    bool             // see [Driver.SyncMemops]
	LegacyIPC     bool             // cuIpcGetMemHandle takes it
	GPUDirectRDMA bool             // other PCIe devices can reach it
	HandleTypes   HandleType       // how it can be shared
	Pool          sys.CUmemoryPool // the one it comes from, or 0

	// These depend on the context that was asked.
	DevicePtr DevicePtr // the address to its kernels, or 0 if they cannot use it
	Access    Access    // what they may do there
}

// PointerAttributes is [Context.PointerAttributes] without the fields that depend
// on a context (cuPointerGetAttributes).
func (d *Driver) PointerAttributes(p DevicePtr) (PointerAttributes, error) {
	var a PointerAttributes
	r := a.query(d.call, d.version, p, false)
	return a, d.check("cuPointerGetAttributes", r)
}

// PointerAttributes returns what the driver knows of p, any address, and what c
// may do with it (cuPointerGetAttributes).
func (c *Context) PointerAttributes(p DevicePtr) (PointerAttributes, error) {
	var a PointerAttributes
	err := c.run("cuPointerGetAttributes", func(call sys.Caller) sys.CUresult {
		return a.query(call, c.inner.dev.drv.version, p, true)
	})
	return a, err
}

// A pointerAnswer is a question about an address and the place of its answer.
type pointerAnswer struct {
	id        sys.CUpointer_attribute
	since     int  // CUDA version, or 0 for all
	inContext bool // it depends on the context
	set       func(*PointerAttributes, uint64)
}

var pointerAnswers = [...]pointerAnswer{
	{id: sys.CU_POINTER_ATTRIBUTE_MEMORY_TYPE, set: func(a *PointerAttributes, w uint64) { a.Type = MemoryType(w) }},
	{id: sys.CU_POINTER_ATTRIBUTE_CONTEXT, set: func(a *PointerAttributes, w uint64) { a.Context = sys.CUcontext(w) }},
	{id: sys.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, set: func(a *PointerAttributes, w uint64) { a.Device = int(int32(w)) }},
	{id: sys.CU_POINTER_ATTRIBUTE_HOST_POINTER, set: func(a *PointerAttributes, w uint64) { a.HostPtr = uintptr(w) }},
	{id: sys.CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, set: func(a *PointerAttributes, w uint64) { a.RangeStart = DevicePtr(w) }},
	{id: sys.CU_POINTER_ATTRIBUTE_RANGE_SIZE, set: func(a *PointerAttributes, w uint64) { a.RangeSize = w }},
	{id: sys.CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR, since: 11070, set: func(a *PointerAttributes, w uint64) { a.MappingStart = DevicePtr(w) }},
	{id: sys.CU_POINTER_ATTRIBUTE_MAPPING_SIZE, since: 11070, set: func(a *PointerAttributes, w uint64) { a.MappingSize = w }},
	{id: sys.CU_POINTER_ATTRIBUTE_BUFFER_ID, set: func(a *PointerAttributes, w uint64) { a.BufferID = w }},
	{id: sys.CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID, since: 11070, set: func(a *PointerAttributes, w uint64) { a.BlockID = w }},
	{id: sys.CU_POINTER_ATTRIBUTE_MAPPED, set: func(a *PointerAttributes, w uint64) { a.Mapped = w != 0 }},
	{id: sys.CU_POINTER_ATTRIBUTE_IS_MANAGED, set: func(a *PointerAttributes, w uint64) { a.Managed = w != 0 }},
	{id: sys.CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, set: func(a *PointerAttributes, w uint64) { a.SyncMemops = w != 0 }},
	{id: sys.CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, set: func(a *PointerAttributes, w uint64) { a.LegacyIPC = w != 0 }},
	{id: sys.CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE, set: func(a *PointerAttributes, w uint64) { a.GPUDirectRDMA = w != 0 }},
	{id: sys.CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES, set: func(a *PointerAttributes, w uint64) { a.HandleTypes = HandleType(w) }},
	{id: sys.CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, set: func(a *PointerAttributes, w uint64) { a.Pool = sys.CUmemoryPool(w) }},
	{id: sys.CU_POINTER_ATTRIBUTE_DEVICE_POINTER, inContext: true, set: func(a *PointerAttributes, w uint64) { a.DevicePtr = DevicePtr(w) }},
	{id: sys.CU_POINTER_ATTRIBUTE_ACCESS_FLAGS, inContext: true, set: func(a *PointerAttributes, w uint64) { a.Access = Access(w) }},
}

// A pointerQuery is what cuPointerGetAttributes reads and writes. An answer
// takes at most a word; words begin as 0, since some are narrower.
type pointerQuery struct {
	ids   [len(pointerAnswers)]sys.CUpointer_attribute
	data  [len(pointerAnswers)]unsafe.Pointer
	words [len(pointerAnswers)]uint64 // in the order of pointerAnswers
}

// query asks for what a driver of that version knows.
func (a *PointerAttributes) query(call sys.Caller, version int, p DevicePtr, inContext bool) sys.CUresult {
	q, n := new(pointerQuery), 0
	for i, x := range pointerAnswers {
		if x.since <= version && (inContext || !x.inContext) {
			q.ids[n], q.data[n] = x.id, unsafe.Pointer(&q.words[i])
			n++
		}
	}
	r := call.CuPointerGetAttributes(uint32(n), &q.ids[0], &q.data[0], sys.CUdeviceptr(p))
	if r == sys.CUDA_SUCCESS {
		for i, x := range pointerAnswers {
			x.set(a, q.words[i])
		}
	}
	return r
}

// SyncMemops makes synchronous calls that touch the allocation at p, such as
// cuMemcpy, always wait until they are done (cuPointerSetAttribute,
// CU_POINTER_ATTRIBUTE_SYNC_MEMOPS). PCIe devices that reach the memory need
// that. It is for raw calls and other users of the context; the calls of this
// package are asynchronous and then wait. [ErrNotSupported]: p is mapped from a
// [MemHandle].
func (d *Driver) SyncMemops(p DevicePtr) error {
	v := new(uint32)
	*v = 1
	r := d.call.CuPointerSetAttribute(unsafe.Pointer(v), sys.CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, sys.CUdeviceptr(p))
	return d.check("cuPointerSetAttribute", r)
}
