package doctor

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/gpufd/gpufd/cu"
)

// A holder is a process that has descriptors of device memory and uses no driver.
type holder struct {
	pid   int
	name  string
	files int
	bytes uint64 // as far as the files tell
}

// held searches /proc for processes that hold memory without a driver. own are the processes
// of this run.
func held(kind cu.Kind, own []int) []Row {
	holders, unread := holders(kind, append(own, os.Getpid()))
	return []Row{heldRow(kind, holders, unread)}
}

// heldRow names the processes that hold memory. A descriptor of /dev/nvidiactl may be one of
// memory, or a leftover of a parent process's driver: the kernel does not tell.
func heldRow(kind cu.Kind, holders []holder, unread int) Row {
	if len(holders) > 0 {
		var all []string
		for _, h := range holders {
			text := fmt.Sprintf("process %d (%s) has %d", h.pid, h.name, h.files)
			if h.bytes > 0 {
				text += fmt.Sprintf(" of %d bytes", h.bytes)
			}
			all = append(all, text)
		}
		seen := "descriptors of device memory in processes that use no driver: "
		if kind == cu.CUDA {
			seen = "processes that use no driver may hold device memory, by descriptors of /dev/nvidiactl: "
		}
		return row("held-memory", Warn, "", "%s", seen+strings.Join(all, "; "))
	}
	if unread > 0 {
		return row("held-memory", Unknown, "", "found none, but the descriptors of %d processes could not be read: only root may read them", unread)
	}
	return row("held-memory", OK, "", "found none among the descriptors of all processes that are visible here")
}

func holders(kind cu.Kind, own []int) (found []holder, unread int) {
	for _, pid := range processes(own) {
		dir := proc(pid)
		links, err := os.ReadDir(filepath.Join(dir, "fd"))
		switch {
		case os.IsPermission(err):
			unread++
			continue
		case err != nil: // it has ended
			continue
		}
		h := holder{pid: pid}
		for _, l := range links {
			h.look(kind, filepath.Join(dir, "fd", l.Name()))
		}
		if h.files == 0 || usesDriver(kind, dir) {
			continue
		}
		h.name = nameOf(pid)
		found = append(found, h)
	}
	return found, unread
}

// processes returns the numbers of the processes that are visible here, without those of but.
func processes(but []int) (pids []int) {
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	for _, dir := range dirs {
		if pid, err := strconv.Atoi(filepath.Base(dir)); err == nil && !slices.Contains(but, pid) {
			pids = append(pids, pid)
		}
	}
	return pids
}

// proc returns the directory of a process.
func proc(pid int) string { return fmt.Sprintf("/proc/%d", pid) }

// nameOf returns the name of a process.
func nameOf(pid int) string {
	name, _ := os.ReadFile(filepath.Join(proc(pid), "comm"))
	return strings.TrimSpace(string(name))
}

// look counts a descriptor if it is of device memory.
func (h *holder) look(kind cu.Kind, path string) {
	target, err := os.Readlink(path)
	if err != nil {
		return
	}
	if kind == cu.CUDA {
		if target == "/dev/nvidiactl" {
			h.files++
		}
		return
	}
	if !isSoftMemory(target) {
		return
	}
	if st, err := os.Stat(path); err == nil && st.Size() >= size {
		h.files++
		h.bytes += uint64(st.Size())
	}
}

// isSoftMemory reports whether a descriptor's link leads to memory of this user's software
// driver: a file in its directory, deleted or not. Another directory counts as another machine.
func isSoftMemory(target string) bool {
	target = strings.TrimSuffix(target, " (deleted)")
	dir := os.Getenv("GPUFD_SOFT_DIR")
	if dir == "" { // it is in one of two places then
		return filepath.Base(filepath.Dir(target)) == fmt.Sprintf("gpufd-soft-%d", os.Geteuid())
	}
	dir, err := filepath.Abs(dir)
	return err == nil && filepath.Dir(target) == dir
}

// usesDriver reports whether a process has a driver: libcuda or another library of NVIDIA's
// is mapped, or for the software driver the memory of a device.
func usesDriver(kind cu.Kind, dir string) bool {
	maps, err := os.ReadFile(filepath.Join(dir, "maps"))
	if err != nil {
		return true // it cannot be known
	}
	if kind == cu.CUDA {
		return bytes.Contains(maps, []byte("libcuda.so")) || bytes.Contains(maps, []byte("libnvidia-")) // nvidia-smi has /dev/nvidiactl, too
	}
	for line := range bytes.Lines(maps) {
		if i := bytes.IndexByte(line, '/'); i >= 0 && isSoftMemory(strings.TrimSpace(string(line[i:]))) {
			return true
		}
	}
	return false
}
