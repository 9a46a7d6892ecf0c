package descriptor

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// QuietAt is [Quiet] with memory and mounts of its caller's. It makes raw system calls alone:
// a process that shares our memory may run it ([sock]).
//
// Memory says at once that it can be sealed. The rest says what it is in the words that its
// kernel has (AT_STATX_DONT_SYNC): a FUSE file system can neither make its own inodes anonymous,
// nor have a device opened without the driver of that device, nor have a block device below it
// unless root mounts it.
//
//go:norace
//go:nosplit
//go:nocheckptr
func QuietAt(fd int, st *unix.Statx_t, own *Mounts) bool {
	if _, _, errno := unix.RawSyscall(unix.SYS_FCNTL, uintptr(fd), unix.F_GET_SEALS, 0); errno == 0 {
		return true
	}
	if !look(fd, st) {
		return false
	}
	switch st.Mode & unix.S_IFMT {
	case 0:
		return true
	case unix.S_IFCHR:
		return isNVIDIA(st)
	case unix.S_IFREG:
		mount := st.Mnt_id
		return st.Dev_major != 0 || st.Mask&unix.STATX_MNT_ID != 0 && mount != 0 && (mount == own[0] || mount == own[1])
	}
	return false
}

//go:norace
//go:nosplit
func isNVIDIA(st *unix.Statx_t) bool {
	return st.Mode&unix.S_IFMT == unix.S_IFCHR && st.Rdev_major == nvidiaMajor
}

// here is the path of a descriptor itself.
var here [1]byte

//go:norace
//go:nosplit
//go:nocheckptr
func look(fd int, st *unix.Statx_t) bool {
	const flags, mask = unix.AT_EMPTY_PATH | unix.AT_STATX_DONT_SYNC, unix.STATX_TYPE | unix.STATX_MNT_ID
	_, _, errno := unix.RawSyscall6(unix.SYS_STATX, uintptr(fd), uintptr(unsafe.Pointer(&here)), flags, mask, uintptr(unsafe.Pointer(st)), 0)
	return errno == 0 && st.Mask&unix.STATX_TYPE != 0
}
