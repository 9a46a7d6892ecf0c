package gpufd

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// Wrong command lines are refused before a keeper is asked.
func TestUsage(t *testing.T) {
	t.Parallel()
	u := newUser(t)
	u.write("a", data(10, 0))
	for _, c := range []struct{ args, why string }{
		{"nope", `unknown command "nope"; see gpufd --help`},
		{"lst", `unknown command "lst" (did you mean ls?); see gpufd --help`},
		{"start", "did you mean keeper"},
		{"channel wirte", `unknown command "wirte" (did you mean write?); see gpufd channel --help`},
		{"channel", "want write or read: none was given"},
		{"help nope", `unknown command "nope"; see gpufd --help`},
		{"help channel raed", `unknown command "raed" (did you mean read?); see gpufd channel --help`},
		{"completion", "want a shell: bash"},
		{"completion fsh", `unknown command "fsh" (did you mean zsh or fish?); see gpufd completion --help`},
		{"ls --nope", "unknown flag: --nope; see gpufd ls --help"},
		{"ls extra", "want no arguments"},
		{"ls --timeout 0", "--timeout 0s: want more than 0"},
		{"ls --timeout soon", `--timeout "soon": want a duration`},
		{"ls --socket " + strings.Repeat("a", 200), "take a shorter directory"},
		{"keeper --end --take-over", "want --end or --take-over, not both"},
		{"stat", "want a name: none was given; see gpufd stat --help"},
		{"stat a b", "want a name: 2 were given"},
		{"rm", "want one name at least"},
		{"drain", "want a name or --device"},
		{"drain w --device 0", "want a name or --device"},
		{"put", "want a name, and files or --part"},
		{"put w", "nothing to put"},
		{"put w a --part 0@0=a", "not both"},
		{"put w --part 0=a", "want I@DEVICE=PATH"},
		{"put w --part 0@0", "want I@DEVICE=PATH"},
		{"put w --part x@0=a", "want I@DEVICE=PATH"},
		{"put w --part -1@0=a", "want I@DEVICE=PATH"},
		{"put w --part 0@0=a --part 0@1=a", "--part 0 was given twice"},
		{"put w --part 1@0=a", "parts count from 0"},
		{"put w --part 0@0=a --device 1", "--device or --part"},
		{"put w a --parts 0", "want 1 or more"},
		{"put w a --parts 2", "name a --transaction"},
		{"put w a --transaction t", "--transaction wants --parts"},
		{"put w a --transaction= --parts 1", "--transaction wants a name"},
		{"put w a --label k", "want K=V"},
		{"put w a --label =v", "want K=V"},
		{"put w a --label k=1 --label k=2", "--label k was given twice"},
		{"put w a --expect-version -1", "want a whole number, 0 or more"},
		{"put w a --driver other", "want auto, cuda or soft"},
		{"get w", "want -o FILE, --verify or --hold"},
		{"get w --all", "--all wants -o DIR"},
		{"get w --all --part 0 -o d", "not both"},
		{"get w --part -1 --verify", "want 0 or more"},
		{"get w --hold -1s", "want 0 or more"},
		{"get w --verify --allow-uid ,", "want numbers or names, separated by commas"},
		{"get w -o .", "is a directory"},
		{"get w --all -o a", "is not a directory"},
		{"get w -o /dev/null", "is not a regular file"},
		{"doctor 201 --with 1", "only one of"},
		{"doctor --as 1", "want --with"},
		{"doctor --allow-uid x --offer s", "allow-uid"},
	} {
		u.fails(2, c.why, strings.Fields(c.args)...)
	}
	for _, c := range [][]string{ // as of a variable that is not set
		{"stat", ""}, {"rm", "w", ""}, {"drain", ""}, {"quarantine", ""}, {"watch", ""}, {"get", "", "--verify"}, {"put", "", "a"}, {"put", "w", ""},
		{"channel", "write", "", "--slot-size", "4"}, {"channel", "read", ""},
	} {
		u.fails(2, "an empty one was given", c...)
	}
	for _, c := range [][]string{{"ls"}, {"keeper"}, {"channel", "read", "c"}} {
		u.fails(2, "--socket: want a path", append(c, "--socket", "")...)
	}
	o := u.says(2, "ls", "--nope")
	require.Equal(t, false, o["ok"])
	require.Contains(t, o["error"].(map[string]any)["message"], "--nope")
}

