package soft

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// fallocateStep limits a single fallocate, which a signal undoes.
const fallocateStep = 64 << 20

// create makes the memory that t describes on a device of capacity bytes and
// returns it open, held by its lock. The trailer's id is chosen here.
func (s *store) create(t *trailer, capacity uint64) (fd int, err error) {
	rand.Read(t.id[:])
	return s.lockedOpen(func(l *ledger) (int, error) { return s.createLocked(l, t, capacity) })
}

// lockedOpen calls open with the store locked, as locked does, and returns the file.
func (s *store) lockedOpen(open func(*ledger) (int, error)) (fd int, err error) {
	err = s.locked(func(l *ledger) error {
		fd, err = open(l)
		return err
	})
	return fd, err
}

// createLocked books the memory before it makes the file, so that the ledger is
// never too low if the process is killed.
func (s *store) createLocked(l *ledger, t *trailer, capacity uint64) (int, error) {
	used, err := s.room(l, t.ordinal, t.size, capacity)
	if err != nil {
		return -1, err
	}
	if err := l.set(t.ordinal, used+t.size); err != nil {
		return -1, err
	}
	fd, err := s.makeFile(t)
	if errors.Is(err, unix.ENOSPC) {
		_, err = s.count(l, t.ordinal), errFull
	}
	if err != nil {
		return -1, errors.Join(err, l.set(t.ordinal, used))
	}
	return fd, nil
}

// room returns how much of a device is used, if size more bytes still fit.
func (s *store) room(l *ledger, ordinal int, size, capacity uint64) (uint64, error) {
	if size > capacity {
		return 0, errFull
	}
	used := l.used(ordinal)
	if used > capacity-size {
		used = s.count(l, ordinal)
	}
	if used > capacity-size {
		return used, errFull
	}
	return used, nil
}

// makeFile makes the file with all its blocks. Nothing is left on failure.
func (s *store) makeFile(t *trailer) (int, error) {
	path := filepath.Join(s.dir, t.name())
	fd, err := openFile(path, unix.O_RDWR|unix.O_CREAT|unix.O_EXCL)
	if err != nil {
		return -1, err
	}
	err = errors.Join(flock(fd, unix.LOCK_SH|unix.LOCK_NB), allocate(fd, t.size+trailerSize))
	if err == nil {
		err = t.write(fd)
	}
	if err != nil {
		unix.Close(fd)
		return -1, errors.Join(err, os.Remove(path))
	}
	return fd, nil
}

// allocate reserves the first n bytes of a file.
func allocate(fd int, n uint64) error {
	for off := uint64(0); off < n; {
		step := min(n-off, fallocateStep)
		err := unix.Fallocate(fd, 0, int64(off), int64(step))
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return os.NewSyscallError("fallocate", err)
		}
		off += step
	}
	return nil
}

// reopen opens memory that this process has mapped once more, on a description
// of its own that holds it too.
func (s *store) reopen(t *trailer) (int, error) {
	fd, err := openFile(filepath.Join(s.dir, t.name()), unix.O_RDWR)
	if err != nil {
		return -1, err
	}
	if err := flock(fd, unix.LOCK_SH|unix.LOCK_NB); err != nil {
		unix.Close(fd)
		return -1, os.NewSyscallError("flock", err)
	}
	return fd, nil
}

// reclaim removes the file of memory that this process no longer uses, unless
// somebody else does. If the memory belongs to a pool and is still used, the pool's file
// keeps it no longer.
//
// It takes the lock only if nobody else holds the memory, or if the memory belongs to a pool.
// Otherwise a consumer that is stopped here (SIGSTOP) would keep the lock, and everybody who
// needs it would wait.
func (s *store) reclaim(t *trailer) error {
	if !t.shared() && !s.isUnheld(t.name()) {
		return nil
	}
	return s.locked(func(l *ledger) error {
		switch s.removeUnheld(t.name()) {
		case removed:
			used := l.used(t.ordinal)
			return l.set(t.ordinal, used-min(used, t.size))
		case inUse:
			return s.leavePool(t)
		}
		return nil // somebody else has removed and subtracted it
	})
}

// leavePool renames memory so that it belongs to no pool.
func (s *store) leavePool(t *trailer) error {
	if !t.shared() {
		return nil
	}
	alone := *t
	alone.pool = [8]byte{}
	return os.Rename(filepath.Join(s.dir, t.name()), filepath.Join(s.dir, alone.name()))
}

// used returns how many bytes of a device anybody holds, after it has removed
// what nobody holds.
func (s *store) used(ordinal int) (used uint64, err error) {
	err = s.locked(func(l *ledger) error {
		used = s.count(l, ordinal)
		return nil
	})
	return used, err
}

