package pages

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var (
	link     = regexp.MustCompile(`\]\(([^)#\s]*)(?:#([^)\s]*))?\)`)
	heading  = regexp.MustCompile(`(?m)^#+ (.*)$`)
	code     = regexp.MustCompile("(?ms)^```.*?^```$")
	noAnchor = regexp.MustCompile(`[^\p{L}\p{N} _-]`)
)

// anchors returns what the headings of a page are linked by.
func anchors(page string) map[string]bool {
	all := map[string]bool{}
	for _, m := range heading.FindAllStringSubmatch(code.ReplaceAllString(page, ""), -1) {
		text := regexp.MustCompile(`\[(.*?)\]\(.*?\)`).ReplaceAllString(m[1], "$1")
		all[strings.ReplaceAll(noAnchor.ReplaceAllString(strings.ToLower(text), ""), " ", "-")] = true
	}
	return all
}

// TestLinks: each link of each page leads to a file that is there, and to a heading in it; and
// docs/README.md links to each page of docs/.
func TestLinks(t *testing.T) {
	t.Parallel()
	out, err := exec.Command("git", "-C", root, "ls-files", "-co", "--exclude-standard", "*.md").Output()
	if err != nil {
		t.Skip("needs a checkout of gpufd")
	}
	pages := map[string]string{}
	for name := range strings.FieldsSeq(string(out)) {
		if strings.HasPrefix(name, "internal/commands/") { // parts of docs/commands.md
			continue
		}
		if b, err := os.ReadFile(filepath.Join(root, name)); err == nil {
			pages[name] = string(b)
		}
	}
	listed := map[string]bool{"docs/README.md": true}
	for name, text := range pages {
		for _, m := range link.FindAllStringSubmatch(code.ReplaceAllString(text, ""), -1) {
			if strings.Contains(m[1], "://") {
				continue
			}
			to := name
			if m[1] != "" {
				to = filepath.Join(filepath.Dir(name), m[1])
				_, err := os.Stat(filepath.Join(root, to))
				require.NoError(t, err, "%s links to it", name)
			}
			if m[2] != "" && strings.HasSuffix(to, ".md") {
				require.True(t, anchors(pages[to])[m[2]], "%s links to %s, which has no heading %s", name, to, m[2])
			}
			listed[to] = listed[to] || name == "docs/README.md"
		}
	}
	for name := range pages {
		require.True(t, filepath.Dir(name) != "docs" || listed[name], "docs/README.md does not list %s", name)
	}
	require.LessOrEqual(t, strings.Count(pages["README.md"], "\n"), 120, "lines of README.md")
}

// TestTutorial: each lesson has its section, in order, and the Go code there is the lesson's, but
// for the lines that … stands for.
func TestTutorial(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(tutorial)
	require.NoError(t, err)
	lessons, err := filepath.Glob(root + "/examples/go/[0-9][0-9]-*")
	require.NoError(t, err)
	lesson := regexp.MustCompile(`\.\./examples/go/(\d\d-[a-z0-9-]+)/main\.go`)
	for section := range strings.SplitSeq(string(text), "\n## ") {
		if !lesson.MatchString(section) {
			continue
		}
		require.NotEmpty(t, lessons)
		require.Equal(t, filepath.Base(lessons[0]), lesson.FindStringSubmatch(section)[1])
		files, err := filepath.Glob(lessons[0] + "/*.go")
		require.NoError(t, err)
		var source string
		for _, name := range files {
			b, err := os.ReadFile(name)
			require.NoError(t, err)
			source += string(b)
		}
		quotes := 0
		for _, b := range blocks(section) {
			if b.kind == "go" {
				rest := flush(source)
				for piece := range strings.SplitSeq(flush(b.text), "\n…\n") {
					_, after, found := strings.Cut(rest, "\n"+strings.Trim(piece, "\n")+"\n")
					require.True(t, found, "%s has not got:\n%s", lessons[0], piece)
					rest = "\n" + after
				}
				quotes++
			}
		}
		require.NotZero(t, quotes, "%s is not quoted", lessons[0])
		lessons = lessons[1:]
	}
	require.Empty(t, lessons, "without a section")
}

// flush returns text without its indentation, with an empty line before it.
func flush(text string) string {
	return "\n" + regexp.MustCompile(`(?m)^[ \t]+|[ \t]+$`).ReplaceAllString(text, "")
}
