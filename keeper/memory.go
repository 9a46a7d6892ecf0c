package keeper

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/gpufd/gpufd/cu"
)

// Memory of the software driver is a file that ends with a trailer, which begins so
// (docs/wire.md). Programs without that driver make such files anywhere.
const (
	softTrailer = 4096
	softMagic   = "gpufd soft mem 1"
)

// nvidiaMajor is the number of NVIDIA's character devices.
const nvidiaMajor = 195

// isMemory returns nil if a descriptor may be memory of the driver, as far as can be told
// without the driver: any other descriptor of the driver's device looks the same.
func isMemory(f *os.File, k cu.Kind) error {
	var st unix.Stat_t
	conn, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var link string
	soft := false
	err = conn.Control(func(fd uintptr) {
		if err = unix.Fstat(int(fd), &st); err == nil {
			link, err = os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd))
		}
		soft = k == cu.Soft && st.Mode&unix.S_IFMT == unix.S_IFREG && hasTrailer(int(fd), st.Size)
	})
	if err != nil {
		return err
	}
	switch {
	case k == cu.CUDA && st.Mode&unix.S_IFMT == unix.S_IFCHR && unix.Major(uint64(st.Rdev)) == nvidiaMajor:
		return nil
	case soft:
		return nil
	}
	return badRequest("a descriptor is of %s, which is no memory of the %s driver", link, k)
}

// hasTrailer says whether a file of size bytes ends like memory of the software driver.
func hasTrailer(fd int, size int64) bool {
	var magic [len(softMagic)]byte
	if size <= softTrailer {
		return false
	}
	n, err := unix.Pread(fd, magic[:], size-softTrailer)
	return err == nil && n == len(magic) && string(magic[:]) == softMagic
}
