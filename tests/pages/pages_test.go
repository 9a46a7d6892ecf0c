// Package pages follows the documents as a reader does.
package pages

import (
	"context"
	"fmt"
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
	"github.com/gpufd/gpufd/internal/testenv"
	"github.com/gpufd/gpufd/tests/internal/programs"
)

const (
	root     = "../.."
	readme   = root + "/README.md"
	tutorial = root + "/docs/tutorial.md"
	module   = "github.com/gpufd/gpufd"
	version  = "v0.0.1" // of the copy that the pages download
	notRun   = "# not run in CI: "
)

// TestPages runs the commands of README.md, the tutorial and the how-tos on the software driver, and
// compares what they print with the page. CONTRIBUTING.md says how blocks are written.
func TestPages(t *testing.T) {
	t.Parallel()
	if testing.Short() || cutest.Emulated() {
		t.Skip("installs and builds gpufd anew")
	}
	home := newHome(t)
	pages, err := filepath.Glob(root + "/docs/howto-*.md")
	require.NoError(t, err)
	require.NotEmpty(t, pages)
	for _, page := range append(pages, tutorial, readme) {
		t.Run(filepath.Base(page), func(t *testing.T) {
			t.Parallel()
			home.follow(t, page)
		})
	}
}

// A block is a fenced block of a page.
type block struct {
	kind string // behind the fence
	line int
	text string
}

var fence = regexp.MustCompile("(?ms)^```([a-z]*)\n(.*?)^```$")

func blocks(page string) (all []block) {
	for _, m := range fence.FindAllStringSubmatchIndex(page, -1) {
		all = append(all, block{page[m[2]:m[3]], 1 + strings.Count(page[:m[0]], "\n"), page[m[4]:m[5]]})
	}
	return all
}

var fileName = regexp.MustCompile(`^(?://|#) ([\w-][\w./-]*\.(?:go|py|c))\n`)

// file returns the name that the first line of a program gives it, or "".
func (b block) file() string {
	if m := fileName.FindStringSubmatch(b.text); m != nil {
		return m[1]
	}
	return ""
}

// A home has what all pages use: a repository with this tree as version, and the programs.
type home struct {
	dir string
	env []string
}

func (h *home) at(name string) string { return filepath.Join(h.dir, name) }

func newHome(t *testing.T) *home {
	for _, tool := range []string{"go", "git", "make", "bash"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skip("needs ", tool)
		}
	}
	bin, err := filepath.Abs(filepath.Dir(programs.ProgramPath(t, "gpufd")))
	require.NoError(t, err)
	dir, err := os.MkdirTemp("", "pages") // short, for sockets
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	h := &home{dir: dir}
	for _, v := range os.Environ() {
		if name, _, _ := strings.Cut(v, "="); !strings.HasPrefix(name, "GPUFD_") && !strings.HasPrefix(name, "MAKE") && name != "CUDA_VISIBLE_DEVICES" {
			h.env = append(h.env, v)
		}
	}
	downloads := strings.TrimSpace(run(t, root, "go", "env", "GOMODCACHE")) + "/cache/download"
	h.env = append(h.env, "CGO_ENABLED=0", "GOFLAGS=-mod=mod -modcacherw -trimpath", "GOTOOLCHAIN=local", "GOSUMDB=off", "GOWORK=off", "GOARCH=",
		"GOPROXY=file://"+downloads, "GOPRIVATE="+module, "GOMODCACHE="+h.at("modules"), "GPUFD_DRIVER=soft",
		"GIT_CONFIG_COUNT=2", "GIT_CONFIG_KEY_0=url.file://"+h.at("repository")+".insteadOf", "GIT_CONFIG_VALUE_0=https://"+module,
		"GIT_CONFIG_KEY_1=safe.directory", "GIT_CONFIG_VALUE_1=*",
		"PIP_NO_INDEX=1", "PIP_DISABLE_PIP_VERSION_CHECK=1", "PIP_ROOT_USER_ACTION=ignore")
	run(t, root, "bash", "-euc", `mkdir "$0"/tools "$0"/repository
		ln -s "$2" "$0"/bin
		git ls-files -co --exclude-standard | while read -r f; do [ ! -e "$f" ] || echo "$f"; done | tar -cT - | tar -xC "$0"/repository
		cd "$0"/repository && git init -q && git add -A
		git -c user.name=reader -c user.email=reader@example.com commit -qm all && git tag "$1"
		git -c safe.directory=* clone -q -s . "$0"/checkout # pages copy it, which is quicker
		ln -s /usr/bin/python3 "$0"/tools/python3
		printf '#!/bin/sh\nexec /usr/bin/python3 -m pip "$@" --quiet --no-build-isolation\n' >"$0"/tools/pip
		printf '#!/bin/sh\n[ "$1" != test ] || set -- -n test # the tests that run now\nPATH=${PATH#*:} exec make "$@"\n' >"$0"/tools/make
		chmod +x "$0"/tools/pip "$0"/tools/make`, dir, version, bin)
	return h
}

