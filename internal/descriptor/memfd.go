// Package descriptor makes sealed files of memory, to be sent to another process as
// descriptors: the bytes that the other process has checked cannot change afterwards. It also tells the
// kinds of descriptors that others have sent, without a call that another user's file system answers: fstat(2) of a file on
// FUSE, and even close(2), take as long as the owner of that file system likes.
package descriptor

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"

	"github.com/gpufd/gpufd/internal/descriptor/fdtrace"
)

// Content is the seals that fix a file's bytes and size (fcntl(2), F_ADD_SEALS).
const Content = unix.F_SEAL_WRITE | unix.F_SEAL_SHRINK | unix.F_SEAL_GROW

// Size is the seals that fix the size of a file.
const Size = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW

// Seals is the seals of a file that Sealed made: no others can be added.
const Seals = Content | unix.F_SEAL_SEAL

// Sealed returns a file with the content and with Seals. The caller owns it. The
// name is for people, in /proc/PID/fd (memfd_create(2)).
func Sealed(name string, content []byte) (*os.File, error) {
	f, err := create(name)
	if err != nil {
		return nil, err
	}
	_, err = f.Write(content)
	return seal(f, err, Seals)
}

// Fixed returns a file of size bytes, more than 0. Everybody who has it may write
// it, but nobody can make it larger or smaller. The caller owns it; its bytes are
// 0 and allocated (fallocate(2)).
func Fixed(name string, size int64) (*os.File, error) {
	f, err := create(name)
	if err != nil {
		return nil, err
	}
	err = unix.Fallocate(int(f.Fd()), 0, 0, size)
	return seal(f, os.NewSyscallError("fallocate", err), Size|unix.F_SEAL_SEAL)
}

// seal seals f, or closes it if err says that it could not be made.
func seal(f *os.File, err error, seals int) (*os.File, error) {
	if err == nil {
		_, err = unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, seals)
		err = os.NewSyscallError("fcntl", err)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

func create(name string) (*os.File, error) {
	// Linux before 6.3 does not know MFD_NOEXEC_SEAL; a newer one may insist on it
	// (vm.memfd_noexec).
	const flags = unix.MFD_CLOEXEC | unix.MFD_ALLOW_SEALING
	fd, err := unix.MemfdCreate(name, flags|unix.MFD_NOEXEC_SEAL)
	if errors.Is(err, unix.EINVAL) {
		fd, err = unix.MemfdCreate(name, flags)
	}
	if err != nil {
		return nil, os.NewSyscallError("memfd_create", err)
	}
	return fdtrace.File(fd, name), nil
}
