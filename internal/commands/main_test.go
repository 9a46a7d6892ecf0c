package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Every event that a program prints with --json is listed in docs/commands.md.
func TestRecordsAreListed(t *testing.T) {
	event := regexp.MustCompile(`\.(?:Say|Print)\("([a-z_]+)"`)
	page, err := os.ReadFile("../../docs/commands.md")
	require.NoError(t, err)
	_, common, _ := strings.Cut(string(page), "\n## JSON\n")
	for _, program := range []string{"producer", "consumer", "launch", "ring"} {
		list := byHand(string(page), program)
		require.Contains(t, list, "With `--json`:")
		files, err := filepath.Glob(program + "/*.go")
		require.NoError(t, err)
		seen := 0
		for _, file := range files {
			text, err := os.ReadFile(file)
			require.NoError(t, err)
			for _, m := range event.FindAllStringSubmatch(string(text), -1) {
				require.Regexp(t, `\*\*([a-z_]+, )*`+m[1]+`(, [a-z_]+)*\*\*`, list+common, "%s prints %s", file, m[1])
				seen++
			}
		}
		require.Greater(t, seen, 4, "the pattern finds the events of %s", program)
	}
}
