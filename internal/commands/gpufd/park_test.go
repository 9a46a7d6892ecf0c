package gpufd

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/keeper/api"
)

// parkingKeeper is a user whose keeper has a pool.
func parkingKeeper(t *testing.T) *user {
	t.Helper()
	if os.Getenv("GPUFD_SOFT_VERSION") != "" {
		t.Skip("an old driver is wanted, and memory of NUMA nodes came with CUDA 12.2")
	}
	u := newUser(t)
	k := u.keeper("--park-pool", "8MiB")
	u.until(func() bool { return strings.Contains(k.err.String(), "the pool for parking has 8388608 bytes") })
	return u
}

// A name is parked and unparked, and get brings it back.
func TestPark(t *testing.T) {
	t.Parallel()
	u := parkingKeeper(t)
	content := data(3<<20, 1)
	u.write("a", content)
	u.does("put", "w", "a")
	require.Regexp(t, `^w, version 1, is parked: 3 MiB in [\d.]+ s \(.*/s\), [\d.]+ s in all\n$`, u.does("park", "w"))
	require.Regexp(t, `w +1 +ok +3 MiB +host +1`, u.does("ls"))
	require.Contains(t, u.does("stat", "w"), ", parked in memory of the host")
	require.Equal(t, []any{true, 3145728.0}, []any{u.stat("w")["parts"].([]any)[0].(map[string]any)["parked"], u.stat("w")["parked_bytes"]})
	require.Contains(t, u.does("park", "w"), "was parked already")
	u.does("get", "w", "-o", "out", "--verify")
	require.Equal(t, content, u.read("out"))
	require.Regexp(t, `w +1 +ok +3 MiB +device +1`, u.does("ls"))
	o := u.says(0, "park", "w")
	require.Equal(t, []any{"w", 1.0, 3145728.0}, []any{o["name"], o["version"], o["bytes"]})
	require.Contains(t, u.does("unpark", "w"), "is on its devices: 3 MiB in")
	require.Equal(t, 0.0, u.says(0, "unpark", "w")["bytes"])
	u.does("park", "w")
	require.Equal(t, []any{"w"}, u.says(0, "rm", "w")["removed"])
	u.fails(1, "not kept here", "park", "w")
	u.write("large", data(9<<20, 1))
	u.does("put", "large", "large")
	u.fails(4, "does not fit the 8388608 bytes that are free", "park", "large")
}

// park waits for readers, and names those that do not go.
func TestParkWaitsForReaders(t *testing.T) {
	t.Parallel()
	u := parkingKeeper(t)
	u.write("a", data(1000, 1))
	u.does("put", "w", "a")
	h := u.holds("w")
	no := u.says(4, "park", "w", "--timeout", briefly)["error"].(map[string]any)
	require.Contains(t, no["message"], "w is still in use by PID")
	require.Equal(t, "conflict", no["code"])
	require.Equal(t, float64(h.Process.Pid), no["holders"].([]any)[0].(map[string]any)["pid"])
	waits := u.start("park", "w")
	u.until(func() bool { return hasSocket(waits.Process.Pid) })
	for range 3 { // each takes longer than park needs to ask once more
		require.Nil(t, u.stat("w")["parked_bytes"])
	}
	require.True(t, hasSocket(waits.Process.Pid), "it has given up")
	_, _ = h.stop(syscall.SIGTERM)
	code, out := waits.end()
	require.Zero(t, code, waits.err.String())
	require.Contains(t, out, "is parked: 1000 bytes")
}

// hasSocket reports whether a process has a socket open: gpufd has while it talks to a keeper.
func hasSocket(pid int) bool {
	links, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	return slices.ContainsFunc(links, func(link string) bool {
		to, _ := os.Readlink(link)
		return strings.HasPrefix(to, "socket:")
	})
}

// A name without a version is nowhere.
func TestWhereOfNothing(t *testing.T) {
	t.Parallel()
	require.Equal(t, "-", where(api.Info{Name: "w"}))
}

// Without a pool the error says how to have one. A mover is nothing to call.
func TestParkWithoutAPool(t *testing.T) {
	t.Parallel()
	u := newKept(t)
	u.write("a", data(1000, 1))
	u.does("put", "w", "a")
	u.fails(4, "start it with gpufd keeper --park-pool SIZE", "park", "w")
	u.fails(1, "a keeper starts this by itself", "keeper-mover")
	u.fails(2, "want more than 0 bytes", "keeper", "--park-pool", "0")
	u.fails(2, "want --end or --park-pool, not both", "keeper", "--end", "--park-pool", "1G")
}
