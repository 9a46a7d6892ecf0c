package fdstore

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/gpufd/gpufd/sock"
)

// comm is the name that ps(1) shows (proc_pid_comm(5)); 15 bytes at most.
const comm = "gpufd-store"

// Run is the main function of a store at path, and takes over its process: the name, the
// limit of open files, the signals and what the garbage collector spends. It closes the
// descriptors that the process inherited, other than 0 to 2. It returns nil when a keeper
// told it to end, on SIGTERM and SIGINT, and when ctx is done; then it holds nothing any
// more. It calls ended then, before the keeper learns of the end. The other errors are those of [sock.Listen].
func Run(ctx context.Context, path string, ended func()) error {
	ctx, stop := signal.NotifyContext(ctx, unix.SIGTERM, unix.SIGINT)
	defer stop()
	signal.Ignore(unix.SIGHUP, unix.SIGPIPE)
	if err := closeInherited(); err != nil {
		return err
	}
	limit, err := raiseLimit()
	if err != nil {
		return err
	}
	_ = os.WriteFile("/proc/self/comm", []byte(comm), 0) // for people alone
	// Two threads for Go, so that a close that takes long holds up no answer. The heap is
	// some hundred KiB, and doubles only by what records bring.
	runtime.GOMAXPROCS(2)
	debug.SetGCPercent(25)
	l, err := sock.Listen(path)
	if err != nil {
		return err
	}
	return serve(ctx, l, newStore(limit), ended)
}

// raiseLimit raises the limit of open files as far as it may go, and returns it. Go does
// so by itself, except where somebody has set it since.
func raiseLimit() (int, error) {
	var open unix.Rlimit
	err := unix.Getrlimit(unix.RLIMIT_NOFILE, &open)
	if err == nil && open.Cur < open.Max {
		open.Cur = open.Max
		err = unix.Setrlimit(unix.RLIMIT_NOFILE, &open)
	}
	if err != nil {
		return 0, fmt.Errorf("raise the limit of open files: %w", err)
	}
	return int(min(open.Cur, 1<<30)), nil
}

// closeInherited closes what a parent left open by mistake. Go opens everything so
// that exec closes it (FD_CLOEXEC): what survived exec lacks the flag.
func closeInherited() error {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return fmt.Errorf("look for inherited descriptors: %w", err)
	}
	var fds []int
	for _, e := range entries {
		fd, err := strconv.Atoi(e.Name())
		if err != nil || fd <= 2 {
			continue
		}
		flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
		if errors.Is(err, unix.EBADF) { // the one that ReadDir used
			continue
		}
		if flags&unix.FD_CLOEXEC == 0 {
			fds = append(fds, fd)
		}
	}
	_ = sock.CloseFiles(asFiles(fds))
	return nil
}
