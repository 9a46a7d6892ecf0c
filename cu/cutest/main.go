package cutest

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/soft"
)

// Main runs the tests with a directory of their own for the software driver's
// memory, and fails if they leave descriptors, device memory or mappings behind,
// or misused the driver. In a process that [Child] started it runs that child
// instead. It does not return.
func Main(m *testing.M, children ...Children) {
	runChild(children)
	os.Exit(Run(m))
}

// Run is Main without children for a TestMain that has more to do: it returns
// the exit code.
func Run(m *testing.M) int {
	if err := checkEnvironment(); err != nil {
		fmt.Fprintln(os.Stderr, "cutest:", err)
		return 1
	}
	dir, err := softDir()
	if err != nil {
		fmt.Fprintln(os.Stderr, "cutest:", err)
		return 1
	}
	defer os.RemoveAll(dir)
	defer runtime.KeepAlive(keepWarm())
	before := Descriptors()
	code := m.Run()
	if left := Left(before); code == 0 && len(left) > 0 {
		fmt.Fprintf(os.Stderr, "cutest: the tests passed but left behind:\n  %s\n", strings.Join(left, "\n  "))
		return 1
	}
	return code
}

// checkEnvironment refuses what would run the tests on another driver than was
// meant, and have them pass.
func checkEnvironment() error {
	switch kind := os.Getenv("GPUFD_DRIVER"); kind {
	case "cuda":
		return nil
	case "", "soft":
		if os.Getenv("GPUFD_REQUIRE_GPU") == "1" && kind == "" {
			return errors.New("GPUFD_REQUIRE_GPU=1 wants GPUFD_DRIVER=cuda, or soft to say that no GPU is meant")
		}
		return nil
	default:
		return fmt.Errorf("GPUFD_DRIVER=%q: want soft or cuda", kind)
	}
}

// softDir makes the directory of the software driver's memory for this run,
// unless a parent process has.
func softDir() (string, error) {
	if os.Getenv("GPUFD_SOFT_DIR") != "" {
		return "", nil
	}
	dir, err := os.MkdirTemp(roomyDir(), "gpufd-test-")
	if err != nil {
		return "", err
	}
	return dir, os.Setenv("GPUFD_SOFT_DIR", dir)
}

// roomyDir is /dev/shm where it holds what tests share at once, else the
// temporary directory: in a container /dev/shm often has 64 MiB.
func roomyDir() string {
	var st unix.Statfs_t
	if err := unix.Statfs("/dev/shm", &st); err != nil || st.Bavail*uint64(st.Bsize) < 1<<30 || unix.Access("/dev/shm", unix.W_OK) != nil {
		return ""
	}
	return "/dev/shm"
}

// Left lists what is there that was not there before: open descriptors, device
// memory of the software driver, mappings that the garbage collector found
// lost, and misuse that the software driver noticed. It is empty in the end of
// a good test.
func Left(before map[string]int) []string {
	var lost, left []string
	deadline := time.Now().Add(time.Second)
	for round := 1; ; round++ {
		runtime.GC() // cleanups of what was lost run after it, on a goroutine of their own
		for _, l := range TakeLeaks() {
			lost = append(lost, l.String())
		}
		left = append(stillThere(before), lost...)
		if round > 3 && len(left) == 0 || time.Now().After(deadline) {
			slices.Sort(left)
			return left
		}
		time.Sleep(time.Millisecond)
	}
}

// stillThere lists what can be counted at any time.
func stillThere(before map[string]int) (left []string) {
	for name, n := range Descriptors() {
		if n > before[name] {
			left = append(left, fmt.Sprintf("%d more descriptors of %s", n-before[name], name))
		}
	}
	if Kind() == cu.Soft {
		left = append(left, soft.Misuses()...)
		left = append(left, softMemory()...)
	}
	return left
}

// softMemory lists the software driver's allocations that are still there.
func softMemory() []string {
	drv, err := Open()
	if err != nil {
		return []string{err.Error()}
	}
	var used []string
	for _, dev := range drv.Devices() {
		ctx, err := dev.PrimaryContext()
		if err != nil {
			return append(used, err.Error())
		}
		free, total, err := ctx.MemInfo()
		_ = ctx.Close()
		if err != nil || free != total {
			used = append(used, fmt.Sprintf("%d bytes of device %d (error: %v)", total-free, dev.Ordinal(), err))
		}
	}
	return used
}

// Descriptors counts the process' open descriptors by what they refer to,
// without numbers, so that one replaced by another of its kind counts as the
// same. What libcuda opens for itself is left out.
func Descriptors() map[string]int {
	open := map[string]int{}
	names, _ := filepath.Glob("/proc/self/fd/*")
	for _, name := range names {
		target, err := os.Readlink(name)
		if err != nil || ignored(target) {
			continue
		}
		kind, _, _ := strings.Cut(target, ":[")
		open[kind]++
	}
	return maps.Clone(open)
}

func ignored(target string) bool {
	return strings.HasPrefix(target, "anon_inode") ||
		Kind() == cu.CUDA && (strings.HasPrefix(target, "/dev/nvidia") || strings.HasPrefix(target, "pipe") || strings.HasPrefix(target, "socket"))
}
