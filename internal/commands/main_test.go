package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Every event that a program prints with --json is listed in json.md, or among those of all in rest.md.
func TestRecordsAreListed(t *testing.T) {
	event := regexp.MustCompile(`\.(?:Say|Print)\("([a-z_]+)"`)
	for _, program := range []string{"producer", "consumer", "launch", "ring"} {
		_, list, found := strings.Cut("\n"+records, "\n## "+program+"\n")
		require.True(t, found, program)
		list, _, _ = strings.Cut(list, "\n## ")
		files, err := filepath.Glob(program + "/*.go")
		require.NoError(t, err)
		seen := 0
		for _, file := range files {
			text, err := os.ReadFile(file)
			require.NoError(t, err)
			for _, m := range event.FindAllStringSubmatch(string(text), -1) {
				require.Regexp(t, `\*\*([a-z_]+, )*`+m[1]+`(, [a-z_]+)*\*\*`, list+rest, "%s prints %s", file, m[1])
				seen++
			}
		}
		require.Greater(t, seen, 4, "the pattern finds the events of %s", program)
	}
}
