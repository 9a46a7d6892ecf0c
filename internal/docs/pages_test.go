package main

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu/cutest"
)

// A block is a fenced block of a page, without its fences.
type block struct {
	kind string // what stands behind the fence
	line int    // of the fence, in the page
	text string
}

var fence = regexp.MustCompile("(?ms)^```([a-z]*)\n(.*?)^```$")

// blocks are the fenced blocks of a page.
func blocks(page string) (all []block) {
	for _, m := range fence.FindAllStringSubmatchIndex(page, -1) {
		all = append(all, block{page[m[2]:m[3]], 1 + strings.Count(page[:m[0]], "\n"), page[m[4]:m[5]]})
	}
	return all
}

// notRun begins a block that takes what CI does not have, and says what that is.
const notRun = "# not run in CI: "

// TestPages: the commands of these pages work as they stand, on the software driver, and
// print what the pages say.
func TestPages(t *testing.T) {
	if testing.Short() || cutest.Emulated() {
		t.Skip("installs and builds gpufd anew")
	}
	for _, tool := range []string{"go", "git", "make", "bash"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skip("takes ", tool)
		}
	}
	r := newReader(t)
	t.Run("README.md", func(t *testing.T) {
		r.follow(t, "../../README.md")
		r.requireInstalled(t)
		requireClean(t, r.checkout) // where pip installed from
		requireClean(t, filepath.Join(r.dir, "empty/gpufd"))
	})
	for _, page := range guides(t) {
		t.Run(filepath.Base(page), func(t *testing.T) {
			t.Parallel()
			mine := r.inCheckout(t, page)
			mine.follow(t, page)
			requireClean(t, mine.checkout)
		})
	}
}

// guides are the pages that people do things from, each in a checkout of its own.
func guides(t *testing.T) []string {
	t.Helper()
	pages, err := filepath.Glob("../../docs/howto-*.md")
	require.NoError(t, err)
	require.NotEmpty(t, pages)
	return append(pages, tutorial)
}

// follow runs the blocks of a page in one shell, one after the other, as they are pasted. What
// a page starts it also ends.
func (r *reader) follow(t *testing.T, page string) {
	t.Helper()
	text, err := os.ReadFile(page)
	require.NoError(t, err)
	sh := r.open(t)
	ran, ok := 0, true
	for _, b := range blocks(string(text)) {
		name := fmt.Sprintf("line %d", b.line)
		switch why, notRun := strings.CutPrefix(b.text, notRun); {
		case notRun:
			why, _, _ = strings.Cut(why, "\n")
			t.Logf("%s is not run: %s", name, why)
			continue
		case b.kind == "sh":
			ok = t.Run(name, func(t *testing.T) {
				said := sh.run(t, b.text)
				for _, m := range quoted.FindAllStringSubmatch(b.text, -1) {
					require.Contains(t, said, m[1])
				}
			})
		case b.kind == "console":
			ok = t.Run(name, func(t *testing.T) { sh.converse(t, b.text) })
		case b.kind == "python" && r.at == "":
			ok = t.Run(name, func(t *testing.T) { r.runPython(t, b.text) })
		case b.kind == "text", b.file() != "":
			continue
		case b.kind == "go" && (page == tutorial || r.at == ""): // TestTutorial, and tests.TestReadmesProgram
			continue
		default:
			t.Errorf("%s: a block of %q: want sh or console for commands, which are run here, or a program whose first line is a comment with its file's name", name, b.kind)
		}
		if !ok {
			return // later blocks stand on this one
		}
		ran++
	}
	require.NotZero(t, ran)
	sh.end(t)
}

// quoted matches what a command prints, as the comment behind it says.
var quoted = regexp.MustCompile(`(?m) # .*: "(.+)"$`)

// runPython runs a program of README.md, which says in comments what its prints print.
func (r *reader) runPython(t *testing.T, program string) {
	t.Helper()
	requireTools(t, "/usr/bin/python3 ")
	cmd := exec.Command("/usr/bin/python3", "-c", program)
	cmd.Dir, cmd.Env = t.TempDir(), append(slices.Clip(r.env), "PYTHONPATH="+filepath.Join(r.checkout, "python"), "PYTHONDONTWRITEBYTECODE=1")
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	var want string
	for _, m := range regexp.MustCompile(`(?m)\bprint\(.*\)  # (.*)$`).FindAllStringSubmatch(program, -1) {
		want += m[1] + "\n"
	}
	require.NotEmpty(t, want)
	require.Equal(t, want, string(out))
}

