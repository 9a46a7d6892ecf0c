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

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/cutest"
	"github.com/gpufd/gpufd/share"
)

// Files that are put come back byte for byte, and the parts of a version together.
func TestPutAndGet(t *testing.T) {
	t.Parallel()
	u := newKept(t, "GPUFD_SOFT_DEVICES=2")
	a, b := data(100_003, 1), data(70_000, 2)
	u.write("a", a)
	u.write("b", b)
	u.write("empty", nil)
	o := u.says(0, "put", "w/of.one", "a", "empty", "b", "--label", "rev=x", "--label", "rank=")
	require.Equal(t, []any{true, 1.0, 170_003.0}, []any{o["ok"], o["version"], o["bytes"]})
	require.Contains(t, u.does("get", "w/of.one", "-o", "out"), "written to out")
	require.Equal(t, slices.Concat(a, b), u.read("out"))
	require.Equal(t, true, u.says(0, "get", "w/of.one", "--verify", "--label", "rev=x")["verified"])
	u.fails(1, "other labels", "get", "w/of.one", "--verify", "--label", "rev=y")

	u.does("put", "two", "--part", "1@1=b", "--part", "0@0=a")
	u.does("get", "two", "--all", "-o", "dir")
	require.Equal(t, a, u.read("dir/part-0"))
	require.Equal(t, b, u.read("dir/part-1"))
	u.does("get", "two", "--part", "1", "-o", "out")
	require.Equal(t, b, u.read("out"))
	u.fails(2, "want --part I, or --all -o DIR", "get", "two", "-o", "out")
	u.fails(1, "has no part 2", "get", "two", "--part", "2", "-o", "out")
	u.fails(1, "no such file", "get", "two", "--part", "1", "-o", "nodir/out")
	require.NoError(t, os.Symlink("out", filepath.Join(u.dir, "link")))
	u.does("get", "two", "--part", "0", "-o", "link")
	require.Equal(t, a, u.read("out"), "the link stays")

	entries := ok(os.ReadDir(u.dir))(t)
	require.False(t, slices.ContainsFunc(entries, func(e os.DirEntry) bool { return strings.HasPrefix(e.Name(), ".gpufd-") }))
	require.Equal(t, []any{"two", "w/of.one"}, u.says(1, "rm", "two", "nothing", "w/of.one")["removed"], "also those behind one that is not there")
	require.Equal(t, "NAME", strings.Fields(u.does("ls"))[0])
	require.Equal(t, 1, strings.Count(u.does("ls"), "\n"))
}

// Scripts read these members.
func TestJSON(t *testing.T) {
	t.Parallel()
	u := newKept(t)
	u.write("a", data(1000, 1))
	u.does("put", "w", "a", "--label", "k=v")
	n := u.stat("w")
	for _, member := range []string{"name", "version", "digest", "state", "bytes", "reserved_bytes", "labels", "parts", "holders"} {
		require.Contains(t, n, member)
	}
	require.Equal(t, []any{"w", 1.0, "ok", 1000.0, 0.0, map[string]any{"k": "v"}, []any{}},
		[]any{n["name"], n["version"], n["state"], n["bytes"], n["reserved_bytes"], n["labels"], n["holders"]})
	part := n["parts"].([]any)[0].(map[string]any)
	require.Equal(t, []any{0.0, 1000.0, "ok"}, []any{part["part"], part["bytes"], part["state"]})
	require.Regexp(t, "^GPU-", part["device"])
	require.Regexp(t, "^gpufd-d1:[0-9a-f]{32}$", part["digest"])
	u.does("put", "v", "a")
	require.Equal(t, 2, strings.Count(u.does("ls", "--json"), "\n"))
	require.Equal(t, []any{"v", "w"}, u.says(0, "rm", "v", "w")["removed"])

	no := u.says(1, "stat", "w")
	require.Equal(t, false, no["ok"])
	require.Equal(t, "not-found", no["error"].(map[string]any)["code"])
}

