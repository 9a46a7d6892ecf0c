package handoff

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gpufd/gpufd/tests/internal/programs"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/cutest"
	"github.com/gpufd/gpufd/share"
	"github.com/gpufd/gpufd/sock"
)

// piped starts a program on the scene's socket whose output goes into a small pipe, and
// returns the end to read from.
func piped(s *programs.Scene, program string, args ...string) (*programs.Process, *os.File) {
	s.T.Helper()
	r, w, err := os.Pipe()
	require.NoError(s.T, err)
	s.T.Cleanup(func() { r.Close() })
	require.NoError(s.T, r.SetReadDeadline(time.Now().Add(programs.Patience)))
	_, err = unix.FcntlInt(w.Fd(), unix.F_SETPIPE_SZ, 4096)
	require.NoError(s.T, err)
	cmd := exec.Command(programs.ProgramPath(s.T, program), append([]string{"-socket", s.Socket}, args...)...)
	cmd.Stdout = w
	p := programs.StartCommand(s.T, program, cmd, []string{"GPUFD_DRIVER=" + programs.KindName()})
	require.NoError(s.T, w.Close())
	return p, r
}

// awaitLine reads until a line that holds words.
func awaitLine(t testing.TB, r *bufio.Scanner, words string) {
	t.Helper()
	for r.Scan() {
		if strings.Contains(r.Text(), words) {
			return
		}
	}
	t.Fatalf("no line with %q", words)
}

// TestNobodyReads: a producer whose output nobody reads serves on, says how much was
// dropped when somebody reads again, and ends when it is told to. That is a failure if
// nobody reads its last lines.
//
//fault:rows 73
func TestNobodyReads(t *testing.T) {
	programs.Parallel(t)
	cutest.ProvenOnSoft(t)
	for name, c := range map[string]struct {
		args    []string
		dropped string
	}{
		"text": {nil, " lines were dropped: the output was not read"},
		"json": {args("-json"), `{"event":"dropped","lines":`},
	} {
		t.Run(name, func(t *testing.T) {
			programs.Parallel(t)
			s := programs.NewScene(t)
			producer, out := piped(s, "producer", append(c.args, "-consumers", "0")...)
			programs.Eventually(t, func() bool { // the file is there a moment before anybody listens
				conn, err := sock.Dial(t.Context(), s.Socket)
				return err == nil && conn.Close() == nil
			}, "nobody listens")
			for range 250 { // of whom each is a few lines
				consume(s, t)
			}
			lines := bufio.NewScanner(out)
			awaitLine(t, lines, c.dropped)
			for range 50 { // for more than the pipe takes
				consume(s, t)
			}
			producer.Signal(syscall.SIGTERM)
			producer.Fails(1, "writing the output: nobody reads the last lines")
		})
	}
}

// consume attaches from this process, and reports that nothing is wrong.
func consume(s *programs.Scene, t testing.TB) {
	t.Helper()
	att := ok(s.Attach(share.AttachOptions{}))(t)
	programs.Report(t, att, nil)
	require.NoError(t, att.Close())
}

// TestReaderIsGone: who writes into a pipe that nobody can read any more, as before
// "| head -1", ends in order.
//
//fault:rows 73
func TestReaderIsGone(t *testing.T) {
	programs.Parallel(t)
	cutest.ProvenOnSoft(t)
	for name, given := range map[string][]string{"text": nil, "json": args("-json")} {
		t.Run(name, func(t *testing.T) {
			s := programs.NewScene(t)
			producer, out := piped(s, "producer", append(given, "-consumers", "0")...)
			programs.Eventually(t, func() bool { _, err := os.Stat(s.Socket); return err == nil }, "no socket")
			awaitLine(t, bufio.NewScanner(out), map[string]string{"text": "Waiting for consumer", "json": `"event":"waiting"`}[name])
			require.NoError(t, out.Close())
			_, err := s.Attach(share.AttachOptions{Access: cu.ReadWrite}) // it is refused, which is a line
			require.Error(t, err)
			producer.Fails(1, "writing the output: ", "broken pipe")
			require.Empty(t, s.Listing())
		})
	}
}

