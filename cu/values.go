package cu

import "github.com/gpufd/gpufd/gpumem"

// Values that processes tell each other. They need no driver: see package gpumem.
type (
	// Kind tells the real driver from the stand-in.
	Kind = gpumem.Kind
	// Access is what a device may do with a mapping.
	Access = gpumem.Access
	// UUID names a device, or a MIG instance, in every process of a machine.
	UUID = gpumem.UUID
	// An IPCHandle names memory to other processes: CUipcMemHandle. See [Memory.IPCHandle].
	IPCHandle = gpumem.IPCHandle
	// An IPCEventHandle names an event to other processes: CUipcEventHandle. See [Event.IPCHandle].
	IPCEventHandle = gpumem.IPCEventHandle
	// A FabricHandle names physical memory to other processes: CUmemFabricHandle. See [MemHandle.ExportFabric].
	FabricHandle = gpumem.FabricHandle
	// A PoolPointer names memory of an exported pool. See [StreamMemory.ExportPointer].
	PoolPointer = gpumem.PoolPointer
)

// The kinds of driver.
const (
	CUDA = gpumem.CUDA // libcuda
	Soft = gpumem.Soft // the software driver, package cu/soft
)

// The rights of a mapping.
const (
	NoAccess  = gpumem.NoAccess
	ReadOnly  = gpumem.ReadOnly
	ReadWrite = gpumem.ReadWrite
)

// ParseUUID reads what [UUID.String] prints; the prefix may be GPU- or MIG-.
func ParseUUID(s string) (UUID, error) { return gpumem.ParseUUID(s) }
