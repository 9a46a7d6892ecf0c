package sock

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// These calls never wait (MSG_DONTWAIT), so they do not tell the scheduler: that would
// wake a sleeping thread of the runtime, which in an idle process takes longer than the
// call. Nor do they wait in the kernel for a file to close, as recvmsg(2) does when it
// drops the last reference to a descriptor: see Conn.read. Only sendmsg(2) with
// descriptors may wait, until the kernel has collected sockets in flight and closed what
// they hold.
//
// The peer's address, which x/sys/unix would look up, is not asked for.

// recvNow is recvmsg(2) without waiting, even if another holder has set the description
// to blocking mode, as os.File.Fd does. MSG_TRUNC makes the kernel return the true
// length of the record. peek is MSG_PEEK or 0.
func recvNow(fd int, data, control []byte, peek int) (n, controlLen, flags int, err error) {
	m := message(data, control)
	n, err = rawCall(unix.SYS_RECVMSG, fd, &m, unix.MSG_CMSG_CLOEXEC|unix.MSG_TRUNC|unix.MSG_DONTWAIT|peek)
	return n, int(m.Controllen), int(m.Flags), err
}

// sendNow is sendmsg(2) without waiting.
func sendNow(fd int, data, control []byte) error {
	m := message(data, control)
	const flags = unix.MSG_NOSIGNAL | unix.MSG_DONTWAIT
	if len(control) > 0 {
		_, err := announcedCall(unix.SYS_SENDMSG, fd, &m, flags)
		return err
	}
	_, err := rawCall(unix.SYS_SENDMSG, fd, &m, flags)
	return err
}

// message describes one record. Its memory is in use until the call is over.
func message(data, control []byte) (m unix.Msghdr) {
	iov := &unix.Iovec{Base: unsafe.SliceData(data)}
	iov.SetLen(len(data))
	m.Iov = iov
	m.SetIovlen(1)
	m.Control = unsafe.SliceData(control)
	m.SetControllen(len(control))
	return m
}

func rawCall(call uintptr, fd int, m *unix.Msghdr, flags int) (int, error) {
	n, _, errno := unix.RawSyscall(call, uintptr(fd), uintptr(unsafe.Pointer(m)), uintptr(flags))
	if errno != 0 {
		return 0, errno
	}
	return int(n), nil
}

// announcedCall tells the scheduler.
func announcedCall(call uintptr, fd int, m *unix.Msghdr, flags int) (int, error) {
	n, _, errno := unix.Syscall(call, uintptr(fd), uintptr(unsafe.Pointer(m)), uintptr(flags))
	if errno != 0 {
		return 0, errno
	}
	return int(n), nil
}
