package gpufd

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/cutest"
	"github.com/gpufd/gpufd/internal/commands/app"
	"github.com/gpufd/gpufd/vmm"
)

// A signal ends a put soon, whatever the driver is at: its calls cannot be interrupted.
func TestInterruptedPutEndsSoon(t *testing.T) {
	t.Parallel()
	hangups := make(chan os.Signal, 1) // taken, so that children do not have them ignored, as under nohup(1)
	signal.Notify(hangups, syscall.SIGHUP)
	defer signal.Stop(hangups)
	for _, s := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP} {
		u := newUser(t)
		soft := filepath.Join(u.dir, "soft")
		require.NoError(t, os.Mkdir(soft, 0o700))
		u.env = append(u.env, "GPUFD_SOFT_DIR="+soft)
		u.write("a", data(1000, 1))
		lock := ok(os.OpenFile(filepath.Join(soft, "lock"), os.O_RDWR|os.O_CREATE, 0o600))(t)
		defer lock.Close()
		require.NoError(t, unix.Flock(int(lock.Fd()), unix.LOCK_EX)) // calls of the software driver hang
		put := u.start("put", "w", "a")
		u.until(func() bool {
			locks, err := os.ReadFile("/proc/locks")
			return err == nil && strings.Contains(string(locks), fmt.Sprintf("-> FLOCK  ADVISORY  WRITE %d ", put.Process.Pid))
		})
		began := time.Now()
		code, _ := put.stop(s)
		require.Equal(t, 1, code)
		require.Equal(t, "gpufd put: interrupted: nothing is kept of it\n", put.err.String())
		require.Less(t, time.Since(began), 10*time.Second, "the lock is still held")
	}
}

// The progress of a put counts all its parts together. It goes to standard error, and is gone
// before anything else is said.
func TestPutShowsItsProgress(t *testing.T) {
	t.Parallel()
	dev := cutest.Device(t)
	u := newUser(t)
	loads := ok(openAll(t.Context(), []source{{0, "0", []string{u.write("a", data(3<<20, 1))}}, {1, "0", []string{u.write("b", data(1<<20, 1))}}}))(t)
	var out, errs bytes.Buffer
	p := &program{out: &output{w: &out, failed: func(error) {}}}
	p.shown = app.NewOutput(&errs, true)
	idle := newIdle(t.Context(), time.Minute)
	defer idle.stop()
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for i, part := range p.parts("w", make([]source, 2), []*cu.Device{dev, dev}, loads, idle) {
		b := ok(vmm.New(dev, part.Size))(t)
		if i == 0 {
			require.ErrorIs(t, part.Write(ended, b), context.Canceled)
			require.Nil(t, p.hasty.Load(), "nothing is handed over")
		}
		if i == 1 {
			time.Sleep(1100 * time.Millisecond) // progress is shown after a second
		}
		require.NoError(t, part.Write(context.Background(), b))
		require.NoError(t, b.Close())
		require.NoError(t, loads[i].close())
	}
	require.Regexp(t, `^(\r\x1b\[KLoading: [^\r]*)*\r\x1b\[KLoading: 4 MiB of 4 MiB \(100 %\), [0-9.]+ [KM]iB/s, 0s left$`, errs.String())
	p.say("done")
	require.True(t, strings.HasSuffix(errs.String(), "left\r\x1b[K"))
	require.Equal(t, "done\n", out.String())
	require.Contains(t, *p.hasty.Load(), "gpufd stat w says whether it is kept")
}