// The keeper refuses with one line.
func TestRefusals(t *testing.T) {
	t.Parallel()
	u := newKept(t)
	u.write("a", data(1000, 1))
	u.does("put", "w", "a")
	u.fails(1, "expected version 7", "put", "w", "a", "--expect-version", "7")
	u.fails(1, "expected version 0", "put", "w", "a", "--expect-version", "0")
	u.does("put", "w", "a", "--expect-version", "1")
	u.fails(2, "which is for versions", "put", "w@1", "a")
	u.fails(2, "an empty one was given", "put", "", "a")
	u.fails(2, "a name of 300 bytes", "put", strings.Repeat("n", 300), "a")
	for _, c := range []string{"put \xff a", "stat \xff", "watch \xff", "put w a --transaction \xff --parts 1"} {
		u.fails(2, `name "\xff" is not UTF-8`, strings.Fields(c)...)
	}
	u.fails(2, `label "k"="\xff" is not UTF-8`, "put", "w", "a", "--label", "k=\xff")
	u.fails(1, "no device 64 here", "put", "w", "a", "--device", "64")
	u.fails(1, "no device other here", "put", "w", "--part", "0@other=a")
	u.fails(1, "no device", "drain", "--device", "64")
	for _, c := range []string{"stat", "rm", "drain"} {
		u.fails(1, `"nothing" is not kept here`, c, "nothing")
	}
	u.fails(1, `"nothing" is not kept here`, "get", "nothing", "--verify")
}

// The parts of a transaction come from several calls, and the last commits.
func TestTransaction(t *testing.T) {
	t.Parallel()
	u := newKept(t)
	u.write("a", data(1000, 1))
	put := func(part int, more ...string) []string {
		return append([]string{"put", "w", "--part", fmt.Sprintf("%d@0=a", part), "--transaction", "t", "--parts", "2"}, more...)
	}
	o := u.says(0, put(1)...)
	require.Equal(t, []any{0.0, 1.0}, []any{o["version"], o["missing"]})
	n := u.stat("w")
	require.Equal(t, []any{0.0, "reserved", 1000.0}, []any{n["version"], n["state"], n["reserved_bytes"]})
	u.fails(1, "no version yet", "get", "w", "--verify")
	require.Equal(t, 1.0, u.says(0, put(0)...)["version"])
	require.Equal(t, 2.0, u.says(0, "get", "w", "--verify")["parts"])

	u.does(put(0, "--timeout", "1s")...) // nobody brings the other
	u.until(func() bool { return u.stat("w")["reserved_bytes"] == 0.0 })
	require.Equal(t, 1.0, u.stat("w")["version"])
}

// A holder is shown, keeps drain waiting, and releases the name when it is told to end.
func TestHold(t *testing.T) {
	t.Parallel()
	u := newKept(t)
	u.write("a", data(1000, 1))
	u.does("put", "w", "a")
	h := u.start("get", "w", "--hold", "1m", "--json")
	require.Equal(t, "holding", h.object()["event"])
	u.until(func() bool { return len(u.stat("w")["holders"].([]any)) == 1 })
	holder := u.stat("w")["holders"].([]any)[0].(map[string]any)
	require.Equal(t, []any{float64(h.Process.Pid), float64(os.Getuid()), "read-only", false},
		[]any{holder["pid"], holder["uid"], holder["access"], holder["fenced"]})
	require.Contains(t, holder, "since")
	require.Contains(t, u.does("stat", "w"), fmt.Sprintf("held by PID %d", h.Process.Pid))

	no := u.says(4, "drain", "w", "--timeout", briefly)["error"].(map[string]any)
	require.Equal(t, float64(h.Process.Pid), no["holders"].([]any)[0].(map[string]any)["pid"])
	require.Equal(t, "draining", u.stat("w")["state"])
	u.fails(1, `"w" is draining`, "get", "w", "--verify")
	require.Contains(t, u.does("drain", "w", "--undo"), "is served again")
	u.does("get", "w", "--verify", "--hold", "1ms")

	u.does("put", "w", "a") // the holder's version is retired now
	u.fails(4, fmt.Sprintf("w, version 1, has 1000 bytes there, which is retired and is free when PID %d let go", h.Process.Pid), "drain", "--device", "0", "--timeout", briefly)
	code, out := h.stop(syscall.SIGTERM)
	require.Zero(t, code)
	require.Contains(t, out, `"ok":true`)
	require.Contains(t, u.does("drain", "--device", "0"), "1 name removed")
	u.fails(1, "is draining", "put", "w", "a")
	u.does("drain", "--device", "0", "--undo")
	u.does("put", "w", "a")
	require.Contains(t, u.does("drain", "w", "--keep"), "w is drained")
	require.Contains(t, u.does("drain", "w"), "removed")
}

