package server

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/gpufd/gpufd/gpumem"
	"github.com/gpufd/gpufd/internal/descriptor"
	"github.com/gpufd/gpufd/keeper/internal/protocol"
)

// Memory of the software driver is a file that ends with a trailer, which begins with softMagic
// (docs/wire.md). Programs without that driver make such files anywhere.
const (
	softTrailer = 4096
	softMagic   = "gpufd soft mem 1"
)

// isMemory returns nil if a descriptor may be memory of the driver, as far as can be told
// without the driver: any other descriptor of the driver's device looks the same. It asks
// nothing of a file whose owner could leave the question open.
func isMemory(f *os.File, k gpumem.Kind) error {
	conn, err := f.SyscallConn()
	if err != nil {
		return err
	}
	is, link := false, ""
	err = conn.Control(func(fd uintptr) {
		switch k {
		case gpumem.CUDA:
			is = descriptor.IsNVIDIA(int(fd))
		case gpumem.Soft:
			is = descriptor.Quiet(int(fd)) && hasTrailer(int(fd))
		}
		if !is {
			link, _ = os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd)) // its sender may have chosen it
		}
	})
	if err == nil && !is {
		err = protocol.BadRequest("a descriptor is of %s, which is no memory of the %s driver", link, k)
	}
	return err
}

// hasTrailer reports whether a regular file ends like memory of the software driver.
func hasTrailer(fd int) bool {
	var st unix.Stat_t
	var magic [len(softMagic)]byte
	if unix.Fstat(fd, &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFREG || st.Size <= softTrailer {
		return false
	}
	n, err := unix.Pread(fd, magic[:], st.Size-softTrailer)
	return err == nil && n == len(magic) && string(magic[:]) == softMagic
}
