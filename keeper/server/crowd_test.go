package server

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/cutest"
	"github.com/gpufd/gpufd/keeper"
	"github.com/gpufd/gpufd/keeper/api"
	"github.com/gpufd/gpufd/keeper/internal/protocol"
	"github.com/gpufd/gpufd/share"
)

// putMany keeps the same memory under n names.
func putMany(t testing.TB, c *client, dev *cu.Device, n int) {
	t.Helper()
	d, files := exported(t, dev)
	for i := range n {
		b := ok(c.book(soon(t), keeper.Put{Name: fmt.Sprintf("many/n%04d", i), Parts: 1, Labels: map[string]string{"revision": "7f3a9c"}}, part(0, dev, 1), ""))(t)
		require.NoError(t, errOf(b.Deliver(soon(t), protocol.Delivery{Memory: protocol.Describe(d), Files: files, Digest: "gpufd-d1:" + strings.Repeat("0", 32), Table: []byte(`{"tensors":{}}`)})))
	}
}

// buildProgram finds gpufd in GPUFD_BIN, or makes it, for the tests that look at its memory.
func buildProgram(t testing.TB) string {
	t.Helper()
	if cutest.Emulated() {
		t.Skip("under qemu-user the memory is the emulator's, too")
	}
	if bin := os.Getenv("GPUFD_BIN"); bin != "" {
		program := ok(filepath.Abs(filepath.Join(bin, "gpufd")))(t)
		return program
	}
	program := filepath.Join(t.TempDir(), "gpufd")
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute) // other tests may build at the same time
	defer cancel()
	build := exec.CommandContext(ctx, "go", "build", "-trimpath", "-o", program, "../../cmd/gpufd")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	out, err := build.CombinedOutput()
	require.NoError(t, err, "%s", out)
	return program
}

// runKeeper runs the program until the test ends, and returns when it serves.
func runKeeper(t testing.TB, program, socket string, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(program, append([]string{"keeper", "--json", "--socket", socket}, args...)...)
	cmd.Stderr = os.Stderr
	out := ok(cmd.StdoutPipe())(t)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	require.True(t, bufio.NewScanner(out).Scan(), "it says that it serves")
	return cmd
}

// resident returns what a process alone has in memory, in KiB: RssAnon of proc_pid_status(5). The
// pages of the program's file are the page cache's, and both processes share them.
func resident(t testing.TB, pid int) (kib int) {
	t.Helper()
	text := ok(os.ReadFile(fmt.Sprintf("/proc/%d/status", pid)))(t)
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); f[0] == "RssAnon:" {
			n := ok(strconv.Atoi(f[1]))(t)
			kib += n
		}
	}
	require.Positive(t, kib)
	return kib
}

// A keeper and its store are small, and neither has libcuda or memory of a device mapped.
func TestMemoryOfAKeeper(t *testing.T) {
	program, socket, dev := buildProgram(t), newSocket(t), cutest.Device(t)
	first := runKeeper(t, program, socket)
	names := soak(100, 1000)
	c := dialled(t, socket)
	putMany(t, c, dev, names)
	require.NoError(t, first.Process.Signal(unix.SIGKILL))
	_ = first.Wait()
	runKeeper(t, program, socket)
	st := ok(c.Status(soon(t)))(t)
	require.Equal(t, names, st.Names)
	for pid, limit := range map[int]int{st.PID: 20 << 10, st.Store: 10 << 10} {
		require.Eventually(t, func() bool { return resident(t, pid) <= limit }, waitLong, 50*time.Millisecond, "%s", lazily(func() string { return fmt.Sprintf("process %d has %d KiB", pid, resident(t, pid)) }))
		maps := ok(os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid)))(t)
		for _, word := range []string{"libcuda", "nvidia", ".mem"} {
			require.NotContains(t, string(maps), word)
		}
	}
	t.Logf("%d names: keeper %d KiB, store %d KiB", names, resident(t, st.PID), resident(t, st.Store))
}

// A thousand names and 256 readers of one; fewer with -short and on a GPU.
func TestManyNamesAndReaders(t *testing.T) {
	s, c, dev := kept(t)
	names, readers := soak(200, 1000), soak(64, 256)
	putMany(t, c, dev, names)
	list := ok(c.List(soon(t)))(t)
	require.Len(t, list, names)
	offers := ok(share.List(soon(t), s.opts.Socket, nil))(t)
	require.Len(t, offers, names)

	var work sync.WaitGroup
	all := make([]*share.Attachment, readers)
	errs := make([]error, readers)
	for i := range readers {
		work.Go(func() { all[i], errs[i] = share.Attach(soon(t), s.opts.Socket, "many/n0001", dev, nil) })
	}
	work.Wait()
	for _, err := range errs {
		require.NoError(t, err)
	}
	eventually(t, c, "many/n0001", func(i api.Info) bool { return len(i.Holders) == readers })
	require.NoError(t, s.Close())
	next := opened(t, s.opts)
	require.Equal(t, names, next.Status().Names)
	for i := range all {
		work.Go(func() {
			<-all[i].Done()
			var again *share.Attachment
			if again, errs[i] = all[i].Resume(soon(t)); errs[i] == nil {
				all[i] = again
			}
		})
	}
	work.Wait()
	for i, err := range errs {
		require.NoError(t, err)
		require.NoError(t, all[i].Close())
	}
	eventually(t, c, "many/n0001", func(i api.Info) bool { return len(i.Holders) == 0 })
}
