package sock

import (
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/gpufd/gpufd/internal/descriptor"
)

// An aside is the work of a child process, and its result. The child shares our memory and has
// a descriptor table of its own (vfork(2)). It makes raw system calls and nothing else: it runs
// on the stack of the thread that waits for it, and the runtime does not know of it.
type aside struct {
	conn   int
	below  int // more than the number of any descriptor that is open at the start
	drain  bool
	mounts descriptor.Mounts
	says   verdict

	msg     unix.Msghdr
	iov     unix.Iovec
	data    [8]byte
	control [controlSize]byte
	st      unix.Statx_t
	n       int // descriptors received
	taken   int // records taken from the queue
}

// prepare sets the pointers, because the garbage collector would not see them set by the child.
func (a *aside) prepare() {
	a.iov.Base = &a.data[0]
	a.iov.SetLen(len(a.data))
	a.msg.Iov, a.msg.Control = &a.iov, &a.control[0]
	a.msg.SetIovlen(1)
}

// mostTaken bounds the descriptors that one child takes; the next child takes the rest of the queue.
const mostTaken = 1024

type verdict int32

const (
	nothingSaid verdict = iota // the child does not have our memory (qemu-user)
	fit                        // closing what came waits for nobody; or nothing came
	unfit                      // the child has what came, and our queue has not
	full                       // what came is too much for the child; it may have some
	drained                    // the child has all that was in our queue
)

// rawVfork is clone(2) with the stack of the caller.
func rawVfork(flags uintptr) (pid, errno uintptr)

// fork runs look in a child, and returns when the child has given up our memory. Closing its
// descriptors may take the child as long as a stranger likes. The thread is locked and takes
// no signals.
//
//go:norace
//go:nosplit
//go:noinline
func (a *aside) fork() (pid, errno uintptr) {
	pid, errno = rawVfork(unix.CLONE_VM | unix.CLONE_VFORK) // without a signal at its end: nobody else waits for it
	if pid != 0 {
		return pid, errno
	}
	a.look()
	for {
		unix.RawSyscall(unix.SYS_EXIT_GROUP, 0, 0, 0)
	}
}

//go:norace
//go:nosplit
func (a *aside) look() {
	if !a.fill() {
		a.says = full
		return
	}
	a.says = a.judge()
}

// fill fills the gaps between the copies of our descriptors: the end of the child closes in
// rising order, and what comes is to be behind all of ours, whose peers are not to wait for it.
//
//go:norace
//go:nosplit
func (a *aside) fill() bool {
	highest := a.below - 1
	for ; highest > a.conn; highest-- {
		if _, _, errno := unix.RawSyscall(unix.SYS_FCNTL, uintptr(highest), unix.F_GETFD, 0); errno == 0 {
			break
		}
	}
	for {
		fd, _, errno := unix.RawSyscall(unix.SYS_DUP, uintptr(a.conn), 0, 0)
		if errno != 0 || int(fd) > highest {
			return errno == 0
		}
	}
}

// judge looks at the record at the head of the queue. If that is unfit, or everything is to
// go, it takes the record: then nobody but this child has the descriptors.
//
//go:norace
//go:nosplit
func (a *aside) judge() verdict {
	for a.n < mostTaken {
		if a.receive(len(a.control), unix.MSG_PEEK) != 0 {
			return drained
		}
		if a.msg.Controllen == 0 { // the end; or nothing to judge
			if a.drain {
				return drained
			}
			return fit
		}
		quiet := a.note()
		if a.msg.Flags&unix.MSG_CTRUNC != 0 {
			return full // it stays in the queue
		}
		if quiet && !a.drain {
			return fit
		}
		a.receive(0, 0)
		a.taken++
		if !a.drain {
			return unfit
		}
	}
	return full
}

// receive is recvmsg(2) without waiting. Without room for descriptors it drops the record's
// own references to them, which are not the last ones.
//
//go:norace
//go:nosplit
//go:nocheckptr
func (a *aside) receive(room, flags int) unix.Errno {
	a.msg.Flags = 0
	a.msg.SetControllen(room)
	_, _, errno := unix.RawSyscall(unix.SYS_RECVMSG, uintptr(a.conn), uintptr(unsafe.Pointer(&a.msg)), uintptr(flags)|unix.MSG_DONTWAIT)
	return errno
}

// note counts the descriptors that came, and reports whether all of them are quiet.
//
//go:norace
//go:nosplit
//go:nocheckptr
func (a *aside) note() bool {
	quiet, end := true, min(int(a.msg.Controllen), len(a.control))
	for at := 0; at+cmsgHeader <= end; {
		h := (*unix.Cmsghdr)(unsafe.Pointer(&a.control[at]))
		size := int(h.Len)
		if size < cmsgHeader || size > end-at {
			break
		}
		if h.Level == unix.SOL_SOCKET && h.Type == unix.SCM_RIGHTS {
			for i := at + cmsgHeader; i+4 <= at+size; i += 4 {
				fd := *(*int32)(unsafe.Pointer(&a.control[i]))
				a.n++
				quiet = quiet && descriptor.QuietAt(int(fd), &a.st, &a.mounts)
			}
		}
		at += (size + cmsgAlign - 1) &^ (cmsgAlign - 1)
	}
	return quiet
}
