package fdstore

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpufd/gpufd/internal/testenv"
	"github.com/gpufd/gpufd/internal/testenv/leak"
)

// childPrefix before the first argument makes the test binary one of children.
const childPrefix = "child:"

var children = map[string]func(args []string) error{
	"store":   func(args []string) error { return Run(context.Background(), args[0], func() {}) },
	"narrow":  narrowStore,
	"deaf":    func([]string) error { time.Sleep(time.Hour); return nil },
	"keeper":  dyingKeeper,
	"spawner": spawner,
}

// TestMain fails when the tests leave a descriptor open or a goroutine running
// (invariant 3).
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && strings.HasPrefix(os.Args[1], childPrefix) {
		os.Exit(childMain(strings.TrimPrefix(os.Args[1], childPrefix), os.Args[2:]))
	}
	os.Exit(leak.Check(m.Run))
}

func childMain(name string, args []string) int {
	child, ok := children[name]
	if !ok {
		child = func([]string) error { return errors.New("no such child") }
	}
	if err := testenv.Complaint(func() error { return child(args) }); err != nil {
		fmt.Fprintf(os.Stderr, "child %s: %v\n", name, err)
		return 1
	}
	return 0
}

// childArgs is the command line of a child.
func childArgs(name string, args ...string) []string {
	exe, err := os.Executable()
	if err != nil {
		panic(err)
	}
	return append([]string{exe, childPrefix + name}, args...)
}

// narrowFDs is how many descriptors the child narrow may have open.
const narrowFDs = spare + 70

func narrowStore(args []string) error {
	testenv.Must(unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 64, Max: narrowFDs}))
	return Run(context.Background(), args[0], func() {})
}

// spawner starts a store, makes it hold something, and is killed.
func spawner(args []string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	r := testenv.Got(unix.MemfdCreate("inherited", 0)) // not closed by exec
	defer unix.Close(r)
	c := testenv.Got(Spawn(ctx, args[0], childArgs("store", args[0])...))
	testenv.Must(c.Hold(ctx, 1, []*os.File{os.Stdin}))
	return unix.Kill(os.Getpid(), unix.SIGKILL)
}