// A reader does what pages say, in directories of its own.
type reader struct {
	dir, checkout string
	at            string // where the blocks are run; nothing is an empty directory
	pip           bool   // Python's is there
	env           []string
}

// newReader prepares what a reader of README.md has: the tools, a checkout, a Go module of
// its own, and a module proxy that has gpufd.
func newReader(t *testing.T) *reader {
	t.Helper()
	r := &reader{dir: shortDir(t)}
	checkout, err := filepath.Abs("../..")
	require.NoError(t, err)
	for _, name := range []string{"bin", "tools", "run", "module", "proxy", "python"} {
		require.NoError(t, os.Mkdir(filepath.Join(r.dir, name), 0o700))
	}
	in := func(name string) string { return filepath.Join(r.dir, name) }
	r.checkout = in("checkout")
	r.env = append(withoutGPUFD(),
		"PATH="+in("tools")+":"+in("bin")+":"+os.Getenv("PATH"), "CHECKOUT="+r.checkout, "MODULE="+in("module"),
		"CGO_ENABLED=0", "GOFLAGS=-mod=mod -modcacherw -trimpath", "GOTOOLCHAIN=local", "GOSUMDB=off", "GOWORK=off", "GOBIN="+in("bin"),
		"GOPROXY=file://"+in("proxy")+",file://"+goEnv(t, "GOMODCACHE")+"/cache/download", "GOMODCACHE="+in("cache"), "GOARCH=",
		"SUITEFLAGS=-two tests", // make test runs this, and here lists tests alone
		"GPUFD_DRIVER=soft", "GPUFD_SOFT_DIR="+in("gpu"), "XDG_RUNTIME_DIR="+in("run"),
		"GIT_CONFIG_COUNT=2", "GIT_CONFIG_KEY_0=url.file://"+r.checkout+".insteadOf", "GIT_CONFIG_VALUE_0=https://github.com/gpufd/gpufd",
		"GIT_CONFIG_KEY_1=safe.directory", "GIT_CONFIG_VALUE_1=*",
		"PIP_TARGET="+in("python"), "PIP_NO_INDEX=1", "PIP_DISABLE_PIP_VERSION_CHECK=1", "PIP_ROOT_USER_ACTION=ignore")
	r.copyCheckout(t, checkout)
	makeProxy(t, r.checkout, in("proxy"))
	r.pip = makePip(t, in("tools"))
	require.NoError(t, os.Symlink("/usr/bin/python3", in("tools/python3"))) // Debian's, which has PyTorch
	require.NoError(t, os.WriteFile(in("module/go.mod"), []byte("module example.com/reader\n\ngo 1.26\n"), 0o600))
	build := exec.Command("go", "build", "-o", in("bin")+"/", "./cmd/...")
	build.Dir = checkout
	build.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=-trimpath -buildvcs=false")
	out, err := build.CombinedOutput()
	require.NoError(t, err, "%s", out)
	return r
}

// inCheckout is a reader of a page who is in a checkout, with the programs in PATH and the
// package in PYTHONPATH, and has saved the page's programs.
func (r *reader) inCheckout(t *testing.T, page string) *reader {
	t.Helper()
	text, err := os.ReadFile(page)
	require.NoError(t, err)
	for _, b := range blocks(string(text)) {
		requireTools(t, b.text)
	}
	mine := *r
	mine.dir, err = os.MkdirTemp(r.dir, "p")
	require.NoError(t, err)
	mine.checkout = filepath.Join(mine.dir, "gpufd")
	out, err := exec.Command("git", "-c", "safe.directory=*", "clone", "-q", "-s", r.checkout, mine.checkout).CombinedOutput()
	require.NoError(t, err, "%s", out)
	if mine.at = mine.checkout; page != tutorial {
		mine.at = filepath.Join(mine.checkout, "build/_howto") // as docs/README.md says
		require.NoError(t, os.MkdirAll(mine.at, 0o755))
	}
	run := filepath.Join(mine.dir, "run")
	require.NoError(t, os.Mkdir(run, 0o700))
	mine.env = append(slices.Clip(r.env), "CHECKOUT="+mine.checkout, "XDG_RUNTIME_DIR="+run, "GPUFD_SOFT_DIR="+filepath.Join(mine.dir, "gpu"), "PYTHONPATH="+filepath.Join(mine.checkout, "python"))
	for _, b := range blocks(string(text)) {
		if name := b.file(); name != "" {
			to := filepath.Join(mine.at, name)
			require.NoFileExists(t, to)
			require.NoError(t, os.MkdirAll(filepath.Dir(to), 0o755))
			require.NoError(t, os.WriteFile(to, []byte(b.text), 0o600))
		}
	}
	return &mine
}

