package channel

import (
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// forbidCalls has the kernel end the process if the calling thread makes a system call, but for
// the return from a signal.
func forbidCalls() error {
	filter := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.SYS_RT_SIGRETURN, Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_KILL_PROCESS},
	}
	program := &unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	defer runtime.KeepAlive(filter)
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return err
	}
	return unix.Prctl(unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER, uintptr(unsafe.Pointer(program)), 0, 0)
}
