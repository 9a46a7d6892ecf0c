// Package mapped says to other processes how much memory of others this one has mapped. The driver's checkpoint of a
// process that has any loses the process (C44 of docs/driver-facts.md), and no call of the driver tells.
//
// The number lies in a file of memory named gpufd-mapped: 8 bytes, little-endian. A process makes the file when it
// first maps such memory, and keeps it for the rest of its life. Processes that may look into it find the file in /proc/PID/fd.
// The Python package does the same.
package mapped

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/gpufd/gpufd/internal/descriptor"
)

const (
	name = "gpufd-mapped"
	size = 8

	// Link is what the file's link in /proc/PID/fd says.
	Link = "/memfd:" + name + " (deleted)"
)

var (
	mu    sync.Mutex
	count uint64
	file  *os.File // nil until there is one, and then never closed
	word  []byte   // of the file, mapped
)

// Add counts n more mappings of others' memory, or fewer. It makes no system call but the first time, and again
// where the file could not be made.
func Add(n int) {
	mu.Lock()
	defer mu.Unlock()
	count += uint64(n)
	if file == nil && !create() {
		return
	}
	binary.LittleEndian.PutUint64(word, count) // one store
}

// create makes the file, and reports whether there was room for it. It runs with mu held.
func create() bool {
	f, err := descriptor.Fixed(name, size)
	if err != nil {
		return false
	}
	b, err := unix.Mmap(int(f.Fd()), 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		_ = f.Close()
		return false
	}
	word, file = b, f
	return true
}

// Of returns how many mappings of others' memory a process has, as far as it uses gpufd. Errors: [fs.ErrNotExist] if
// there is no such process, [fs.ErrPermission] if this one may not look into it.
func Of(pid int) (n uint64, err error) {
	dir := fmt.Sprintf("/proc/%d/fd", pid)
	entries, err := os.ReadDir(dir)
	if err != nil {
		return 0, err
	}
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		target, err := os.Readlink(path)
		if err != nil || target != Link { // it may be closed by now
			continue
		}
		more, err := read(path)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return 0, fmt.Errorf("mapped memory of process %d: %w", pid, err)
		}
		n += more
	}
	return n, nil
}

// read reads the number in a file. The process may put anything in the file's place: nothing here waits for it.
func read(path string) (uint64, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	f := os.NewFile(uintptr(fd), path)
	defer f.Close()
	if is, err := f.Stat(); err != nil || !is.Mode().IsRegular() || is.Size() != size {
		return 0, errors.Join(err, fmt.Errorf("%s is no file of %d bytes", path, size))
	}
	b := make([]byte, size)
	if _, err := f.ReadAt(b, 0); err != nil {
		return 0, err
	}
	return binary.LittleEndian.Uint64(b), nil
}
