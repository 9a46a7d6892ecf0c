package programs

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/cutest"
	"github.com/gpufd/gpufd/internal/cli"
	"github.com/gpufd/gpufd/internal/mapped"
	"github.com/gpufd/gpufd/internal/pattern"
	"github.com/gpufd/gpufd/share"
	"github.com/gpufd/gpufd/sock"
)

// A Scene is a place for processes to meet: a directory of its own with a
// socket in it. When the test ends, the directory has to be empty again. On a GPU the device's
// memory has to be as free as before (invariants 3, 4 and 8); the software driver's is looked at
// when all tests of the package have ended.
type Scene struct {
	T      testing.TB
	Dir    string
	Socket string
	keeps  []string // names that may stay in dir
	free   uint64   // bytes of device memory that must be free at the end
}

func NewScene(t testing.TB) *Scene {
	t.Helper()
	dir, err := os.MkdirTemp(ShortTempDir(), "gpufd-")
	require.NoError(t, err)
	s := &Scene{T: t, Dir: dir, Socket: filepath.Join(dir, "s")}
	if countsMemory() {
		s.free = FreeMemory(t)
	}
	t.Cleanup(func() {
		defer os.RemoveAll(dir)
		if t.Failed() {
			return
		}
		require.Subset(t, s.keeps, s.Listing(), "left in the socket's directory")
		require.NotContains(t, s.Listing(), "s.lock", "left in the socket's directory")
		if countsMemory() {
			RequireFree(t, s.free)
		}
	})
	return s
}

// ShortTempDir leaves room for the 107 bytes of a socket's path.
func ShortTempDir() string {
	if dir := os.TempDir(); len(dir) < 60 {
		return dir
	}
	return "/tmp"
}

// Keep says that the test itself has put those names into the directory.
func (s *Scene) Keep(names ...string) { s.keeps = append(s.keeps, names...) }

func (s *Scene) Listing() []string {
	s.T.Helper()
	entries, err := os.ReadDir(s.Dir)
	require.NoError(s.T, err)
	names := make([]string, len(entries))
	for i, e := range entries {
		names[i] = e.Name()
	}
	return names
}

// driverKeeps is more than what a GPU's driver keeps from the first time on that
// something is done, and less than what the context of a process takes.
const driverKeeps = 16 << 20

// Settle takes the device memory that is free now for the scene's: what the driver keeps
// of what was done so far is nobody's leak. What follows must leave it as it is.
func (s *Scene) Settle() {
	s.T.Helper()
	if !countsMemory() {
		return
	}
	RequireFree(s.T, s.free-driverKeeps)
	s.free = min(s.free, FreeMemory(s.T))
}

// freePatience is how long a driver may take to give memory back.
const freePatience = 40 * time.Second

// RequireFree waits until so much device memory is free: a driver takes a
// moment to give back what a killed process had.
func RequireFree(t testing.TB, want uint64) {
	t.Helper()
	Within(t, min(Patience, freePatience), func() bool { return FreeMemory(t) >= want }, "device memory is missing: %d bytes were free and now %d are",
		want, Late(func() any { return FreeMemory(t) }))
}

// A Late is an argument whose value is wanted late.
type Late func() any

// Format is what package fmt calls.
func (f Late) Format(s fmt.State, verb rune) { fmt.Fprintf(s, "%"+string(verb), f()) }

// Eventually polls until ok, for as long as the patience lasts.
func Eventually(t testing.TB, ok func() bool, format string, args ...any) {
	t.Helper()
	Within(t, Patience, ok, format, args...)
}

// Within polls until ok, for so long.
func Within(t testing.TB, limit time.Duration, ok func() bool, format string, args ...any) {
	t.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(limit); !ok(); <-tick.C {
		if time.Now().After(end) {
			t.Fatalf(format, args...)
		}
	}
}

// Producer starts one on the scene's socket.
func (s *Scene) Producer(args ...string) *Process { return s.Start("producer", nil, args...) }

// Consumer starts one on the scene's socket.
func (s *Scene) Consumer(args ...string) *Process { return s.Start("consumer", nil, args...) }

// Start starts a program with the scene's socket and the driver that tests run
// on, unless args and env say otherwise.
func (s *Scene) Start(program string, env []string, args ...string) *Process {
	s.T.Helper()
	env = append([]string{"GPUFD_DRIVER=" + cutest.Kind().String()}, env...)
	return Start(s.T, program, ProgramPath(s.T, program), env, append([]string{"-socket", s.Socket}, args...)...)
}

