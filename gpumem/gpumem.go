// Package gpumem defines the values with which processes describe GPU memory: which driver and device it is on, who may
// do what with it, how large it is, and what names it. They go over sockets and into files, and need no driver. Packages
// cu and vmm, which do need one, alias them.
package gpumem

import "fmt"

// Kind tells the real driver from the stand-in. Only processes with drivers of
// the same kind can share memory.
type Kind uint8

// The kinds of driver.
const (
	CUDA Kind = 1 // libcuda
	Soft Kind = 2 // the software driver, package cu/soft
)

// String gives "cuda" or "soft".
func (k Kind) String() string {
	switch k {
	case CUDA:
		return "cuda"
	case Soft:
		return "soft"
	}
	return fmt.Sprintf("Kind(%d)", uint8(k))
}

// Access is what a device may do with a mapping: CUmemAccess_flags.
type Access uint32

// The rights of a mapping.
const (
	NoAccess  Access = 0
	ReadOnly  Access = 1
	ReadWrite Access = 3
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
