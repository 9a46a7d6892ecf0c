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
