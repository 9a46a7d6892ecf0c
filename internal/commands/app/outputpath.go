package app

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// mostLinks is how many links the kernel follows, too.
const mostLinks = 40

// OutputPath returns the path to write to for one that the user named: it follows links of this
// user and of root, also to a file that is not there yet. A link that somebody else has put there
// could lead what is written over any file of this user's. So that is an error.
//
// Only the last element of the path is looked at. The kernel follows the links to its directory
// (proc_sys_fs(5), protected_symlinks).
func OutputPath(path string) (string, error) {
	for range mostLinks {
		info, err := os.Lstat(path)
		if err != nil || info.Mode().Type() != fs.ModeSymlink {
			return path, nil // whoever opens it says what is wrong
		}
		to, err := os.Readlink(path)
		if err != nil {
			return "", err
		}
		if uid := info.Sys().(*syscall.Stat_t).Uid; uid != 0 && uid != uint32(os.Geteuid()) {
			return "", fmt.Errorf("%s is a link that user %d has put there, to %q: it is not followed; name another file", path, uid, to)
		}
		if !filepath.IsAbs(to) {
			to = filepath.Dir(path) + "/" + to // not cleaned: .. behind a link is not what is before it
		}
		path = to
	}
	return "", &fs.PathError{Op: "open", Path: path, Err: syscall.ELOOP}
}