// Files that cannot be kept are named before the keeper is asked.
func TestFilesThatCannotBePut(t *testing.T) {
	t.Parallel()
	u := newUser(t)
	u.write("empty", nil)
	u.write("dir/readme", data(10, 0))
	u.write("bad.safetensors", data(100, 0))
	require.NoError(t, syscall.Mkfifo(filepath.Join(u.dir, "fifo"), 0o600))
	u.fails(1, "no such file", "keeper", "--policy", "missing")
	u.fails(1, "policy", "keeper", "--policy", "bad.safetensors")
	u.fails(1, "no such file", "put", "w", "missing")
	u.fails(1, "empty: nothing to keep: it is empty", "put", "w", "empty")
	u.fails(1, "want a file", "put", "w", "fifo")
	u.fails(1, "dir is taken for tensors, and dir/readme is of another kind", "put", "w", "dir/readme", "dir")
	u.fails(1, "there are no *.safetensors in dir", "put", "w", "dir")
	u.fails(1, "give it a name without .safetensors", "put", "w", "bad.safetensors")
	require.Contains(t, u.says(1, "put", "w", "missing")["error"].(map[string]any)["message"], "missing")
}

var oneDash = regexp.MustCompile(`(^|[ (])-[a-z]{2,}`)

// Help, completion and the version are for people without a keeper.
func TestHelp(t *testing.T) {
	t.Parallel()
	u := newUser(t)
	for _, c := range []string{"", "keeper", "put", "get", "ls", "stat", "rm", "drain", "watch", "version"} {
		out := u.does(append(strings.Fields(c), "--help")...)
		require.Contains(t, out, "--socket")
		require.False(t, oneDash.MatchString(out), out)
	}
	for _, shell := range []string{"bash", "zsh", "fish"} {
		require.Contains(t, u.does("completion", shell), "gpufd")
	}
	require.Regexp(t, `^gpufd \S+\n$`, u.does("version"))
	require.Equal(t, u.does("version"), u.does("--version"))
	require.NotEmpty(t, u.says(0, "version")["version"])
}

// A shell is told the values of flags and the names that are kept, and waits for no keeper.
func TestCompletion(t *testing.T) {
	t.Parallel()
	u := newUser(t)
	u.keeper()
	u.write("file", data(100, 0))
	u.does("put", "llama", "file")
	u.does("put", "mistral", "file")
	for line, want := range map[string]string{
		"get --driver":                      "auto cuda soft :4",
		"put --driver":                      "auto cuda soft :4",
		"drain --driver":                    "auto cuda soft :4",
		"channel write --driver":            "auto cuda soft :4",
		"channel read --policy":             "block drop-oldest drop-newest latest :4",
		"channel read --join":               "next newest :4",
		"get":                               "llama mistral :4",
		"stat llama":                        ":4",
		"rm llama":                          "mistral :4",
		"put":                               "llama mistral :4",
		"put llama":                         ":0", // files
		"keeper --policy":                   ":0",
		"get --socket " + u.dir + "/nobody": ":4",
	} {
		code, out, _ := u.run(append(append([]string{"__completeNoDesc"}, strings.Fields(line)...), "")...)
		require.Zero(t, code, line)
		require.Equal(t, want, strings.Join(strings.Fields(out), " "), line)
	}
}

// Bash completes without the package bash-completion.
func TestCompletionInBash(t *testing.T) {
	t.Parallel()
	bash, err := exec.LookPath("bash")
	if err != nil {
		t.Skip("there is no bash here")
	}
	u := newUser(t)
	script := u.does("completion", "bash")
	for line, want := range map[string]string{
		"gpufd quar":                  "quarantine",
		"gpufd get --driver ":         "auto cuda soft",
		"gpufd get --driver=so":       "soft",
		"gpufd channel read --join n": "newest next",
	} {
		c := exec.Command(bash, "--norc", "-c", script+`
			COMP_LINE=$1 COMP_POINT=${#1} COMP_TYPE=9
			__start_gpufd
			echo "${COMPREPLY[@]%% *}"`, "bash", line)
		c.Env = append(slices.Clip(u.env), "PATH="+filepath.Dir(gpufd)+":"+os.Getenv("PATH"))
		out := ok(c.Output())(t)
		got := strings.Fields(string(out))
		slices.Sort(got)
		require.Equal(t, want, strings.Join(got, " "), line)
	}
}

// Errors say that there is no keeper, and what to do about it.
func TestNoKeeper(t *testing.T) {
	t.Parallel()
	u := newUser(t)
	for _, c := range []string{"stat w", "rm w", "drain w", "watch", "get w --verify", "drain --device 0"} {
		u.fails(1, "no keeper came within 500ms", append(strings.Fields(c), "--timeout", "500ms")...)
	}
	u.write("file", data(10, 0))
	for _, c := range []string{"put w file --device 99", "put w --part 0@99=file", "drain --device 99"} {
		u.fails(1, "no device 99 here", strings.Fields(c)...) // at once: no keeper helps with that
	}
	for where, why := range map[string]string{"file/s": "not a directory", "file": "nobody is listening", ".": "nobody is listening"} {
		u.fails(1, why, "watch", "--socket", where) // at once: nobody will listen there
	}
	dead := ok(net.ListenUnix("unixpacket", &net.UnixAddr{Name: filepath.Join(u.dir, "s.ctl"), Net: "unixpacket"}))(t)
	dead.SetUnlinkOnClose(false)
	require.NoError(t, dead.Close())
	u.fails(1, "start a keeper with gpufd keeper", "watch", "--timeout", "500ms")
	require.Contains(t, u.says(1, "watch", "--timeout", "500ms")["error"].(map[string]any)["message"], "start a keeper")
}