// keeper --end ends both processes, says what is lost, and leaves no file.
func TestEnd(t *testing.T) {
	t.Parallel()
	u := newUser(t)
	k := u.keeper()
	u.write("a", data(1000, 1))
	u.does("put", "w", "a")
	u.does("put", "x", "a")
	h := u.holds("w")
	out := u.does("keeper", "--end")
	require.Contains(t, out, "have ended; 2 names are lost\n")
	require.Contains(t, out, fmt.Sprintf("  w, version 1: 1000 bytes; still mapped by PID %d\n  x, version 1: 1000 bytes\n", h.Process.Pid))
	code, _ := k.end()
	require.Zero(t, code)
	left := ok(filepath.Glob(filepath.Join(u.dir, "s*")))(t)
	require.Empty(t, left)
	u.fails(1, "nobody is listening", "keeper", "--end")
	_, _ = h.stop(syscall.SIGINT)
	k = u.keeper()
	u.does("put", "w", "a")
	lost := u.says(0, "keeper", "--end")["lost"].([]any)
	require.Equal(t, map[string]any{"name": "w", "version": 1.0, "bytes": 1000.0, "holders": 0.0}, lost[0])
	code, _ = k.end()
	require.Zero(t, code)
}

// A put of what can never fit fails at once, before it loads anything.
func TestNeverFits(t *testing.T) {
	t.Parallel()
	dir := ok(os.MkdirTemp("", "gpufd-soft-"))(t)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	u := newKept(t, "GPUFD_SOFT_MEMORY=8MiB", "GPUFD_SOFT_DIR="+dir)
	u.write("a", data(9<<20, 1))
	no := u.says(1, "put", "w", "a", "--timeout", "1h")["error"].(map[string]any)
	require.Equal(t, "too-large", no["code"])
	require.Contains(t, no["message"], "w wants 9437184 bytes of device GPU-")
	require.Contains(t, no["message"], "which has 8388608: it can never fit")
	u.write("b", data(5<<20, 1))
	u.fails(1, "w wants 10485760 bytes", "put", "w", "--part", "0@0=b", "--part", "1@0=b", "--timeout", "1h")
	u.fails(1, "not kept", "stat", "w")
	u.does("put", "w", "b")
}

// A put without room waits, names the holders, and can be interrupted.
func TestNoRoom(t *testing.T) {
	t.Parallel()
	dir := ok(os.MkdirTemp("", "gpufd-soft-"))(t)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	u := newKept(t, "GPUFD_SOFT_MEMORY=8MiB", "GPUFD_SOFT_DIR="+dir)
	u.write("a", data(5<<20, 1))
	u.does("put", "w", "a")
	h := u.holds("w")
	no := u.says(4, "put", "w", "a", "--timeout", briefly)["error"].(map[string]any)
	require.Equal(t, "no-room", no["code"])
	require.Len(t, no["holders"], 1, "put itself is not in its way")
	require.Equal(t, float64(h.Process.Pid), no["holders"].([]any)[0].(map[string]any)["pid"])

	for _, s := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM} {
		p := u.start("put", "w", "a", "--timeout", "1m")
		u.until(func() bool { return u.stat("w")["reserved_bytes"] != 0.0 })
		code, _ := p.stop(s)
		require.Equal(t, 1, code)
		u.until(func() bool { return u.stat("w")["reserved_bytes"] == 0.0 })
	}
	_, _ = h.stop(syscall.SIGINT)
	u.does("get", "w", "--verify")
	u.does("drain", "w")
	u.does("put", "w", "a")
}

