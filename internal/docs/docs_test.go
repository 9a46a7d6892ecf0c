package main

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestReadmeIsShort: README.md can be read in a few minutes.
func TestReadmeIsShort(t *testing.T) {
	text, err := os.ReadFile("../../README.md")
	require.NoError(t, err)
	require.LessOrEqual(t, strings.Count(string(text), "\n"), 120, "lines of README.md")
	for _, b := range blocks(string(text)) {
		require.NotContains(t, "\n"+b.text, "\n$ ", "line %d: it cannot be pasted", b.line)
		if b.kind == "python" {
			require.LessOrEqual(t, strings.Count(b.text, "\n"), 10, "lines of Python")
		}
	}
}

// TestTwoCommands: README.md's first block has make demo and make test. .ci/run begins with them, has
// the gate run these tests no second time, and is what the workflow runs, in an image with the Go that
// go.mod asks for.
func TestTwoCommands(t *testing.T) {
	read := func(path string) string {
		text, err := os.ReadFile("../../" + path)
		require.NoError(t, err)
		return string(text)
	}
	makes := func(text string) []string {
		return regexp.MustCompile(`(?m)^(?:\S+=\S+ )?(make \w+)`).FindAllString(text, -1)
	}
	require.Equal(t, []string{"make demo", "make test"}, makes(blocks(read("README.md"))[0].text))
	require.Equal(t, []string{"make demo", "GPUFD_CALLED=$called make test", "make gate"}, makes(read(".ci/run")))
	require.Contains(t, read(".ci/run"), "\nmake gate CALLED=\"$called\"\n")
	workflow := read(".github/workflows/ci.yml")
	require.Regexp(t, `(?m)^ *- run: \.ci/run$`, workflow)
	require.Contains(t, workflow, "--privileged")
	version := regexp.MustCompile(`(?m)^go (\d+\.\d+)`).FindStringSubmatch(read("go.mod"))[1]
	require.Contains(t, workflow, "image: golang:"+version+"-bookworm\n")
	require.Contains(t, read("README.md"), "actions/workflows/ci.yml/badge.svg")
}

// TestResults: README.md has a sentence of results, and docs/benchmarks/README.md a table of five,
// both made of docs/benchmarks.
func TestResults(t *testing.T) {
	for _, page := range resultPages {
		rows, err := page.rows("../../docs/benchmarks")
		require.NoError(t, err)
		if page.path == "README.md" {
			require.Regexp(t, `^[^|.]+\d µs[^|]+\(C \d+ µs\)[^|]+of \d+ bars [^|]+ meets \d+:[^|]+\.md\)\.\n$`, rows)
			require.NotContains(t, rows, "NOT met")
		} else {
			require.Contains(t, rows, "NOT met")
			require.Equal(t, 2+5, strings.Count(rows, "\n| ")+strings.Count(rows, "\n|-")+1, page.path)
		}
		text, err := os.ReadFile(filepath.Join("../..", page.path))
		require.NoError(t, err)
		want, err := insert(page.path, text, rows)
		require.NoError(t, err)
		require.Equal(t, string(want), string(text), "run make docs")
		_, err = insert(page.path, []byte("# nothing\n"), rows)
		require.ErrorContains(t, err, page.path+" has no lines")
	}
	met, err := barsMet("../../docs/benchmarks", "")
	require.NoError(t, err)
	require.NotContains(t, met, "README")
	require.Regexp(t, `\[channel\]\(channel\.md\) \d+ of 20\b`, met)
}

var link = regexp.MustCompile(`\]\(([^)#\s]+)(#[^)]*)?\)`)

// TestMap: docs/README.md has each document of docs/ once, and its links lead somewhere, as
// do those of README.md.
func TestMap(t *testing.T) {
	linked := links(t, "../../docs/README.md")
	err := filepath.WalkDir("../../docs", func(path string, d fs.DirEntry, err error) error {
		if err == nil && strings.HasSuffix(path, ".md") && path != "../../docs/README.md" {
			require.Equal(t, 1, linked[path], "links of docs/README.md to %s", path)
		}
		return err
	})
	require.NoError(t, err)
	require.Equal(t, 1, links(t, "../../README.md")["../../docs/README.md"])
}

