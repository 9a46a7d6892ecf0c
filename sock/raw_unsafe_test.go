package sock

import (
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// rawSendEmpty sends a record of length 0 with a control message. The libraries
// put a byte into such a record; an ill-disposed peer does not.
func rawSendEmpty(t testing.TB, c *Conn, oob []byte) error {
	t.Helper()
	return c.s.control(func(fd int) error {
		var none unix.Iovec // qemu-user sends nothing without one
		msg := unix.Msghdr{Iov: &none}
		msg.SetIovlen(1)
		msg.Control = &oob[0]
		msg.SetControllen(len(oob))
		_, _, errno := unix.Syscall(unix.SYS_SENDMSG, uintptr(fd), uintptr(unsafe.Pointer(&msg)), 0)
		if errno != 0 {
			return errno
		}
		return nil
	})
}
