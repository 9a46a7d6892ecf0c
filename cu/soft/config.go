package soft

import (
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/gpufd/gpufd/cu/sys"
	"golang.org/x/sys/unix"
)

// The environment, read once per process.
const (
	envDevices = "GPUFD_SOFT_DEVICES"
	envMemory  = "GPUFD_SOFT_MEMORY"
	envVersion = "GPUFD_SOFT_VERSION"
	envPeers   = "GPUFD_SOFT_PEERS"
	envIPC     = "GPUFD_SOFT_IPC"
	envVMM     = "GPUFD_SOFT_VMM"
	envIMEX    = "GPUFD_SOFT_IMEX"
	envDir     = "GPUFD_SOFT_DIR"
	envVisible = "CUDA_VISIBLE_DEVICES"
)

// maxDevices bounds GPUFD_SOFT_DEVICES; the store keeps a counter for each.
const maxDevices = 64

// A config is the machine that the environment describes.
type config struct {
	devices int
	memory  uint64 // bytes of each device
	version int    // 13000 is CUDA 13.0
	peers   int    // 0: no device reaches the memory of another
	ipc     int    // 0: no legacy IPC
	imex    int    // 1: fabric handles
	vmm     int    // 0: no virtual memory management
	dir     string
	visible *string // CUDA_VISIBLE_DEVICES; nil if not set
}

// A ConfigError says why the software driver cannot start: variables of the
// environment have values that make no sense, or it may not use the directory of
// device memory.
type ConfigError struct {
	Err error // which variable, its value, and what it may be; several are joined
}

// Error describes it in one line.
func (e *ConfigError) Error() string {
	return "the software driver cannot start: " + strings.ReplaceAll(e.Err.Error(), "\n", "; ")
}

// Unwrap returns Err.
func (e *ConfigError) Unwrap() error { return e.Err }

// readConfig reads the environment. With a [*ConfigError], what could not be read
// has its default, so that symbols still resolve.
func readConfig() (config, error) {
	c := config{devices: 2, memory: 2 << 30, version: sys.CUDA_VERSION, peers: 1, ipc: 1, vmm: 1}
	err := errors.Join(
		readInt(envDevices, &c.devices, 0, maxDevices),
		readSize(envMemory, &c.memory),
		readInt(envVersion, &c.version, 1000, sys.CUDA_VERSION),
		readInt(envPeers, &c.peers, 0, 1),
		readInt(envIPC, &c.ipc, 0, 1),
		readInt(envIMEX, &c.imex, 0, 1),
		readInt(envVMM, &c.vmm, 0, 1),
	)
	if v, ok := os.LookupEnv(envVisible); ok {
		c.visible = &v
	}
	dir, dirErr := storeDir(c.memory)
	c.dir = dir
	if err = errors.Join(err, dirErr); err != nil {
		return c, &ConfigError{err}
	}
	return c, nil
}

// readInt sets *v to the environment variable's value, if it is set.
func readInt(name string, v *int, least, most int) error {
	s := os.Getenv(name)
	if s == "" {
		return nil
	}
	n, err := strconv.Atoi(s)
	if err != nil || n < least || n > most {
		return fmt.Errorf("%s=%q: want a number from %d to %d", name, s, least, most)
	}
	*v = n
	return nil
}

// readSize sets *v to the environment variable's number of bytes, if it is set.
func readSize(name string, v *uint64) error {
	s := os.Getenv(name)
	if s == "" {
		return nil
	}
	n, err := parseSize(s)
	if err != nil {
		return fmt.Errorf("%s=%q: want bytes, or a number and KiB, MiB or GiB", name, s)
	}
	*v = n
	return nil
}

// parseSize reads a positive number of bytes, with or without a unit.
func parseSize(s string) (uint64, error) {
	unit := uint64(1)
	for suffix, u := range map[string]uint64{"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30} {
		if rest, ok := strings.CutSuffix(s, suffix); ok {
			s, unit = strings.TrimSpace(rest), u
		}
	}
	n, err := strconv.ParseUint(s, 10, 63)
	if err != nil || n == 0 || n > math.MaxInt64/unit {
		return 0, fmt.Errorf("no size: %q", s)
	}
	return n * unit, nil
}

// storeDir returns the directory of device memory: the requested one, else the
// user's own on /dev/shm if that could hold a device, else one under the
// temporary directory.
func storeDir(memory uint64) (string, error) {
	if dir := os.Getenv(envDir); dir != "" {
		return filepath.Abs(dir)
	}
	name := fmt.Sprintf("gpufd-soft-%d", os.Geteuid())
	if tmpfsHolds("/dev/shm", memory) {
		return filepath.Join("/dev/shm", name), nil
	}
	return filepath.Abs(filepath.Join(os.TempDir(), name))
}

// dirError says that err makes the directory of device memory unusable: with a
// [*ConfigError], unless the machine is to blame.
func dirError(dir string, err error) error {
	name := fmt.Sprintf("%s=%q", envDir, dir)
	if os.Getenv(envDir) == "" {
		name = fmt.Sprintf("%s is not set and stands for %q", envDir, dir)
	}
	for _, e := range []error{unix.ENOSPC, unix.EDQUOT, unix.EROFS, unix.EIO, unix.EMFILE, unix.ENFILE} {
		if errors.Is(err, e) {
			return fmt.Errorf("the software driver cannot use its directory: %s: %w", name, err)
		}
	}
	return &ConfigError{fmt.Errorf("%s: %w; want a directory of your own with mode 0700, or the path of a new one", name, err)}
}

// tmpfsHolds reports whether dir is a tmpfs of at least size bytes. In a
// container /dev/shm often has 64 MiB.
func tmpfsHolds(dir string, size uint64) bool {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil || st.Type != unix.TMPFS_MAGIC {
		return false
	}
	return st.Blocks*uint64(st.Bsize) >= size
}
