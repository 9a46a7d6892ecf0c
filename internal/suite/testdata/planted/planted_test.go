// Package planted has tests that end in every way in which a test can end. They
// are run by the tests of the program two directories above, and by no other.
package planted

import (
	"fmt"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestPasses(t *testing.T) { t.Log("of course") }

func TestFails(t *testing.T) { t.Error("two and two are five") }

func TestAsserts(t *testing.T) { require.Equal(t, 4, 2+3, "arithmetic") }

func TestSkips(t *testing.T) { t.Skip("takes two devices, has 1") }

func TestPanics(t *testing.T) { panic("planted") }

func TestCrashes(t *testing.T) {
	go func() { panic("planted elsewhere") }()
	select {}
}

func TestExits(t *testing.T) { os.Exit(0) }

func TestIsKilled(t *testing.T) { _ = syscall.Kill(os.Getpid(), syscall.SIGKILL); select {} }

func TestHangs(t *testing.T) { time.Sleep(time.Hour) }

func TestIsStopped(t *testing.T) {
	_ = syscall.Kill(os.Getpid(), syscall.SIGSTOP)
	<-t.Context().Done() // the signal may be another thread's first: nothing else ends it
}

// What a test prints is not what became of it.
func TestLies(t *testing.T) {
	fmt.Print("--- PASS: TestLies (0.00s)\n--- FAIL: TestPasses (0.00s)\nno newline")
	t.Error("a lie")
}

func TestTable(t *testing.T) {
	for name, f := range map[string]func(t *testing.T){
		"fault 1: good":           func(t *testing.T) {},
		"fault 1 and 2: good too": func(t *testing.T) {},
		"fault 2: skipped":        func(t *testing.T) { t.Skip("only root can") },
		"fault 12: bad":           func(t *testing.T) { t.Error("bad") },
	} {
		t.Run(name, f)
	}
}

func TestAround(t *testing.T) {
	t.Run("fault 1: good", func(t *testing.T) {})
	t.Error("left something behind")
}

func TestMain(m *testing.M) {
	code := m.Run()
	if os.Getenv("PLANTED_LEAK") != "" && code == 0 {
		fmt.Println("leak: the tests passed but left behind:\n  a planted thing")
		code = 1
	}
	os.Exit(code)
}

// TestRunsAlone is skipped beside others, as cutest.Alone does it.
func TestRunsAlone(t *testing.T) {
	if os.Getenv("GPUFD_SHARED_GPU") == "1" {
		t.Skip("runs alone: it counts")
	}
}

// TestFailsBeside fails in one part, where another is left for later.
func TestFailsBeside(t *testing.T) {
	if os.Getenv("GPUFD_SHARED_GPU") == "1" {
		t.Run("fails", func(t *testing.T) { t.Error("only beside others") })
		t.Run("waits", func(t *testing.T) { t.Skip("runs alone: it counts") })
	}
}

// TestPanicsBeside panics when another part is being looked at.
func TestPanicsBeside(t *testing.T) {
	for _, name := range []string{"x", "y"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if name == "y" {
				panic("planted in parallel")
			}
			select {}
		})
	}
}

func TestOfTwoDevices(t *testing.T) { needsTwo(t) }

func needsTwo(t *testing.T) { TwoDevices(t) }

func TwoDevices(t *testing.T) { t.Skip("takes two devices") }
