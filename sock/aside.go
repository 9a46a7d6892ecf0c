package sock

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpufd/gpufd/internal/descriptor"
)

// A file of a stranger's own file system (FUSE) runs its owner's code at each close(2) of a
// descriptor of it (FLUSH), also at that of a copy, and when a process ends. Nothing ends that
// wait, not even SIGKILL. So such a descriptor must never be in this process's table. What
// another user sends is judged by a child process first, which has a table of its own. If all
// is fit, this process takes the record. If not, the child does, and ends: that may take
// as long as the stranger likes, and nobody waits for it.
//
// A peer of our own user could stop us by other means, and its records are taken directly.

// maxLeft bounds how many children of this process may hang.
const maxLeft = 64

// left counts the children that have not ended.
var left struct {
	sync.Mutex
	n int
}

// errNoAside means that no child process can be started here to look at descriptors.
var errNoAside = errors.New("no child process to look at descriptors")

// isForeign reports whether s runs as another user.
func (s sender) isForeign() bool { return s.uid >= 0 && s.uid != int64(os.Geteuid()) }

// judge returns an error unless descriptors in the record at the head of the queue, if it has
// any, may come into this process. It is for peers of other users.
func judge(fd int) error {
	var data [1]byte
	_, _, flags, err := recvNow(fd, data[:], nil, unix.MSG_PEEK)
	if err != nil || flags&unix.MSG_CTRUNC == 0 {
		return nil // receiving it returns the same error
	}
	says, err := runAside(&aside{conn: fd, mounts: descriptor.OwnMounts()})
	switch {
	case errors.Is(err, errNoAside):
		return nil // the descriptors are judged when they have come
	case err != nil:
		return fmt.Errorf("%w: %w; %w", ErrUnfit, err, ErrStuck)
	case says == unfit:
		return fmt.Errorf("%w; %w", ErrUnfit, ErrStuck)
	case says == full: // as here
		return fmt.Errorf("%w: raise the limit on open files (ulimit -n) or close some; %w", ErrControlTruncated, ErrStuck)
	}
	return nil
}

// areQuiet reports whether closing fds waits for nobody. It replaces judge where no child can be started.
func areQuiet(fds []int) bool {
	for _, fd := range fds {
		if !descriptor.Quiet(fd) {
			return false
		}
	}
	return true
}

// leaveQueue lets child processes empty the queue of a socket that nobody uses any more,
// because dropping the last reference to a descriptor may block, too.
func leaveQueue(fd int) {
	_ = unix.Shutdown(fd, unix.SHUT_RDWR) // from now on nothing more comes
	for more := true; more && !isEmpty(fd); {
		a := &aside{conn: fd, drain: true}
		_, err := runAside(a)
		more = err == nil && a.taken > 0
	}
}

// isEmpty reports whether the queue of a socket that was shut down has nothing in it. With
// SO_PASSCRED even an empty record shows where there is no room to say who sent it.
func isEmpty(fd int) bool {
	var data [1]byte
	_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PASSCRED, 1)
	n, _, flags, err := recvNow(fd, data[:], nil, unix.MSG_PEEK)
	if errors.Is(err, unix.ECONNRESET) { // which the kernel says once
		n, _, flags, err = recvNow(fd, data[:], nil, unix.MSG_PEEK)
	}
	return err != nil || n == 0 && flags&unix.MSG_CTRUNC == 0
}

// runAside runs a child, one at a time, and does not wait for its end.
func runAside(a *aside) (verdict, error) {
	left.Lock()
	defer left.Unlock()
	for pause, end := (backoff{next: time.Millisecond, max: 20 * time.Millisecond}), time.Now().Add(time.Second); left.n >= maxLeft; { // mostly they have just begun to end
		left.Unlock()
		_ = pause.wait(context.Background(), nil)
		left.Lock()
		if left.n >= maxLeft && time.Now().After(end) {
			return 0, fmt.Errorf("%d processes that closed earlier ones still wait for their owners", left.n)
		}
	}
	pid, err := a.start()
	if err != nil {
		return 0, err
	}
	left.n++
	go bury(pid)
	if a.says == nothingSaid {
		return 0, errNoAside
	}
	return a.says, nil
}

// bury waits for the end of a child that may hang, without a thread while it takes long.
func bury(pid int) {
	pause := backoff{next: 100 * time.Microsecond, max: time.Second}
	for !hasBeenReaped(pid) {
		_ = pause.wait(context.Background(), nil)
	}
	left.Lock()
	defer left.Unlock()
	left.n--
}

func hasBeenReaped(pid int) bool {
	reaped := 0
	err := ignoringEINTR(func() (err error) {
		reaped, err = unix.Wait4(pid, nil, unix.WNOHANG|unix.WALL, nil)
		return err
	})
	return err != nil || reaped == pid // ECHILD: somebody else waits for all children
}

// tableSize is more than the number of each descriptor of this process.
func tableSize() int {
	text, _ := os.ReadFile("/proc/self/status")
	if _, after, ok := strings.Cut(string(text), "\nFDSize:\t"); ok {
		line, _, _ := strings.Cut(after, "\n")
		if n, err := strconv.Atoi(line); err == nil {
			return n
		}
	}
	return 1024
}

// start runs the child. A signal handler that ran in the child would change our memory.
func (a *aside) start() (pid int, err error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var all, old unix.Sigset_t
	for i := range all.Val {
		all.Val[i] = ^all.Val[i]
	}
	if err := unix.PthreadSigmask(unix.SIG_SETMASK, &all, &old); err != nil {
		return 0, fmt.Errorf("%w: %w", errNoAside, err)
	}
	a.prepare()
	a.below = tableSize()
	p, errno := a.fork()
	_ = unix.PthreadSigmask(unix.SIG_SETMASK, &old, nil)
	if errno != 0 {
		err := os.NewSyscallError("clone", unix.Errno(errno))
		if errno == uintptr(unix.EINVAL) || errno == uintptr(unix.ENOSYS) {
			err = fmt.Errorf("%w: %w", errNoAside, err)
		}
		return 0, err
	}
	return int(p), nil
}
