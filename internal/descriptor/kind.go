package descriptor

import (
	"os"
	"slices"

	"golang.org/x/sys/unix"
)

// nvidiaMajor is the number of NVIDIA's character devices.
const nvidiaMajor = 195

// Mounts are the mounts whose files are quiet, which means that no process answers their calls,
// although their file system has no block device: those of / and of the temporary directory, where they are of such a file system.
type Mounts [2]uint64

// fileSystems are those that only this machine's kernel answers for, as root has mounted them.
var fileSystems = []int64{unix.OVERLAYFS_SUPER_MAGIC, unix.BTRFS_SUPER_MAGIC, 0x2fc12fc1 /* ZFS */, 0xca451a4e /* bcachefs */}

// OwnMounts returns the mounts of this process as they are now: a number that has become free
// may be a stranger's next.
func OwnMounts() (m Mounts) {
	for i, path := range []string{"/", os.TempDir()} {
		var fs unix.Statfs_t
		var st unix.Statx_t
		if unix.Statfs(path, &fs) != nil || !slices.Contains(fileSystems, int64(fs.Type)) {
			continue
		}
		if unix.Statx(unix.AT_FDCWD, path, unix.AT_STATX_DONT_SYNC, unix.STATX_MNT_ID, &st) == nil && st.Mask&unix.STATX_MNT_ID != 0 {
			m[i] = st.Mnt_id
		}
	}
	return m
}

// Quiet reports whether closing the descriptor, or asking for its size, waits for nobody: it
// is of memory (memfd_create(2), tmpfs), of NVIDIA's devices, of a file on a disk, or a file
// of the kernel's own (anon_inode).
func Quiet(fd int) bool {
	var st unix.Statx_t
	m := OwnMounts()
	return QuietAt(fd, &st, &m)
}

// IsNVIDIA reports whether the descriptor is of one of NVIDIA's devices, as device memory is.
func IsNVIDIA(fd int) bool {
	var st unix.Statx_t
	return look(fd, &st) && isNVIDIA(&st)
}
