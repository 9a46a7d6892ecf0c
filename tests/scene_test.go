package tests

import (
	"context"
	"errors"
	"fmt"
	"os"
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
	"github.com/gpufd/gpufd/internal/pattern"
	"github.com/gpufd/gpufd/internal/testenv"
	"github.com/gpufd/gpufd/share"
	"github.com/gpufd/gpufd/sock"
)

// A scene is a place for processes to meet: a directory of its own with a
// socket in it. When the test ends, the directory has to be empty again and
// the device's memory as free as before (invariants 3, 4 and 8).
type scene struct {
	t      testing.TB
	dir    string
	socket string
	keeps  []string // names that may stay in dir
	free   uint64   // bytes of device memory that must be free at the end
}

func newScene(t testing.TB) *scene {
	t.Helper()
	dir, err := os.MkdirTemp(shortTempDir(), "gpufd-")
	require.NoError(t, err)
	s := &scene{t: t, dir: dir, socket: filepath.Join(dir, "s")}
	if !cutest.Shared() {
		s.free = freeMemory(t)
	}
	t.Cleanup(func() {
		defer os.RemoveAll(dir)
		if t.Failed() {
			return
		}
		require.Subset(t, s.keeps, s.listing(), "left in the socket's directory")
		require.NotContains(t, s.listing(), "s.lock", "left in the socket's directory")
		if !cutest.Shared() { // else who started the tests looks at it behind the last
			requireFree(t, s.free)
		}
	})
	return s
}

// shortTempDir leaves room for the 107 bytes of a socket's path.
func shortTempDir() string {
	if dir := os.TempDir(); len(dir) < 60 {
		return dir
	}
	return "/tmp"
}

// keep says that the test itself has put those names into the directory.
func (s *scene) keep(names ...string) { s.keeps = append(s.keeps, names...) }

func (s *scene) listing() []string {
	s.t.Helper()
	entries, err := os.ReadDir(s.dir)
	require.NoError(s.t, err)
	names := make([]string, len(entries))
	for i, e := range entries {
		names[i] = e.Name()
	}
	return names
}

// driverKeeps is more than what a GPU's driver keeps from the first time on that
// something is done, and less than what the context of a process takes.
const driverKeeps = 16 << 20

// settle takes the device memory that is free now for the scene's: what the driver keeps
// of what was done so far is nobody's leak. What follows must leave it as it is.
func (s *scene) settle() {
	s.t.Helper()
	if cutest.Shared() {
		return
	}
	requireFree(s.t, s.free-driverKeeps)
	s.free = min(s.free, freeMemory(s.t))
}

// freePatience is how long a driver may take to give memory back.
const freePatience = 40 * time.Second

// requireFree waits until so much device memory is free: a driver takes a
// moment to give back what a killed process had.
func requireFree(t testing.TB, want uint64) {
	t.Helper()
	within(t, min(patience, freePatience), func() bool { return freeMemory(t) >= want }, "device memory is missing: %d bytes were free and now %d are",
		want, fmtFunc(func() any { return freeMemory(t) }))
}

// A fmtFunc is an argument whose value is wanted late.
type fmtFunc func() any

// Format is what package fmt calls.
func (f fmtFunc) Format(s fmt.State, verb rune) { fmt.Fprintf(s, "%"+string(verb), f()) }

// eventually polls until ok, for as long as the patience lasts.
func eventually(t testing.TB, ok func() bool, format string, args ...any) {
	t.Helper()
	within(t, patience, ok, format, args...)
}

// within polls until ok, for so long.
func within(t testing.TB, limit time.Duration, ok func() bool, format string, args ...any) {
	t.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(limit); !ok(); <-tick.C {
		if time.Now().After(end) {
			t.Fatalf(format, args...)
		}
	}
}

// producer starts one on the scene's socket.
func (s *scene) producer(args ...string) *process { return s.start("producer", nil, args...) }

// consumer starts one on the scene's socket.
func (s *scene) consumer(args ...string) *process { return s.start("consumer", nil, args...) }

// start starts a program with the scene's socket and the driver that tests run
// on, unless args and env say otherwise.
func (s *scene) start(program string, env []string, args ...string) *process {
	s.t.Helper()
	env = append([]string{"GPUFD_DRIVER=" + cutest.Kind().String()}, env...)
	return start(s.t, program, programPath(s.t, program), env, append([]string{"-socket", s.socket}, args...)...)
}

// serving starts a producer and waits until it serves.
func (s *scene) serving(args ...string) *process {
	s.t.Helper()
	p := s.producer(args...)
	p.waitLine("Waiting for consumer connection...")
	return p
}

// attach has this process be a consumer of the scene's producer, whatever that offers.
func (s *scene) attach(opts ...share.AttachOption) (*share.Attachment, error) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	opts = append([]share.AttachOption{share.WithHandle(share.HandleFD, share.HandleLegacy)}, opts...)
	return share.Attach(ctx, s.socket, cli.OfferName, cutest.Device(s.t), opts...)
}