// links counts the files that a page links to, all of which are there.
func links(t *testing.T, page string) map[string]int {
	t.Helper()
	text, err := os.ReadFile(page)
	require.NoError(t, err)
	found := map[string]int{}
	for _, m := range link.FindAllStringSubmatch(string(text), -1) {
		if !strings.Contains(m[1], "://") {
			path := filepath.Join(filepath.Dir(page), m[1])
			require.FileExists(t, path, "%s links to it", page)
			found[path]++
		}
	}
	return found
}

// TestRecords: what a command prints is found in its sources, however it is put together.
func TestRecords(t *testing.T) {
	dir := t.TempDir()
	write := func(text string) {
		require.NoError(t, os.WriteFile(filepath.Join(dir, "a.go"), []byte("package p\n"+text), 0o600))
	}
	write(`func (x *T) f(m map[string]int) {
		x.app.Say("one", cli.Fields{"b": 1, "a": 2}, "line")
		x.app.Say("", nil, "for people")
		who := cli.Fields{"pid": 1}
		x.g(who)
		x.app.Result["kept"] = 1
		maps.Copy(x.app.Result, who)
		x.app.Say("made", made(), "line")
		x.app.SayWay("fill", "filling", nil)
		x.object(cli.Fields{"event": "serving", "names": 1})
		x.result = cli.Fields{"rows": 1}
	}
	func (x *T) g(who cli.Fields) {
		who["error"] = ""
		x.app.Say("two", who, "line")
	}
	func made() cli.Fields {
		f := cli.Fields{"x": 1}
		f["y"] = 2
		return f
	}`)
	found, err := recordsOf(dir)
	require.NoError(t, err)
	require.Equal(t, records{
		"one": {"a", "b"}, "two": {"error", "pid"}, "made": {"x", "y"}, "filling": {"on", "why"},
		"serving": {"names"}, "result": {"fill", "kept", "pid", "rows"},
	}, found)
	write(`func f(a *App, m map[string]any) { a.Say("one", other(m), "line") }`)
	_, err = recordsOf(dir)
	require.ErrorContains(t, err, `what event "one" holds`)
	write(`func f(a *App, event string) { a.Say(event, nil, "line") }`)
	_, err = recordsOf(dir)
	require.ErrorContains(t, err, "an event whose name")
}

// TestMembers: a struct's members are those of its tags, lists of structs with theirs.
func TestMembers(t *testing.T) {
	dir := t.TempDir()
	text := "package p\ntype A struct {\n X int `json:\"x,omitempty\"`\n Y int `json:\"-\"`\n B []B `json:\"b\"`\n *C\n z int\n}\ntype B struct {\n C int `json:\"c\"`\n C\n}\ntype C struct {\n D int `json:\"d\"`\n}\n"
	require.NoError(t, os.WriteFile(filepath.Join(dir, "a.go"), []byte(text), 0o600))
	members, err := membersOf(dir, "A")
	require.NoError(t, err)
	require.Equal(t, []string{"x", "b [c, d]", "d"}, members)
	require.Equal(t, "- **e**: b, x\n  - each of b: c, d\n- **f**\n", records{"e": {"b [c, d]", "x"}, "f": nil}.list())
	require.Equal(t, "- **e**: b\n  - each of a of b: c\n  - in b: a\n", records{"e": {"a of b [c]", "b {a}"}}.list())
	require.Equal(t, []string{"a", "b [c]", "d {e}"}, merged([]string{"a", "b", "b [c]", "d", "d {e}"}))
	_, err = membersOf(dir, "Nobody")
	require.ErrorContains(t, err, "has no struct Nobody")
}

