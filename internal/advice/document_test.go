package advice

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var update = flag.Bool("update", false, "write the sections of docs/doctor.md")

const (
	document = "../../docs/doctor.md"
	begin    = "<!-- The rest is written by go test ./internal/advice -run TestDocument -update -->\n"
)

// sections are what docs/doctor.md says of each id.
func sections() string {
	var b strings.Builder
	for _, c := range Causes {
		fmt.Fprintf(&b, "\n### %s\n%s. *Why it matters:* %s.\n- *What to do:* %s.\n", c.ID, capital(c.Title), c.Why, c.Do)
		if c.Untried != "" {
			fmt.Fprintf(&b, "- **Not tried:** %s.\n", c.Untried)
		}
	}
	return b.String()
}

func capital(s string) string { return strings.ToUpper(s[:1]) + s[1:] }

// Each id has its section, and each section an id.
func TestDocument(t *testing.T) {
	b, err := os.ReadFile(document)
	require.NoError(t, err)
	head, rest, ok := strings.Cut(string(b), begin)
	require.True(t, ok, "%s has no line %s", document, begin)
	if *update {
		require.NoError(t, os.WriteFile(document, []byte(head+begin+sections()), 0o644))
		return
	}
	require.Equal(t, sections(), rest, "go test ./internal/advice -run TestDocument -update writes it")
	require.NotContains(t, head, "\n### ", "a section without an id")
}

// Each id that the code names is one of the table's, and none is there twice.
func TestIDs(t *testing.T) {
	seen := map[string]bool{}
	for _, c := range Causes {
		require.False(t, seen[c.ID], c.ID)
		require.Regexp(t, `^[a-z0-9-]+$`, c.ID)
		require.NotEmpty(t, c.Title+c.Why+c.Do)
		seen[c.ID] = true
	}
	files, err := filepath.Glob("../doctor/*.go")
	require.NoError(t, err)
	found := 0
	for _, file := range files {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		for _, m := range regexp.MustCompile(`\b(?:row\("([^"]+)", \w+, "([^"]*)"|failed\("([^"]+)"|Mark: +"([^"]+)"|err, "([a-z-]+)"\})`).FindAllStringSubmatch(string(text), -1) {
			for _, id := range m[1:] {
				if id != "" {
					require.True(t, seen[id], "%s: %q", file, id)
					found++
				}
			}
		}
	}
	require.Greater(t, found, 50, "the pattern finds them")
}
