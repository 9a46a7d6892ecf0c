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

	"github.com/gpufd/gpufd/internal/made"
)

// FDs are open descriptors of this process by number, and what each refers to.
type FDs map[int]string

// OpenFDs returns those of now. What libcuda opens for itself is left out, and
// what go test -cpuprofile writes.
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
		if fd, _ := strconv.Atoi(e.Name()); err == nil && !isLibcudas(fd, target) && !isProfile(target) {
			fds[fd] = target
		}
	}
	return fds
}

// Kinds counts the descriptors by what they refer to, all sockets and all pipes
// as one, so that one that takes the place of another counts as the same.
func (f FDs) Kinds() map[string]int {
	n := map[string]int{}
	for _, target := range f {
		n[kind(target)]++
	}
	return n
}

// Since lists the kinds of which there are more than before, with the
// descriptors that are new.
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

// kind is what a descriptor refers to, without the number of a socket or pipe.
func kind(target string) string {
	k, _, numbered := strings.Cut(target, ":[")
	if numbered && k != "anon_inode" {
		return k
	}
	return target
}

// A note says where a descriptor was made. It is about a file, as the number is
// another's once that is closed, and does not keep it from the garbage
// collector.
type note struct {
	file  weak.Pointer[os.File]
	stack []uintptr
}

var (
	mu    sync.Mutex
	notes = map[int]note{}
)

// watch has the stacks noted of those who make descriptors from now on.
func watch() {
	made.Watch(func(f *os.File) {
		stack := made.Here()
		mu.Lock()
		defer mu.Unlock()
		notes[number(f)] = note{weak.Make(f), stack}
	})
}

// number is the descriptor of f, or -1 once it is closed. [os.File.Fd] would
// change its mode.
func number(f *os.File) int {
	n := -1
	if raw, err := f.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) { n = int(fd) })
	}
	return n
}

// noted returns the stack that made the file whose descriptor fd is now.
func noted(fd int) (stack []uintptr, ok bool) {
	mu.Lock()
	defer mu.Unlock()
	f := notes[fd].file.Value()
	return notes[fd].stack, f != nil && number(f) == fd
}

// fdMaker is what those who make descriptors call.
const fdMaker = "github.com/gpufd/gpufd/internal/made.File"

// origin says where a descriptor was made.
func origin(fd int) string {
	stack, ok := noted(fd)
	if !ok {
		return "was not made by a package of gpufd"
	}
	return "was made at\n" + made.Print(made.Past(made.Frames(stack), fdMaker))
}

// isProfile reports whether target is the profile that go test was asked for:
// package testing leaves it to the garbage collector to close it.
func isProfile(target string) bool {
	f := flag.Lookup("test.cpuprofile")
	return f != nil && f.Value.String() != "" && filepath.Base(f.Value.String()) == filepath.Base(target)
}

// isLibcudas reports whether libcuda may have opened fd by itself, at a time of
// its own. What was made here is not: memory that it exported, say.
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
