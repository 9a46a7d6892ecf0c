package cli

import (
	"os"

	"golang.org/x/sys/unix"
)

// LeavesNoSocket has a forced end remove the socket at path and its lock file, as they
// are now. Its caller has just made them, and calls forget when they are removed.
func (a *App) LeavesNoSocket(path string) (forget func()) {
	var files []madeFile
	for _, name := range []string{path, path + ".lock"} {
		var st unix.Stat_t
		if unix.Lstat(name, &st) == nil {
			files = append(files, madeFile{name, st.Dev, st.Ino})
		}
	}
	return a.OnAbort(func() {
		for _, f := range files {
			f.remove()
		}
	})
}

// A madeFile is a file that this process made.
type madeFile struct {
	name     string
	dev, ino uint64
}

// remove removes it if it is still the one.
func (f madeFile) remove() {
	var st unix.Stat_t
	if unix.Lstat(f.name, &st) == nil && st.Dev == f.dev && st.Ino == f.ino {
		_ = os.Remove(f.name)
	}
}
