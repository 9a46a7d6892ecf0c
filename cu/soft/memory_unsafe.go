package soft

import (
	"unsafe"

	"github.com/gpufd/gpufd/cu/sys"
	"golang.org/x/sys/unix"
)

// pointer turns an address that C gave us into a pointer, in the form that vet
// and checkptr accept.
func pointer(addr uintptr) unsafe.Pointer { return *(*unsafe.Pointer)(unsafe.Pointer(&addr)) }

// sliceOf returns the n bytes at p.
func sliceOf(p *byte, n uintptr) []byte { return unsafe.Slice(p, n) }

// bytesAt returns the n bytes at addr.
func bytesAt(addr, n uintptr) []byte { return unsafe.Slice((*byte)(pointer(addr)), n) }

// mapShared maps the first n bytes of a file, readable and writable.
func mapShared(fd int, n uintptr) (uintptr, error) {
	p, err := unix.MmapPtr(fd, 0, nil, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	return uintptr(p), err
}

// mapHost maps n bytes of fresh host memory.
func mapHost(n uintptr) (uintptr, error) {
	p, err := unix.MmapPtr(-1, 0, nil, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	return uintptr(p), err
}

// mapReserved maps n bytes that nothing can touch, at hint if that is not 0
// and free.
func mapReserved(hint, n uintptr) (uintptr, error) {
	flags := unix.MAP_PRIVATE | unix.MAP_ANON | unix.MAP_NORESERVE
	if hint != 0 {
		flags |= unix.MAP_FIXED_NOREPLACE
	}
	p, err := unix.MmapPtr(-1, 0, pointer(hint), n, unix.PROT_NONE, flags)
	return uintptr(p), err
}

// mapFileAt maps the first n bytes of a file in place of reserved addresses.
func mapFileAt(addr, n uintptr, fd, prot int) error {
	_, err := unix.MmapPtr(fd, 0, pointer(addr), n, prot, unix.MAP_SHARED|unix.MAP_FIXED)
	return err
}

// hideAt makes n bytes again what nothing can touch. It can fail as unmap can.
func hideAt(addr, n uintptr) {
	const flags = unix.MAP_PRIVATE | unix.MAP_ANON | unix.MAP_NORESERVE | unix.MAP_FIXED
	_, _ = unix.MmapPtr(-1, 0, pointer(addr), n, unix.PROT_NONE, flags)
}

// unmap gives address space back. It can fail only where that would split a
// range in two and the process has as many as it may; then the range stays
// reserved, which does no harm.
func unmap(addr, n uintptr) {
	if n > 0 {
		_ = unix.MunmapPtr(pointer(addr), n)
	}
}

// asInt32 returns the int at an address that may hold a larger number.
func asInt32(p *uint64) *int32 { return (*int32)(unsafe.Pointer(p)) }

// sizeAt returns the size_t at addr.
func sizeAt(addr uintptr) *uintptr { return (*uintptr)(pointer(addr)) }

// pointers returns C's array of pointers as one of addresses.
func pointers(p *unsafe.Pointer) *uintptr { return (*uintptr)(unsafe.Pointer(p)) }

// peerCopy returns a copy between contexts as one within a context: where the former has its
// contexts, the latter has reserved fields.
func peerCopy(p *sys.CUDA_MEMCPY3D_PEER) *sys.CUDA_MEMCPY3D {
	return (*sys.CUDA_MEMCPY3D)(unsafe.Pointer(p))
}

// fabricAt returns the fabric handle at an address that may be an fd's.
func fabricAt(p *int32) *sys.CUmemFabricHandle { return (*sys.CUmemFabricHandle)(unsafe.Pointer(p)) }

// fabricOf returns the fabric handle that a number is the address of.
func fabricOf(addr uintptr) *sys.CUmemFabricHandle { return (*sys.CUmemFabricHandle)(pointer(addr)) }

// array returns the n things at p.
func array[T any](p *T, n uintptr) []T { return unsafe.Slice(p, n) }
