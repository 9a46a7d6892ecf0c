package leak

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"weak"

	"github.com/gpufd/gpufd/internal/descriptor/fdtrace"
	"github.com/gpufd/gpufd/internal/mapped"
)

// FDs are the open descriptors of this process by number, with what each refers
// to.
type FDs map[int]string

// OpenFDs returns the descriptors that are open now. It leaves out those that
// libcuda opens for itself, that go test -cpuprofile writes, and that package mapped keeps.
func OpenFDs() FDs {
	const dir = "/proc/self/fd"
	entries, err := os.ReadDir(dir)
	if err != nil {
		panic(err) // no room for one more, or no /proc: nothing could be said
	}
	fds := FDs{}
	for _, e := range entries {
		// The one that ReadDir used is gone by now.
		target, err := os.Readlink(filepath.Join(dir, e.Name()))
		if fd, _ := strconv.Atoi(e.Name()); err == nil && target != mapped.Link && !isLibcudas(fd, target) && !isProfile(target) {
			fds[fd] = target
		}
	}
	return fds
}

// Kinds counts the descriptors by what they refer to, with all sockets as one
// kind and all pipes as another, so that a descriptor that replaces another of
// its kind counts as the same.
func (f FDs) Kinds() map[string]int {
	n := map[string]int{}
	for _, target := range f {
		n[kind(target)]++
	}
	return n
}

// Since lists the kinds with more descriptors than before, and the new
// descriptors.
func (f FDs) Since(before FDs) (left []string) {
	were, are := before.Kinds(), f.Kinds()
	for _, k := range slices.Sorted(maps.Keys(are)) {
		if are[k] <= were[k] {
			continue
		}
		text := fmt.Sprintf("%d more of %s than before", are[k]-were[k], k)
		for _, fd := range slices.Sorted(maps.Keys(f)) {
			if kind(f[fd]) == k && before[fd] != f[fd] {
				text += fmt.Sprintf("; descriptor %d %s", fd, origin(fd))
			}
		}
		left = append(left, text)
	}
	return left
}

// kind returns what a descriptor refers to, without the number of a socket or
// pipe.
func kind(target string) string {
	k, _, numbered := strings.Cut(target, ":[")
	if numbered && k != "anon_inode" {
		return k
	}
	return target
}

// A note says where a descriptor was made. It belongs to a file, as the number
// may later be another's, and does not keep it from the garbage collector.
type note struct {
	file  weak.Pointer[os.File]
	stack []uintptr
}

var (
	mu    sync.Mutex
	notes = map[int]note{}
)

// watch records the stacks of the makers of descriptors from now on.
func watch() {
	fdtrace.Watch(func(f *os.File) {
		stack := fdtrace.Here()
		mu.Lock()
		defer mu.Unlock()
		notes[number(f)] = note{weak.Make(f), stack}
	})
}

// number returns the descriptor of f, or -1 once it is closed. [os.File.Fd] would
// change its mode.
func number(f *os.File) int {
	n := -1
	if raw, err := f.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) { n = int(fd) })
	}
	return n
}

// noted returns the stack that made the file with descriptor fd.
func noted(fd int) (stack []uintptr, ok bool) {
	mu.Lock()
	defer mu.Unlock()
	f := notes[fd].file.Value()
	return notes[fd].stack, f != nil && number(f) == fd
}

// fdMaker is the function that makers of descriptors call.
const fdMaker = "github.com/gpufd/gpufd/internal/descriptor/fdtrace.File"

// origin says where a descriptor was made.
func origin(fd int) string {
	stack, ok := noted(fd)
	if !ok {
		return "was not made by a package of gpufd"
	}
	return "was made at\n" + fdtrace.Print(fdtrace.Past(fdtrace.Frames(stack), fdMaker))
}

// isProfile reports whether target is the profile that go test writes: package
// testing leaves closing it to the garbage collector.
func isProfile(target string) bool {
	f := flag.Lookup("test.cpuprofile")
	return f != nil && f.Value.String() != "" && filepath.Base(f.Value.String()) == filepath.Base(target)
}

// isLibcudas reports whether libcuda may have opened fd on its own. Descriptors
// made here do not count, such as memory that libcuda exported.
func isLibcudas(fd int, target string) bool {
	if os.Getenv("GPUFD_DRIVER") != "cuda" {
		return false
	}
	if _, ours := noted(fd); ours {
		return false
	}
	k := kind(target)
	return k == "pipe" || k == "socket" || strings.HasPrefix(k, "anon_inode") ||
		strings.HasPrefix(k, "/dev/nvidia") || strings.HasPrefix(k, "/dev/shm/cuda.shm.")
}
