package sock

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// The two calls here never wait (MSG_DONTWAIT), so the scheduler is not told of
// them: to tell it wakes a thread of the runtime that has gone to sleep, which in a
// process that was idle takes longer than the call. The peer's address, which
// x/sys/unix would look up, is not asked for.

// recvNow is recvmsg(2) without waiting, also if whoever shares the description has
// set it to blocking mode; os.File.Fd does. MSG_TRUNC makes the kernel return the
// true length of the record.
func recvNow(fd int, data, control []byte) (n, controlLen, flags int, err error) {
	m := message(data, control)
	n, err = messageCall(unix.SYS_RECVMSG, fd, &m, unix.MSG_CMSG_CLOEXEC|unix.MSG_TRUNC|unix.MSG_DONTWAIT)
	return n, int(m.Controllen), int(m.Flags), err
}

// sendNow is sendmsg(2) without waiting.
func sendNow(fd int, data, control []byte) error {
	m := message(data, control)
	_, err := messageCall(unix.SYS_SENDMSG, fd, &m, unix.MSG_NOSIGNAL|unix.MSG_DONTWAIT)
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

func messageCall(call uintptr, fd int, m *unix.Msghdr, flags int) (int, error) {
	n, _, errno := unix.RawSyscall(call, uintptr(fd), uintptr(unsafe.Pointer(m)), uintptr(flags))
	if errno != 0 {
		return 0, errno
	}
	return int(n), nil
}