func run(t *testing.T, dir, name string, args ...string) string {
	t.Helper()
	cmd := exec.Command(name, args...)
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	return string(out)
}

// A step is a command, or a block of them, and what the page says of its output.
type step struct {
	line     int
	commands string
	prints   []string // the whole output, with … for any lines
	contains []string // parts of it, where prints is nil
}

var quoted = regexp.MustCompile(`(?m) # .*: "(.+)"$`)

// steps returns what a page runs, and saves its programs in dir.
func steps(t *testing.T, page, text, dir string) (all []step) {
	for _, b := range blocks(text) {
		why, skipped := strings.CutPrefix(b.text, notRun)
		switch {
		case skipped:
			why, _, _ = strings.Cut(why, "\n")
			t.Logf("line %d is not run: %s", b.line, why)
		case b.kind == "sh":
			s := step{line: b.line, commands: b.text}
			for _, m := range quoted.FindAllStringSubmatch(b.text, -1) {
				s.contains = append(s.contains, m[1])
			}
			all = append(all, s)
		case b.kind == "console":
			for line := range strings.Lines(b.text) {
				if command, ok := strings.CutPrefix(line, "$ "); ok {
					all = append(all, step{line: b.line, commands: command, prints: []string{}})
					continue
				}
				last := &all[len(all)-1]
				last.prints = append(last.prints, strings.TrimSuffix(line, "\n"))
			}
		case b.file() != "":
			to := filepath.Join(dir, b.file())
			require.NoFileExists(t, to)
			require.NoError(t, os.MkdirAll(filepath.Dir(to), 0o755))
			require.NoError(t, os.WriteFile(to, []byte(b.text), 0o600))
		case b.kind == "python" && page == readme:
			var prints []string
			for _, m := range regexp.MustCompile(`(?m)\bprint\(.*\)  # (.*)$`).FindAllStringSubmatch(b.text, -1) {
				prints = append(prints, m[1])
			}
			require.NotEmpty(t, prints)
			all = append(all, step{b.line, "(cd ..; PYTHONPATH=gpufd/python python3 -B - <<'END'\n" + b.text + "END\n)\n", prints, nil})
		case b.kind == "text", b.kind == "go" && (page == tutorial || page == readme): // TestTutorial, tests.TestReadmesProgram
		default:
			t.Errorf("line %d: a block of %q: want sh, console, text, or a program whose first line is a comment with its file's name", b.line, b.kind)
		}
	}
	require.NotEmpty(t, all)
	return all
}

const mark = "@@@"

// follow runs a page's steps in one shell, in a checkout of its own (README.md makes one itself).
// The page ends what it starts, and leaves nothing that git status shows.
func (h *home) follow(t *testing.T, page string) {
	b, err := os.ReadFile(page)
	require.NoError(t, err)
	for _, b := range blocks(string(b)) {
		needTools(t, b.text)
	}
	dir, err := os.MkdirTemp(h.dir, "p")
	require.NoError(t, err)
	checkout, at := filepath.Join(dir, "gpufd"), dir
	if page != readme {
		run(t, dir, "cp", "-r", h.at("checkout"), checkout)
		if at = checkout; page != tutorial {
			at = filepath.Join(checkout, "build/_howto") // as docs/README.md says
		}
	}
	for _, name := range []string{at, filepath.Join(dir, "run"), filepath.Join(dir, "module")} {
		require.NoError(t, os.MkdirAll(name, 0o700))
	}
	require.NoError(t, os.WriteFile(filepath.Join(dir, "module/go.mod"), []byte("module example.com/reader\n\ngo 1.26\n"), 0o600))
	all := steps(t, page, string(b), at)
	script := "set -eu -o pipefail\n"
	for i, s := range all {
		s.commands = regexp.MustCompile(`(?m)^.*(in your module|in a checkout)`).ReplaceAllStringFunc(s.commands, func(line string) string {
			if strings.HasSuffix(line, "module") {
				return "cd " + dir + "/module\n" + line
			}
			return "cd " + checkout + "\n" + line
		})
		script += fmt.Sprintf("echo %s %d\n%s", mark, i, s.commands)
	}
	require.NoError(t, os.WriteFile(filepath.Join(dir, "script"), []byte(script), 0o600))
	said, err := h.shell(t, dir, at)
	outputs := strings.Split(asides.ReplaceAllString(said, ""), mark+" ")[1:]
	if err != nil {
		require.Fail(t, "a command failed", "line %d: %v\n%s", all[len(outputs)-1].line, err, outputs[len(outputs)-1])
	}
	require.Len(t, outputs, len(all))
	for i, s := range all {
		_, out, _ := strings.Cut(outputs[i], "\n")
		for _, part := range s.contains {
			require.Contains(t, out, part, "line %d", s.line)
		}
		if have := strings.Split(strings.TrimSuffix(out, "\n"), "\n"); s.prints != nil {
			if out == "" {
				have = nil
			}
			require.True(t, printed(s.prints, have), "line %d: %sthe page says\n%s\nand it printed\n%s", s.line, s.commands, strings.Join(s.prints, "\n"), out)
		}
	}
	require.Empty(t, run(t, checkout, "git", "-c", "safe.directory=*", "status", "--porcelain"), "the page leaves these in the checkout")
	if page == readme {
		require.Contains(t, run(t, dir, "go", "version", "-m", "bin/gpufd"), version)
		require.FileExists(t, filepath.Join(dir, "python/gpufd/__init__.py"))
	}
}