// requireClean checks that a page leaves nothing in a checkout.
func requireClean(t *testing.T, checkout string) {
	t.Helper()
	out, err := exec.Command("git", "-c", "safe.directory=*", "-C", checkout, "status", "--porcelain").CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Empty(t, string(out), "it leaves these in the checkout")
}

// fileName matches the first line of a program that is to be saved under that name.
var fileName = regexp.MustCompile(`^(?://|#) ([\w-][\w./-]*\.(?:go|py|c))\n`)

// file is the name that a block is to be saved under, or nothing.
func (b block) file() string {
	if m := fileName.FindStringSubmatch(b.text); m != nil {
		return m[1]
	}
	return ""
}

// requireTools skips t where a page's commands take what this machine does not have, unless
// it is said to have it.
func requireTools(t *testing.T, commands string) {
	t.Helper()
	for _, tool := range []struct{ word, env, try string }{
		{"python3 ", "GPUFD_REQUIRE_PYTHON", "/usr/bin/python3 -c 'import torch, numpy'"},
		{"torchrun ", "GPUFD_REQUIRE_PYTHON", "/usr/bin/python3 -c 'import torch.distributed'"},
		{"cc ", "GPUFD_REQUIRE_CC", "cc --version"},
		{"unshare ", "GPUFD_REQUIRE_NAMESPACES", "unshare --fork --pid --ipc --net true"},
		{"setpriv ", "GPUFD_REQUIRE_NAMESPACES", "setpriv --reuid 65534 --regid 65534 --clear-groups true"},
	} {
		if strings.HasPrefix(commands, notRun) || !regexp.MustCompile(`(?m)(^|[$&;|] |=\S+ )`+tool.word).MatchString(commands) {
			continue
		}
		if out, err := exec.Command("bash", "-c", tool.try).CombinedOutput(); err != nil {
			require.NotEqual(t, "1", os.Getenv(tool.env), "%s: %s", tool.try, out)
			t.Skipf("takes what this does not find: %s", tool.try)
		}
	}
}

// shortDir is a directory for sockets, whose paths have to be short.
func shortDir(t *testing.T) string {
	dir, err := os.MkdirTemp("", "docs")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	return dir
}

// withoutGPUFD is the environment without what changes the programs, or this build.
func withoutGPUFD() (env []string) {
	for _, v := range os.Environ() {
		if name, _, _ := strings.Cut(v, "="); !strings.HasPrefix(name, "GPUFD_") && !strings.HasPrefix(name, "MAKE") && name != "GOFLAGS" && name != "CUDA_VISIBLE_DEVICES" {
			env = append(env, v)
		}
	}
	return env
}

func goEnv(t *testing.T, name string) string {
	t.Helper()
	out, err := exec.Command("go", "env", name).Output()
	require.NoError(t, err)
	return strings.TrimSpace(string(out))
}

// copyCheckout makes a repository of the files that are in this one, committed or not.
func (r *reader) copyCheckout(t *testing.T, from string) {
	t.Helper()
	list := exec.Command("git", "-C", from, "ls-files", "-co", "--exclude-standard")
	names, err := list.Output()
	if err != nil {
		t.Skip("takes a checkout of gpufd")
	}
	for name := range strings.Lines(string(names)) {
		name = strings.TrimSpace(name)
		content, err := os.ReadFile(filepath.Join(from, name))
		if os.IsNotExist(err) {
			continue // deleted, and not committed
		}
		require.NoError(t, err)
		info, err := os.Stat(filepath.Join(from, name))
		require.NoError(t, err)
		to := filepath.Join(r.checkout, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(to), 0o755))
		require.NoError(t, os.WriteFile(to, content, info.Mode()))
	}
	for _, args := range []string{"init -q", "add -A", "-c user.name=reader -c user.email=reader@example.com commit -qm all"} {
		out, err := exec.Command("git", append([]string{"-C", r.checkout}, strings.Fields(args)...)...).CombinedOutput()
		require.NoError(t, err, "%s", out)
	}
}

// makePip is pip of Debian's Python, without an index. Where that is missing, README's line
// is passed over, unless GPUFD_REQUIRE_PYTHON=1.
func makePip(t *testing.T, dir string) (there bool) {
	t.Helper()
	script := "#!/bin/sh\nexec /usr/bin/python3 -m pip \"$@\" --quiet --no-build-isolation\n"
	there = exec.Command("/usr/bin/python3", "-c", "import setuptools, pip, wheel").Run() == nil
	if !there {
		require.NotEqual(t, "1", os.Getenv("GPUFD_REQUIRE_PYTHON"), "python3 has no pip, setuptools and wheel")
		t.Log("pip install is not run: python3 has no pip, setuptools and wheel")
		script = "#!/bin/sh\n"
	}
	require.NoError(t, os.WriteFile(filepath.Join(dir, "pip"), []byte(script), 0o755))
	return there
}

