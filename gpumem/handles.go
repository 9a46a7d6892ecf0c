package gpumem

import (
	"encoding/hex"
	"fmt"
)

// An IPCHandle names memory to other processes: CUipcMemHandle, in the runtime
// API cudaIpcMemHandle_t, which CuPy, PyTorch, Numba and UCX send. It is a value,
// valid while the memory is allocated and its process lives. It keeps nothing
// alive, and anyone who sees it can open the memory: between your own programs
// prefer file descriptors ([Descriptor]).
//
// It names a place rather than the memory there. The handle of freed memory opens
// what was allocated later at the same address, and a handle with one byte
// changed may open (D16 of docs/driver-facts.md). The two sides have to agree how long it is
// valid.
type IPCHandle [64]byte

// A LegacyHandle says where legacy memory is: the handle of a whole allocation, and how many bytes
// into it the memory begins.
type LegacyHandle struct {
	Handle IPCHandle
	Offset uint64
}

// String gives 128 hexadecimal digits.
func (h IPCHandle) String() string { return hex.EncodeToString(h[:]) }

// MarshalText gives 128 hexadecimal digits.
func (h IPCHandle) MarshalText() ([]byte, error) { return hex.AppendEncode(nil, h[:]), nil }

// UnmarshalText reads what MarshalText gives.
func (h *IPCHandle) UnmarshalText(text []byte) error {
	return unmarshal64((*[64]byte)(h), "an IPC handle", text)
}

// A FabricHandle names physical memory to other processes, on this machine and
// others of the same NVLink domain: CUmemFabricHandle. It is a value and keeps
// nothing alive: the exporter must keep the memory until it is imported.
type FabricHandle [64]byte

// String gives 128 hexadecimal digits.
func (h FabricHandle) String() string { return hex.EncodeToString(h[:]) }

// MarshalText gives 128 hexadecimal digits.
func (h FabricHandle) MarshalText() ([]byte, error) { return hex.AppendEncode(nil, h[:]), nil }

// UnmarshalText reads what MarshalText gives.
func (h *FabricHandle) UnmarshalText(text []byte) error {
	return unmarshal64((*[64]byte)(h), "a fabric handle", text)
}

// An IPCEventHandle names an event to other processes: CUipcEventHandle, in the
// runtime API cudaIpcEventHandle_t. It is a value, valid while the event is open
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

// A PoolPointer names memory of an exported pool to a process that has imported
// the pool. It is a value and gives no rights.
type PoolPointer [64]byte

// MarshalText gives 128 hexadecimal digits.
func (p PoolPointer) MarshalText() ([]byte, error) {
	return hex.AppendEncode(nil, p[:]), nil
}

// UnmarshalText reads what MarshalText gives.
func (p *PoolPointer) UnmarshalText(text []byte) error {
	return unmarshal64((*[64]byte)(p), "a pool pointer", text)
}

// unmarshal64 reads 64 bytes in hexadecimal. If it fails it leaves b alone.
func unmarshal64(b *[64]byte, what string, text []byte) error {
	if len(text) != hex.EncodedLen(len(b)) {
		return fmt.Errorf("gpumem: %s of %d digits, want %d", what, len(text), hex.EncodedLen(len(b)))
	}
	var read [64]byte
	if _, err := hex.Decode(read[:], text); err != nil {
		return fmt.Errorf("gpumem: %s: %w", what, err)
	}
	*b = read
	return nil
}