// mustAttach is attach that works; the attachment ends with the test.
func (s *scene) mustAttach(opts ...share.AttachOption) *share.Attachment {
	s.t.Helper()
	att, err := s.attach(opts...)
	require.NoError(s.t, err)
	s.t.Cleanup(func() { require.NoError(s.t, att.Close()) })
	return att
}

// report gives the producer a verdict.
func report(t testing.TB, att *share.Attachment, fault error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	require.NoError(t, att.Report(ctx, fault))
}

// requirePattern checks that the memory at p holds what a producer wrote.
func requirePattern(t testing.TB, dev *cu.Device, p cu.DevicePtr, size uint64) {
	t.Helper()
	host := make([]byte, size)
	require.NoError(t, cu.CopyToHost(cutest.Context(t, dev), host, p))
	require.Zero(t, pattern.Check(host, 0, 0))
}

// openFDs maps the open descriptors of a process to what they refer to.
func openFDs(pid string) map[int]string {
	fds := map[int]string{}
	names, _ := filepath.Glob("/proc/" + pid + "/fd/*")
	for _, name := range names {
		if target, err := os.Readlink(name); err == nil {
			fd, _ := strconv.Atoi(filepath.Base(name))
			fds[fd] = target
		}
	}
	return fds
}

// memory reads a value of /proc/PID/status, in bytes.
func memory(t testing.TB, pid int, name string) int {
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

// state is the letter that /proc has for what a process is at.
func state(pid int) byte {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	_, after, _ := strings.Cut(string(b), ") ")
	return slices.Concat([]byte(after), []byte{0})[0]
}

func kindName() string { return cutest.Kind().String() }

func decimal(n uint64) string { return strconv.FormatUint(n, 10) }

// flipped starts a producer for two consumers and is the first of them itself:
// it flips a bit and reports that all is well.
func (s *scene) flipped(size, chunk, offset uint64, bit int, more ...string) *process {
	args := append([]string{"-access", "rw", "-consumers", "2", "-size", decimal(size)}, more...)
	if chunk != 0 {
		args = append(args, "-chunk", decimal(chunk))
	}
	producer := s.serving(args...)
	att := s.mustAttach(share.WithAccess(share.ReadWrite))
	flip(s.t, att.Device(), att.Ptr().Add(offset), bit)
	report(s.t, att, nil)
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

// reclaimed checks that a killed producer has left its socket file and lock file,
// and that the next one takes them over and tidies up.
func (s *scene) reclaimed() {
	s.t.Helper()
	require.Equal(s.t, []string{"s", "s.lock"}, s.listing())
	producer := s.serving()
	s.consumer().succeeds()
	producer.succeeds()
	require.Empty(s.t, s.listing())
}

// kill kills a producer and waits until nobody answers at its socket: that can
// outlive the process by a moment.
func (s *scene) kill(producer *process) {
	s.t.Helper()
	producer.kill()
	s.forsaken()
}

// forsaken waits until nobody answers at the socket.
func (s *scene) forsaken() {
	s.t.Helper()
	eventually(s.t, func() bool {
		conn, err := sock.Dial(context.Background(), s.socket)
		_ = conn.Close() // if there is one, nobody is at its other end
		return errors.Is(err, sock.ErrNoListener)
	}, "somebody answers at the socket of a killed producer")
}

// enough is a -timeout within which a consumer that is well starts and gets
// through each step, and that a test can wait for.
var enough = map[bool]string{false: "8s", true: "20s"}[cutest.Emulated()]

func alignUp(n, unit uint64) uint64 { return (n + unit - 1) / unit * unit }

const (
	kib = uint64(1) << 10
	mib = uint64(1) << 20
	gib = uint64(1) << 30
)

// uuids are those of the first two devices, or t is skipped.
func uuids(t *testing.T) (a, b string) {
	t.Helper()
	first, second := cutest.TwoDevices(t, cutest.Driver(t))
	return first.UUID().String(), second.UUID().String()
}

// softFiles are the files of the software driver.
func softFiles(t *testing.T) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(os.Getenv("GPUFD_SOFT_DIR"), "*.mem"))
	require.NoError(t, err)
	return files
}

// meeting is a scene in which a GPU's driver may keep what it does from the first time on:
// these tests can be run alone.
func meeting(t testing.TB) *scene {
	t.Helper()
	s := newScene(t)
	t.Cleanup(func() {
		if cutest.Kind() == cu.CUDA && !t.Failed() {
			s.settle()
		}
	})
	return s
}

// child starts this test binary as the child process that role names. front, if any, is a
// program that starts it.
func (s *scene) child(front []string, role string, env []string, args ...string) *process {
	s.t.Helper()
	cmd := testenv.Child(context.Background(), role, args...)
	if front != nil {
		cutest.Front(s.t, cmd, front, args...)
	}
	// Without the last, each child of a binary with the race detector takes a second to end.
	return startCommand(s.t, role, cmd, append([]string{"GPUFD_DRIVER=" + kindName(), "GORACE=atexit_sleep_ms=0"}, env...))
}