// Serving starts a producer and waits until it serves.
func (s *Scene) Serving(args ...string) *Process {
	s.T.Helper()
	p := s.Producer(args...)
	p.WaitLine("Waiting for consumer connection...")
	return p
}

// Attach attaches this process to the scene's producer, by either kind of handle.
func (s *Scene) Attach(opts share.AttachOptions) (*share.Attachment, error) {
	s.T.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), Patience)
	defer cancel()
	opts.Legacy = true
	return share.Attach(ctx, s.Socket, cli.OfferName, cutest.Device(s.T), &opts)
}

// MustAttach is attach that works; the attachment ends with the test.
func (s *Scene) MustAttach(opts share.AttachOptions) *share.Attachment {
	s.T.Helper()
	att, err := s.Attach(opts)
	require.NoError(s.T, err)
	s.T.Cleanup(func() { require.NoError(s.T, att.Close()) })
	return att
}

// Report gives the producer a verdict.
func Report(t testing.TB, att *share.Attachment, fault error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), Patience)
	defer cancel()
	require.NoError(t, att.Report(ctx, fault))
}

// RequirePattern checks that the memory at p holds what a producer wrote.
func RequirePattern(t testing.TB, dev *cu.Device, p cu.DevicePtr, size uint64) {
	t.Helper()
	host := make([]byte, size)
	require.NoError(t, cu.CopyToHost(cutest.Context(t, dev), host, p))
	require.Zero(t, pattern.Check(host, 0, 0))
}

// OpenFDs maps the open descriptors of a process to what they refer to. It leaves out the one that package mapped keeps.
func OpenFDs(pid string) map[int]string {
	fds := map[int]string{}
	names, _ := filepath.Glob("/proc/" + pid + "/fd/*")
	for _, name := range names {
		if target, err := os.Readlink(name); err == nil && target != mapped.Link {
			fd, _ := strconv.Atoi(filepath.Base(name))
			fds[fd] = target
		}
	}
	return fds
}

// Memory reads a value of /proc/PID/status, in bytes.
func Memory(t testing.TB, pid int, name string) int {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	require.NoError(t, err)
	for line := range strings.Lines(string(b)) {
		if value, ok := strings.CutPrefix(line, name+":"); ok {
			kib, err := strconv.Atoi(strings.TrimSuffix(strings.TrimSpace(value), " kB"))
			require.NoError(t, err)
			return kib << 10
		}
	}
	t.Fatalf("no %s in /proc/%d/status", name, pid)
	return 0
}

// State is the letter that /proc has for what a process is at.
func State(pid int) byte {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	_, after, _ := strings.Cut(string(b), ") ")
	return slices.Concat([]byte(after), []byte{0})[0]
}

func KindName() string { return cutest.Kind().String() }

func Decimal(n uint64) string { return strconv.FormatUint(n, 10) }

// Flipped starts a producer for two consumers and is the first of them itself:
// it flips a bit and reports that all is well.
func (s *Scene) Flipped(size, chunk, offset uint64, bit int, more ...string) *Process {
	args := append([]string{"-access", "rw", "-consumers", "2", "-size", Decimal(size)}, more...)
	if chunk != 0 {
		args = append(args, "-chunk", Decimal(chunk))
	}
	producer := s.Serving(args...)
	att := s.MustAttach(share.AttachOptions{Access: cu.ReadWrite})
	flip(s.T, att.Device(), att.Ptr().Add(offset), bit)
	Report(s.T, att, nil)
	return producer
}

// flip changes one bit of device memory.
func flip(t testing.TB, dev *cu.Device, p cu.DevicePtr, bit int) {
	t.Helper()
	ctx := cutest.Context(t, dev)
	one := make([]byte, 1)
	require.NoError(t, cu.CopyToHost(ctx, one, p))
	one[0] ^= 1 << bit
	require.NoError(t, cu.CopyToDevice(ctx, p, one))
}

// Reclaimed checks that a killed producer has left its socket file and lock file,
// and that the next one takes them over and tidies up.
func (s *Scene) Reclaimed() {
	s.T.Helper()
	require.Equal(s.T, []string{"s", "s.lock"}, s.Listing())
	producer := s.Serving()
	s.Consumer().Succeeds()
	producer.Succeeds()
	require.Empty(s.T, s.Listing())
}

