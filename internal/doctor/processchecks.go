package doctor

import (
	"context"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/gpufd/gpufd/sock"
)

// passed is how many descriptors are passed in one message: the most that share takes.
const passed = 64

// processes runs the checks that need another process, but no driver.
func (v *run) processes(ctx context.Context) []Row {
	if v.reader.dead != nil {
		return v.withoutProcess()
	}
	files := v.files(ctx)
	v.revive() // a process that was sent too many has ended
	return []Row{files, v.getfd(ctx), v.abstract(ctx)}
}

// withoutProcess returns the rows if no process could be started. The limit of open files
// may be the reason; the others are unknown.
func (v *run) withoutProcess() (rows []Row) {
	for _, id := range []string{"fd-limit", "pidfd-getfd", "abstract-socket"} {
		if f := v.reader.dead; f.Mark == id {
			rows = append(rows, failed(id, Fail, f.and(limit()), facts{}))
		} else {
			rows = append(rows, row(id, Unknown, "", "not tried: %s", f.Text))
		}
	}
	return rows
}

// limit names the limit of open files.
func limit() string {
	var lim unix.Rlimit
	_ = unix.Getrlimit(unix.RLIMIT_NOFILE, &lim)
	return fmt.Sprintf("the limit of open files is %d", lim.Cur)
}

// files passes descriptors to another process.
func (v *run) files(ctx context.Context) Row {
	files := make([]*os.File, 0, passed)
	null, err := os.Open(os.DevNull)
	for err == nil && len(files) < passed {
		files = append(files, null) // each arrives as a descriptor of its own
	}
	var f *fault
	if err != nil {
		f = newFault(err)
	} else {
		_, _, f = v.reader.ask(ctx, request{Do: "files", Count: passed}, files...)
		_ = sock.CloseFiles([]*os.File{null})
	}
	if f != nil {
		v.reader.giveUp(f) // it can receive nothing after lost descriptors
		return failed("fd-limit", Fail, f.and(limit()), facts{})
	}
	return row("fd-limit", OK, "", "%d descriptors arrived in one message; %s", passed, limit())
}

// getfd makes a process take a descriptor from its parent, which Yama forbids first.
func (v *run) getfd(ctx context.Context) Row {
	a, _, f := v.reader.ask(ctx, request{Do: "drop"}) // which says what number it has
	if f == nil && a.PID != v.reader.cmd.Process.Pid {
		return row("pidfd-getfd", Unknown, "", "not tried: the process that was started for it is in another PID namespace, as number %d", a.PID)
	}
	null, err := os.Open(os.DevNull)
	if err != nil {
		return failed("pidfd-getfd", Warn, newFault(err), facts{})
	}
	defer null.Close()
	_, _, f = v.reader.ask(ctx, request{Do: "take", PID: os.Getpid(), FD: int(null.Fd())})
	if f == nil {
		return row("pidfd-getfd", OK, "", "a descriptor was taken from another process of this user; %s", yama())
	}
	return failed("pidfd-getfd", Warn, f.and(yama()), facts{})
}

// yama says how Yama restricts ptrace.
func yama() string {
	b, err := os.ReadFile("/proc/sys/kernel/yama/ptrace_scope")
	if err != nil {
		return "this kernel has no Yama"
	}
	return "kernel.yama.ptrace_scope is " + strings.TrimSpace(string(b))
}

// abstract makes another process connect to an abstract socket of this one.
func (v *run) abstract(ctx context.Context) Row {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return failed("abstract-socket", Warn, newFault(os.NewSyscallError("socket", err)), facts{})
	}
	defer unix.Close(fd)
	name := fmt.Sprintf("gpufd-doctor-%d-%x", os.Getpid(), newSalt())
	if err = unix.Bind(fd, &unix.SockaddrUnix{Name: "@" + name}); err == nil {
		err = unix.Listen(fd, 1)
	}
	if err != nil {
		return failed("abstract-socket", Warn, newFault(fmt.Errorf("listening at the abstract socket @%s: %w", name, err)), facts{})
	}
	if _, _, f := v.reader.ask(ctx, request{Do: "connect", Name: name}); f != nil {
		return failed("abstract-socket", Warn, f, facts{})
	}
	return row("abstract-socket", OK, "", "another process connected to one")
}
