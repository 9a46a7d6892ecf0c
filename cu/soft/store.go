package soft

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// A store is the directory that device memory lives in, shared by every
// process of the user that names the same one.
//
// Each allocation is a file. A user has it mapped or open, and the
// open description carries flock(LOCK_SH), which travels with dup and
// SCM_RIGHTS and ends with the last fd or mapping. So a file whose lock can be
// had exclusively is held by nobody and can go (D10, D11).
//
// The lock file guards the directory while files come and go. It holds an
// upper bound of each device's used bytes, so that thousands of chunks need
// not be counted one by one; a count of the files corrects it when it matters.
type store struct {
	dir   string
	id    [16]byte // random, made with the directory
	place uint32   // tells the directory from others that have the identity, a copy
}

const (
	lockName    = "lock"
	machineName = "machine"
)

// errFull says that a device has no room.
var errFull = errors.New("out of device memory")

// openStore opens the directory, making it and its identity if need be.
func openStore(dir string) (*store, error) {
	s := &store{dir: dir}
	st, err := makePrivateDir(dir)
	if err != nil {
		return nil, err
	}
	s.place = placeOf(st)
	err = s.locked(func(*ledger) error { return s.loadID() })
	if err != nil {
		return nil, err
	}
	return s, nil
}

// makePrivateDir makes sure that dir is a directory of ours that nobody else
// can enter.
func makePrivateDir(dir string) (st unix.Stat_t, err error) {
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return st, err
	}
	if err := unix.Lstat(dir, &st); err != nil {
		return st, &fs.PathError{Op: "lstat", Path: dir, Err: err}
	}
	switch {
	case st.Mode&unix.S_IFMT != unix.S_IFDIR:
		err = errors.New("not a directory")
	case int(st.Uid) != os.Geteuid():
		err = fmt.Errorf("belongs to uid %d, and this is uid %d (to share memory with that user, copy the file %s from there to a directory of your own)", st.Uid, os.Geteuid(), machineName)
	case st.Mode&0o077 != 0:
		err = fmt.Errorf("open to others (mode %#o)", st.Mode&0o777)
	}
	return st, err
}

// placeOf returns a number of a directory, the same by any path and through any
// mount, but another for a copy of it.
func placeOf(st unix.Stat_t) uint32 {
	var b []byte
	b = binary.LittleEndian.AppendUint64(b, uint64(st.Dev))
	b = binary.LittleEndian.AppendUint64(b, st.Ino)
	h := sha256.Sum256(b)
	return binary.LittleEndian.Uint32(h[:])
}

// loadID reads the directory's identity or makes it. The directory is locked.
func (s *store) loadID() error {
	path := filepath.Join(s.dir, machineName)
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return s.makeID(path)
	}
	if err != nil {
		return err
	}
	id, err := hex.DecodeString(strings.TrimSpace(string(b)))
	if err != nil || len(id) != len(s.id) {
		return fmt.Errorf("%s: not an identity; remove the directory", path)
	}
	s.id = [16]byte(id)
	return nil
}

// makeID writes a new identity. It appears whole or not at all, even if the
// process is killed in between.
func (s *store) makeID(path string) error {
	rand.Read(s.id[:])
	tmp := path + ".new"
	if err := os.WriteFile(tmp, []byte(hex.EncodeToString(s.id[:])+"\n"), 0o600); err != nil {
		return err
	}
	return os.Rename(tmp, path)
}

// uuid returns a device's UUID: the same for everyone who uses the directory.
func (s *store) uuid(ordinal int) [16]byte {
	h := sha256.Sum256(fmt.Appendf(nil, "gpufd soft device %d of %x", ordinal, s.id))
	return [16]byte(h[:16])
}

// locked calls f while no other process or thread is in the directory.
func (s *store) locked(f func(*ledger) error) error {
	fd, err := openFile(filepath.Join(s.dir, lockName), unix.O_RDWR|unix.O_CREAT)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := flock(fd, unix.LOCK_EX); err != nil {
		return os.NewSyscallError("flock", err)
	}
	// A child forked at this moment has the description too: closing it would
	// not unlock.
	defer flock(fd, unix.LOCK_UN)
	return f(&ledger{fd})
}

// A ledger is the open lock file: the most bytes that may be in use on each
// device. It is written before a file is made and after one is removed, so a
// process that dies in between leaves it only too high.
type ledger struct{ fd int }

func (l *ledger) used(ordinal int) uint64 {
	var b [8]byte
	if n, err := unix.Pread(l.fd, b[:], int64(ordinal)*8); n != len(b) || err != nil {
		return 0
	}
	return binary.LittleEndian.Uint64(b[:])
}

func (l *ledger) set(ordinal int, used uint64) error {
	b := binary.LittleEndian.AppendUint64(nil, used)
	_, err := unix.Pwrite(l.fd, b, int64(ordinal)*8)
	return os.NewSyscallError("pwrite", err)
}

// openFile opens a file of ours, never through a symlink.
func openFile(path string, flags int) (int, error) {
	for {
		fd, err := unix.Open(path, flags|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0o600)
		if err == nil {
			return fd, nil
		}
		if err != unix.EINTR {
			return -1, &fs.PathError{Op: "open", Path: path, Err: err}
		}
	}
}

// flock is flock(2) over signals.
func flock(fd, how int) error {
	for {
		if err := unix.Flock(fd, how); err != unix.EINTR {
			return err
		}
	}
}
