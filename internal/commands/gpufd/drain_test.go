package gpufd

import (
	"fmt"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu/cutest"
)

// A device is drained when nobody has anything there: no part of a version in the making,
// and no reader that was told to let go.
func TestDrainDeviceWaitsForAll(t *testing.T) {
	t.Parallel()
	u := newKept(t)
	u.write("a", data(1000, 1))
	ticket := "2s"
	if cutest.Emulated() {
		ticket = "15s"
	}
	u.does("put", "w", "--part", "0@0=a", "--transaction", "x", "--parts", "2", "--timeout", ticket)
	u.fails(4, "w is being written, with 1000 bytes there: it is given up", "drain", "--device", "0", "--timeout", briefly)
	require.Contains(t, u.does("drain", "--device", "0"), "0 names removed", "it waits until the transaction is given up")
	u.does("drain", "--device", "0", "--undo")

	u.does("put", "w", "a")
	h := u.holds("w")
	u.does("rm", "w")
	require.Contains(t, u.does("stat", "w"), fmt.Sprintf("held by PID %d of uid", h.Process.Pid))
	u.until(func() bool { return strings.Contains(u.does("stat", "w"), "given up version 1: 1000 bytes") }) // its lease ends first
	u.does("put", "w", "a")
	no := u.says(4, "drain", "--device", "0", "--timeout", briefly)["error"].(map[string]any)
	require.Equal(t, float64(h.Process.Pid), no["holders"].([]any)[0].(map[string]any)["pid"])
	u.does("drain", "--device", "0", "--undo")
	u.does("put", "w", "a")
	o := u.says(0, "drain", "w")
	require.Equal(t, []any{"w"}, o["removed"])
	require.Equal(t, float64(h.Process.Pid), o["holders"].([]any)[0].(map[string]any)["pid"], "it is named, and not waited for")
	require.Contains(t, u.does("ls"), "removed")
	_ = h.Process.Signal(syscall.SIGKILL)
	_, _ = h.end()
	require.Contains(t, u.does("drain", "--device", "0"), "0 names removed")
	u.fails(1, `"w" is not kept here`, "stat", "w")
}

// A version that is put while drain waits is not removed.
func TestDrainLeavesWhatComesMeanwhile(t *testing.T) {
	t.Parallel()
	u := newKept(t)
	u.write("a", data(1000, 1))
	u.does("put", "w", "a")
	h := u.holds("w")
	d := u.start("drain", "w")
	u.until(func() bool { return u.stat("w")["state"] == "draining" })
	u.does("put", "w", "a")
	_, _ = h.stop(syscall.SIGTERM)
	code, _ := d.end()
	require.Equal(t, 1, code, d.err.String())
	require.Contains(t, d.err.String(), "version 2, and version 1 was to be removed")
	require.Equal(t, 2.0, u.stat("w")["version"])
}

// An fd store makes nothing of a flag.
func TestStoreWantsAPath(t *testing.T) {
	t.Parallel()
	newUser(t).fails(2, "want the absolute path", "fd-store", "--help")
	newUser(t).fails(2, "want the absolute path", "fd-store")
}

// A quarantine is begun and ended, for all parts or one.
func TestQuarantine(t *testing.T) {
	t.Parallel()
	u := newKept(t)
	u.write("a", data(1000, 1))
	u.does("put", "w", "--part", "0@0=a", "--part", "1@0=a")
	require.Contains(t, u.does("quarantine", "w", "--part", "1", "--reason", "it smells"), "1 part in quarantine")
	require.Contains(t, u.does("stat", "w"), "quarantined, gpufd-d1:")
	require.Regexp(t, `it smells; written by PID \d+ of uid \d+`, u.does("stat", "w"))
	require.Contains(t, u.does("stat", "w"), "it smells")
	u.fails(1, "quarantined (it smells)", "get", "w", "--verify")
	u.does("get", "w", "--part", "0", "--verify")
	require.Equal(t, []any{1.0}, u.says(0, "quarantine", "w", "--undo")["parts"])
	u.does("get", "w", "--verify")
	require.Contains(t, u.does("quarantine", "w", "--undo"), "no part is in quarantine")
	require.Equal(t, []any{0.0, 1.0}, u.says(0, "quarantine", "w")["parts"])
	u.does("quarantine", "w", "--undo", "--part", "0")
	u.does("get", "w", "--part", "0", "--verify")
	u.fails(1, "has no part 2", "quarantine", "w", "--part", "2")
	u.fails(2, "want 0 or more", "quarantine", "w", "--part", "-1")
	u.fails(2, "not both", "quarantine", "w", "--undo", "--reason", "x")
	u.fails(1, "not kept here", "quarantine", "nothing")
}