// TestHangup: SIGHUP ends a program as SIGTERM does, unless nohup(1) started it.
//
//fault:rows 74
func TestHangup(t *testing.T) {
	programs.Parallel(t)
	hangups := make(chan os.Signal, 1) // taken, so that children do not have them ignored, as under nohup(1)
	signal.Notify(hangups, syscall.SIGHUP)
	defer signal.Stop(hangups)
	_, producer := serving(t, "-consumers", "0")
	producer.Signal(syscall.SIGHUP)
	producer.WaitLine("Interrupted while serving")
	producer.Succeeds()

	s := programs.NewScene(t)
	producer = programs.Start(t, "producer", "/bin/sh", []string{"GPUFD_DRIVER=" + programs.KindName()},
		"-c", `trap "" HUP; exec "$0" "$@"`, programs.ProgramPath(t, "producer"), "-socket", s.Socket, "-consumers", "0")
	producer.WaitLine("Waiting for consumer connection...")
	producer.Signal(syscall.SIGHUP)
	consume(s, t)
	producer.WaitLine("Consumer verified data successfully!")
	endsInOrder(producer)
}

// A stuck is a software driver whose calls can be made to hang: its directory's lock is
// what they wait for.
type stuck struct {
	t   testing.TB
	dir string
}

func newStuck(t testing.TB) *stuck {
	t.Helper()
	if cutest.Kind() != cu.Soft {
		t.Skip("the software driver's calls can be made to hang")
	}
	return &stuck{t, programs.OwnSoftDir(t)}
}

// env has a program use it.
func (d *stuck) env() string { return "GPUFD_SOFT_DIR=" + d.dir }

// lock makes calls hang until unlock is called, or the test ends.
func (d *stuck) lock() {
	d.t.Helper()
	f, err := os.OpenFile(filepath.Join(d.dir, "lock"), os.O_RDWR|os.O_CREATE, 0o600)
	require.NoError(d.t, err)
	d.t.Cleanup(func() { f.Close() })
	require.NoError(d.t, unix.Flock(int(f.Fd()), unix.LOCK_EX))
}

// hangs waits until a process does.
func (d *stuck) hangs(p *programs.Process) {
	d.t.Helper()
	waits := fmt.Sprintf("-> FLOCK  ADVISORY  WRITE %d ", p.PID())
	programs.Eventually(d.t, func() bool {
		locks, err := os.ReadFile("/proc/locks")
		require.NoError(d.t, err)
		return p.Ended() || strings.Contains(string(locks), waits)
	}, "%s does not hang", p.Name)
}

// TestHangingDriver: a call of the driver that does not return ends the program, which
// says where, when -timeout is over.
//
//fault:rows 74
func TestHangingDriver(t *testing.T) {
	programs.Parallel(t)
	d := newStuck(t)
	d.lock()
	s := programs.NewScene(t)
	all := []*programs.Process{
		s.Start("producer", args(d.env()), "-timeout", "1s"), s.Start("consumer", args(d.env()), "-timeout", "1s", "-json"),
		programs.Start(t, "ring", programs.ProgramPath(t, "ring"), args("GPUFD_DRIVER=soft", d.env()), "-timeout", "1s"),
		programs.Start(t, "launch", programs.ProgramPath(t, "launch"), args("GPUFD_DRIVER=soft", d.env()), "-timeout", "1s", "-builtin", "vector", "-list"),
	}
	for _, p := range all {
		p.Fails(4, "nothing happened for 4s", `hangs in the step "driver"`, "-timeout")
	}
	last, _ := all[1].Result()
	require.EqualValues(t, 4, last["exit"])
}

// TestHangingEnd: a program that was told to end and hangs ends when its time is over,
// and at once when it is told again. It leaves no socket and no lock.
//
//fault:rows 74
func TestHangingEnd(t *testing.T) {
	programs.Parallel(t)
	for name, c := range map[string]struct {
		again bool
		code  int
		says  string
	}{
		"time is over": {false, 4, "did not end in order within 4s"},
		"told again":   {true, 1, "terminated came a second time: ended at once"},
	} {
		t.Run(name, func(t *testing.T) {
			programs.Parallel(t)
			d := newStuck(t)
			s := programs.NewScene(t)
			hoarder := s.Child(nil, childHoards, args(smallDevice, d.env()))
			hoarder.WaitLine("holding")
			p := s.Start("producer", args(smallDevice, d.env()), "-size", wanted, "-wait", "1h", "-timeout", "1s")
			p.WaitLine("Waiting for device memory, for 1h0m0s at most")
			d.lock()
			d.hangs(p)
			require.Len(t, s.Listing(), 2, "its socket and lock")
			p.Signal(syscall.SIGTERM)
			if c.again {
				// The first one may not have been taken yet, and two are one then.
				programs.Eventually(t, func() bool {
					p.Signal(syscall.SIGTERM)
					return p.Ended()
				}, "%s does not end", p.Name)
			}
			p.Fails(c.code, c.says)
			require.Empty(t, s.Listing())
			hoarder.Kill()
		})
	}
}

