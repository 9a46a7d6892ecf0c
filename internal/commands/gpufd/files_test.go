package gpufd

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/internal/safetensors"
	"github.com/gpufd/gpufd/internal/testenv"
)

// An oddFile is a case of python/tests/odd_files.py, which says what its members mean.
type oddFile struct {
	Name, Why, Path, Want, Says string
	Tensors                     map[string]string
}

// oddFiles makes the cases.
func oddFiles(t *testing.T) (cases []oddFile) {
	t.Helper()
	python, err := exec.LookPath("python3")
	testenv.Need(t, testenv.Python, err == nil, "there is no python3 here")
	script := "../../../python/tests/odd_files.py"
	if _, err := os.Stat(script); err != nil {
		t.Skip("the sources are not here:", err)
	}
	dir := filepath.Join(t.TempDir(), "odd")
	out, err := exec.Command(python, "-B", script, dir).CombinedOutput()
	require.NoError(t, err, "%s", out)
	text := ok(os.ReadFile(filepath.Join(dir, "cases.json")))(t)
	require.NoError(t, json.Unmarshal(text, &cases))
	return cases
}

// put takes files as tensors, as bytes or not at all; Python's test has the same cases.
func TestOddFiles(t *testing.T) {
	t.Parallel()
	for _, c := range oddFiles(t) {
		l, err := openLoad([]string{c.Path})
		if c.Want == "refuse" {
			require.Error(t, err, "%s: %s", c.Name, c.Why)
			require.Contains(t, err.Error(), c.Says, c.Name)
			require.Contains(t, err.Error(), filepath.Clean(c.Path), c.Name)
			require.NotContains(t, err.Error(), "\n", c.Name)
			continue
		}
		require.NoError(t, err, "%s: %s", c.Name, c.Why)
		var is table
		require.NoError(t, json.Unmarshal(l.table, &is), c.Name)
		if c.Want == "bytes" {
			require.Equal(t, formatBytes, is.Format, c.Name)
			require.Empty(t, l.layout, c.Name)
		} else {
			require.Equal(t, formatTensors, is.Format, c.Name)
			require.Equal(t, c.Tensors, l.tensors(t, is), c.Name)
			require.Equal(t, safetensors.LayoutOf(is.Tensors.Tensors), l.layout, c.Name)
		}
		require.NoError(t, l.unchanged())
		require.NoError(t, l.close())
	}
}

// tensors reads what would be loaded.
func (l *load) tensors(t *testing.T, is table) map[string]string {
	buffer, all := make([]byte, l.size), map[string]string{}
	for _, s := range l.ranges {
		require.NoError(t, errOf(s.File.ReadAt(buffer[s.Offset:s.Offset+s.Size], int64(s.At))))
	}
	for _, x := range is.Tensors.Tensors {
		all[x.Name] = hex.EncodeToString(buffer[x.Offset : x.Offset+x.Bytes])
	}
	return all
}

// Several paths are tensors or bytes, and the error says which are which.
func TestFilesOfTwoKinds(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	make := func(name string, content []byte) string {
		path := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(path, content, 0o600))
		return path
	}
	model := make("model.safetensors", safetensorsFile(t, map[string][]byte{"a": data(8, 1)}))
	config, other := make("config.json", []byte("{}")), make("tokenizer.json", []byte("{}"))
	for _, paths := range [][]string{{config, model, other}, {model, config}, {dir, config}} {
		_, err := openLoad(paths)
		require.ErrorContains(t, err, "is of another kind: give files of tensors alone, the directory")
		require.ErrorContains(t, err, config+" is of")
	}
	l := ok(openLoad([]string{config, other}))(t)
	require.NoError(t, l.close())
	require.ErrorContains(t, errOf(openLoad([]string{model, model})), "is there twice, in "+model+" too")
}

// A file that changes while put reads it is not what anybody has written.
func TestFileChanges(t *testing.T) {
	t.Parallel()
	for name, content := range map[string][]byte{"a.bin": data(5000, 1), "a.safetensors": safetensorsFile(t, map[string][]byte{"a": data(5000, 1)})} {
		path := filepath.Join(t.TempDir(), name)
		for what, change := range map[string]func() error{
			"shorter": func() error { return os.Truncate(path, 1000) },
			"longer":  func() error { return os.WriteFile(path, append(bytes.Clone(content), 1), 0o600) },
			"newer":   func() error { return os.Chtimes(path, time.Time{}, time.Unix(1e9, 0)) },
		} {
			require.NoError(t, os.WriteFile(path, content, 0o600))
			l := ok(openLoad([]string{path}))(t)
			require.NoError(t, l.unchanged())
			require.NoError(t, change())
			err := l.write(nil)(t.Context(), nil)
			require.ErrorContains(t, err, path+" changed while it was read", what)
			require.NoError(t, l.close())
		}
	}
}