// sweep removes unheld files from all devices and the host.
func (s *store) sweep(devices int) error {
	return s.locked(func(l *ledger) error {
		for _, prefix := range barePrefixes { // before the memory that pools keep
			bare, _ := filepath.Glob(filepath.Join(s.dir, prefix+"*"))
			for _, path := range bare {
				s.removeUnheld(filepath.Base(path))
			}
		}
		for i := range devices {
			s.count(l, i)
		}
		s.count(l, hostOrdinal)
		return nil
	})
}

// count adds up the files of a device that somebody holds, removes the others
// and corrects the ledger.
func (s *store) count(l *ledger, ordinal int) (used uint64) {
	names, _ := filepath.Glob(filepath.Join(s.dir, fmt.Sprintf("gpu%d-*.mem", ordinal)))
	for _, path := range names {
		name := filepath.Base(path)
		if s.poolHeld(name) || s.removeUnheld(name) == inUse {
			used += sizeInName(name)
		}
	}
	l.set(ordinal, used)
	return used
}

// poolHeld reports whether the memory in a file of that name belongs to a pool that
// somebody holds, and stays for that.
func (s *store) poolHeld(name string) bool {
	control, ok := poolInName(name)
	return ok && s.removeUnheld(control) == inUse
}

// openExported opens what another process shares, on a description that holds it
// too, if somebody holds the file that says so.
func (s *store) openExported(export, t *trailer) (fd int, err error) {
	return s.lockedOpen(func(*ledger) (int, error) {
		if s.removeUnheld(export.name()) != inUse {
			return -1, fs.ErrNotExist
		}
		return s.reopen(t)
	})
}

// errFreed says that the owner has freed what it shared.
var errFreed = errors.New("what was shared is freed")

// openNamed is openExported of the memory that the export names, whose id goes
// into t.
func (s *store) openNamed(export, t *trailer) (fd int, err error) {
	return s.lockedOpen(func(*ledger) (int, error) {
		if s.removeUnheld(export.name()) != inUse {
			return -1, errFreed
		}
		marker, err := openFile(filepath.Join(s.dir, export.name()), unix.O_RDWR)
		if err != nil {
			return -1, err
		}
		defer unix.Close(marker)
		have, ok := readTrailer(marker)
		if !ok {
			return -1, fs.ErrInvalid
		}
		t.id = have.pool
		return s.reopen(t)
	})
}

// held reports whether somebody holds what t names.
func (s *store) held(t *trailer) (yes bool) {
	_ = s.locked(func(*ledger) error {
		yes = s.removeUnheld(t.name()) == inUse
		return nil
	})
	return yes
}

// createControl makes a file without memory, such as that of a new pool, and
// returns it open, held by its lock. It does not count as memory. It chooses the
// trailer's id if there is none.
func (s *store) createControl(t *trailer) (fd int, err error) {
	if t.id == [8]byte{} {
		rand.Read(t.id[:])
	}
	return s.lockedOpen(func(*ledger) (int, error) { return s.makeFile(t) })
}

// reclaimControl removes a file of createControl that this process no longer
// uses, unless somebody else does.
func (s *store) reclaimControl(t *trailer) error {
	return s.locked(func(*ledger) error {
		s.removeUnheld(t.name())
		return nil
	})
}

// open opens memory of a pool that this process holds, on a description that
// holds the memory too. No sweep comes in between.
func (s *store) open(t *trailer) (fd int, err error) {
	return s.lockedOpen(func(*ledger) (int, error) { return s.reopen(t) })
}

// isUnheld reports, without the directory's lock, whether there is a file that nobody
// holds. It locks the file for a moment, so another caller, or removeUnheld, may take this
// process for a holder. That is safe: the process that got the lock goes on to remove the file.
func (s *store) isUnheld(name string) bool {
	fd, err := openFile(filepath.Join(s.dir, name), unix.O_RDWR)
	if err != nil {
		return false // most often another directory has it
	}
	defer unix.Close(fd)
	if flock(fd, unix.LOCK_EX|unix.LOCK_NB) != nil {
		return false
	}
	return flock(fd, unix.LOCK_UN) == nil // closing is not enough, as in locked
}

// The results of removeUnheld.
const (
	inUse   = iota
	removed // by this call
	gone    // before
)

// removeUnheld removes a file that no fd and no mapping keeps, and says what it
// found. It asks with a description of its own: flock sees the others.
func (s *store) removeUnheld(name string) int {
	path := filepath.Join(s.dir, name)
	fd, err := openFile(path, unix.O_RDWR)
	if errors.Is(err, fs.ErrNotExist) {
		return gone
	}
	if err != nil {
		return inUse
	}
	defer unix.Close(fd)
	if flock(fd, unix.LOCK_EX|unix.LOCK_NB) != nil || os.Remove(path) != nil {
		return inUse
	}
	return removed
}
