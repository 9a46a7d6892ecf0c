// Package lean has a process that does little take little memory.
package lean

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"runtime/debug"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Stay trims the process a second from now, then less often, and in the end every minute
// until ctx is done.
func Stay(ctx context.Context) {
	for pause := time.Second; ; pause = min(2*pause, time.Minute) {
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
			Trim()
		}
	}
}

// Trim gives back what the garbage collector has found free, and the pages of the program
// that it needed to start: they come back from the page cache when they are needed again
// (madvise(2), MADV_DONTNEED, of mappings that nobody can write).
func Trim() {
	debug.FreeOSMemory()
	maps, err := os.Open("/proc/self/maps")
	if err != nil {
		return
	}
	defer maps.Close()
	self, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return
	}
	for lines := bufio.NewScanner(maps); lines.Scan(); {
		if from, to, ok := program(lines.Text(), self); ok {
			_, _, _ = unix.Syscall(unix.SYS_MADVISE, from, to-from, unix.MADV_DONTNEED)
		}
	}
}

// program reads a line of proc_pid_maps(5), and says whether it is of the program's file and
// cannot be written.
func program(line, self string) (from, to uintptr, ok bool) {
	fields := strings.Fields(line)
	if len(fields) < 6 || fields[5] != self || strings.Contains(fields[1], "w") {
		return 0, 0, false
	}
	_, err := fmt.Sscanf(fields[0], "%x-%x", &from, &to)
	return from, to, err == nil && from < to
}