// Standard input is a file, or what is piped; standard output gets what a file would.
func TestStandardFiles(t *testing.T) {
	t.Parallel()
	u := newKept(t)
	model := safetensorsFile(t, map[string][]byte{"a": data(9_000_000, 1), "b": data(8, 2)})
	u.write("model", model)
	u.write("bytes", data(5_000_001, 3))
	piped := func(in []byte, args ...string) []byte {
		cmd := command(u, args...)
		cmd.Stdin = bytes.NewReader(in)
		out := ok(cmd.Output())(t)
		return out
	}
	piped(model, "put", "m", "-")
	u.does("get", "m", "-o", "there")
	require.Equal(t, readTensors(t, model), readTensors(t, u.read("there")))
	require.Equal(t, u.read("there"), piped(nil, "get", "m", "-o", "-", "--verify"), "and no word more")
	piped(data(5_000_001, 3), "put", "b", "-")
	require.Equal(t, data(5_000_001, 3), piped(nil, "get", "b", "-o", "-"))

	cmd := command(u, "put", "m", "--part", "0@0=-")
	in := ok(os.Open(filepath.Join(u.dir, "model")))(t)
	defer in.Close()
	cmd.Stdin = in
	require.NoError(t, cmd.Run(), "a file of which nothing has been read")
	require.Equal(t, u.read("there"), piped(nil, "get", "m", "-o", "-"))

	cmd = command(u, "put", "m", "-")
	cmd.Stdin = strings.NewReader("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n")
	out, err := cmd.CombinedOutput()
	require.Error(t, err)
	require.Contains(t, string(out), "standard input: it is a pointer of git LFS")

	u.fails(2, "standard input: want it alone", "put", "m", "-", "bytes")
	u.fails(2, "for one part alone", "put", "m", "--part", "0@0=-", "--part", "1@0=-")
	u.fails(1, "standard input: nothing to keep", "put", "m", "-")
	for in, says := range map[string]string{
		"version https://git-lfs.github.com/spec/v1\n": "standard input: it is a pointer of git LFS",
		`{"weight_map": {}}`:                           "standard input is the index of a model under another name",
	} {
		cmd := command(u, "put", "m", "-")
		cmd.Stdin = strings.NewReader(in)
		out, err := cmd.CombinedOutput()
		require.Error(t, err)
		require.Contains(t, string(out), says)
	}
	u.fails(2, "--json wants -o FILE", "get", "m", "-o", "-", "--json")
	u.fails(2, "--all wants -o DIR", "get", "m", "-o", "-", "--all")
}

// A get whose output nobody reads ends at a signal all the same.
func TestGetEndsWhileNobodyReadsItsOutput(t *testing.T) {
	t.Parallel()
	u := newKept(t)
	u.write("a", data(1<<20, 1))
	u.does("put", "w", "a")
	get := u.start("get", "w", "-o", "-")
	_, err := get.lines.Peek(1) // the rest is more than a pipe and this side's buffer hold
	require.NoError(t, err)
	require.NoError(t, get.Process.Signal(syscall.SIGTERM))
	_ = get.Wait()
	require.Equal(t, 1, get.ProcessState.ExitCode(), get.err.String())
}

// A link that somebody else has put there is not followed.
func TestOutputLinks(t *testing.T) {
	t.Parallel()
	u := newKept(t)
	u.write("a", data(1000, 1))
	u.does("put", "w", "a")
	mine := u.write("mine", []byte("mine"))
	link := filepath.Join(u.dir, "link")
	require.NoError(t, os.Symlink("new", link))
	u.does("get", "w", "-o", "link")
	require.Equal(t, data(1000, 1), u.read("new"), "this user's link stays, and leads to a new file")
	require.NoError(t, os.Symlink("loop", filepath.Join(u.dir, "loop")))
	u.fails(1, "too many levels of symbolic links", "get", "w", "-o", "loop")

	if os.Getuid() != 0 {
		t.Skip("only root makes links of another user")
	}
	other := filepath.Join(u.dir, "other")
	require.NoError(t, os.Symlink(mine, other))
	require.NoError(t, os.Lchown(other, 65534, 65534))
	second := filepath.Join(u.dir, "second")
	require.NoError(t, os.Symlink("other", second))
	for _, name := range []string{"other", "second"} {
		u.fails(1, `other is a link that user 65534 has put there, to "`+mine+`"`, "get", "w", "-o", name)
	}
	require.NoError(t, os.Mkdir(filepath.Join(u.dir, "dir"), 0o700))
	require.NoError(t, os.Rename(other, filepath.Join(u.dir, "dir/part-0")))
	u.fails(1, "dir/part-0 is a link that user 65534", "get", "w", "--all", "-o", "dir")
	require.NoError(t, os.Rename(filepath.Join(u.dir, "dir/part-0"), other))
	u.fails(1, "other is a link that user 65534", "channel", "read", "c", "-o", "other", "--socket", "s")
	u.fails(2, "is not a regular file", "get", "w", "-o", "/dev/stdout")
	require.Equal(t, []byte("mine"), u.read("mine"))
}

// A disk that is full names the file that was asked for.
func TestOutputOnAFullDisk(t *testing.T) {
	t.Parallel()
	u := newKept(t)
	u.write("a", data(1<<20, 1))
	u.does("put", "w", "a")
	cmd := exec.Command("sh", "-c", `trap "" XFSZ; ulimit -f 8; exec "$0" get w -o "out"`, gpufd)
	cmd.Dir, cmd.Env = u.dir, u.env
	out, err := cmd.CombinedOutput()
	require.Error(t, err)
	require.Contains(t, string(out), "writing out: file too large")
	require.NotContains(t, string(out), ".gpufd-")
	left := ok(filepath.Glob(filepath.Join(u.dir, ".gpufd-*")))(t)
	require.Empty(t, left)
	require.NotContains(t, strings.TrimSpace(string(out)), "\n")
}
