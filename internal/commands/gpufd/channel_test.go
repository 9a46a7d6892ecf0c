package gpufd

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// startWith is start with something on standard input.
func (u *user) startWith(input io.Reader, args ...string) *running {
	u.t.Helper()
	r := &running{Cmd: command(u, args...), user: u}
	r.Stdin, r.Stderr = input, &r.err
	out := new(bytes.Buffer)
	r.Stdout = out
	require.NoError(u.t, r.Start())
	u.t.Cleanup(func() { _ = r.Process.Kill(); _ = r.Wait() })
	return r
}

// Each reader that blocks gets the frames of a channel byte for byte.
func TestChannel(t *testing.T) {
	t.Parallel()
	u := newUser(t)
	in := data(100_003, 1)
	first := u.start("channel", "read", "cam", "-o", "one", "--json")
	second := u.start("channel", "read", "cam")
	w := u.startWith(bytes.NewReader(in), "channel", "write", "cam", "--slots", "3", "--slot-size", "4096", "--readers", "2", "--json")
	_, out := second.end()
	require.Equal(t, string(in), out)
	o := first.object()
	_, _ = first.end()
	require.Equal(t, []any{true, 25.0, 25.0, 0.0, 25.0}, []any{o["ok"], o["frames"], o["received"], o["lost"], o["last_whole"]})
	require.Contains(t, o, "max_stall_ms")
	require.Equal(t, in, u.read("one"))
	require.NoError(t, w.Wait())
	require.Contains(t, w.Stdout.(*bytes.Buffer).String(), `"frames":25`)
	require.Contains(t, w.Stdout.(*bytes.Buffer).String(), `"received":50`)
}

// A reader whose output nobody reads ends at a signal all the same, and says so.
func TestChannelReadEndsWhileNobodyReadsItsOutput(t *testing.T) {
	t.Parallel()
	u := newUser(t)
	from, to, err := os.Pipe()
	require.NoError(t, err)
	defer from.Close()
	r := &running{Cmd: command(u, "channel", "read", "cam"), user: u}
	r.Stdout, r.Stderr = to, &r.err
	require.NoError(t, r.Start())
	t.Cleanup(func() { _ = r.Process.Kill(); _ = r.Wait() })
	require.NoError(t, to.Close())
	u.startWith(bytes.NewReader(data(1<<20, 1)), "channel", "write", "cam", "--slot-size", "65536")
	require.Eventually(t, func() bool {
		n, err := unix.IoctlGetInt(int(from.Fd()), unix.TIOCINQ) // 64 KiB is all that a pipe holds
		return err == nil && n >= 1<<16
	}, time.Minute, 5*time.Millisecond)
	require.NoError(t, r.Process.Signal(unix.SIGTERM))
	late := time.AfterFunc(30*time.Second, func() { _ = r.Process.Kill() })
	defer late.Stop()
	require.NoError(t, r.Wait(), r.err.String())
	require.Contains(t, r.err.String(), "Read ")
}

// A writer ends after so many frames, at its pace; readers that drop count what they lost.
func TestChannelPolicies(t *testing.T) {
	t.Parallel()
	for _, policy := range []string{"drop-oldest", "drop-newest", "latest"} {
		u := newUser(t)
		in := slices.Repeat(data(64, 3), 100)
		r := u.start("channel", "read", "cam", "--policy", policy, "-o", "out", "--json")
		w := u.startWith(bytes.NewReader(in), "channel", "write", "cam", "--slot-size", "64", "--frames", "40", "--rate", "2000")
		o := r.object()
		require.Equal(t, true, o["ok"])
		require.Equal(t, 40.0, o["received"].(float64)+o["lost"].(float64))
		require.Len(t, u.read("out"), 64*int(o["received"].(float64)))
		require.NoError(t, w.Wait())
	}
}

// A writer that is killed is lost: exit 4, and the frames that were whole are there.
//
//fault:rows 94
func TestChannelWriterKilled(t *testing.T) {
	t.Parallel()
	u := newUser(t)
	r := u.start("channel", "read", "cam", "-o", "out", "--json")
	w := &running{Cmd: command(u, "channel", "write", "cam", "--slot-size", "64"), user: u}
	feed := ok(w.StdinPipe())(t)
	require.NoError(t, w.Start())
	in := data(100, 5)
	_, err := feed.Write(in) // a frame, and a part of one
	require.NoError(t, err)
	u.until(func() bool {
		b, err := os.ReadFile(filepath.Join(u.dir, "out"))
		return err == nil && len(b) == 64
	})
	require.NoError(t, w.Process.Kill())
	require.Error(t, w.Wait())
	o := r.object()
	code, _ := r.end()
	require.Equal(t, 4, code)
	require.Equal(t, []any{false, 4.0}, []any{o["ok"], o["exit"]})
	require.Equal(t, []any{1.0, 1.0, 0.0, 1.0}, []any{o["frames"], o["received"], o["lost"], o["last_whole"]})
	require.Contains(t, r.err.String(), "the last whole frame is 1")
	require.Equal(t, in[:64], u.read("out"))
}