// requireInstalled checks what README.md's commands have installed.
func (r *reader) requireInstalled(t *testing.T) {
	t.Helper()
	out, err := exec.Command("go", "version", "-m", filepath.Join(r.dir, "bin/gpufd")).CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Regexp(t, `\smod\s+`+module+`\s+`+version, string(out))
	mod, err := os.ReadFile(filepath.Join(r.dir, "module/go.mod"))
	require.NoError(t, err)
	require.Contains(t, string(mod), module+" "+version)
	if r.pip {
		require.FileExists(t, filepath.Join(r.dir, "python/gpufd/__init__.py"))
	}
}

// script is the lines of a block. It fails with the first command that does. What a comment
// says of the place is done.
func script(lines string) string {
	var b strings.Builder
	b.WriteString("set -eu -o pipefail\n")
	for line := range strings.Lines(lines) {
		switch {
		case strings.Contains(line, "in your module"):
			b.WriteString("cd \"$MODULE\"\n")
		case strings.Contains(line, "in a checkout"):
			b.WriteString("cd \"$CHECKOUT\"\n")
		}
		b.WriteString(line)
	}
	return b.String()
}

// A shell is the terminal into which a page's blocks are pasted.
type shell struct {
	cmd    *exec.Cmd
	in     io.WriteCloser
	out    *os.File // what the blocks have printed
	dir    string   // of the blocks' scripts
	ran    int
	read   int           // how much of out belongs to earlier blocks
	failed chan struct{} // closed when the shell has ended
}

// open starts a shell for a page.
func (r *reader) open(t *testing.T) *shell {
	t.Helper()
	at := r.at
	if at == "" {
		at = filepath.Join(r.dir, "empty")
		require.NoError(t, os.Mkdir(at, 0o700))
	}
	sh := &shell{cmd: exec.Command("bash"), failed: make(chan struct{})}
	var err error
	sh.dir, err = os.MkdirTemp(r.dir, "blocks")
	require.NoError(t, err)
	sh.out, err = os.Create(filepath.Join(sh.dir, "output"))
	require.NoError(t, err)
	sh.in, err = sh.cmd.StdinPipe()
	require.NoError(t, err)
	sh.cmd.Dir, sh.cmd.Stdout, sh.cmd.Stderr = at, sh.out, sh.out
	sh.cmd.Env = append(slices.Clip(r.env), started+sh.dir)
	sh.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	require.NoError(t, sh.cmd.Start())
	go func() {
		_ = sh.cmd.Wait()
		close(sh.failed)
	}()
	t.Cleanup(func() {
		for left := sh.processes(); len(left) > 0; left = sh.processes() { // one may start another meanwhile
			for pid := range left {
				_ = syscall.Kill(pid, syscall.SIGKILL)
			}
			time.Sleep(10 * time.Millisecond)
		}
		<-sh.failed
		_ = sh.out.Close()
	})
	return sh
}

// started is a variable of the environment that says which shell started a process.
const started = "STARTED_BY="

// processes are those that the shell has started, itself included, with their commands.
func (sh *shell) processes() map[int]string {
	all := map[int]string{}
	found, _ := filepath.Glob("/proc/[0-9]*/environ")
	for _, path := range found {
		env, err := os.ReadFile(path)
		if err != nil || !slices.Contains(strings.Split(string(env), "\x00"), started+sh.dir) {
			continue // it has ended, or is not ours
		}
		pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		command, _ := os.ReadFile(filepath.Join(filepath.Dir(path), "cmdline"))
		all[pid] = strings.ReplaceAll(string(command), "\x00", " ")
	}
	return all
}

// run runs the lines of a block, none of which may fail, and returns what they print.
func (sh *shell) run(t *testing.T, lines string) string {
	t.Helper()
	sh.ran++
	name := filepath.Join(sh.dir, fmt.Sprint(sh.ran))
	require.NoError(t, os.WriteFile(name, []byte(script(lines)), 0o600))
	_, err := fmt.Fprintf(sh.in, ". %s </dev/null; : >%s.done\n", name, name)
	require.NoError(t, err)
	late, done := time.After(10*time.Minute), false
	for !done {
		select {
		case <-sh.failed:
			require.FailNow(t, "a command failed", "%s", sh.said(t))
		case <-late:
			require.FailNow(t, "it takes too long", "%s", sh.said(t))
		case <-time.After(10 * time.Millisecond):
			_, err := os.Stat(name + ".done")
			done = err == nil
		}
	}
	return sh.said(t)
}