// A command that comes before the keeper waits for it, and says so after a while.
func TestKeeperComesLater(t *testing.T) {
	t.Parallel()
	u := newUser(t)
	u.write("a", data(1000, 1))
	early := u.start("put", "v", "a")
	const waits = "Waiting for a keeper at "
	u.until(func() bool { return strings.Contains(early.err.String(), waits) })
	u.keeper()
	code, out := early.end()
	require.Zero(t, code, early.err.String())
	require.Contains(t, out, "v: version 1")
	require.Equal(t, waits+u.dir+"/s, for 5s at most (--timeout); gpufd keeper starts one\n", early.err.String())
	u.fails(1, "list what is there: gpufd ls", "get", "w", "--verify")
	u.fails(1, "list what is there: gpufd ls", "stat", "w")
}

// A command that waits for a keeper heeds a signal.
func TestWaitForKeeperIsInterrupted(t *testing.T) {
	t.Parallel()
	u := newUser(t)
	r := u.start("watch")
	u.until(func() bool { return strings.Contains(r.err.String(), "Waiting for a keeper") })
	code, _ := r.stop(syscall.SIGTERM)
	require.Equal(t, 1, code)
	require.Contains(t, r.err.String(), "gpufd watch: interrupted")
}

// A keeper that is killed leaves its sockets with the fd store: nobody answers there, and
// the next keeper has everything.
func TestKeeperIsKilled(t *testing.T) {
	t.Parallel()
	u := newUser(t)
	first := u.keeper()
	u.write("a", data(1000, 1))
	u.does("put", "w", "a")
	h := u.start("get", "w", "--hold", "1m", "--json")
	h.object()
	u.until(func() bool { return len(u.stat("w")["holders"].([]any)) == 1 })
	_, _ = first.stop(syscall.SIGKILL)
	u.fails(4, "the keeper does not answer", "ls", "--timeout", "200ms")
	second := u.keeper()
	require.Contains(t, u.does("doctor", "--with", filepath.Join(u.dir, "s")), fmt.Sprintf("OK      peer: pid %d ", second.Process.Pid))
	u.until(func() bool {
		holders := u.stat("w")["holders"].([]any)
		return len(holders) == 1 && holders[0].(map[string]any)["lost"] == nil
	})
	code, _ := second.stop(syscall.SIGTERM) // it restarts in order
	require.Zero(t, code)
	third := u.keeper()
	u.until(func() bool {
		holders := u.stat("w")["holders"].([]any)
		return len(holders) == 1 && holders[0].(map[string]any)["lost"] == nil
	})
	require.NotEqual(t, second.Process.Pid, third.Process.Pid)
	u.does("get", "w", "--verify")
	code, _ = h.stop(syscall.SIGTERM)
	require.Zero(t, code)
}

// A keeper has its socket for itself, until another takes it over.
func TestKeeperTwice(t *testing.T) {
	t.Parallel()
	u := newUser(t)
	first := u.keeper()
	u.write("a", data(1000, 1))
	u.does("put", "w", "a")
	u.fails(1, "--take-over", "keeper")
	second := u.keeper("--take-over")
	code, _ := first.end()
	require.Zero(t, code)
	u.does("get", "w", "--verify")
	code, out := second.stop(syscall.SIGINT)
	require.Zero(t, code)
	require.Contains(t, out, `"event":"result"`)
	u.fails(1, "no such directory", "keeper", "--socket", "/nothing/there/s")
	u.fails(1, "foo", "keeper", "--metrics", "foo")
}

// An output that takes nothing is an error, and the end of what would go on.
func TestOutputIsLost(t *testing.T) {
	t.Parallel()
	u := newKept(t)
	u.write("a", data(1000, 1))
	u.does("put", "w", "a")
	full := ok(os.OpenFile("/dev/full", os.O_WRONLY, 0))(t)
	defer full.Close()
	r, closed, err := os.Pipe()
	require.NoError(t, err)
	defer closed.Close()
	require.NoError(t, r.Close())
	for _, args := range []string{"ls", "ls --json", "stat w", "get w --verify", "get w --hold 1m", "put w a", "version", "--help"} {
		for _, out := range []*os.File{full, closed} {
			require.Equal(t, 1, u.into(out, strings.Fields(args)...), "%s to %s", args, out.Name())
		}
	}
}

// into runs gpufd with its output in a file, and returns the exit code.
func (u *user) into(out *os.File, args ...string) int {
	r := &running{user: u}
	r.Cmd = command(u, args...)
	r.Stdout = out
	_ = r.Run()
	return r.ProcessState.ExitCode()
}
