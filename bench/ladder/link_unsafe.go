package main

import (
	"io"
	"os"
	"runtime"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A messageCall is sendmsg or recvmsg, with or without the scheduler's knowing that
// it may take long.
type messageCall func(trap, fd, msg, flags uintptr) (n, r2 uintptr, err syscall.Errno)

var messageCalls = map[string]messageCall{"raw": syscall.RawSyscall, "block": syscall.Syscall, "spin": spinning}

// spinning asks again and again instead of waiting.
func spinning(trap, fd, msg, flags uintptr) (n, r2 uintptr, err syscall.Errno) {
	for {
		n, r2, err = syscall.RawSyscall(trap, fd, msg, flags|unix.MSG_DONTWAIT)
		if err != syscall.EAGAIN {
			return n, r2, err
		}
	}
}

// fdSpace is room for one descriptor.
const fdSpace = 24

func sendMessage(call messageCall, fd int, data []byte, file *os.File) error {
	var control []byte
	if file != nil {
		control = unix.UnixRights(int(file.Fd()))
	}
	iov := unix.Iovec{Base: unsafe.SliceData(data), Len: uint64(len(data))}
	m := unix.Msghdr{Iov: &iov, Iovlen: 1}
	if len(control) > 0 {
		m.Control, m.Controllen = unsafe.SliceData(control), uint64(len(control))
	}
	_, err := repeat(call, unix.SYS_SENDMSG, fd, &m, unix.MSG_NOSIGNAL)
	runtime.KeepAlive(file)
	return err
}

// receiveMessage returns -1 where no descriptor came.
func receiveMessage(call messageCall, fd, flags int) ([]byte, int, error) {
	data, control := make([]byte, most), make([]byte, fdSpace)
	iov := unix.Iovec{Base: &data[0], Len: most}
	m := unix.Msghdr{Iov: &iov, Iovlen: 1, Control: &control[0], Controllen: fdSpace}
	n, err := repeat(call, unix.SYS_RECVMSG, fd, &m, unix.MSG_CMSG_CLOEXEC|flags)
	if err == nil && n == 0 {
		err = io.EOF
	}
	if err != nil || m.Controllen < unix.SizeofCmsghdr+4 {
		return data[:n], -1, err
	}
	got := *(*int32)(unsafe.Pointer(&control[unix.SizeofCmsghdr]))
	return data[:n], int(got), nil
}

// repeat makes the call until no signal gets in its way.
func repeat(call messageCall, trap uintptr, fd int, m *unix.Msghdr, flags int) (int, error) {
	for {
		n, _, errno := call(trap, uintptr(fd), uintptr(unsafe.Pointer(m)), uintptr(flags))
		switch errno {
		case 0:
			return int(n), nil
		case unix.EINTR:
		default:
			return 0, errno
		}
	}
}
