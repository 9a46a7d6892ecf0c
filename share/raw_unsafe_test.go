package share

import (
	"os"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gpufd/gpufd/cu/cutest"
	"github.com/gpufd/gpufd/cu/sys"
	"github.com/gpufd/gpufd/sock"
)

// sendRaw is sendmsg(2) as nobody checks it, with n times the descriptor f.
// The libraries put a byte into a record of length 0; an ill-disposed peer does
// not. It returns false where the kernel keeps descriptors from a peer that takes
// none (SO_PASSRIGHTS): nothing was sent.
func sendRaw(t *testing.T, conn *sock.Conn, record []byte, f *os.File, n int) bool {
	t.Helper()
	fds := make([]int, n)
	for i := range fds {
		fds[i] = int(f.Fd())
	}
	var msg unix.Msghdr
	if n > 0 {
		oob := unix.UnixRights(fds...)
		msg.Control = &oob[0]
		msg.SetControllen(len(oob))
	}
	iov := unix.Iovec{Base: unsafe.SliceData(record)} // qemu-user sends nothing without one
	iov.SetLen(len(record))
	msg.Iov = &iov
	msg.SetIovlen(1)
	own := ok(conn.File())(t)
	defer own.Close()
	raw := ok(own.SyscallConn())(t)
	var errno unix.Errno
	require.NoError(t, raw.Control(func(fd uintptr) {
		_, _, errno = unix.Syscall(unix.SYS_SENDMSG, fd, uintptr(unsafe.Pointer(&msg)), unix.MSG_NOSIGNAL)
	}))
	if n > 0 && errno == unix.EPERM {
		return false
	}
	require.Zero(t, errno)
	return true
}

// underMPS makes a driver say that its devices are shared by MPS.
func underMPS(faults *cutest.Faults) *cutest.Fault {
	return faults.Hook("cuDeviceGetAttribute", func(call sys.Call, next func() sys.CUresult) sys.CUresult {
		if uint32(call.Arg(1)) != uint32(sys.CU_DEVICE_ATTRIBUTE_MPS_ENABLED) {
			return next()
		}
		value := call.Arg(0)
		**(**int32)(unsafe.Pointer(&value)) = 1
		return sys.CUDA_SUCCESS
	})
}
