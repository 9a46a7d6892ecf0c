package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const tutorial = "../../docs/tutorial.md"

// lessonLink matches the link of a section to its lesson.
var lessonLink = regexp.MustCompile(`\.\./examples/go/(\d\d-[a-z0-9-]+)/main\.go`)

// TestTutorial: each lesson has its section, in order, and the Go code there is the lesson's.
func TestTutorial(t *testing.T) {
	text, err := os.ReadFile(tutorial)
	require.NoError(t, err)
	lessons, err := filepath.Glob("../../examples/go/[0-9][0-9]-*")
	require.NoError(t, err)
	var sections []string
	for _, section := range strings.Split(string(text), "\n## ")[1:] {
		if lessonLink.MatchString(section) {
			sections = append(sections, section)
		}
	}
	require.Len(t, sections, len(lessons))
	for i, dir := range lessons {
		require.Equal(t, filepath.Base(dir), lessonLink.FindStringSubmatch(sections[i])[1])
		quoted := 0
		for _, b := range blocks(sections[i]) {
			if b.kind == "go" {
				require.NoError(t, quotes(b.text, sources(t, dir)), "section %d", i+1)
				quoted++
			}
		}
		require.NotZero(t, quoted, "section %d quotes nothing of its lesson", i+1)
	}
}

// sources are the lines of a lesson's files.
func sources(t *testing.T, dir string) (all string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	require.NoError(t, err)
	for _, name := range files {
		text, err := os.ReadFile(name)
		require.NoError(t, err)
		all += string(text)
	}
	return all
}

// quotes fails unless the lines of code are lines of source, in their order and one after the
// other. A line with … stands for any lines. Indentation does not count.
func quotes(code, source string) error {
	rest := flush(source)
	for piece := range strings.SplitSeq(flush(code), "\n…\n") {
		piece = "\n" + strings.Trim(piece, "\n") + "\n"
		_, behind, found := strings.Cut(rest, piece)
		if !found {
			return fmt.Errorf("that is not in the lesson:%s", piece)
		}
		rest = "\n" + behind
	}
	if strings.TrimSpace(code) == "" {
		return errors.New("nothing is quoted")
	}
	return nil
}

// flush is text without its indentation, with an empty line at its beginning.
func flush(text string) string {
	lines := strings.Split(text, "\n")
	for i := range lines {
		lines[i] = strings.TrimSpace(lines[i])
	}
	return "\n" + strings.Join(lines, "\n")
}

func TestQuotes(t *testing.T) {
	const source = "a\n\tb\n\tc\nd\ne\n"
	for _, code := range []string{"a\nb\n", "b\n  c\nd\n", "a\n…\nd\n", "a\n…\nc\n…\ne\n"} {
		require.NoError(t, quotes(code, source), "%q", code)
	}
	for _, code := range []string{"", "a\nc\n", "c\n…\nb\n", "a\n…\na\n", "ab\n", "x\n"} {
		require.Error(t, quotes(code, source), "%q", code)
	}
}