// A put without room names the holders of a replaced version, and what frees it.
func TestNoRoomForARetiredVersion(t *testing.T) {
	t.Parallel()
	dir := ok(os.MkdirTemp("", "gpufd-soft-"))(t)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	u := newKept(t, "GPUFD_SOFT_MEMORY=8MiB", "GPUFD_SOFT_DIR="+dir)
	u.write("a", data(3<<20, 1))
	u.does("put", "w", "a")
	h := u.holds("w")
	u.does("put", "w", "a")
	no := u.says(4, "put", "w", "a", "--timeout", briefly)["error"].(map[string]any)
	require.Equal(t, float64(h.Process.Pid), no["holders"].([]any)[0].(map[string]any)["pid"])
	for _, words := range []string{
		"w, version 2, has 3145728 bytes there, which nobody holds (gpufd drain w frees them)",
		fmt.Sprintf("w, version 1, has 3145728 bytes there, which is retired and is free when PID %d let go", h.Process.Pid),
	} {
		require.Contains(t, no["message"], words)
	}
	_, _ = h.stop(syscall.SIGTERM)
	u.does("put", "w", "a")
}

// Events are printed until a signal comes, or nobody reads them.
func TestWatch(t *testing.T) {
	t.Parallel()
	u := newKept(t)
	u.write("a", data(1000, 1))
	w := u.start("watch", "w", "--json")
	seen := make(chan map[string]any)
	go func() { seen <- w.object() }()
	var event map[string]any
	u.until(func() bool { // until the watcher is known
		u.does("put", "other", "a")
		u.does("put", "w", "a")
		select {
		case event = <-seen:
			return true
		default:
			return false
		}
	})
	require.Equal(t, []any{"w", "committed"}, []any{event["name"], event["event"]})
	code, _ := w.stop(syscall.SIGTERM)
	require.Zero(t, code)
}

// Bytes that have changed are found and named, and served no more.
func TestDamaged(t *testing.T) {
	t.Parallel()
	u := newKept(t)
	u.write("a", data(1000, 1))
	u.does("put", "w", "a")
	dev := cutest.Device(t)
	att := ok(share.Attach(t.Context(), u.dir+"/s", "w", dev, &share.AttachOptions{Access: cu.ReadWrite}))(t)
	primary := ok(dev.PrimaryContext())(t)
	require.NoError(t, cu.Fill(primary, att.Ptr(), uint8(9), 10))
	require.NoError(t, primary.Synchronize(t.Context()))
	require.NoError(t, primary.Close())
	u.until(func() bool {
		return strings.Contains(u.does("stat", "w"), fmt.Sprintf("writable by PID %d", os.Getpid()))
	})
	u.fails(1, "w, version 1, part 0 is damaged", "get", "w", "--verify")
	require.NoError(t, att.Close())
	require.Equal(t, "damaged", u.stat("w")["state"])
	no := u.says(1, "get", "w", "-o", "out")
	require.Equal(t, "damaged", no["error"].(map[string]any)["code"])
	u.does("put", "w", "a")
	u.does("get", "w", "--verify")
}

// In the directory that the containers of a claim share, keeper and clients meet,
// unless somebody says where. The keeper makes a directory of its own in it.
func TestDirectoryOfAClaim(t *testing.T) {
	t.Parallel()
	u := newUser(t)
	claim := filepath.Join(u.dir, "claim")
	require.NoError(t, os.Mkdir(claim, 0o777))
	require.NoError(t, os.Chmod(claim, 0o777))
	u.env = append(u.env, "GPUFD_SOCKET=", "NVIDIA_DRA_LOCAL_IPC_DIR="+claim)
	u.keeper()
	u.write("a", data(1000, 1))
	u.does("put", "w", "a")
	require.FileExists(t, filepath.Join(claim, "gpufd", "keeper.sock.ctl"))
	u.fails(1, "relative", "ls", "--socket", "relative", "--timeout", "500ms")
	u.env = append(u.env, "NVIDIA_DRA_LOCAL_IPC_DIR=not/absolute", "XDG_RUNTIME_DIR="+u.dir)
	u.fails(1, filepath.Join(u.dir, "gpufd", "keeper.sock"), "ls", "--timeout", "500ms")
}