// TestEnvironment: a variable that nobody describes is noticed, in whatever language, and none
// that is described has gone.
func TestEnvironment(t *testing.T) {
	soft, err := softVariables("../..")
	require.NoError(t, err)
	all, err := namedVariables("../..")
	require.NoError(t, err)
	table, err := describe(all, soft)
	require.NoError(t, err)
	require.Contains(t, table, "GPUFD_SOFT_MEMORY")
	_, err = describe(all, "")
	require.ErrorContains(t, err, "GPUFD_SOFT_DEVICES")
	for _, described := range []map[string]string{variables, developers} {
		for name, does := range described {
			if !ours.MatchString(name) {
				continue
			}
			require.Contains(t, all, name)
			delete(described, name)
			_, err := describe(all, soft)
			described[name] = does
			require.ErrorContains(t, err, name)
		}
	}
	for name := range between {
		require.Contains(t, all, name)
	}
	dir := t.TempDir()
	for name, text := range map[string]string{"a.go": "package a\n\nvar x = \"GPUFD_A\" // GPUFD_NOT", "b.py": "os.environ.get('GPUFD_B')", "c.c": `getenv("GPUFD_C")`, "Makefile": "\tGPUFD_M=1 go test", "d.md": "GPUFD_NOT"} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	all, err = namedVariables(dir)
	require.NoError(t, err)
	require.Equal(t, []string{"GPUFD_A", "GPUFD_B", "GPUFD_C", "GPUFD_M"}, all)
}

// TestHelp: what depends on who asks is not in the page, and cobra's own commands are not.
func TestHelp(t *testing.T) {
	require.Equal(t, "in /tmp/gpufd-UID/s", anybodys("in /tmp/gpufd-1000/s\n\nGlobal Flags:\n  --json\n"))
	require.Equal(t, []string{"keeper", "ls"}, below("x\nAvailable Commands:\n  completion  Generate\n  help        Help\n  keeper      Keep\n  ls          List\n\nFlags:\n  x  y\n"))
}

// TestSeparate: what all helps end with is told once, and has to be the same.
func TestSeparate(t *testing.T) {
	all := []command{{[]string{"a"}, "A\n\nExit codes: 0"}, {[]string{"b"}, "B\n\nExit codes: 0"}, {[]string{"gpufd"}, "G\n\nExit codes: 9\n\nC"}}
	ending, err := separate(all)
	require.NoError(t, err)
	require.Equal(t, "Exit codes: 0", ending)
	require.Equal(t, []string{"A", "B", "G\n\nExit codes: 9\n\nC"}, []string{all[0].help, all[1].help, all[2].help})
	_, err = separate([]command{{[]string{"a"}, "A\n\nExit codes: 0"}, {[]string{"b"}, "B\n\nExit codes: 1"}})
	require.ErrorContains(t, err, "other words")
	_, err = separate(all[2:])
	require.ErrorContains(t, err, "no help has")
}

// TestDrift: a page that is not what it would be made anew is named, with the line.
func TestDrift(t *testing.T) {
	page := filepath.Join(t.TempDir(), "page.md")
	require.NoError(t, write(false, page, []byte("a\nb\n")))
	require.NoError(t, write(true, page, []byte("a\nb\n")))
	require.ErrorContains(t, write(true, page, []byte("a\nc\n")), "line 2 would be\nc")
	require.Error(t, write(true, page, []byte("a\nb\nc\n")))
	require.Error(t, write(true, page, []byte("a\n")))
}

// TestChangelog: each heading stands once under the version that it belongs to, so that a
// merge has not brought an old list back.
func TestChangelog(t *testing.T) {
	text, err := os.ReadFile("../../CHANGELOG.md")
	require.NoError(t, err)
	seen := map[string]bool{}
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, "## ") {
			clear(seen)
		}
		if strings.HasPrefix(line, "#") || strings.HasPrefix(line, "- ") {
			require.False(t, seen[line], "stands twice: %s", line)
			seen[line] = true
		}
		require.NotRegexp(t, `^- \[`+`New API`, line, "belongs under its package's heading")
	}
}
