package sock

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// maxPath is sun_path of struct sockaddr_un less the NUL that ends it.
const maxPath = 107

// checkPath finds what no kernel would take as the path of a socket.
func checkPath(path string) error {
	switch {
	case path == "":
		return fmt.Errorf("%w: it is empty", ErrPath)
	case strings.ContainsRune(path, 0):
		return fmt.Errorf("%w: it holds a NUL byte", ErrPath)
	case len(path) > maxPath:
		return fmt.Errorf("%w: %d bytes, at most %d; take a shorter directory", ErrPath, len(path), maxPath)
	}
	switch filepath.Base(path) {
	case ".", "..":
		return fmt.Errorf("%w: it names a directory", ErrPath)
	}
	if strings.HasSuffix(path, "/") {
		return fmt.Errorf("%w: it ends with a slash", ErrPath)
	}
	return nil
}

// address returns path as a Unix address. x/sys/unix takes a leading @ for the
// abstract namespace, which has no permissions and is never meant here.
func address(path string) (*unix.SockaddrUnix, error) {
	if strings.HasPrefix(path, "@") {
		path = "./" + path
	}
	if err := checkPath(path); err != nil {
		return nil, err
	}
	return &unix.SockaddrUnix{Name: path}, nil
}

// checkDirectory refuses a directory in which another user could replace the
// socket. The sticky bit does not help: others could still make the lock file first.
func checkDirectory(dir string) error {
	var st unix.Stat_t
	err := ignoringEINTR(func() error { return unix.Stat(dir, &st) })
	switch {
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENOTDIR):
		return fmt.Errorf("%w: %s: %w; make it first: mkdir -p -m 700 %s", ErrNoDirectory, dir, err, dir)
	case err != nil:
		return &os.PathError{Op: "stat", Path: dir, Err: err}
	case st.Mode&unix.S_IFMT != unix.S_IFDIR:
		return fmt.Errorf("%w: %s is not a directory: %w", ErrNoDirectory, dir, unix.ENOTDIR)
	case thisNamespace().uid.hides(st.Uid):
		return fmt.Errorf("%w: %s belongs to a user unknown in this user namespace (uid %d); use a directory of your own with mode 0700",
			ErrInsecure, dir, st.Uid)
	case st.Uid != uint32(os.Geteuid()) && st.Uid != 0:
		return fmt.Errorf("%w: %s belongs to uid %d; use a directory of your own with mode 0700", ErrInsecure, dir, st.Uid)
	case st.Mode&0o022 != 0:
		return fmt.Errorf("%w: %s has mode %04o, so others may write to it; use a directory of your own with mode 0700",
			ErrInsecure, dir, st.Mode&0o7777)
	}
	return nil
}

// inode identifies a file, whatever its name.
type inode struct{ dev, ino uint64 }

func inodeAt(path string) (inode, uint32, error) {
	var st unix.Stat_t
	err := ignoringEINTR(func() error { return unix.Lstat(path, &st) })
	if err != nil {
		return inode{}, 0, &os.PathError{Op: "lstat", Path: path, Err: err}
	}
	return inode{uint64(st.Dev), st.Ino}, st.Mode, nil
}

func inodeOf(fd int) (inode, uint32, error) {
	var st unix.Stat_t
	err := ignoringEINTR(func() error { return unix.Fstat(fd, &st) })
	if err != nil {
		return inode{}, 0, os.NewSyscallError("fstat", err)
	}
	return inode{uint64(st.Dev), st.Ino}, st.Mode, nil
}

// removeIfSame removes the file at path if it is still file id. The caller keeps
// the inode open, so that its number is not given to another file, and holds the
// lock, so that no process that heeds it replaces the file meanwhile.
func removeIfSame(path string, id inode) error {
	now, _, err := inodeAt(path)
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ENOTDIR) || err == nil && now != id {
		return nil
	}
	if err != nil {
		return err
	}
	return ignoreNotExist(os.Remove(path))
}

func ignoreNotExist(err error) error {
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}
