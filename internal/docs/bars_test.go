package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestBars: all bars of all pages are in one table, and what is not met leads to its reason.
func TestBars(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	const head = "\n## Bars\n\n| claim | limit | measured | met |\n| --- | --: | --: | --- |\n"
	write("handoff.md", "# H"+head+"| p50 of a, next | 1 | 1.2 | **NOT met** |\n| p50 of b | 1 | 0.9 | met |\n\n## Other\n\n| x |\n")
	write("calls.md", "# C"+head+"| p50 of a, next | 1 | 2 | **NOT met** |\n| c | 1 | – | not measured |\n")
	write("empty.md", "# nothing\n")
	write("others.csv", "where,claim,limit,measured,verdict,unless\nX,\"of d, too\",3 s,2 s,met,\nX,more b,1,,not measured,handoff: p50 of b\nX,more c,1,,not measured,handoff: p50 of c\n")
	page := "# Page\n" + beginBars + "old\n" + endBars + "### Why, then?\n\nOf handoff: `p50 of x`, `p50 of…next`.\n"
	text, err := withBars("page.md", []byte(page), dir)
	require.NoError(t, err)
	require.Equal(t, "# Page\n"+beginBars+`Of 6 bars 2 are met, 2 are not, and 2 were not measured.

| where | bar | limit | measured | |
|---|---|---:|---:|---|
| [calls](calls.md) | p50 of a, next | 1 | 2 | **NOT met**, and nobody knows why |
| [calls](calls.md) | c | 1 | – | not measured |
| [handoff](handoff.md) | p50 of a, next | 1 | 1.2 | **NOT met**: [why](#why-then) |
| [handoff](handoff.md) | p50 of b | 1 | 0.9 | met |
| X | of d, too | 3 s | 2 s | met |
| X | more c | 1 |  | not measured |
`+endBars+"### Why, then?\n\nOf handoff: `p50 of x`, `p50 of…next`.\n", string(text))
	again, err := withBars("page.md", text, dir)
	require.NoError(t, err)
	require.Equal(t, string(text), string(again))
	_, err = withBars("page.md", []byte("# nothing\n"), dir)
	require.ErrorContains(t, err, "page.md has no lines")
	write("others.csv", "where\nX,Y\n")
	_, err = barsOf(dir)
	require.ErrorContains(t, err, "others.csv: ")
}

// TestReasons: the reasons of docs/benchmarks/README.md are of bars that there are.
func TestReasons(t *testing.T) {
	const dir = "../../docs/benchmarks"
	text, err := os.ReadFile(filepath.Join(dir, "README.md"))
	require.NoError(t, err)
	all, err := barsOf(dir)
	require.NoError(t, err)
	reasons := reasonsIn(text)
	require.NotEmpty(t, reasons)
	for _, r := range reasons {
		for _, claim := range r.claims {
			one, found := reason{file: r.file, claims: []string{claim}}, false
			for _, b := range all {
				found = found || one.isOf(b)
			}
			require.True(t, found, "%s: %s", r.file, claim)
		}
	}
	want, err := withBars("README.md", text, dir)
	require.NoError(t, err)
	require.Equal(t, string(want), string(text), "run make docs")
}
