package fdstore

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gpufd/gpufd/internal/testenv"
)

// steps are what a keeper does for a new version, one after the other. It may be killed
// before any of them and after the last.
var steps = []struct {
	name     string
	do       func(ctx context.Context, c *Client, f []*os.File) error
	sets     map[uint64]int // in the store after the step, beside set 1
	manifest string
}{
	{"connected", func(ctx context.Context, c *Client, f []*os.File) error { return nil }, nil, "old"},
	{"in the middle of a set", func(ctx context.Context, c *Client, f []*os.File) error {
		return c.requestNothing(ctx, header{op: opHold, id: 2, count: 128}, nil, f[:64]...)
	}, nil, "old"},
	{"held", func(ctx context.Context, c *Client, f []*os.File) error {
		return c.Hold(ctx, 2, f)
	}, map[uint64]int{2: 128}, "old"},
	{"swapped", func(ctx context.Context, c *Client, f []*os.File) error {
		return c.Swap(ctx, []byte("new"))
	}, map[uint64]int{2: 128}, "new"},
	{"dropped", func(ctx context.Context, c *Client, f []*os.File) error {
		return c.Drop(ctx, 2)
	}, nil, "new"},
}

// dyingKeeper does some of the steps, and is killed without having read an answer if so
// told: the store may not even have seen the request.
func dyingKeeper(args []string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	n := testenv.Got(strconv.Atoi(args[1]))
	c := testenv.Got(Dial(ctx, args[0]))
	fd := testenv.Got(unix.MemfdCreate("new", unix.MFD_CLOEXEC))
	files := make([]*os.File, 128)
	for i := range files {
		files[i] = os.NewFile(uintptr(fd), "new")
	}
	for _, step := range steps[:n] {
		if err := step.do(ctx, c, files); err != nil {
			return fmt.Errorf("%s: %w", step.name, err)
		}
	}
	if args[2] == "sending" {
		go func() { _ = steps[n].do(ctx, c, files) }()
		time.Sleep(time.Duration(os.Getpid()%8) * 20 * time.Microsecond) // any moment will do
	}
	return unix.Kill(os.Getpid(), unix.SIGKILL)
}

// runKilled runs a child that is killed.
func runKilled(t *testing.T, name string, args ...string) {
	t.Helper()
	argv := childArgs(name, args...)
	out, err := exec.CommandContext(soon(t), argv[0], argv[1:]...).CombinedOutput()
	var exit *exec.ExitError
	require.True(t, errors.As(err, &exit), "%v", err)
	require.Equal(t, "signal: killed", exit.String(), "%s", out)
}

// Invariant 8: whenever a keeper is killed, the next one finds the old manifest or the
// new one, complete, and complete sets.
func TestKeeperIsKilled(t *testing.T) {
	for n := 1; n <= len(steps); n++ {
		t.Run(steps[n-1].name, func(t *testing.T) {
			path := oldState(t)
			runKilled(t, "keeper", path, strconv.Itoa(n), "")
			c := dialed(t, path)
			require.Equal(t, steps[n-1].manifest, string(manifest(t, c)))
			requireSets(t, c, steps[n-1].sets)
		})
	}
}

func TestKeeperIsKilledWhileItSends(t *testing.T) {
	for n := 1; n < len(steps); n++ {
		t.Run(steps[n].name, func(t *testing.T) {
			path := oldState(t)
			runKilled(t, "keeper", path, strconv.Itoa(n), "sending")
			c := dialed(t, path)
			before, after := steps[n-1], steps[n]
			require.Contains(t, []string{before.manifest, after.manifest}, string(manifest(t, c)))
			if _, held := list(t, c)[2]; held == (before.sets != nil) {
				requireSets(t, c, before.sets)
			} else {
				requireSets(t, c, after.sets)
			}
		})
	}
}

// oldState is a store with set 1 and a manifest.
func oldState(t *testing.T) (path string) {
	t.Helper()
	path = serving(t, roomy)
	c := dialed(t, path)
	require.NoError(t, c.Hold(soon(t), 1, memfds(t, 3)))
	require.NoError(t, c.Swap(soon(t), []byte("old")))
	require.NoError(t, c.Close())
	return path
}

// requireSets requires these sets and set 1, and no descriptor of a half one.
func requireSets(t *testing.T, c *Client, sets map[uint64]int) {
	t.Helper()
	want, total := map[uint64]int{1: 3}, 3
	for id, n := range sets {
		want[id] = n
		total += n
	}
	require.Equal(t, want, list(t, c))
	require.Equal(t, total, status(t, c).Descriptors)
}

// A store is told from another by a random number: pids are the same in containers.
func TestIdentity(t *testing.T) {
	path := serving(t, roomy)
	c := dialed(t, path)
	first := status(t, c)
	require.NoError(t, c.Close())
	require.True(t, first.Same(status(t, dialed(t, path))))
	other := status(t, dialed(t, serving(t, roomy)))
	require.Equal(t, first.PID, other.PID, "both are in this process")
	other.Since = first.Since
	require.False(t, first.Same(other))

	older := Status{PID: 1, Since: first.Since} // without a number
	require.True(t, older.Same(older))
	require.False(t, older.Same(first))
	for _, s := range []Status{{PID: 2, Since: first.Since}, {PID: 1, Since: first.Since.Add(1)}} {
		require.False(t, older.Same(s))
	}
}

func TestOneKeeperAtATime(t *testing.T) {
	path := serving(t, roomy)
	first := dialed(t, path)
	for range 2 {
		_, err := Dial(soon(t), path)
		require.ErrorIs(t, err, ErrBusy)
		require.ErrorContains(t, err, fmt.Sprintf("pid %d", os.Getpid()))
	}
	require.Empty(t, list(t, first))

	waits := make(chan error, 1)
	go func() {
		c, err := Dial(soon(t), path)
		waits <- errors.Join(err, c.Close())
	}()
	require.NoError(t, first.Close())
	require.NoError(t, <-waits, "admitted when the first has gone")
	for range 20 {
		require.NoError(t, dialed(t, path).Close(), "at once")
	}
}