// said returns what was printed since the last block.
func (sh *shell) said(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile(sh.out.Name())
	require.NoError(t, err)
	more := text[sh.read:]
	sh.read = len(text)
	return string(more)
}

// end ends the shell. What the page has started has to be over then.
func (sh *shell) end(t *testing.T) {
	t.Helper()
	require.NoError(t, sh.in.Close())
	var left map[int]string
	for late := time.Now().Add(30 * time.Second); time.Now().Before(late); time.Sleep(20 * time.Millisecond) {
		if left = sh.processes(); len(left) == 0 {
			return
		}
	}
	require.Fail(t, "the page leaves processes running, and does not say how to end them", "%v", left)
}

// mark stands in the output before each command's.
const mark = "@@@"

// converse runs the commands of a block, which stand behind "$ ", and compares what each
// prints with the lines below it.
func (sh *shell) converse(t *testing.T, text string) {
	t.Helper()
	var commands strings.Builder
	var want [][]string
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		if command, is := strings.CutPrefix(line, "$ "); is {
			fmt.Fprintf(&commands, "echo %s\n%s\n", mark, command)
			want = append(want, nil)
			continue
		}
		require.NotEmpty(t, want, "output without a command")
		want[len(want)-1] = append(want[len(want)-1], line)
	}
	said := strings.Split(asides.ReplaceAllString(sh.run(t, commands.String()), ""), mark+"\n")[1:]
	require.Len(t, said, len(want))
	for i := range want {
		have := strings.Split(strings.TrimSuffix(said[i], "\n"), "\n")
		if have[0] == "" {
			have = have[1:]
		}
		require.True(t, printed(want[i], have), "the page says\n%s\nand it printed\n%s", strings.Join(want[i], "\n"), said[i])
	}
}

// asides matches what go says the first time, bash of a job that was killed, and a command that
// waits on a busy machine.
var asides = regexp.MustCompile(`(?m)^(go: downloading |\S+: line \d+: +\d+ (Killed|Terminated|Interrupt) |Waiting for ).*\n`)

// volatile matches what differs from run to run. A keeper notices a moment later that a process
// has ended, so that differs too: the holders and what would become free, at the end of a line.
var volatile = regexp.MustCompile(`0x[0-9a-f]+|salt \d+|FD: \d+|\(\d+\.\d\ds\)|\d+\.\d{3}|software driver \(.*|` +
	`(?i:process|pid|uid|gid) \d+|(in|took) [\d.]+(ns|µs|ms|s|m)\S*|GPU-[0-9a-f-]+|gpufd-d1:[0-9a-f]+|\d{4}-\d\d-\d\dT[\d:]+Z|[\w./-]*/gpufd/(?:build/_howto/)?\w+\.sock|` +
	` \d+ {2,}[\d.]+ (bytes|[KMG]iB)$`)

// printed reports whether lines are those of a page, in which … stands for any lines.
func printed(page, lines []string) bool {
	if len(page) == 0 || len(lines) == 0 {
		return len(lines) == 0 && (len(page) == 0 || page[0] == "…" && printed(page[1:], lines))
	}
	if page[0] == "…" {
		return printed(page[1:], lines) || printed(page, lines[1:])
	}
	same := volatile.ReplaceAllString(page[0], "~") == volatile.ReplaceAllString(lines[0], "~")
	return same && printed(page[1:], lines[1:])
}

func TestPrinted(t *testing.T) {
	is := func(page, lines string) bool {
		return printed(strings.Fields(page), strings.Fields(lines))
	}
	require.True(t, is("a … d", "a b c d"))
	require.True(t, is("a …", "a"))
	require.True(t, is("at:0x12", "at:0xff"))
	require.True(t, printed([]string{"x  1      0        1.9 MiB"}, []string{"x  1      1        0 bytes"}))
	require.False(t, is("a … d", "a b c"))
	require.False(t, is("a", "a b"))
	require.False(t, is("a b", "a"))
	require.False(t, is("3", "4"))
	require.False(t, printed(nil, []string{"a"}))
}

// pages that name commands have them in blocks that are found.
func TestBlocks(t *testing.T) {
	found := blocks("a\n```sh\nls\n```\nb\n```console\n$ ls\nx\n```\n")
	require.Equal(t, []block{{"sh", 2, "ls\n"}, {"console", 6, "$ ls\nx\n"}}, found)
}
