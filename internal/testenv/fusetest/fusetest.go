// Package fusetest makes files whose owner does not answer: FUSE, with a server that keeps
// silent where a test says so.
package fusetest

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpufd/gpufd/internal/testenv"
)

// Op is an operation of fuse(4).
type Op uint32

// Operations that tests leave unanswered.
const (
	Getattr Op = 3
	Flush   Op = 25
)

const (
	lookup     Op = 1
	forget     Op = 2
	open       Op = 14
	release    Op = 18
	initialise Op = 26
	interrupt  Op = 36
	batch      Op = 42
)

// Size is how long the file says that it is.
const Size = 8192

// A Mount is a file system with one file. Another process serves it: this one's runtime would
// wait for itself, and its end for its own file system.
type Mount struct {
	end      func() // ends the server, and so the file system
	commands io.Writer
	once     sync.Once
	asked    chan Op
}

// serverEnv makes the test binary that server.
const serverEnv = "FUSETEST_SERVER"

// lifetime is how long a server serves at most: then all that waits for it goes on.
const lifetime = time.Minute

func init() {
	if os.Getenv(serverEnv) != "" {
		time.AfterFunc(lifetime, func() { os.Exit(1) })
		(&server{dev: 3}).run()
		os.Exit(0)
	}
}

// Open returns the file, which the test's end closes. The file system is aborted when the test
// ends, however it does: then all that waits for it goes on.
func Open(t testing.TB) (*os.File, *Mount) {
	t.Helper()
	if os.Getenv("GPUFD_EMULATED") == "1" {
		t.Skip("qemu-user has no mounts of FUSE")
	}
	if os.Geteuid() != 0 {
		t.Skip("needs root, to mount FUSE")
	}
	f, m, err := mount(t.TempDir())
	if err != nil {
		testenv.Need(t, testenv.Namespaces, false, fmt.Sprintf("no FUSE here: %v", err))
	}
	t.Cleanup(func() { _ = f.Close() })
	t.Cleanup(m.Abort)
	return f, m
}

// Abort ends the file system.
func (m *Mount) Abort() { m.once.Do(m.end) }

// Silence leaves operations unanswered from now on. While it is Flush, no process can be started
// here: that would close its copy of the file.
func (m *Mount) Silence(ops ...Op) {
	for _, op := range ops {
		_, _ = m.commands.Write([]byte{byte(op)})
		<-m.asked // it has heard
	}
}

// Asked returns the operations that get no answer, as they arrive.
func (m *Mount) Asked() <-chan Op { return m.asked }

// mount opens the file and takes the mount away: the file keeps the file system.
func mount(dir string) (*os.File, *Mount, error) {
	dev, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("opening /dev/fuse: %w", err)
	}
	device := os.NewFile(uintptr(dev), "/dev/fuse")
	defer device.Close()
	options := fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0,allow_other", dev)
	if err := unix.Mount("gpufd-test", dir, "fuse", unix.MS_NOSUID|unix.MS_NODEV, options); err != nil {
		return nil, nil, fmt.Errorf("mounting FUSE: %w", err)
	}
	defer func() { _ = unix.Unmount(dir, unix.MNT_DETACH) }()
	m, err := start(device)
	if err != nil {
		return nil, nil, err
	}
	_ = device.Close() // the server's end is the file system's
	fd, err := unix.Open(filepath.Join(dir, "file"), unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		m.Abort()
		return nil, nil, err
	}
	return os.NewFile(uintptr(fd), "fuse"), m, nil
}

// start starts the server.
func start(device *os.File) (*Mount, error) {
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), serverEnv+"=1")
	cmd.ExtraFiles = []*os.File{device}
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return nil, err
	}
	m := &Mount{commands: in, asked: make(chan Op, 1024)}
	over := make(chan struct{})
	go func() {
		defer close(over)
		for b := (make([]byte, 1)); ; {
			if _, err := io.ReadFull(out, b); err != nil {
				return
			}
			m.asked <- Op(b[0])
		}
	}()
	m.end = func() {
		_ = cmd.Process.Kill()
		<-over
		_, _ = cmd.Process.Wait()
		_, _ = in.Close(), out.Close()
	}
	return m, nil
}

// A server is the other process. It hears on its standard input what to leave unanswered, and
// says which operations those are.
type server struct {
	dev    int
	mu     sync.Mutex
	silent []Op
}

func (m *server) run() {
	go func() {
		for b := make([]byte, 1); ; {
			if _, err := os.Stdin.Read(b); err != nil {
				os.Exit(0)
			}
			m.mu.Lock()
			m.silent = append(m.silent, Op(b[0]))
			m.mu.Unlock()
			_, _ = os.Stdout.Write([]byte{0})
		}
	}()
	request := make([]byte, 1<<18)
	for {
		n, err := unix.Read(m.dev, request)
		switch {
		case errors.Is(err, unix.ENOENT), errors.Is(err, unix.EINTR): // it was interrupted meanwhile
			continue
		case err != nil || n < 40:
			return
		}
		m.answer(Op(binary.NativeEndian.Uint32(request[4:])), binary.NativeEndian.Uint64(request[8:]), binary.NativeEndian.Uint64(request[16:]))
	}
}

// answer answers as linux/fuse.h says, version 7.31.
func (m *server) answer(op Op, unique, node uint64) {
	m.mu.Lock()
	silent := slices.Contains(m.silent, op)
	m.mu.Unlock()
	if silent {
		_, _ = os.Stdout.Write([]byte{byte(op)})
		return
	}
	switch op {
	case forget, batch, interrupt:
	case initialise:
		body := make([]byte, 64)
		binary.NativeEndian.PutUint32(body, 7)
		binary.NativeEndian.PutUint32(body[4:], 31)
		binary.NativeEndian.PutUint32(body[20:], 1<<16) // max_write
		m.reply(unique, 0, body)
	case lookup:
		entry := make([]byte, 40)
		binary.NativeEndian.PutUint64(entry, 2)
		m.reply(unique, 0, append(entry, attributes(2)...))
	case Getattr:
		m.reply(unique, 0, append(make([]byte, 16), attributes(node)...))
	case open:
		m.reply(unique, 0, make([]byte, 16))
	case Flush, release:
		m.reply(unique, 0, nil)
	default:
		m.reply(unique, unix.ENOSYS, nil)
	}
}

// attributes are a struct fuse_attr.
func attributes(node uint64) []byte {
	a := make([]byte, 88)
	mode := uint32(unix.S_IFREG | 0o666)
	if node == 1 {
		mode = unix.S_IFDIR | 0o777
	}
	binary.NativeEndian.PutUint64(a, node)
	binary.NativeEndian.PutUint64(a[8:], Size)
	binary.NativeEndian.PutUint64(a[16:], Size/512)
	binary.NativeEndian.PutUint32(a[60:], mode)
	binary.NativeEndian.PutUint32(a[64:], 1)
	binary.NativeEndian.PutUint32(a[80:], 4096)
	return a
}

func (m *server) reply(unique uint64, errno unix.Errno, body []byte) {
	out := binary.NativeEndian.AppendUint32(nil, uint32(16+len(body)))
	out = binary.NativeEndian.AppendUint32(out, uint32(-int32(errno)))
	out = binary.NativeEndian.AppendUint64(out, unique)
	_, _ = unix.Write(m.dev, append(out, body...)) // the asker may have gone
}
