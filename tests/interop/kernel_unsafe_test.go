package interop

import (
	"fmt"
	"os"
	"runtime"
	"slices"
	"syscall"
	"testing"
	"unsafe"

	"github.com/gpufd/gpufd/tests/internal/programs"

	"golang.org/x/sys/unix"

	"github.com/gpufd/gpufd/cu/cutest"
)

// soPassRights is SO_PASSRIGHTS of asm-generic/socket.h: since Linux 6.16 a socket can say
// that it takes no descriptors.
const soPassRights = 83

// childOlder is the role of a child that becomes the program of its arguments, as on an older kernel.
const childOlder = "as on an older kernel"

var args = programs.Args

func TestMain(m *testing.M) {
	programs.Main(m, cutest.Children{childOlder: becomeOlder})
}

// A kernel is this one, or as one before Linux 6.16.
type kernel struct{ older bool }

func (k kernel) String() string {
	if k.older {
		return "a kernel without SO_PASSRIGHTS"
	}
	return "this kernel"
}

// eachKernel calls f for this kernel, and as on an older one.
func eachKernel(t *testing.T, f func(t *testing.T, k kernel)) {
	for _, k := range []kernel{{}, {older: true}} {
		t.Run(k.String(), func(t *testing.T) {
			if k.older && cutest.Emulated() {
				t.Skip("qemu-user has no seccomp, which hides the option here; the same runs without qemu")
			}
			f(t, k)
		})
	}
}

// start starts a peer on the scene's socket, on this kernel.
func (k kernel) start(s *programs.Scene, p peer, more ...string) *programs.Process {
	s.T.Helper()
	if !k.older {
		return startPeer(s, p, more...)
	}
	line := slices.Concat(p.command(s.T), args("-socket", s.Socket), p.flags, more)
	older := s.Child(nil, childOlder, nil, line...)
	older.Name = p.name
	return older
}

// serving starts a producer and waits until it serves.
func (k kernel) serving(s *programs.Scene, p peer, more ...string) *programs.Process {
	s.T.Helper()
	producer := k.start(s, p, more...)
	producer.WaitLine("Waiting for consumer connection...")
	return producer
}

// becomeOlder hides SO_PASSRIGHTS from this thread and what it becomes.
func becomeOlder() error {
	runtime.LockOSThread()
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("prctl PR_SET_NO_NEW_PRIVS: %w", err)
	}
	filter := withoutOption(soPassRights)
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	if _, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, 0, uintptr(unsafe.Pointer(&program))); errno != 0 {
		return fmt.Errorf("seccomp SECCOMP_SET_MODE_FILTER: %w; this test takes a kernel with CONFIG_SECCOMP_FILTER", errno)
	}
	if err := unix.SetsockoptInt(0, unix.SOL_SOCKET, soPassRights, 0); err != unix.ENOPROTOOPT {
		return fmt.Errorf("setsockopt SO_PASSRIGHTS behind the filter: %v, want %w", err, unix.ENOPROTOOPT)
	}
	return syscall.Exec(os.Args[1], os.Args[1:], os.Environ())
}

// withoutOption is a seccomp filter in which setsockopt and getsockopt do not know an
// option. Offsets are those of struct seccomp_data.
func withoutOption(option uint32) []unix.SockFilter {
	const number, arch, name = 0, 4, 16 + 2*8 // name: the low half of the third argument
	load := func(at uint32) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: at}
	}
	jump := func(equal uint32, yes, no uint8) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: equal, Jt: yes, Jf: no}
	}
	answer := func(what uint32) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: what}
	}
	ours := map[string]uint32{"amd64": unix.AUDIT_ARCH_X86_64, "arm64": unix.AUDIT_ARCH_AARCH64}[runtime.GOARCH]
	return []unix.SockFilter{
		load(arch), jump(ours, 0, 6),
		load(number), jump(unix.SYS_SETSOCKOPT, 1, 0), jump(unix.SYS_GETSOCKOPT, 0, 3),
		load(name), jump(option, 0, 1),
		answer(unix.SECCOMP_RET_ERRNO | uint32(unix.ENOPROTOOPT)),
		answer(unix.SECCOMP_RET_ALLOW),
	}
}
