// Package lean has a process that does little take little memory.
package lean

import (
	"bufio"
	"context"
	"fmt"
	"io"
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
// (madvise(2), MADV_DONTNEED).
func Trim() {
	debug.FreeOSMemory()
	smaps, err := os.Open("/proc/self/smaps")
	if err != nil {
		return
	}
	defer smaps.Close()
	self, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return
	}
	for _, m := range programs(smaps, self) {
		_, _, _ = unix.Syscall(unix.SYS_MADVISE, m.from, m.to-m.from, unix.MADV_DONTNEED)
	}
}

// A mapping is where a part of a file is mapped.
type mapping struct{ from, to uintptr }

// programs reads proc_pid_smaps(5), and returns the mappings of the program's file that are
// as the file is. One that nobody can write any more may have been written before: the
// dynamic linker does that (RELRO). Its pages are anonymous, and would be lost.
func programs(smaps io.Reader, self string) (found []mapping) {
	var m mapping
	ours := false
	for lines := bufio.NewScanner(smaps); lines.Scan(); {
		f := strings.Fields(lines.Text())
		switch {
		case len(f) >= 5 && !strings.HasSuffix(f[0], ":"):
			_, err := fmt.Sscanf(f[0], "%x-%x", &m.from, &m.to)
			ours = err == nil && len(f) >= 6 && f[5] == self && !strings.Contains(f[1], "w") && m.from < m.to
		case ours && len(f) == 3 && f[0] == "Anonymous:" && f[1] == "0":
			found = append(found, m)
		}
	}
	return found
}