// shell runs a page's script, and returns what it and its processes printed.
func (h *home) shell(t *testing.T, dir, at string) (string, error) {
	out, err := os.Create(filepath.Join(dir, "output"))
	require.NoError(t, err)
	defer out.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "bash", filepath.Join(dir, "script"))
	cmd.Dir, cmd.Stdout, cmd.Stderr = at, out, out
	started := "STARTED_BY=" + dir
	cmd.Env = append(slices.Clip(h.env), "PATH="+h.at("tools")+":"+h.at("bin")+":"+os.Getenv("PATH"), "GOBIN="+dir+"/bin", "PIP_TARGET="+dir+"/python",
		"XDG_RUNTIME_DIR="+dir+"/run", "GPUFD_SOFT_DIR="+dir+"/gpu", "PYTHONPATH="+dir+"/gpufd/python", started)
	failure := cmd.Run()
	var left map[int]string
	for late := time.Now().Add(30 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		if left = processes(started); len(left) == 0 || failure != nil || time.Now().After(late) {
			break
		}
	}
	if len(left) > 0 && failure == nil {
		failure = fmt.Errorf("the page leaves processes, and does not say how to end them: %v", left)
	}
	for ; len(left) > 0; left = processes(started) { // one may start another meanwhile
		for pid := range left {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		time.Sleep(10 * time.Millisecond)
	}
	text, err := os.ReadFile(out.Name())
	require.NoError(t, err)
	return string(text), failure
}

// processes returns the commands of those with a variable in their environment.
func processes(variable string) map[int]string {
	all := map[int]string{}
	found, _ := filepath.Glob("/proc/[0-9]*/environ")
	for _, path := range found {
		env, err := os.ReadFile(path)
		if err != nil || !slices.Contains(strings.Split(string(env), "\x00"), variable) {
			continue // it has ended, or is not ours
		}
		pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		command, _ := os.ReadFile(filepath.Join(filepath.Dir(path), "cmdline"))
		all[pid] = strings.ReplaceAll(string(command), "\x00", " ")
	}
	return all
}

// needTools skips t where a page's commands need what this machine has not got.
func needTools(t *testing.T, commands string) {
	for _, tool := range []struct{ word, need, try string }{
		{"python3 ", testenv.Python, "/usr/bin/python3 -c 'import torch, numpy'"},
		{"pip ", testenv.Python, "/usr/bin/python3 -c 'import setuptools, wheel, pip'"},
		{"torchrun ", testenv.Python, "/usr/bin/python3 -c 'import torch.distributed'"},
		{"cc ", testenv.CC, "cc --version"},
		{"curl ", testenv.Curl, "curl --version"},
		{"unshare ", testenv.Namespaces, "unshare --fork --pid --ipc --net true"},
		{"gst-launch-1.0 ", testenv.GStreamer, "gst-inspect-1.0 --exists videotestsrc && gst-inspect-1.0 python"},
		{"setpriv ", testenv.Namespaces, "setpriv --reuid 65534 --regid 65534 --clear-groups true"},
	} {
		if !strings.HasPrefix(commands, notRun) && regexp.MustCompile(`(?m)(^|[$&;|] |=\S+ |\bdo )`+tool.word).MatchString(commands) {
			testenv.Need(t, tool.need, exec.Command("bash", "-c", tool.try).Run() == nil, tool.try)
		}
	}
}

// asides matches what go says the first time, what bash says of a job that was killed, and what a
// command says while it waits on a busy machine.
var asides = regexp.MustCompile(`(?m)^(go: downloading |\S+: line \d+: +\d+ (Killed|Terminated|Interrupt) |Waiting for ).*\n`)

// volatile matches what differs from run to run. The holders, and what would become free, differ
// because a keeper notices a moment later that a process has ended.
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
	return volatile.ReplaceAllString(page[0], "~") == volatile.ReplaceAllString(lines[0], "~") && printed(page[1:], lines[1:])
}

func TestPrinted(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		page, lines string
		want        bool
	}{
		{"a … d", "a b c d", true}, {"a …", "a", true}, {"at:0x12", "at:0xff", true},
		{"a … d", "a b c", false}, {"a", "a b", false}, {"a b", "a", false}, {"3", "4", false}, {"", "a", false},
	} {
		require.Equal(t, c.want, printed(strings.Fields(c.page), strings.Fields(c.lines)), "%q %q", c.page, c.lines)
	}
}