// Kill kills a producer and waits until nobody answers at its socket: that can
// outlive the process by a moment.
func (s *Scene) Kill(producer *Process) {
	s.T.Helper()
	producer.Kill()
	s.Forsaken()
}

// Forsaken waits until nobody answers at the socket.
func (s *Scene) Forsaken() {
	s.T.Helper()
	Eventually(s.T, func() bool {
		conn, err := sock.Dial(context.Background(), s.Socket)
		_ = conn.Close() // if there is one, nobody is at its other end
		return errors.Is(err, sock.ErrNoListener)
	}, "somebody answers at the socket of a killed producer")
}

// Enough is a -timeout within which a consumer that is well starts and gets
// through each step, and that a test can wait for.
var Enough = map[bool]string{false: "8s", true: "20s"}[cutest.Emulated()]

func AlignUp(n, unit uint64) uint64 { return (n + unit - 1) / unit * unit }

const (
	KiB = uint64(1) << 10
	MiB = uint64(1) << 20
	GiB = uint64(1) << 30
)

// TwoUUIDs are those of the first two devices, or t is skipped.
func TwoUUIDs(t *testing.T) (a, b string) {
	t.Helper()
	first, second := cutest.TwoDevices(t, cutest.Driver(t))
	return first.UUID().String(), second.UUID().String()
}

// SoftFiles returns the software driver's files with memory in dir.
func SoftFiles(t testing.TB, dir string) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*.mem"))
	require.NoError(t, err)
	return files
}

// OwnSoftDir returns a directory that only t uses for the software driver. All memory there must
// have been freed when t ends; a process that was killed leaves it to the next one.
func OwnSoftDir(t testing.TB) (dir string) {
	t.Helper()
	dir, err := os.MkdirTemp("", "gpufd-soft-") // mode 0700, as the driver wants it
	require.NoError(t, err)
	t.Cleanup(func() {
		defer os.RemoveAll(dir)
		if !t.Failed() && len(SoftFiles(t, dir)) > 0 {
			next := exec.Command(ProgramPath(t, "producer"), "-driver", "soft", "-size", "1", "-timeout", "1ms", "-socket", filepath.Join(dir, "s"))
			next.Env = append(ProgramEnv(), "GPUFD_SOFT_DIR="+dir)
			_ = next.Run() // it reclaims, and no consumer comes
			require.Empty(t, SoftFiles(t, dir), "memory of the software driver")
		}
	})
	return dir
}

// OwnDevices returns the environment of a program that shares devices with nobody outside of t.
// On a GPU it checks that their memory is as free at the end as before.
func OwnDevices(t testing.TB) []string {
	t.Helper()
	if cutest.Kind() == cu.Soft {
		return []string{"GPUFD_DRIVER=soft", "GPUFD_SOFT_DIR=" + OwnSoftDir(t)}
	}
	for _, dev := range cutest.Driver(t).Devices() {
		if !countsMemory() {
			break
		}
		free := cutest.FreeMemory(t, dev)
		t.Cleanup(func() {
			if !t.Failed() {
				Eventually(t, func() bool { return cutest.FreeMemory(t, dev) >= free }, "memory of %v is missing: %d bytes were free", dev, free)
			}
		})
	}
	return []string{"GPUFD_DRIVER=cuda"}
}

// Meeting is a scene in which a GPU's driver may keep what it does from the first time on:
// these tests can be run alone.
func Meeting(t testing.TB) *Scene {
	t.Helper()
	s := NewScene(t)
	t.Cleanup(func() {
		if cutest.Kind() == cu.CUDA && !t.Failed() {
			s.Settle()
		}
	})
	return s
}

// Child starts this test binary as the child process that role names. front, if any, is a
// program that starts it.
func (s *Scene) Child(front []string, role string, env []string, args ...string) *Process {
	s.T.Helper()
	cmd := cutest.Child(context.Background(), role, append([]string{"GPUFD_DRIVER=" + KindName()}, env...)...)
	cmd.Args = append(cmd.Args, args...)
	if front != nil {
		cutest.Front(s.T, cmd, front, args...)
	}
	return StartCommand(s.T, role, cmd, nil)
}
