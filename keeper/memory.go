package keeper

import (
	"fmt"
	"os"
	"regexp"

	"golang.org/x/sys/unix"

	"github.com/gpufd/gpufd/cu"
)

// softMemory is what the software driver calls its files.
var softMemory = regexp.MustCompile(`/gpu[0-9]+-[0-9]+-[0-9a-f]+(-[0-9a-f]+)?\.mem( \(deleted\))?$`)

// nvidiaMajor is the number of NVIDIA's character devices.
const nvidiaMajor = 195

// isMemory says whether a descriptor may be the driver's, as far as can be told without
// it: another's descriptor of a driver's device looks the same, and so does that of other memory.
func isMemory(f *os.File, k cu.Kind) error {
	var st unix.Stat_t
	conn, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var link string
	err = conn.Control(func(fd uintptr) {
		if err = unix.Fstat(int(fd), &st); err == nil {
			link, err = os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd))
		}
	})
	if err != nil {
		return err
	}
	switch {
	case k == cu.CUDA && st.Mode&unix.S_IFMT == unix.S_IFCHR && unix.Major(uint64(st.Rdev)) == nvidiaMajor:
		return nil
	case k == cu.Soft && st.Mode&unix.S_IFMT == unix.S_IFREG && softMemory.MatchString(link):
		return nil
	}
	return badRequest("a descriptor is of %s, which is no memory of the %s driver", link, k)
}
