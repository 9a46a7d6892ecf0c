package leak

import (
	"bytes"
	"flag"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gpufd/gpufd/internal/descriptor/fdtrace"
	"github.com/gpufd/gpufd/internal/testenv"
)

// plantEnv names the one of plants that this process is to leave behind.
const plantEnv = testenv.PlantVar

func TestMain(m *testing.M) {
	run := m.Run
	if plant := os.Getenv(plantEnv); plant != "" {
		run = plants[plant]
	}
	os.Exit(Check(run))
}

// plants leave something behind, as tests that return that exit code.
var plants = map[string]func() int{
	"nothing":       func() int { return 0 },
	"descriptor":    plantDescriptor,
	"foreign":       plantForeign,
	"a profile":     plantProfile,
	"goroutine":     plantGoroutine,
	"ends soon":     plantWhatEndsSoon,
	"failed":        func() int { return 2 },
	"failed, leaks": func() int { return 2 * (1 + plantDescriptor()) },
}

var kept []any

func plantDescriptor() int {
	fd, err := unix.Dup(0)
	if err != nil {
		return 9
	}
	kept = append(kept, fdtrace.File(fd, "planted"))
	return 0
}

func plantForeign() int {
	f, err := os.Open("/dev/zero")
	if err != nil {
		return 9
	}
	kept = append(kept, f)
	return 0
}

// plantProfile leaves open what package testing does.
func plantProfile() int {
	if err := flag.Set("test.cpuprofile", "elsewhere/zero"); err != nil {
		return 9
	}
	return plantForeign()
}

func plantGoroutine() int {
	go waitForever(make(chan int))
	return 0
}

func waitForever(c chan int) { <-c }

// plantWhatEndsSoon leaves what is gone before the check gives up.
func plantWhatEndsSoon() int {
	c := make(chan int)
	go waitForever(c)
	go func() {
		for range 20 { // the check polls meanwhile, and has time to spare
			OpenFDs()
			time.Sleep(time.Millisecond)
		}
		close(c)
	}()
	return 0
}

// A planted leak fails a run whose tests pass, and is told of in one that
// failed anyhow. The report names the function that made it.
func TestPlantedLeaksFailTheRun(t *testing.T) {
	checks := map[string]func(*testing.T){} // the processes run side by side
	const pkg = "github.com/gpufd/gpufd/internal/testenv/leak."
	for plant, want := range map[string]struct {
		code  int
		words []string
	}{
		"nothing":       {0, nil},
		"a profile":     {0, nil},
		"ends soon":     {0, nil},
		"failed":        {2, nil},
		"descriptor":    {1, []string{"passed but left behind", "1 more of /dev/null than before; descriptor ", "made at\n    " + pkg + "plantDescriptor\n", "leak_test.go:"}},
		"foreign":       {1, []string{"1 more of /dev/zero than before; descriptor ", "was not made by a package of gpufd"}},
		"goroutine":     {1, []string{"a goroutine runs that did not before", "[chan receive]", pkg + "waitForever(", "created by " + pkg + "plantGoroutine"}},
		"failed, leaks": {2, []string{"failed, and left behind", pkg + "plantDescriptor"}},
	} {
		var out bytes.Buffer
		cmd := exec.CommandContext(t.Context(), "/proc/self/exe")
		cmd.Env = append(os.Environ(), plantEnv+"="+plant)
		if want.words != nil { // it is there for as long as it is waited for
			cmd.Env = append(cmd.Env, PatienceEnv+"=300ms")
		}
		cmd.Stdout, cmd.Stderr = &out, &out
		require.NoError(t, cmd.Start())
		checks[plant] = func(t *testing.T) {
			_ = cmd.Wait() // its ProcessState says it all
			require.Equal(t, want.code, cmd.ProcessState.ExitCode(), "%s", &out)
			for _, w := range want.words {
				require.Contains(t, out.String(), w)
			}
			require.Equal(t, len(want.words) == 0, out.Len() == 0, "%s", &out)
		}
	}
	for plant, check := range checks {
		t.Run(plant, check)
	}
}

func open(t *testing.T, name string) *os.File {
	t.Helper()
	f, err := os.Open(name)
	require.NoError(t, err)
	t.Cleanup(func() { _ = f.Close() })
	return f
}

// One that takes the place of another of its kind is none too many.
func TestReplacedDescriptorIsNotFound(t *testing.T) {
	old := open(t, "/dev/zero")
	before := OpenFDs()
	replaced := open(t, "/dev/zero")
	require.NoError(t, old.Close())
	require.Empty(t, OpenFDs().Since(before))
	second := open(t, "/dev/zero")
	require.Len(t, OpenFDs().Since(before), 1)
	require.NoError(t, second.Close())
	require.NoError(t, replaced.Close())
}

// Sockets have numbers, and count as one kind all the same.
func TestSocketsAreOneKind(t *testing.T) {
	before := OpenFDs()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	left := OpenFDs().Since(before)
	require.Len(t, left, 1)
	require.True(t, strings.HasPrefix(left[0], "2 more of socket than before; descriptor "), left[0])
	require.Equal(t, 2, strings.Count(left[0], "descriptor "))
	require.NoError(t, unix.Close(fds[0]))
	require.NoError(t, unix.Close(fds[1]))
}

// The number of a descriptor that is closed may be another's: its maker is not
// blamed for that.
func TestStaleStackIsNotBlamed(t *testing.T) {
	null, zero := open(t, "/dev/null"), open(t, "/dev/zero")
	before := OpenFDs()
	fd, err := unix.Dup(int(null.Fd()))
	require.NoError(t, err)
	f := fdtrace.File(fd, "null")
	require.Contains(t, OpenFDs().Since(before)[0], "TestStaleStackIsNotBlamed")
	require.NoError(t, f.Close())
	require.NoError(t, unix.Dup3(int(zero.Fd()), fd, unix.O_CLOEXEC))
	defer unix.Close(fd)
	require.NotContains(t, strings.Join(OpenFDs().Since(before), ""), "was made at")
}

// Descriptors that libcuda opens by itself do not count, ours do.
func TestLibcudasDescriptorsDoNotCount(t *testing.T) {
	t.Setenv("GPUFD_DRIVER", "cuda")
	before := OpenFDs()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	require.Empty(t, OpenFDs().Since(before))
	ours := fdtrace.File(fds[0], "ours")
	require.Len(t, OpenFDs().Since(before), 1)
	require.NoError(t, ours.Close())
	require.NoError(t, unix.Close(fds[1]))
}