func TestChannelUsage(t *testing.T) {
	t.Parallel()
	u := newUser(t)
	for _, c := range []struct{ args, why string }{
		{"channel", "want write or read"},
		{"channel write", "want a name"},
		{"channel write c", "want --slot-size"},
		{"channel write c --slot-size x", `--slot-size "x"`},
		{"channel write c --slot-size 64 --slots 0", "want 1 to 4096"},
		{"channel write c --slot-size 64 --rate -1", "want frames a second"},
		{"channel write c --slot-size 64 --rate nan", "want frames a second"},
		{"channel write c --slot-size 64 --rate 1e9", "want frames a second"},
		{"channel write c --slot-size 64 --stall -1s", "want 0 or more"},
		{"channel write c --slot-size 64 --drop", "--drop wants --stall"},
		{"channel write c --slot-size 64 --readers 65", "has 64 at most"},
		{"channel read", "want a name"},
		{"channel read c --policy all", "want block, drop-oldest, drop-newest or latest"},
		{"channel read c --join first", "want next or newest"},
		{"channel read c --json", "--json wants -o FILE"},
	} {
		u.fails(2, c.why, strings.Fields(c.args)...)
	}
	u.fails(1, "no such file or directory", "channel", "read", "c", "-o", filepath.Join("none", "out"))
	u.write("kept", data(10, 0))
	u.fails(1, "no writer of c", "channel", "read", "c", "--timeout", "500ms", "-o", "kept")
	require.Equal(t, data(10, 0), u.read("kept"), "there were no frames for it")
	u.fails(4, "0 of 1 reader joined", "channel", "write", "c", "--slot-size", "64", "--timeout", "500ms", "--json")
}

// A command that waits says after a second what for, and what ends that; not with --json.
func TestChannelSaysWhatItWaitsFor(t *testing.T) {
	t.Parallel()
	u := newUser(t)
	socket := u.dir + "/gpufd/channel.sock"
	for _, c := range []struct {
		code       int
		args, said string
	}{
		{1, "channel read c", "Waiting for a writer of c at " + socket + ", for 3s at most (--timeout); gpufd channel write c --slot-size B --socket " + socket + " starts one\n"},
		{4, "channel write c --slot-size 64 --readers 2", "Waiting for 2 readers of c at " + socket + ", for 3s at most (--timeout); gpufd channel read c --socket " + socket},
	} {
		args := append(strings.Fields(c.args), "--timeout", "3s")
		code, _, errs := u.run(args...)
		require.Equal(t, c.code, code, errs)
		require.Equal(t, 1, strings.Count(errs, c.said), errs)
	}
	_, _, errs := u.run("channel", "write", "c", "--slot-size", "64", "--timeout", "3s", "--json")
	require.NotContains(t, errs, "Waiting")
}

// A socket that has an owner is refused.
func TestChannelRefusesAKeepersSocket(t *testing.T) {
	t.Parallel()
	u := newKept(t)
	u.fails(1, "take another path, for the writer and its readers, with --socket", "channel", "write", "c", "--slot-size", "64", "--socket", u.dir+"/s")
}

// A channel that was told no socket takes none from a keeper, be it the one in GPUFD_SOCKET or
// the default.
func TestChannelLeavesTheKeepersSocket(t *testing.T) {
	t.Parallel()
	u := newUser(t)
	w := &running{Cmd: command(u, "channel", "write", "c", "--slot-size", "64"), user: u}
	w.Stderr = &w.err
	feed := ok(w.StdinPipe())(t)
	require.NoError(t, w.Start())
	u.until(func() bool {
		return strings.Contains(w.err.String(), "Channel c: 4 slots of 64 at "+u.dir+"/gpufd/channel.sock")
	})
	u.keeper()
	u.keeper("--socket", u.dir+"/gpufd/keeper.sock")
	u.does("ls")
	r := u.start("channel", "read", "c")
	require.NoError(t, errOf(feed.Write([]byte("frame"))))
	require.NoError(t, feed.Close())
	code, out := r.end()
	require.Zero(t, code, r.err.String())
	require.Equal(t, "frame", out)
	require.NoError(t, w.Wait())
}