// limited starts a program that can have that many descriptors open.
func limited(s *programs.Scene, n int, program string, more ...string) *programs.Process {
	s.T.Helper()
	return programs.Start(s.T, program, "/bin/sh", []string{"GPUFD_DRIVER=" + programs.KindName()}, append([]string{
		"-c", `n=$1; shift; ulimit -n "$n"; exec "$@"`, "sh", fmt.Sprint(n), programs.ProgramPath(s.T, program), "-socket", s.Socket}, more...)...)
}

// lackOfDescriptors is what programs say that start with too few.
const lackOfDescriptors = "raise it with ulimit -n"

// TestFewDescriptors: however few descriptors a program may have, it does its work or
// says in a line what this machine lacks. Below 4 it is not loaded.
//
//fault:rows 75
func TestFewDescriptors(t *testing.T) {
	programs.Parallel(t)
	cutest.ProvenOnSoft(t)
	if cutest.Emulated() {
		t.Skip("qemu-user needs descriptors itself")
	}
	s := programs.NewScene(t)
	forever := s.Serving("-consumers", "0")
	for n := 4; n <= 32; n++ {
		ended := limited(s, n, "consumer")
		requireEither(t, ended, n)

		other := programs.NewScene(t)
		producer := limited(other, n, "producer")
		programs.Eventually(t, func() bool { return producer.Ended() || len(programs.Find(producer, "Waiting for consumer")) > 0 }, "%s: %s", producer.Name, programs.Late(func() any { return producer.Dump() }))
		if !producer.Ended() {
			consume(other, t)
		}
		requireEither(t, producer, n)
		require.Empty(t, other.Listing())
	}
	forever.Signal(syscall.SIGTERM)
	forever.Succeeds()
}

// requireEither wants a program to have ended well or, with few descriptors, for want of
// them.
func requireEither(t *testing.T, p *programs.Process, n int) {
	t.Helper()
	switch code := p.Wait(); {
	case code == 0:
		require.Greater(t, n, 8, p.Dump())
		p.Succeeds()
	default:
		require.Less(t, n, 32, p.Dump())
		p.Fails(3, lackOfDescriptors)
	}
}

// TestFullDirectory: where the software driver's directory cannot be made, this machine
// cannot.
//
//fault:rows 75
func TestFullDirectory(t *testing.T) {
	programs.Parallel(t)
	newStuck(t) // the software driver
	in := cutest.Namespaced(t)
	dir := t.TempDir()
	for name, c := range map[string]struct{ options, soft string }{
		"no room for a file": {"nr_inodes=1", dir + "/soft"},
		"no room for a byte": {"size=4k", dir},
	} {
		t.Run(name, func(t *testing.T) {
			s := programs.NewScene(t)
			for _, program := range []string{"producer", "consumer"} {
				p := programs.Start(t, program, in[0], args("GPUFD_DRIVER=soft", "GPUFD_SOFT_DIR="+c.soft), append(in[1:len(in):len(in)], "/bin/sh", "-c",
					`mount -t tmpfs -o "mode=0700,$1" full "$2" && { head -c 8192 /dev/zero >"$2/filler" || true; } 2>/dev/null && shift 2 && exec "$@"`,
					"sh", c.options, dir, programs.ProgramPath(t, program), "-socket", s.Socket)...)
				p.Fails(3, "the software driver cannot use its directory: GPUFD_SOFT_DIR=", "no space left on device")
			}
		})
	}
}

// TestMaxSize: a consumer takes no more than it wants, and the producer serves the next.
//
//fault:rows 76
func TestMaxSize(t *testing.T) {
	programs.Parallel(t)
	t.Run("the granularity does not count", func(t *testing.T) {
		s, producer := serving(t, "-size", "1MiB", "-consumers", "2")
		s.Consumer("-max-size", "1048575").Fails(1, "larger than this side accepts: 1048576 bytes in 1 chunk of 2097152; want 1048575 bytes at most")
		s.Consumer("-max-size", "1MiB").Succeeds()
		producer.Fails(1, "consumer 1 ", "larger than this side accepts")
	})
	s, producer := serving(t, "-size", "6MiB", "-chunk", "2MiB", "-consumers", "2")
	s.Consumer("-max-size", "5MiB").Fails(1, "5242880 bytes at most")
	s.Consumer("-max-size", "6MiB").Succeeds()
	producer.Fails(1, "consumer 1 ", "larger than this side accepts")
	s.Consumer("-max-size", "0").Fails(2, "-max-size", "more than 0")
	s.Consumer("-max-size", "much").Fails(2, "-max-size")
}
