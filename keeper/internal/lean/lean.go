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
	found := ownPages()
	debug.FreeOSMemory() // also of what it took to find them
	for _, m := range found {
		m.split()
		m.advise(unix.MADV_DONTNEED)
	}
}

// ownPages are the mappings of the program's file that are as the file is.
func ownPages() []mapping {
	smaps, err := os.Open("/proc/self/smaps")
	if err != nil {
		return nil
	}
	defer smaps.Close()
	self, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return nil
	}
	return programs(smaps, self)
}

// A mapping is where a part of a file is mapped.
type mapping struct{ from, to uintptr }

// window is what a mapping is split into, and the most that comes back with a page.
const window = 64 << 10

// split makes several mappings of one. A kernel such as 6.18 brings back all at once that the
// page cache has in one folio, up to 2 MiB, unless it reaches beyond the mapping. Neighbours
// become one again if they are alike. So every other one is kept out of core dumps, which have
// nothing of a program's file anyway.
func (m mapping) split() {
	for at := m.from + window; at < m.to; at += 2 * window {
		mapping{at, min(at+window, m.to)}.advise(unix.MADV_DONTDUMP)
	}
}

func (m mapping) advise(advice uintptr) {
	_, _, _ = unix.Syscall(unix.SYS_MADVISE, m.from, m.to-m.from, advice)
}

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
