package ptx

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const document = "../../../../docs/ptx.md"

var rewrite = flag.Bool("update", false, "rewrite the lists of "+document)

// The document lists what the package supports and refuses, and counts it.
func TestDocument(t *testing.T) {
	text, err := os.ReadFile(document)
	require.NoError(t, err)
	want := string(text)
	for name, list := range map[string]string{"instructions": instructionList(), "forms": formList(t), "approximate": approximateList()} {
		begin := "<!-- " + name + " -->\n"
		before, rest, ok := strings.Cut(want, begin)
		require.True(t, ok, name)
		_, after, ok := strings.Cut(rest, "<!-- end -->\n")
		require.True(t, ok, name)
		want = before + begin + list + "<!-- end -->\n" + after
	}
	if *rewrite {
		require.NoError(t, os.WriteFile(document, []byte(want), 0o644))
		return
	}
	require.Equal(t, want, string(text), "docs/ptx.md is old: go test ./cu/soft/internal/ptx -run TestDocument -update")
}

// names lists words in lines of a document's width.
func names(words []string) string {
	slices.Sort(words)
	var s strings.Builder
	width := 0
	for i, w := range words {
		w = "`" + w + "`"
		if i < len(words)-1 {
			w += ","
		}
		switch {
		case width > 0 && width+1+len(w) > 86:
			s.WriteString("\n")
			width = 0
		case width > 0:
			s.WriteString(" ")
			width++
		}
		s.WriteString(w)
		width += len(w)
	}
	return s.String()
}

func instructionList() string {
	var s strings.Builder
	fmt.Fprintf(&s, "%d instructions are supported:\n\n%s\n\n", len(table()), names(slices.Collect(maps.Keys(table()))))
	fmt.Fprintf(&s, "%d are refused:\n\n| for | |\n|---|---|\n", len(refused))
	groups := map[string][]string{}
	for name, what := range refused {
		groups[what] = append(groups[what], name)
	}
	for _, what := range slices.Sorted(maps.Keys(groups)) {
		slices.Sort(groups[what])
		fmt.Fprintf(&s, "| %s | `%s` |\n", what, strings.Join(groups[what], "`, `"))
	}
	return s.String()
}

// formList counts the forms.
func formList(t *testing.T) string {
	var equal, refuses, approx int
	for _, f := range hashForms() {
		switch {
		case f.gpu == "refused":
			refuses++
		case f.approx:
			approx++
		default:
			require.NotEmpty(t, f.gpu, "nothing was recorded of %s: the GPU's bits are not known", f.name)
			equal++
		}
	}
	return fmt.Sprintf(`| forms | |
|---|---|
| equal to the GPU's bits | %d |
| refused by both | %d |
| approximate | %d |
`, equal, refuses, approx)
}

func approximateList() string {
	var s strings.Builder
	s.WriteString("| form | at most |\n|---|---|\n")
	for _, l := range tolerances {
		fmt.Fprintf(&s, "| `%s` | %s |\n", l.form, l.tolerance)
	}
	return s.String()
}
